"""Measure what a model has learned: `evaluate(model, data, methods, prepare, compute)` -> figures."""

from vit.evaluate.evaluation import METHODS, Evaluation, Options, as_summary, evaluate

__all__ = ["METHODS", "Evaluation", "Options", "as_summary", "evaluate"]
