"""Our training step against the machine's own limit, against peers, and against itself without each technique.

Run it from a clone: `python -m bench --help`.
"""
