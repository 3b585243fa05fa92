"""What several studies and notebooks measure: correlations, logits, tokens, gradients."""
