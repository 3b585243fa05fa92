"""Means of attention measures over any number of images, with one layer's weights in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vit.interpret.capture import AttentionMaps
from vit.interpret.geometry import Geometry
from vit.interpret.measures import attention_distance, attention_entropy
from vit.isolation import eval_mode


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
    """Return the means over a data set of any size.

    Args:
        model: as for `AttentionMaps`; every batch runs through it once, in eval mode.
        batches: of inputs (B, C, H, W), normalised; read one by one.
        layers: numbers of the attention layers, negative from the last; None for all.
        geometry: layout of the tokens; None to take it from the model and the images.

    Raises:
        AttentionError: the maps cannot be captured.
        ValueError: there are no images.
    """
    # Sums over images, by layer: (h, 4), which are distance, its square, entropy, prefix mass
    sums: dict[int, Tensor] = {}

    def add(layer: int, weights: Tensor) -> None:
        layout = maps.geometry  # of these images: a model may take several sizes
        of_patches = weights[:, :, layout.patches]  # (B, h, L, N)
        distance = attention_distance(weights, layout)  # (B, h)
        entropy = attention_entropy(of_patches)
        before = of_patches[..., : layout.patches.start].sum(-1)
        after = of_patches[..., layout.patches.stop :].sum(-1)
        prefix_mass = (before + after).mean(-1)
        measures = torch.stack([distance, entropy, prefix_mass])  # (3, B, h)

        # In double precision, so that the spread survives the difference of two large sums; on the
        # CPU, because Apple's GPUs have none
        distance, entropy, prefix_mass = measures.cpu().double()
        measures = torch.stack([distance, distance.square(), entropy, prefix_mass], dim=-1)
        sums[layer] = sums.get(layer, 0) + measures.sum(0)

    # Each layer's weights are measured as they are computed, and not kept
    count = 0
    maps = AttentionMaps(model, layers, consume=add, geometry=geometry)
    with eval_mode(model):
        for images in batches:
            with maps:
                model(images)
            count += len(images)

    # The means as a table (l, h, 4); heads that a layer does not have stay nan
    numbers = sorted(sums)
    heads = max(len(layer_sums) for layer_sums in sums.values())
    means = torch.full((len(numbers), heads, 4), float("nan"), dtype=torch.double)
    for row, layer in enumerate(numbers):
        means[row, : len(sums[layer])] = sums[layer] / count

    # Var(x) = E(x^2) - E(x)^2, which rounding may bring just below 0
    distance, distance_square, entropy, prefix_mass = means.unbind(-1)
    variance = (distance_square - distance.square()).clamp(min=0)
    return AttentionStatistics(
        images=count,
        layers=torch.tensor(numbers),
        distance=distance.float(),
        distance_spread=variance.sqrt().float(),
        entropy=entropy.float(),
        prefix_mass=prefix_mass.float(),
    )
