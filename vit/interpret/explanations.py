"""Relevance and LeGrad show what a result depends on; deletion and insertion test such maps.

Letters: B images, h heads, N tokens (prefix tokens, then patches), D width, S steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import AttentionError
from vit.interpret.capture import AttentionMaps
from vit.interpret.measures import full_precision
from vit.isolation import eval_mode, outputs_of


def relevance(
    model: nn.Module,
    inputs: Tensor,
    score: int | Callable[[Tensor], Tensor],
    run: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return which input tokens a score depends on (Chefer, Gur and Wolf 2021).

    Attention is weighted by its gradient: R = I, then in each layer R = R + C R, where C is the
    mean over heads of max(gradient * A, 0); per image. Layers side by side add their C to one step.

    Args:
        model: the relevance passes through its attention layers, which are not computed twice to
            save memory (activation checkpointing); left as it was.
        inputs: (B, C, H, W), normalised.
        score: the index of a class if `run` returns logits (B, classes); else a function from
            what it returns to one score per image (B,).
        run: from inputs to a result; None for `model`.

    Returns:
        (B, N, N): row = token, column = the input token that it depends on.

    Raises:
        AttentionError: there is no score per image.
        RuntimeError: layers get different tokens, or the model was made under
            torch.inference_mode().
    """
    if run is None:
        run = model
    with AttentionMaps(model, gradients=True) as maps, _gradients_on(model):
        # Frozen layers give their attention no gradient, so the input requires one
        output = run(inputs.detach().clone().requires_grad_())
        scores = _scores_of(output, score, len(inputs))
        layers = list(maps.weights.values())
        steps = maps.steps
        # Images do not mix, so the gradient of the sum is each image's own; it is zero with respect
        # to a layer that the score does not depend on
        gradients = torch.autograd.grad(scores.sum(), layers, materialize_grads=True)

    # Before the first layer, each token depends on itself alone, in every image
    result = torch.eye(layers[0].shape[2]).to(layers[0].device, torch.float32)  # (N, N)
    for step in steps:
        contribution: Any = 0  # (B, N, N)
        for layer in step:
            weighted = (gradients[layer] * layers[layer].detach()).float()  # (B, h, N, N)
            contribution += weighted.clamp(min=0).mean(dim=1)
        with full_precision(result):
            result = result + contribution @ result
    return result


