"""Tensors in, matplotlib figures and pages out.

Only this package uses matplotlib; it never sees a model. Its modules are imported one by one: who
draws a map needs neither charts nor the page.

Every figure has a heading of `title` and `subtitle`, unless the title is empty.
"""
