"""For torch.hub, from a clone: torch.hub.load(".", "vit_tiny_p4_cifar10", source="local"), or ".", "load_model", CHECKPOINT."""

from functools import partial as _partial

from vit import load_model
from vit.pretrained import entry_points as _entry_points

dependencies = [
    "torch",
    "torchvision",
    "timm",
    "einops",
    "safetensors",
    "huggingface_hub",
    "PIL",
    "yaml",
]

for _name, _folder in _entry_points().items():
    globals()[_name] = _model = _partial(load_model, _folder.name)
    _model.__doc__ = (
        f"The model {_folder.name}, which comes with the package; options are those of load_model."
    )
