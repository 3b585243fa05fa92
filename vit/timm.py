"""The package's models for timm: `import vit.timm`, then `timm.create_model("vit_tiny_p4_cifar10", pretrained=True)`.

timm only finds registered models, so this module must be imported; it imports timm, which takes seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from timm.models import build_model_with_cfg, register_model
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor

from vit.checkpoints import load_model
from vit.checkpoints.formats.native import native_hints
from vit.checkpoints.formats.timm import timm_config
from vit.checkpoints.reading import read_checkpoint
from vit.config import ViTConfig
from vit.data.augment import Normalization
from vit.data.decode import Preparation
from vit.pretrained import WEIGHTS, entry_points

default_cfgs: dict[str, dict[str, Any]] = {}
"""Input preparation, classes and weights file by the entry point's name; timm looks for it here."""


def _register(name: str, folder: Path) -> None:
    """Register a model with timm, after comparing its SHA-256, which timm does not do."""
    hints = native_hints(read_checkpoint(folder))
    normalize = Normalization(list(hints.mean or ()), list(hints.std or ()))
    prepared = Preparation(hints.interpolation or "bicubic", hints.crop_share or 1.0)
    config = timm_config(ViTConfig(**hints.encoder), normalize, prepared, hints.class_names)
    labels = {"label_names": config["label_names"]} if "label_names" in config else {}
    default_cfgs[name] = config["pretrained_cfg"] | labels | {"file": str(folder / WEIGHTS)}

    def encoder_for(tensors: dict[str, Tensor], model: VisionTransformer) -> dict[str, Tensor]:
        known = {key: hints.encoder[key] for key in ("num_heads", "global_pool") if key in hints.encoder}
        encoder = load_model(tensors, part="encoder", mean=normalize.mean, std=normalize.std, **known)
        return checkpoint_filter_fn(encoder.state_dict(), model)  # resizes, if another size is requested

    def create(pretrained: bool = False, **arguments: Any) -> VisionTransformer:
        return build_model_with_cfg(
            VisionTransformer,
            name,
            pretrained,
            pretrained_filter_fn=encoder_for,
            feature_cfg={"out_indices": arguments.pop("out_indices", 3), "feature_cls": "getter"},
            **config["model_args"] | arguments,
        )

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"The encoder of {folder.name}, as timm's vision transformer."
    register_model(create)


for _name, _folder in entry_points().items():
    _register(_name, _folder)
