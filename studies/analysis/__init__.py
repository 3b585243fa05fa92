"""Measures that several studies share: correlations, attention scores."""
