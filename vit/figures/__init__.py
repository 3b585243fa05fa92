"""Tensors in, matplotlib figures out. The only room with matplotlib; it never sees a model."""

from vit.figures.attention import attention_figure
from vit.figures.curves import curves_figure
from vit.figures.images import reconstruction_figure, sheet_figure
from vit.figures.scaling import scaling_figure
from vit.figures.style import save_figure

__all__ = [
    "attention_figure",
    "curves_figure",
    "reconstruction_figure",
    "save_figure",
    "scaling_figure",
    "sheet_figure",
]
