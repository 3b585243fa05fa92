"""Tensors in, matplotlib figures and pages out.

Only this package uses matplotlib; it never sees a model.

Every figure has a heading of `title` and `subtitle`, unless the title is empty.
"""

from vit.figures.attention import attention_figure, masked_figure, strongest_figure
from vit.figures.classification import confusion_figure, reliability_figure, why_not_drawn
from vit.figures.curves import Curve, curves_figure
from vit.figures.dynamics import dynamics_figure
from vit.figures.explore import ExploredImage, Moment, explore_page
from vit.figures.images import patch_colours_figure, reconstruction_figure, sheet_figure
from vit.figures.measures import Panel, layers_figure
from vit.figures.style import png_of, save_figure

__all__ = [
    "Curve",
    "ExploredImage",
    "Moment",
    "Panel",
    "attention_figure",
    "confusion_figure",
    "curves_figure",
    "dynamics_figure",
    "explore_page",
    "layers_figure",
    "masked_figure",
    "patch_colours_figure",
    "png_of",
    "reconstruction_figure",
    "reliability_figure",
    "save_figure",
    "sheet_figure",
    "strongest_figure",
    "why_not_drawn",
]
