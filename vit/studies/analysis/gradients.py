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
    """The gradient of the masked loss in every matrix of the encoder: one backward pass has them all, as `weights_by_name`.

    What was frozen in training, or is fixed, has its gradient here too: how it would be pulled if it learned. The images
    are normalised; the model is left as it is.
    """
    model = deepcopy(model).requires_grad_(True)
    parameters = list(model.parameters())
    with eval_mode(model), torch.enable_grad():
        loss, _ = model.loss(images, mask)
        gradients: dict[Tensor, Tensor] = dict(zip(parameters, torch.autograd.grad(loss, parameters), strict=True))
    return weights_by_name(model.encoder, gradients.__getitem__)


def weights_by_name(
    encoder: VisionTransformer, of: Callable[[Tensor], Tensor] = Tensor.detach
) -> dict[str, list[Tensor]]:
    """The matrices of an encoder by name, and the biases of queries, keys and values, layer by layer, as flat tensors.

    One a layer of "W_Q", "W_K", "W_V" and "b_Q", "b_K", "b_V" (where there are such), "W_O", and "MLP" with its two
    matrices; one in all of "W_E" and "positions". `of` says what is wanted of a parameter: its values, its gradient.
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
    """Of each the root mean square of its numbers: (their number,)."""
    return torch.stack([vector.square().mean().sqrt() for vector in vectors])


def drift(before: list[Tensor], after: list[Tensor]) -> Tensor:
    """How far each has moved, |W - W0| / |W0|, where W0 is what it began with: (their number,)."""
    return sizes([there - here for here, there in zip(before, after, strict=True)]) / sizes(before)
