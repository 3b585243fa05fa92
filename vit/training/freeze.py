"""Freeze parts of a model by name, down to the thirds of a fused qkv layer."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Optimizer

from vit.errors import UserError
from vit.mae import Model

THIRDS = {"W_Q": 0, "W_K": 1, "W_V": 2}


class FreezeError(UserError, ValueError):
    """A name in model.freeze that is not part of the model; the message is one line."""


def freeze(model: Model, names: list[str]) -> list[Tensor]:
    """Stop parts of `model` from learning.

    A name consists of components of a parameter's name, in their order: "patch_embed", "pos_embed", "encoder.blocks.0",
    "mlp", "decoder.norm1". W_Q, W_K and W_V stand for that third of every qkv layer, weight and bias, and W_O for every
    attention's proj; they can be narrowed down as well: "decoder.W_Q", "encoder.blocks.3.attn.W_K".

    Returns:
        Views of the frozen thirds of parameters that learn otherwise, each once. Their gradient is zero from now on;
        `restore_frozen_rows` protects them from weight decay.

    Raises:
        FreezeError: a name matches nothing.
    """
    thirds: dict[tuple[nn.Parameter, int], None] = {}  # each once
    for name in names:
        if model.decoder is None:  # a classifier's encoder may be named as within an autoencoder
            name = name.removeprefix("encoder.")
        matrix = name.rpartition(".")[2]
        wanted = name.replace("attn.W_O", "W_O").replace("W_O", "attn.proj")
        if matrix in THIRDS:
            wanted = name.removesuffix(matrix) + "qkv"
        found = [parameter for key, parameter in model.named_parameters() if _contains(key, wanted)]
        for parameter in found:
            if matrix in THIRDS:
                thirds[parameter, THIRDS[matrix]] = None
            else:
                parameter.requires_grad_(False)
        if not found:
            parts = sorted(
                {part for key, _ in model.named_parameters() for part in key.split(".")[:-1]}
            )
            matrices = [*(THIRDS if "qkv" in parts else ()), "W_O"]
            known = ", ".join([*matrices, *(part for part in parts if not part.isdigit())])
            raise FreezeError(f"model.freeze: {name!r} is not a part of this model; it has {known}")
    return [
        _freeze_third(parameter, third) for parameter, third in thirds if parameter.requires_grad
    ]


def restore_frozen_rows(optimizer: Optimizer, rows: list[Tensor]) -> None:
    """Restore `rows` (from `freeze`) after every step of `optimizer`, because weight decay shrinks them without a gradient."""
    originals = [row.detach().clone() for row in rows]

    def restore(*_: object) -> None:
        for row, original in zip(rows, originals, strict=True):
            row.detach().copy_(original)

    if rows:
        optimizer.register_step_post_hook(restore)


def _freeze_third(parameter: nn.Parameter, third: int) -> Tensor:
    size = len(parameter) // 3
    frozen = slice(third * size, (third + 1) * size)

    def without_third(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient[frozen] = 0
        return gradient

    parameter.register_hook(without_third)
    return parameter.detach()[frozen]


def _contains(key: str, name: str) -> bool:
    components = iter(key.split("."))
    return all(
        part in components for part in name.split(".")
    )  # `in` advances the iterator, so the order counts
