"""Maps side by side: the heads of a layer, all layers, a rollout, or relevance.

Letters: B images, P panels, h heads, N tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vit.errors import AttentionError
from vit.interpret.capture import AttentionMaps, GridMaps, to_grid
from vit.interpret.explanations import legrad, relevance
from vit.interpret.measures import rollout_step
from vit.look.features import pca_colours
from vit.look.subject import ModelWithImages


class Panels(NamedTuple):
    """P maps per image.

    Attributes:
        maps: (B, P, rows, columns); nan for masked patches.
        prefix_mass: (B, P), the attention on prefix tokens, which the maps leave out.
        names: of the P panels.
    """

    maps: Tensor
    prefix_mass: Tensor
    names: list[str]


# --- Attention weights, with one layer's in memory at a time -------------------------------------


def head_panels(subject: ModelWithImages, layer: int | None, head: int | str) -> Panels:
    """Return the maps of one layer's heads, or one map per layer of the encoder.

    Args:
        subject: the model and the images; their query is whose attention is shown.
        layer: its number, negative from the last; None for every layer.
        head: its number; "mean"; or "all": the mean and every head, or with every layer only the
            mean.
    """
    layers = None if layer is None else [layer]

    def panels_of(number: int, weights: Tensor) -> Panels:
        grid = to_grid(weights, subject.geometry, subject.query, subject.mask)
        return _heads(grid, head, f"layer {number}" if layer is None else "")

    return _captured(subject, subject.model.encoder, layers, panels_of)


def decoder_panels(subject: ModelWithImages, head: int | str) -> Panels:
    """Return one map per layer of the decoder: its attention from the patch that it reconstructs.

    Args:
        subject: under a mask, its model with a decoder.
        head: its number; else their mean.
    """
    patches = subject.to_fill or []

    def panels_of(number: int, weights: Tensor) -> Panels:
        # One map per layer is named after the layer, not after the head
        return _heads(to_grid(weights, subject.geometry, patches), head, f"layer {number}")

    return _captured(subject, subject.model.decoder, None, panels_of)


def rollout_panels(subject: ModelWithImages, layer: int | None) -> Panels:
    """Return `attention_rollout` of the encoder up to one layer, or up to each.

    Args:
        subject: the model and the images; their query is the token that is reached.
        layer: the last to pass through, negative from the last of all; None for up to each.
    """
    # A rollout passes through all layers up to the last
    encoder = subject.model.encoder
    (last,) = AttentionMaps(encoder, [-1 if layer is None else layer]).layers
    rollout: Tensor | None = None

    def panels_of(number: int, weights: Tensor) -> Panels:
        nonlocal rollout
        rollout = rollout_step(rollout, weights, 0.0, encoder.num_prefix_tokens)  # (B, N, N)
        grid = to_grid(rollout[:, None], subject.geometry, subject.query, subject.mask)
        return Panels(*grid, [f"through layer {number}"])

    every = _captured(subject, encoder, range(last + 1), panels_of)
    if layer is None:
        return every
    return Panels(every.maps[:, -1:], every.prefix_mass[:, -1:], every.names[-1:])


def _captured(
    subject: ModelWithImages,
    part: Any,
    layers: Iterable[int] | None,
    panels_of: Callable[[int, Tensor], Panels],
) -> Panels:
    """Run the model, and return the panels made of each layer's weights (B, h, N, N)."""
    panels: list[Panels] = []
    model: Any = subject.model
    # The encoder alone needs no decoder
    run = model if part is not model.encoder else part
    with (
        torch.no_grad(),
        AttentionMaps(part, layers, consume=lambda *layer: panels.append(panels_of(*layer))),
    ):
        run(subject.inputs, subject.mask)
    return _side_by_side(panels)


def _heads(grid: GridMaps, head: int | str, name: str = "") -> Panels:
    """Return the panels of a layer's heads: one head, their mean, or "all", the mean first.

    With a name there is one panel, called so: every layer with all its heads would be more than a
    figure holds.
    """
    maps, mass = grid
    if isinstance(head, int):
        if head >= maps.shape[1]:
            raise AttentionError(f"there is no head {head} of {maps.shape[1]}, from 0")
        return Panels(maps[:, [head]], mass[:, [head]], [name or f"head {head}"])
    mean = Panels(maps.mean(1, keepdim=True), mass.mean(1, keepdim=True), [name or "mean of heads"])
    if name or head == "mean":
        return mean
    heads = [f"head {number}" for number in range(maps.shape[1])]
    return _side_by_side([mean, Panels(maps, mass, heads)])


