"""Our training step against the machine's limit, against peers, and without each technique.

Run it from a clone: `python -m bench --help`.
"""
