"""Tensors in, matplotlib figures and pages out.

Only this package uses matplotlib; it never sees a model.

Every figure has a heading of `title` and `subtitle`, unless the title is empty.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit.figures.attention import attention_figure, masked_figure, strongest_figure
    from vit.figures.classification import (
        classification_figures,
        confusion_figure,
        reliability_figure,
    )
    from vit.figures.curves import Curve, curves_figure
    from vit.figures.dynamics import dynamics_figure
    from vit.figures.explore import ExploredImage, Moment, explore_page
    from vit.figures.images import (
        mistakes_figure,
        patch_colours_figure,
        reconstruction_figure,
        sheet_figure,
    )
    from vit.figures.measures import Panel, layers_figure
    from vit.figures.style import png_of, save_figure

__all__ = [
    "Curve",
    "ExploredImage",
    "Moment",
    "Panel",
    "attention_figure",
    "classification_figures",
    "confusion_figure",
    "curves_figure",
    "dynamics_figure",
    "explore_page",
    "layers_figure",
    "masked_figure",
    "mistakes_figure",
    "patch_colours_figure",
    "png_of",
    "reconstruction_figure",
    "reliability_figure",
    "save_figure",
    "sheet_figure",
    "strongest_figure",
]

_MODULES = {
    "attention": ("attention_figure", "masked_figure", "strongest_figure"),
    "classification": ("classification_figures", "confusion_figure", "reliability_figure"),
    "curves": ("Curve", "curves_figure"),
    "dynamics": ("dynamics_figure",),
    "explore": ("ExploredImage", "Moment", "explore_page"),
    "images": ("mistakes_figure", "patch_colours_figure", "reconstruction_figure", "sheet_figure"),
    "measures": ("Panel", "layers_figure"),
    "style": ("png_of", "save_figure"),
}


def __getattr__(name: str) -> Any:
    """Import a name on first use: who draws a map needs neither charts nor the page."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"vit.figures.{module}"), name)
    raise AttributeError(f"module 'vit.figures' has no attribute {name!r}")
