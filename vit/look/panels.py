"""Maps side by side: the heads of a layer, all layers, a rollout, or what a result depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vit.errors import AttentionError
from vit.interpret.capture import AttentionMaps, GridMaps, Patch, to_grid
from vit.interpret.measures import relevance, rollout_step
from vit.look.predict import require_head
from vit.look.shown import ModelWithImages


class Panels(NamedTuple):
    """P maps per image.

    Attributes:
        maps: (B, P, rows, columns); nan for patches hidden from the encoder.
        prefix_mass: (B, P), the share on prefix tokens, which the maps leave out.
        names: of the P panels.
    """

    maps: Tensor
    prefix_mass: Tensor
    names: list[str]


def _panels(grids: list[GridMaps], names: list[str]) -> Panels:
    maps, masses = (torch.cat(parts, dim=1) for parts in zip(*grids, strict=True))
    return Panels(maps, masses, names)


def head_panels(
    subject: ModelWithImages,
    layer: int | None = -1,
    head: int | str = "all",
    decoder_query: list[Patch] | None = None,
) -> Panels:
    """Return the maps of one layer's heads, or one map per layer; one layer's weights are in memory at a time.

    Args:
        layer: its number, negative from the last; None for every layer.
        head: its number; "mean"; or "all": the mean and every head, or with every layer only the mean.
        decoder_query: a patch per image; if given, the maps are the decoder's attention from it.

    Raises:
        AttentionError: there is no such layer, head or token.
    """
    model: nn.Module = subject.model.encoder if decoder_query is None else subject.model
    part: Any = subject.model.encoder if decoder_query is None else subject.model.decoder
    query, mask = (subject.query, subject.mask) if decoder_query is None else (decoder_query, None)
    grids: list[GridMaps] = []
    names: list[str] = []

    def keep(number: int, weights: Tensor) -> None:
        grid, count = to_grid(weights, subject.geometry, query, mask), weights.shape[1]
        heads = {"mean of heads": GridMaps(*(part.mean(1, keepdim=True) for part in grid))}
        heads |= {f"head {n}": GridMaps(*(part[:, n, None] for part in grid)) for n in range(count)}
        one = f"head {head}" if isinstance(head, int) else "mean of heads"
        if one not in heads:
            where, way = "layer", ""
            if decoder_query is not None:
                where, way = (
                    "the decoder's layer",
                    "; part='encoder' (--part encoder) leaves the decoder out",
                )
            raise AttentionError(
                f"there is no {one} in {where} {number}: it has {count}, from 0 to {count - 1}{way}"
            )
        shown = list(heads) if head == "all" and layer is not None else [one]
        grids.extend(heads[name] for name in shown)
        names.extend([f"layer {number}"] if layer is None else shown)

    with torch.no_grad(), AttentionMaps(part, None if layer is None else [layer], consume=keep):
        model(subject.inputs, subject.mask)
    return _panels(grids, names)


def rollout_panels(
    subject: ModelWithImages, layer: int | None = -1, discard: float = 0.0
) -> Panels:
    """Return `attention_rollout` up to one layer, or up to each; one layer's weights are in memory at a time."""
    encoder = subject.model.encoder
    (last,) = AttentionMaps(encoder, [-1 if layer is None else layer]).layers
    grids: list[GridMaps] = []
    rollout: Tensor | None = None

    def step(number: int, weights: Tensor) -> None:
        nonlocal rollout
        rollout = rollout_step(rollout, weights, discard, encoder.num_prefix_tokens)
        if layer is None or number == last:
            grids.append(to_grid(rollout[:, None], subject.geometry, subject.query, subject.mask))

    with torch.no_grad(), AttentionMaps(encoder, range(last + 1), consume=step):
        encoder(subject.inputs, subject.mask)
    return _panels(
        grids,
        [f"through layer {number}" for number in (range(last + 1) if layer is None else [last])],
    )


def class_relevance(
    subject: ModelWithImages, label: int | None = None
) -> tuple[Panels, list[int], list[float]]:
    """Return what the logit of a class depends on: each patch's `relevance`, as a share of all input tokens'.

    Args:
        subject: the model, with a head, and the images.
        label: the class; None for the predicted one.

    Returns:
        the panel; per image the class; per image its probability.

    Raises:
        CheckpointError: its head does not choose between classes.
    """
    require_head(subject.model)
    encoder = subject.model.encoder
    with torch.no_grad():
        probabilities = encoder.forward_head(encoder(subject.inputs)).softmax(-1)
    classes = (
        probabilities.argmax(-1, keepdim=True)
        if label is None
        else torch.full((len(probabilities), 1), label)
    )
    found = relevance(
        encoder,
        subject.inputs,
        score=lambda logits: logits.gather(1, classes)[:, 0],
        run=lambda images: encoder.forward_head(encoder(images)),
    )
    reads = (
        slice(1)
        if encoder.config.global_pool == "token"
        else slice(encoder.num_prefix_tokens, None)
    )
    panel = _relevance_panel(subject, found, reads)
    return panel, classes[:, 0].tolist(), probabilities.gather(1, classes)[:, 0].tolist()


def reconstruction_relevance(subject: ModelWithImages, patches: Sequence[Patch]) -> Panels:
    """Return likewise what filling in a hidden patch per image depends on: the score is minus its squared error."""
    model: Any = subject.model
    targets = model.targets(subject.inputs)
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
    """Return relevance (B, N, N) as a panel of shares; the result is computed from the tokens `reads`."""
    found = found - torch.eye(
        found.shape[-1]
    )  # without the initial relevance of each token to itself
    rows = found[:, reads].mean(1)  # (B, N)
    shares = rows / rows.sum(-1, keepdim=True).clamp(min=1e-12)
    every_query = shares[:, None, None].expand(-1, 1, shares.shape[-1], -1)  # (B, 1, N, N)
    return Panels(*to_grid(every_query, subject.geometry, "mean", subject.mask), ["relevance"])
