"""Tensors in, matplotlib figures and pages out.

Only this package uses matplotlib; it never sees a model.

Every figure has a heading of `title` and `subtitle`, unless the title is empty.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "attention": ("attention_figure", "masked_figure"),
    "classification": ("confusion_figure", "reliability_figure"),
    "curves": ("Curve", "curves_figure"),
    "dynamics": ("dynamics_figure",),
    "explore": ("Moment", "explore_page"),
    "images": ("mistakes_figure", "reconstruction_figure", "sheet_figure"),
    "measures": ("heads_figure",),
    "style": ("png_of", "save_figure"),
}
"""The names of each module."""


def __getattr__(name: str) -> Any:
    """Import a name on first use: who draws a map needs neither charts nor the page."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"vit.figures.{module}"), name)
    raise AttributeError(f"module 'vit.figures' has no attribute {name!r}")
