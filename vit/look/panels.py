"""Maps side by side: the heads of a layer, all layers, a rollout, or what a result depends on.

Letters: B images, P panels, h heads, N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vit.errors import AttentionError
from vit.interpret.capture import AttentionMaps, GridMaps, Patch, to_grid
from vit.interpret.explanations import legrad, relevance
from vit.interpret.measures import rollout_step
from vit.look.features import pca_colours
from vit.look.predict import require_head
from vit.look.subject import ModelWithImages


class Panels(NamedTuple):
    """P maps per image.

    Attributes:
        maps: (B, P, rows, columns); nan for masked patches.
        prefix_mass: (B, P), the share on prefix tokens, which the maps leave out.
        names: of the P panels.
    """

    maps: Tensor
    prefix_mass: Tensor
    names: list[str]


# --- Attention weights, with one layer's in memory at a time -------------------------------------


def head_panels(
    subject: ModelWithImages, layer: int | None = -1, head: int | str = "all"
) -> Panels:
    """Return the maps of one layer's heads, or one map per layer of the encoder.

    Args:
        subject: the model and the images; their query is whose attention is shown.
        layer: its number, negative from the last; None for every layer.
        head: its number; "mean"; or "all": the mean and every head, or with every layer only the
            mean.

    Raises:
        AttentionError: there is no such layer, head or token.
    """
    # Every layer with all its heads would be more panels than a picture holds
    layers = None
    if layer is not None:
        layers = [layer]
    elif head == "all":
        head = "mean"
    panels: list[Panels] = []

    def keep(number: int, weights: Tensor) -> None:
        grid = to_grid(weights, subject.geometry, subject.query, subject.mask)
        heads = _select_heads(grid, head, f"layer {number}")
        # One map per layer is named after the layer, not after the head
        if layer is None:
            heads = heads._replace(names=[f"layer {number}"])
        panels.append(heads)

    encoder = subject.model.encoder
    with torch.no_grad(), AttentionMaps(encoder, layers, consume=keep):
        encoder(subject.inputs, subject.mask)
    return _side_by_side(panels)


def decoder_panels(
    subject: ModelWithImages, patches: list[Patch], head: int | str = "mean"
) -> Panels:
    """Return one map per layer of the decoder: its attention from one patch of each image.

    Args:
        subject: under a mask, its model with a decoder.
        patches: the query patch of each image, masked or not: the decoder has all.
        head: its number; or "mean".

    Raises:
        AttentionError: there is no such head or patch.
    """
    model: Any = subject.model
    panels: list[Panels] = []

    def keep(number: int, weights: Tensor) -> None:
        grid = to_grid(weights, subject.geometry, patches)
        advice = "; part='encoder' (--part encoder) leaves the decoder out"
        heads = _select_heads(grid, head, f"layer {number} of the decoder", advice)
        panels.append(heads._replace(names=[f"layer {number}"]))

    with torch.no_grad(), AttentionMaps(model.decoder, consume=keep):
        model(subject.inputs, subject.mask)
    return _side_by_side(panels)


def rollout_panels(
    subject: ModelWithImages, layer: int | None = -1, discard: float = 0.0
) -> Panels:
    """Return `attention_rollout` of the encoder up to one layer, or up to each.

    Args:
        subject: the model and the images; their query is the token that is reached.
        layer: the last to pass through, negative from the last of all; None for up to each.
        discard: share of each layer's smallest weights to leave out.

    Raises:
        AttentionError: there is no such layer or token.
    """
    # A rollout passes through all layers up to the last
    encoder = subject.model.encoder
    last_layers = [-1] if layer is None else [layer]
    (last,) = AttentionMaps(encoder, last_layers).layers
    panels: list[Panels] = []
    rollout: Tensor | None = None

    def step(number: int, weights: Tensor) -> None:
        nonlocal rollout
        rollout = rollout_step(rollout, weights, discard, encoder.num_prefix_tokens)  # (B, N, N)
        if layer is None or number == last:
            grid = to_grid(rollout[:, None], subject.geometry, subject.query, subject.mask)
            panels.append(Panels(*grid, [f"through layer {number}"]))

    with torch.no_grad(), AttentionMaps(encoder, range(last + 1), consume=step):
        encoder(subject.inputs, subject.mask)
    return _side_by_side(panels)


def _select_heads(grid: GridMaps, head: int | str, layer: str, advice: str = "") -> Panels:
    """Return the panels of a layer's heads: one head, their mean, or "all", the mean first.

    Raises:
        AttentionError: there is no such head in `layer`; the message ends with `advice`.
    """
    count = grid.maps.shape[1]
    if isinstance(head, int):
        if not 0 <= head < count:
            raise AttentionError(
                f"there is no head {head} in {layer}: it has {count}, from 0 to {count - 1}{advice}"
            )
        return Panels(grid.maps[:, head, None], grid.prefix_mass[:, head, None], [f"head {head}"])

    mean_map = grid.maps.mean(1, keepdim=True)  # (B, 1, rows, columns)
    mean_mass = grid.prefix_mass.mean(1, keepdim=True)  # (B, 1)
    mean = Panels(mean_map, mean_mass, ["mean of heads"])
    if head == "mean":
        return mean
    # "all": the mean, and each head beside it
    every = Panels(*grid, [f"head {number}" for number in range(count)])
    return _side_by_side([mean, every])


def _side_by_side(panels: Sequence[Panels]) -> Panels:
    """Return the panels of all, in their order."""
    names: list[str] = []
    for part in panels:
        names += part.names
    return Panels(
        maps=torch.cat([part.maps for part in panels], dim=1),
        prefix_mass=torch.cat([part.prefix_mass for part in panels], dim=1),
        names=names,
    )


# --- Relevance -----------------------------------------------------------------------------------


def class_relevance(
    subject: ModelWithImages, label: int | None = None, method: str = "relevance"
) -> tuple[Panels, list[int], list[float]]:
    """Return what the logit of a class depends on, by `relevance` or `legrad`.

    Args:
        subject: the model, with a head, and the images.
        label: the class; None for each image's predicted one.
        method: "relevance" or "legrad".

    Returns:
        A panel per image, each patch's relevance as a share of all input tokens'; and per image
        its class, and that class's probability.

    Raises:
        CheckpointError: its head does not choose between classes.
    """
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

    name = "relevance"
    if method == "legrad":
        name = "LeGrad"
        by_input = legrad(encoder, subject.inputs, score)  # (B, N)
    else:
        by_token = relevance(
            encoder,
            subject.inputs,
            score=score,
            run=lambda images: encoder.forward_head(encoder(images)),
        )  # (B, N, N)
        # The head reads the class token, or the mean over the patches
        read_by_head = slice(encoder.num_prefix_tokens, None)
        if encoder.config.global_pool == "token":
            read_by_head = slice(1)
        by_input = _of_inputs(by_token, read_by_head)
    panels = _relevance_panel(subject, by_input, name)
    chosen = probabilities.gather(1, classes)  # (B, 1)
    return panels, classes[:, 0].tolist(), chosen[:, 0].tolist()


def reconstruction_relevance(subject: ModelWithImages, patches: Sequence[Patch]) -> Panels:
    """Return what the reconstruction of one masked patch per image depends on, by `relevance`.

    The score is minus the patch's squared error; relevance is a share of all input tokens'.

    Args:
        subject: under a mask, its model with a decoder.
        patches: the masked patch of each image.
    """
    model: Any = subject.model
    targets = model.targets(subject.inputs)  # (B, L, pixels of a patch)

    # The error of one patch per image
    rows, columns = torch.tensor(patches, device=targets.device).T
    images = torch.arange(len(patches), device=targets.device)
    numbers = rows * subject.geometry.grid_size[1] + columns  # (B,)

    def score(predicted: Tensor) -> Tensor:
        errors = (predicted - targets).square().mean(-1)  # (B, L)
        return -errors[images, numbers]

    by_token = relevance(
        model.encoder,
        subject.inputs,
        score=score,
        run=lambda images: model(images, subject.mask),
    )
    # The decoder reads all tokens of the encoder
    return _relevance_panel(subject, _of_inputs(by_token, slice(None)), "relevance")


def _of_inputs(by_token: Tensor, tokens: slice) -> Tensor:
    """Return the relevance of each input token.

    Args:
        by_token: (B, N, N), row = token, column = the input token that it depends on.
        tokens: those from which the result is computed.

    Returns:
        (B, N), without the initial relevance of each token to itself.
    """
    by_token = by_token - torch.eye(by_token.shape[-1]).to(by_token)
    return by_token[:, tokens].mean(1)


def _relevance_panel(subject: ModelWithImages, by_input: Tensor, name: str) -> Panels:
    """Return the relevance (B, N) of each input token as a panel of shares."""
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