def legrad(
    model: nn.Module,
    inputs: Tensor,
    score: int | Callable[[Tensor], Tensor],
    head: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return which input tokens form the features of a score: LeGrad (Bousselham et al. 2025).

    The tokens after each layer get a score of their own, through the model's last norm and head.
    The positive part of the score's gradient with respect to the layer's attention is averaged over
    heads, queries and layers; per image.

    Args:
        model: with one attention in each of its layers, or several side by side; no layer is
            computed twice (activation checkpointing); left as it was.
        inputs: (B, C, H, W), normalised.
        score: the index of a class if `head` returns logits (B, classes); else a function from
            what it returns to one score per image (B,).
        head: from a layer's tokens (B, N, D) to a result; None for `model.norm` and
            `model.forward_head`, which this package's models and timm's have.

    Returns:
        (B, N), never below 0, for each input token; the maps of the paper leave prefix tokens out
        and are scaled to 0 to 1.

    Raises:
        AttentionError: there is no score per image, or the model has no head.
        KeyError: an attention is in no layer of its own, whose tokens would have a score.
    """
    parts: Any = model
    if head is None:
        if getattr(getattr(model, "config", model), "num_classes", None) == 0:
            raise AttentionError(
                f"{type(model).__name__} has no head for classes; give head=, which returns scores"
            )
        # of a model of ours or timm's
        head = lambda tokens: parts.forward_head(parts.norm(tokens))  # noqa: E731
    listed = _parts_of_lists(model)
    with (
        AttentionMaps(model, gradients=True) as maps,
        _gradients_on(model),
        outputs_of(listed) as tokens,
    ):
        model(inputs.detach().clone().requires_grad_())
        blocks = _blocks_of(listed, maps)

        # A layer's own score depends on its attention, whatever later layers do with it
        positive = []
        for layer in maps.layers:
            scores = _scores_of(head(tokens[blocks[layer]]), score, len(inputs))
            (gradient,) = torch.autograd.grad(
                scores.sum(), maps.weights[layer], retain_graph=True, materialize_grads=True
            )
            positive.append(gradient.float().clamp(min=0).mean(dim=(1, 2)))  # (B, N)
    return torch.stack(positive).mean(0)


def _parts_of_lists(model: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of a model's lists with their names, the outer before the inner."""
    lists = nn.ModuleList | nn.Sequential
    return {
        name: part
        for name, part in model.named_modules()
        if isinstance(model.get_submodule(name.rpartition(".")[0]), lists)
    }


def _blocks_of(listed: dict[str, nn.Module], maps: AttentionMaps) -> dict[int, str]:
    """Return the name of each attention's layer: the outermost list part that is one step."""
    blocks: dict[int, str] = {}
    for name in listed:
        layers = enumerate(f"{layer}." for layer in maps.names)
        inside = {number for number, layer in layers if layer.startswith(f"{name}.")}
        # one attention, or several side by side, whose branches are no layers
        if inside and any(inside.issubset(step) for step in maps.steps):
            blocks |= dict.fromkeys(inside - blocks.keys(), name)
    return blocks


class Faithfulness(NamedTuple):
    """The curves of deletion and insertion (Petsiuk et al. 2018, RISE), and the areas below them.

    A map that names the patches that matter has a small area of deletion and a large one of
    insertion. Only maps of the same model, images and baseline can be compared.

    Attributes:
        shares: (S + 1,), the fraction of the patches deleted or inserted, from 0 to 1.
        deletion: (B, S + 1), the score as the highest patches are deleted first.
        insertion: (B, S + 1), the score as the highest patches are inserted first.
        deletion_area: (B,), the mean score along the curve.
        insertion_area: (B,).
    """

    shares: Tensor
    deletion: Tensor
    insertion: Tensor
    deletion_area: Tensor
    insertion_area: Tensor


@torch.no_grad()
def faithfulness(
    run: Callable[[Tensor], Tensor],
    inputs: Tensor,
    maps: Tensor,
    score: int | Callable[[Tensor], Tensor],
    steps: int = 32,
    baseline: Tensor | float = 0.0,
) -> Faithfulness:
    """Delete and insert the patches of each image in the order of its map, the highest first.

    Args:
        run: from inputs to a result, twice per step; a model in eval mode.
        inputs: (B, C, H, W), normalised.
        maps: (B, rows, columns), of any scale; only their order counts. Of equal patches, the first
            in reading order comes first.
        score: a class, for its probability, if `run` returns logits (B, classes); else a function
            from what it returns to one score per image (B,).
        steps: S, of about the same number of patches each; at most as many as there are patches.
        baseline: what replaces a patch that is deleted, or not yet inserted: an image that
            broadcasts to the inputs, e.g. these blurred, or a number; 0 is the mean colour.

    Raises:
        AttentionError: a map is nan.
    """
    if bool(maps.isnan().any()):
        raise AttentionError("the maps are nan in places, as under a mask: they have no order")

    # The rank of each patch, and how many patches are taken after each step
    order = maps.flatten(1).argsort(dim=1, descending=True, stable=True)  # (B, L)
    ranks = order.argsort(dim=1).to(inputs.device).unflatten(1, maps.shape[1:])
    patches = order.shape[1]
    counts = torch.linspace(0, patches, min(steps, patches) + 1).round().to(inputs.device)
    baseline = torch.as_tensor(baseline).to(inputs)

    # The score with each patch deleted or kept
    def score_of(images: Tensor) -> Tensor:
        result = run(images)
        if not callable(score):
            result = result.float().softmax(dim=1)
        return _scores_of(result, score, len(images))

    deletion = []
    insertion = []
    for count in counts:
        highest = (ranks < count)[:, None].float()  # (B, 1, rows, columns)
        highest = F.interpolate(highest, inputs.shape[2:]).bool()
        deletion.append(score_of(torch.where(highest, baseline, inputs)))
        insertion.append(score_of(torch.where(highest, inputs, baseline)))
    shares = counts.cpu() / patches
    curves = [torch.stack(scores, dim=1).float().cpu() for scores in (deletion, insertion)]
    areas = [torch.trapezoid(curve, shares) for curve in curves]
    return Faithfulness(shares, *curves, *areas)


@contextmanager
def _gradients_on(model: nn.Module) -> Iterator[None]:
    """Compute gradients within the block, with the model in eval mode, whatever is around it."""
    with eval_mode(model), torch.inference_mode(False), torch.enable_grad():
        yield


def _scores_of(result: Tensor, score: int | Callable[[Tensor], Tensor], images: int) -> Tensor:
    """Return one score per image (B,): the logit of a class, or the result of a function."""
    scores = score(result) if callable(score) else result[:, score]
    if scores.shape != (images,):
        raise AttentionError(
            f"score gives {tuple(scores.shape)} for {images} images; one number per image is"
            " needed, such as the logit of a class; run= may return logits"
        )
    return scores
