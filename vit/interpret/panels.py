"""Maps side by side: the heads of a layer, all layers, a rollout through them, or what a result depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from vit.encoder import eval_mode
from vit.interpret.capture import AttentionMaps, GridMaps, Patch, to_grid
from vit.interpret.inputs import ModelWithImages
from vit.interpret.layers import AttentionError
from vit.interpret.measures import relevance, rollout_step


class Panels(NamedTuple):
    """P maps per image.

    Attributes:
        maps: (B, P, rows, columns); nan where a patch was hidden from the encoder.
        prefix_mass: (B, P), the share on prefix tokens, which the maps leave out.
        names: of the P panels.
    """

    maps: Tensor
    prefix_mass: Tensor
    names: list[str]


def _panels(grids: list[GridMaps], names: list[str]) -> Panels:
    maps, masses = (torch.cat(parts, dim=1) for parts in zip(*grids, strict=True))
    return Panels(maps, masses, names)


def _one_head(grid: GridMaps, head: int | str) -> GridMaps:
    """Return one head, or the mean of all: (B, 1, rows, columns)."""
    return GridMaps(*(part[:, head, None] if isinstance(head, int) else part.mean(1, keepdim=True) for part in grid))


def _layout(subject: ModelWithImages) -> Callable[[Tensor], GridMaps]:
    return partial(to_grid, geometry=subject.geometry, query=subject.query, mask=subject.mask)


def head_panels(
    subject: ModelWithImages,
    layer: int | None = -1,
    head: int | str = "all",
    decoder_query: list[Patch] | None = None,
) -> Panels:
    """Return the maps of the heads of one layer, or one map of each layer; no weights are kept but those shown.

    Args:
        subject: the model and the images.
        layer: its number, negative from the last; None for each.
        head: its number; "mean"; or "all": the mean and every head, of each layer the mean.
        decoder_query: a patch per image: then the decoder's attention from it.

    Raises:
        AttentionError: there is no such layer, head or token.
    """
    part = whole = subject.model.encoder
    layout = _layout(subject)
    if decoder_query is not None:
        part, whole = subject.model.decoder, subject.model
        layout = partial(to_grid, geometry=subject.geometry, query=decoder_query)
    grids: dict[int, GridMaps] = {}

    def keep(number: int, weights: Tensor) -> None:
        count = weights.shape[1]
        if isinstance(head, int) and not 0 <= head < count:
            raise AttentionError(f"there is no head {head} in layer {number}: it has {count}, from 0 to {count - 1}")
        grids[number] = layout(weights)

    with eval_mode(whole), torch.no_grad(), AttentionMaps(part, None if layer is None else [layer], consume=keep):
        whole(subject.inputs, subject.mask)
    if layer is None:
        return _panels([_one_head(grid, head) for grid in grids.values()], [f"layer {number}" for number in grids])
    (grid,) = grids.values()
    heads = ["mean", *range(grid.maps.shape[1])] if head == "all" else [head]
    names = ["mean of heads" if shown == "mean" else f"head {shown}" for shown in heads]
    return _panels([_one_head(grid, shown) for shown in heads], names)


def rollout_panels(subject: ModelWithImages, layer: int | None = -1, discard: float = 0.0) -> Panels:
    """Return `attention_rollout` up to one layer, or up to each; only one layer's weights are in memory at a time."""
    encoder, layout = subject.model.encoder, _layout(subject)
    (last,) = AttentionMaps(encoder, [-1 if layer is None else layer]).layers
    grids: dict[int, GridMaps] = {}
    rollout: Tensor | None = None

    def step(number: int, weights: Tensor) -> None:
        nonlocal rollout
        rollout = rollout_step(rollout, weights, "mean", discard, encoder.num_prefix_tokens)
        if layer is None or number == last:
            grids[number] = layout(rollout[:, None])

    with eval_mode(encoder), torch.no_grad(), AttentionMaps(encoder, range(last + 1), consume=step):
        encoder(subject.inputs, subject.mask)
    return _panels(list(grids.values()), [f"through layer {number}" for number in grids])


def class_relevance(subject: ModelWithImages, label: int | None = None) -> tuple[Panels, list[int], list[float]]:
    """Return what the logit of a class depends on: the `relevance` of each patch, as a share of all input tokens'.

    Args:
        subject: the model, with a head, and the images.
        label: the class; None for the predicted one.

    Returns:
        the panel; per image the class; per image its probability.
    """
    encoder = subject.model.encoder
    with eval_mode(encoder), torch.no_grad():
        probabilities = encoder.forward_head(encoder(subject.inputs)).softmax(-1)
    classes = probabilities.argmax(-1, keepdim=True) if label is None else torch.full((len(probabilities), 1), label)
    found = relevance(
        encoder,
        subject.inputs,
        score=lambda logits: logits.gather(1, classes)[:, 0],
        run=lambda images: encoder.forward_head(encoder(images)),
    )
    reads = slice(1) if encoder.config.global_pool == "token" else slice(encoder.num_prefix_tokens, None)
    panel = _relevance_panel(subject, found, reads)
    return panel, classes[:, 0].tolist(), probabilities.gather(1, classes)[:, 0].tolist()


def reconstruction_relevance(subject: ModelWithImages, patches: Sequence[Patch]) -> Panels:
    """Return what the filling in of a hidden patch per image depends on, likewise: the score is minus its squared error."""
    model, targets = subject.model, subject.model.targets(subject.inputs)
    rows, columns = torch.tensor(patches).T
    places = torch.arange(len(rows)), rows * subject.geometry.grid_size[1] + columns
    found = relevance(
        model.encoder,
        subject.inputs,
        score=lambda predicted: -(predicted - targets).square().mean(-1)[places],
        run=lambda images: model(images, subject.mask),
    )
    return _relevance_panel(subject, found, slice(None))  # the decoder reads all tokens


def _relevance_panel(subject: ModelWithImages, found: Tensor, reads: slice) -> Panels:
    """Return relevance (B, N, N) as a panel of shares; the result is computed from the tokens that it `reads`."""
    found = found - torch.eye(found.shape[-1])  # without what each token is to itself from the start
    rows = found[:, reads].mean(1)  # (B, N)
    shares = rows / rows.sum(-1, keepdim=True).clamp(min=1e-12)
    every_query = shares[:, None, None].expand(-1, 1, shares.shape[-1], -1)  # (B, 1, N, N)
    return Panels(*to_grid(every_query, subject.geometry, "mean", None, subject.mask), ["relevance"])