def _side_by_side(panels: Sequence[Panels]) -> Panels:
    """Return the panels of all, in their order."""
    maps, prefix_mass, names = zip(*panels, strict=True)
    return Panels(torch.cat(maps, 1), torch.cat(prefix_mass, 1), [*chain(*names)])


# --- Relevance -----------------------------------------------------------------------------------


def class_relevance(
    subject: ModelWithImages, label: int | None, method: str
) -> tuple[Panels, list[int], list[float]]:
    """Return what the logit of a class depends on, by `relevance` or `legrad`.

    Args:
        subject: the model, with a head, and the images.
        label: the class; None for each image's predicted one.
        method: "relevance" or "legrad".

    Returns:
        A panel per image, each patch's relevance as a fraction of all input tokens'; and per image
        its class, and that class's probability.
    """
    # prediction imports modules that a map does not need
    from vit.look.predict import require_head

    require_head(subject.model)
    encoder = subject.model.encoder

    # The class of each image
    with torch.no_grad():
        probabilities = encoder.forward_head(encoder(subject.inputs)).softmax(-1)
    classes = probabilities.argmax(-1, keepdim=True)  # (B, 1)
    if label is not None:
        classes = torch.full_like(classes, label)

    def score(logits: Tensor) -> Tensor:
        # A copy, since what was computed under torch.inference_mode() has no part in a gradient
        return logits.gather(1, classes.clone())[:, 0]

    if method == "legrad":
        by_input = legrad(encoder, subject.inputs, score)  # (B, N)
        panels = _relevance_panel(subject, by_input, "LeGrad")
    else:
        by_token = relevance(
            encoder,
            subject.inputs,
            score=score,
            run=lambda images: encoder.forward_head(encoder(images)),
        )
        # The head reads the class token, or the mean over the patches
        by_input = encoder.pool(_without_own(by_token))  # (B, N)
        panels = _relevance_panel(subject, by_input, "relevance")
    chosen = probabilities.gather(1, classes)  # (B, 1)
    return panels, classes[:, 0].tolist(), chosen[:, 0].tolist()


def reconstruction_relevance(subject: ModelWithImages) -> Panels:
    """Return by `relevance` what a reconstructed patch depends on: one patch per image.

    The score is minus the patch's squared error; relevance is a fraction of all input tokens'.

    Args:
        subject: under a mask, its model with a decoder.
    """
    model: Any = subject.model
    targets = model.targets(subject.inputs)  # (B, L, pixels of a patch)

    # The error of one patch per image
    rows, columns = torch.tensor(subject.to_fill, device=targets.device).T
    numbers = rows * subject.geometry.grid_size[1] + columns  # (B,)

    def score(predicted: Tensor) -> Tensor:
        errors = (predicted - targets).square().mean(-1)  # (B, L)
        return -errors.gather(1, numbers[:, None])[:, 0]

    by_token = relevance(
        model.encoder,
        subject.inputs,
        score=score,
        run=lambda images: model(images, subject.mask),
    )
    # The decoder reads all tokens of the encoder
    return _relevance_panel(subject, _without_own(by_token).mean(1), "relevance")


def _without_own(by_token: Tensor) -> Tensor:
    """Return relevance (B, N, N) without the part of 1 that each token has in itself."""
    return by_token - torch.eye(by_token.shape[-1]).to(by_token)


def _relevance_panel(subject: ModelWithImages, by_input: Tensor, name: str) -> Panels:
    """Return the relevance (B, N) of each input token as a panel of fractions."""
    shares = by_input / by_input.sum(-1, keepdim=True).clamp(min=1e-12)

    # `to_grid` takes rows of queries: here all are the same
    every_query = shares[:, None, None].expand(-1, 1, shares.shape[-1], -1)  # (B, 1, N, N)
    grid = to_grid(every_query, subject.geometry, "mean", subject.mask)
    return Panels(*grid, [name])


# --- Features ------------------------------------------------------------------------------------


def feature_colours(subject: ModelWithImages) -> Tensor:
    """Return each patch's colour by `pca_colours` of the last layer's features.

    Returns:
        (B, rows, columns, 3) on the CPU, from 0 to 1.
    """
    encoder = subject.model.encoder
    with torch.no_grad():
        tokens = torch.cat([encoder(inputs) for inputs in subject.batches()])  # (B, N, D)
    colours = pca_colours(tokens[:, encoder.num_prefix_tokens :])
    return colours.unflatten(1, subject.geometry.grid_size)
