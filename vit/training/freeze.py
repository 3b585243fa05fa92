"""Freeze parts of a model by name, down to the thirds of a fused qkv layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vit.errors import ConfigError
from vit.mae import Model

THIRDS = {"W_Q": 0, "W_K": 1, "W_V": 2}


def freeze(model: Model, names: Sequence[str]) -> list[Tensor]:
    """Stop parts of `model` from learning.

    A name consists of components of a parameter's name, in their order: "patch_embed", "pos_embed",
    "encoder.blocks.0", "mlp", "decoder.norm1". W_Q, W_K and W_V stand for that third of every qkv
    layer, weight and bias, and W_O for every attention's proj; they can be narrowed down as well:
    "decoder.W_Q", "encoder.blocks.3.attn.W_K".

    Returns:
        Views of the frozen thirds of parameters that learn otherwise, each once. Their gradient is
        zero from now on; `restore_frozen_rows` protects them from weight decay.

    Raises:
        ConfigError: a name matches nothing.
    """
    # a dictionary, because names may overlap: each third once, in their order
    thirds: dict[tuple[nn.Parameter, int], None] = {}
    for name in names:
        # a classifier's encoder may be named as within an autoencoder
        if model.decoder is None:
            name = name.removeprefix("encoder.")

        # the name among the parameters: a third stands within its qkv, W_O is proj
        matrix = name.rpartition(".")[2]
        parameter_name = name.replace("attn.W_O", "W_O").replace("W_O", "attn.proj")
        if matrix in THIRDS:
            parameter_name = name.removesuffix(matrix) + "qkv"

        # of every layer, unless the name says which
        matches = [
            parameter
            for key, parameter in model.named_parameters()
            if _contains(key, parameter_name)
        ]
        if not matches:
            raise ConfigError(
                f"model.freeze: {name!r} is not a part of this model; it has "
                f"{', '.join(_part_names(model))}"
            )
        for parameter in matches:
            if matrix in THIRDS:
                thirds[parameter, THIRDS[matrix]] = None
            else:
                parameter.requires_grad_(False)
    # a third whose parameter another name has frozen as a whole needs nothing more
    return [
        _freeze_third(parameter, third) for parameter, third in thirds if parameter.requires_grad
    ]


def restore_frozen_rows(optimizer: Optimizer, rows: list[Tensor]) -> None:
    """Undo the weight decay of frozen rows after every step of `optimizer`.

    Args:
        optimizer: of the model.
        rows: from `freeze`.
    """
    originals = [row.clone() for row in rows]

    def restore(*_: object) -> None:
        torch._foreach_copy_(rows, originals)

    if rows:
        optimizer.register_step_post_hook(restore)


def _freeze_third(parameter: nn.Parameter, third: int) -> Tensor:
    """Keep the gradient of a third of a parameter's rows at zero, and return a view of them."""
    size = len(parameter) // 3
    frozen = slice(third * size, (third + 1) * size)

    def without_third(gradient: Tensor) -> Tensor:
        # autograd may still use the one that it passes
        gradient = gradient.clone()
        gradient[frozen] = 0
        return gradient

    parameter.register_hook(without_third)
    return parameter.detach()[frozen]


def _contains(key: str, name: str) -> bool:
    """Return whether the components of `name` are among those of `key`, in this order."""
    remaining = key.split(".")
    for component in name.split("."):
        if component not in remaining:
            return False
        remaining = remaining[remaining.index(component) + 1 :]
    return True


def _part_names(model: Model) -> list[str]:
    """Return names that `freeze` accepts: matrices, then modules and parameters, not numbered."""
    components = set()
    for key, _ in model.named_parameters():
        components.update(key.split("."))
    components -= {"weight", "bias"}
    matrices = ["W_O"]
    if "qkv" in components:
        matrices = [*THIRDS, "W_O"]
    return matrices + sorted(part for part in components if not part.isdigit())
