"""How hard the masked loss pulls at each matrix of an encoder, and how far training has moved it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor

from vit.encoder import Block, VisionTransformer, eval_mode
from vit.mae import MaskedAutoencoder
from vit.masking import Mask


def masked_gradients(model: MaskedAutoencoder, images: Tensor, mask: Mask) -> dict[str, list[Tensor]]:
    """Return the gradient of the masked loss in every matrix of the encoder, frozen ones too, as in `weights_by_name`."""
    model = deepcopy(model).requires_grad_(True)
    parameters = list(model.parameters())
    with eval_mode(model), torch.enable_grad():
        loss, _ = model.loss(images, mask)
        gradients: dict[Tensor, Tensor] = dict(zip(parameters, torch.autograd.grad(loss, parameters), strict=True))
    return weights_by_name(model.encoder, gradients.__getitem__)


def weights_by_name(
    encoder: VisionTransformer, of: Callable[[Tensor], Tensor] = Tensor.detach
) -> dict[str, list[Tensor]]:
    """Return an encoder's matrices and biases by name, flat, a tensor per layer (a single one for "W_E" and "positions").

    `of` returns a parameter's values or its gradient. "MLP" joins both matrices.
    """
    blocks = [block for block in encoder.blocks if isinstance(block, Block)]
    found = {"W_E": [of(encoder.patch_embed.proj.weight).flatten()], "positions": [of(encoder.pos_embed).flatten()]}
    fused = [block.attn.qkv for block in blocks if block.attn.qkv is not None]
    for third, letter in enumerate("QKV" if fused else ""):
        found[f"W_{letter}"] = [of(layer.weight).chunk(3)[third].flatten() for layer in fused]
        if fused[0].bias is not None:
            found[f"b_{letter}"] = [of(layer.bias).chunk(3)[third] for layer in fused]
    found["W_O"] = [of(block.attn.proj.weight).flatten() for block in blocks]
    pairs = [[of(block.get_parameter(f"mlp.{name}.weight")).flatten() for name in ("fc1", "fc2")] for block in blocks]
    found["MLP"] = [torch.cat(pair) for pair in pairs]
    return found


def sizes(vectors: list[Tensor]) -> Tensor:
    """Return the root mean square of each vector."""
    return torch.stack([vector.square().mean().sqrt() for vector in vectors])


def drift(before: list[Tensor], after: list[Tensor]) -> Tensor:
    """Return how far each vector has moved, |W - W0| / |W0|."""
    return sizes([there - here for here, there in zip(before, after, strict=True)]) / sizes(before)
