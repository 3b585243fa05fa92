"""Means of attention measures over any number of images; one layer's weights are in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vit.encoder import eval_mode
from vit.errors import AttentionError
from vit.interpret.capture import AttentionMaps
from vit.interpret.geometry import Geometry
from vit.interpret.measures import attention_distance, attention_entropy


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
        AttentionError: there are no images; or as in `AttentionMaps`.
    """
    # Sums over the images, by layer
    sums: dict[int, Tensor] = {}  # (h, 4): distance, its square, entropy, mass on the prefix
    count = 0

    def consume(layer: int, weights: Tensor) -> None:
        places = maps.geometry  # of these images: a model may take several sizes
        prefix = places.num_prefix_tokens
        distance = attention_distance(weights, places).double()  # (B, h)
        mass = weights[:, :, prefix:, :prefix].sum(-1).mean(-1)
        found = torch.stack(
            [distance, distance.square(), attention_entropy(weights, prefix), mass], dim=-1
        ).sum(0)
        sums[layer] = sums.get(layer, 0) + found.cpu()

    maps = AttentionMaps(model, layers, consume=consume, geometry=geometry)
    with eval_mode(model):
        for images in batches:
            with maps:
                model(images)
            count += len(images)
    if not count:
        raise AttentionError("there are no images to count over")
    # The means, as tables by layer and head
    numbers = sorted(sums)
    table = torch.full(
        (len(numbers), max(len(sums[layer]) for layer in numbers), 4),
        float("nan"),
        dtype=torch.double,
    )
    for place, layer in enumerate(numbers):
        table[place, : len(sums[layer])] = sums[layer] / count
    distance, _, entropy, mass = table.float().unbind(-1)
    spread = (table[..., 1] - table[..., 0].square()).clamp(min=0).sqrt().float()
    return AttentionStatistics(count, torch.tensor(numbers), distance, spread, entropy, mass)
