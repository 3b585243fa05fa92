"""Pretrain small vision transformers by masked patch reconstruction, and look inside them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit.checkpoints import load_model, save_model
    from vit.encoder import VisionTransformer
    from vit.evaluation import evaluate
    from vit.interpret import AttentionMaps
    from vit.look.predict import embed, predict
    from vit.mae import MaskedAutoencoder
    from vit.runs import __version__ as __version__
    from vit.train import fit
    from vit.training.step import Callback

__all__ = [
    "AttentionMaps",
    "Callback",
    "MaskedAutoencoder",
    "VisionTransformer",
    "embed",
    "evaluate",
    "fit",
    "load_model",
    "predict",
    "save_model",
]

_ROOMS = {
    "load_model": "checkpoints",
    "save_model": "checkpoints",
    "predict": "look.predict",
    "embed": "look.predict",
    "evaluate": "evaluation",
    "VisionTransformer": "encoder",
    "AttentionMaps": "interpret",
    "MaskedAutoencoder": "mae",
    "fit": "train",
    "Callback": "training.step",
    "__version__": "runs",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that `import vit` does not import torch."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'vit' has no attribute {name!r}")
    return getattr(import_module(f"vit.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
