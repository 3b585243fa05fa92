"""Measure what a model has learned: `evaluate(model, data, methods, prepare, compute)` -> scores.

Throughout this package:
    model, encoder  on the device of `compute`; put into eval mode, and back afterwards
    images          uint8 (N, C, h, w), of any size
    prepare         uint8 (B, C, h, w) -> the model's input (B, C, H, W)
    compute         device and precision
    batch_size      images at a time
    labels          int64 (N,)
    features        float32 (N, D), or (layers, N, D) for several layers, on the CPU
    logits          float32 (N, classes), on the CPU
"""

from vit.evaluation.evaluation import METHODS, Evaluation, Options, as_summary, evaluate, obstacles

__all__ = [
    "METHODS",
    "Evaluation",
    "Options",
    "as_summary",
    "evaluate",
    "obstacles",
]
