"""What studies look at inside a model: weights, gradients, logits, tokens, what a reconstruction rests on."""
