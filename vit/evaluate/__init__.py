"""What a model has learned, in numbers."""
