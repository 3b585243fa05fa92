"""Entry points for torch.hub, from a clone.

torch.hub.load(".", "vit_tiny_p4_cifar10", source="local")
torch.hub.load(".", "load_model", CHECKPOINT, source="local")
"""

from functools import partial as _partial

from vit import load_model
from vit.pretrained import entry_points as _entry_points

dependencies = [
    "torch",
    "torchvision",
    "numpy",
    "tqdm",
    "timm",
    "einops",
    "safetensors",
    "huggingface_hub",
    "PIL",
    "yaml",
]

# torch.hub lists the names that do not begin with an underscore
for _name, _folder in _entry_points().items():
    # by its folder, because a local folder of its name would take precedence
    _model = _partial(load_model, _folder)
    _model.__doc__ = (
        f"The model {_folder.name}, which comes with the package; options are those of load_model."
    )
    globals()[_name] = _model
