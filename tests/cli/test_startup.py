"""How `vit` and train.py start alike."""

from __future__ import annotations

import warnings

from vit.cli.startup import start


def test_a_warning_is_one_line_by_the_program(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # put back afterwards
    assert start("program", lambda: 3) == 3
    assert warnings.formatwarning("two\nlines", UserWarning, "file.py", 1) == "program: warning: two lines\n"
