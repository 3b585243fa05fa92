"""Measure what a model has learned: `evaluate(model, data, methods, prepare, compute)` -> figures."""

from vit.evaluate.classification import EvaluationError
from vit.evaluate.evaluation import METHODS, Evaluation, Options, as_summary, evaluate, obstacles

__all__ = ["METHODS", "Evaluation", "EvaluationError", "Options", "as_summary", "evaluate", "obstacles"]
