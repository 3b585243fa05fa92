"""Measures of attention weights: distance, entropy, their means, rollout, the ablation of heads.

Letters: B batch, h heads, N tokens (prefix tokens, then patches), L patches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vit.errors import AttentionError
from vit.interpret.capture import AttentionMaps, to_grid
from vit.interpret.geometry import Geometry
from vit.interpret.layers import Interception
from vit.isolation import eval_mode
from vit.patches import grid_distances


def attention_rollout(
    maps: AttentionMaps | Sequence[Tensor],
    discard: float = 0.0,
    num_prefix_tokens: int | None = None,
) -> Tensor:
    """Return how much of each input token reaches each token (Abnar and Zuidema 2020).

    In each layer, A is the mean over heads, and half the weight stays with the token itself (the
    residual connection): 0.5 (A + I). The layers are multiplied; parallel layers count as one with
    all their heads.

    Args:
        maps: after a pass; or weights (B, h, N, N) of each layer, from the first to the last, e.g.
            `w.amax(1, keepdim=True)` for the maximum over heads instead of their mean. Rows are
            scaled to sum to 1 before I is added; other code does not do so, and its rollouts of a
            maximum or minimum differ.
        discard: fraction below 1 of each layer's smallest weights to leave out; the columns of
            prefix tokens are kept.
        num_prefix_tokens: class token and registers; needed to discard some of bare weights.

    Returns:
        (B, N, N): row = token, column = input token; rows sum to 1.

    Raises:
        AttentionError: a layer has other queries than keys, or the number of prefix tokens is
            unknown.
    """
    layers: Sequence[Tensor]
    if isinstance(maps, AttentionMaps):
        weights = maps.weights
        layers = [torch.cat([weights[layer] for layer in step], dim=1) for step in maps.steps]
        if discard and num_prefix_tokens is None:
            num_prefix_tokens = maps.geometry.num_prefix_tokens
    else:
        layers = maps
    if discard and num_prefix_tokens is None:
        raise AttentionError(
            "discard= keeps the prefix tokens: give AttentionMaps, which knows them, or "
            "num_prefix_tokens="
        )

    # Each layer is multiplied with those before it
    rollout: Tensor | None = None
    for layer in layers:
        rollout = rollout_step(rollout, layer, discard, num_prefix_tokens or 0)
    assert rollout is not None, "a rollout needs the weights of at least one layer"
    return rollout


def rollout_step(
    before: Tensor | None, weights: Tensor, discard: float, num_prefix_tokens: int
) -> Tensor:
    """Return `attention_rollout` through one more layer.

    Args:
        before: rollout (B, N, N) through the layers before; None at the first.
        weights: (B, h, N, N) of this layer.
        discard: fraction of its smallest weights to leave out.
        num_prefix_tokens: class token and registers, whose columns are kept.

    Returns:
        (B, N, N).
    """
    _require_queries_are_keys(weights)
    attention = weights.float().mean(1)  # (B, N, N)

    # Leave the smallest weights out, never those of prefix tokens
    if discard:
        to_patches = attention[..., num_prefix_tokens:]  # (B, N, L), a part of it
        flat = to_patches.flatten(1)  # (B, N L)
        count = int(flat.shape[1] * discard)
        smallest = flat.topk(count, dim=1, largest=False).indices
        to_patches.copy_(flat.scatter(1, smallest, 0.0).view_as(to_patches))

    # Half of each token stays, half is mixed; rows sum to 1
    attention = attention / attention.sum(-1, keepdim=True).clamp(min=1e-12)
    identity = torch.eye(attention.shape[-1]).to(attention)
    step = 0.5 * (attention + identity)
    step = step / step.sum(-1, keepdim=True)
    if before is None:
        return step
    with full_precision(step):
        return step @ before


def full_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which products of a tensor keep its precision, whatever autocast says."""
    return torch.autocast(tensor.device.type, enabled=False)


def _require_queries_are_keys(weights: Tensor) -> None:
    """Refuse a layer (B, h, N, M) with other queries than keys, e.g. one that pools all tokens."""
    queries, keys = weights.shape[-2:]
    if queries != keys:
        raise AttentionError(
            f"a layer has {queries} queries and {keys} keys: its rows are not tokens; "
            "leave it out with layers="
        )


def attention_distance(weights: Tensor, geometry: Geometry) -> Tensor:
    """Return the mean distance between a patch and the patches it attends to, by attention.

    Attention on prefix tokens, which have no place, is left out, and the rest is scaled to sum to 1
    (Dosovitskiy et al. 2021, fig. 7).

    Args:
        weights: (B, h, N, N).
        geometry: layout of the N tokens.

    Returns:
        (B, h), pixels.

    Raises:
        AttentionError: the layer has other queries than keys.
    """
    _require_queries_are_keys(weights)

    # The distance in pixels between each two patches, and its mean by the weights between patches
    distances = grid_distances(geometry.grid_size, weights.device, geometry.patch_size)  # (L, L)
    attention = weights.float()[..., geometry.patches, geometry.patches]  # (B, h, L, L)
    attention = attention / attention.sum(-1, keepdim=True).clamp(min=1e-12)
    return (attention * distances).sum(-1).mean(-1)


def attention_entropy(weights: Tensor, num_prefix_tokens: int = 0) -> Tensor:
    """Return the mean entropy of a query's weights: 0 bits if one key has all, log2 N if uniform.

    Args:
        weights: (B, h, N, N).
        num_prefix_tokens: queries to leave out, the class token's and the registers', for the
            mean over patches.

    Returns:
        (B, h), bits.
    """
    # xlogy counts a weight of 0 as 0, where 0 * log 0 would be nan
    weights = weights[..., num_prefix_tokens:, :].float()
    return -torch.special.xlogy(weights, weights).sum(-1).mean(-1) / math.log(2)


