"""Measures that studies and notebooks share: correlations, logits, gradients."""
