"""Measures that several studies share: correlations, attention logits."""