def top_mass_mask(maps: Tensor, share: float = 0.6) -> Tensor:
    """Return the fewest patches that hold `share` of a map's mass (60% in DINO, Caron et al. 2021).

    Args:
        maps: (B, h, rows, columns); nan counts as 0.
        share: above 0 and at most 1.

    Returns:
        bool (B, h, rows, columns).
    """
    # In double precision: rounding in the sums decides about no patch; on the CPU, because Apple's
    # GPUs have none
    flat = maps.cpu().double().nan_to_num().flatten(2)  # (B, h, L)
    values, order = flat.sort(dim=-1, descending=True)

    # A patch belongs to the mask while the larger ones together hold less than `share`
    mass_of_larger = values.cumsum(-1) - values
    inside = (mass_of_larger < share * values.sum(-1, keepdim=True)) & (values > 0)
    mask = torch.zeros_like(inside).scatter(-1, order, inside)
    return mask.unflatten(-1, maps.shape[2:]).to(maps.device)


@dataclass(frozen=True)
class AttentionStatistics:
    """Means over a data set, by layer and head; nan if a layer has fewer heads than another.

    Attributes:
        images: their number.
        layers: (l,) numbers of the layers.
        distance: (l, h), `attention_distance`, pixels.
        distance_spread: (l, h), its standard deviation over the images.
        entropy: (l, h), `attention_entropy` of the patches' queries, bits.
        prefix_mass: (l, h), the attention of patches on the class token and registers.
    """

    images: int
    layers: Tensor
    distance: Tensor
    distance_spread: Tensor
    entropy: Tensor
    prefix_mass: Tensor


@torch.no_grad()
def attention_statistics(
    model: nn.Module,
    batches: Iterable[Tensor],
    layers: Iterable[int] | None = None,
    geometry: Geometry | None = None,
) -> AttentionStatistics:
    """Return the means over a data set.

    Args:
        model: as for `AttentionMaps`; every batch runs through it once, in eval mode.
        batches: of inputs (B, C, H, W), normalised; read one by one. Of each image, three numbers
            for each head are kept.
        layers: numbers of the attention layers, negative from the last; None for all.
        geometry: layout of the tokens; None to take it from the model.

    Raises:
        AttentionError: the maps cannot be captured.
    """
    # By the layer's name, of each batch (B, h, 3): distance, entropy, prefix mass. Its number may
    # change as layers of an unknown kind are found
    values: dict[str, list[Tensor]] = {}

    def add(layer: int, weights: Tensor) -> None:
        layout = maps.geometry  # of these images: a model may take several sizes
        distance = attention_distance(weights, layout)  # (B, h)
        entropy = attention_entropy(weights[:, :, layout.patches])
        prefix_mass = to_grid(weights, layout, "mean").prefix_mass
        measures = torch.stack([distance, entropy, prefix_mass], dim=-1)  # (B, h, 3)
        values.setdefault(maps.names[layer], []).append(measures.cpu())

    # Each layer's weights are measured as they are computed, and not kept
    maps = AttentionMaps(model, layers, geometry=geometry, consume=add)
    with eval_mode(model):
        for images in batches:
            with maps:
                model(images)

    # Over images, in double precision; heads that a layer does not have stay nan
    of_layers = [
        torch.cat(values[maps.names[layer]]).transpose(0, 1).double() for layer in maps.layers
    ]
    table = pad_sequence(of_layers, batch_first=True, padding_value=math.nan)  # (l, h, images, 3)
    distance, entropy, prefix_mass = table.mean(2).float().unbind(-1)
    return AttentionStatistics(
        images=table.shape[2],
        layers=torch.tensor(maps.layers),
        distance=distance,
        distance_spread=table[..., 0].std(2, correction=0).float(),
        entropy=entropy,
        prefix_mass=prefix_mass,
    )


@torch.no_grad()
def head_ablation(model: nn.Module, loss: Callable[[], Tensor]) -> Tensor:
    """Return how much the loss rises when a head is silenced (its output set to zero), for each.

    Args:
        model: its heads are silenced one at a time; left as it was.
        loss: runs the model and returns a scalar, the same each time.

    Returns:
        (layers, h): loss without the head, minus the loss with all heads; nan where a layer has
        fewer heads than another, or `loss` does not run it.

    Raises:
        ValueError: `loss` computes no attention that can be silenced.
    """
    # By name, because a layer of an unknown kind is numbered when it is found
    heads: dict[str, int] = {}
    silenced: tuple[str, int] | None = None  # a layer and its head

    def mix(layer: int, weights: Tensor, values: Tensor) -> Tensor:
        name = interception.names[layer]
        heads[name] = weights.shape[1]
        mixed = weights @ values  # (B, h, N, d)
        if silenced and name == silenced[0]:
            mixed[:, silenced[1]] = 0
        return mixed

    # One pass with all heads gives the loss to compare with, and how many heads there are
    interception = Interception(model, mix)
    with eval_mode(model), interception.active():
        loss_with_all = float(loss())

        # Then one pass for each head without it
        shape = (len(interception.names), max(heads.values()))
        increase = torch.full(shape, float("nan"), dtype=torch.float32)
        for layer, name in enumerate(interception.names):
            for head in range(heads.get(name, 0)):
                silenced = (name, head)
                increase[layer, head] = float(loss()) - loss_with_all
    return increase
