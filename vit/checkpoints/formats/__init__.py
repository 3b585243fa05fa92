"""One small module per format: its marks, its names and its settings."""

from vit.checkpoints.formats import (
    huggingface,
    native,
    others,
    self_supervised,
    timm,
    torchvision,
)

FORMATS = (
    native.OWN,
    self_supervised.MAE,
    self_supervised.DINO,
    self_supervised.DINOV2,
    self_supervised.MOCO,
    self_supervised.JEPA,
    huggingface.VIT_MAE,
    huggingface.DINOV2,
    huggingface.VIT,
    torchvision.TORCHVISION,
    others.SWAG,
    others.MMPRETRAIN,
    others.GOOGLE,
    timm.TIMM,
)
"""The first that fits is taken; TIMM, which has no marks, is last."""
