"""Figures and the report of a run, finished or not, and a comparison with other runs."""
