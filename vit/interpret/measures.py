"""Measures of attention weights: distance, entropy, rollout, relevance, and the ablation of heads.

Letters: B batch, h heads, N tokens, rows x columns patches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vit.encoder import eval_mode
from vit.errors import AttentionError
from vit.interpret.capture import AttentionMaps
from vit.interpret.geometry import Geometry
from vit.interpret.layers import intercept_attention


def attention_rollout(
    weights: Sequence[Tensor], discard: float = 0.0, num_prefix_tokens: int = 1
) -> Tensor:
    """Return how much of each input token reaches each token through all layers (Abnar and Zuidema 2020).

    In each layer, A is the mean over heads, and half stays with the token itself (the residual): 0.5 (A + I).

    Args:
        weights: (B, h, N, N) of each layer, from the first to the last; `weights.amax(1, keepdim=True)` for the maximum over
            heads in place of their mean.
        discard: share of each layer's smallest weights to leave out; the columns of prefix tokens are kept.
        num_prefix_tokens: class token and registers.

    Returns:
        (B, N, N): row = token, column = input token; rows sum to 1.
    """
    if not 0 <= discard < 1:
        raise AttentionError(f"discard is a share from 0 to below 1, got {discard}")
    result: Tensor | None = None
    for layer in weights:
        result = rollout_step(result, layer, discard, num_prefix_tokens)
    if result is None:
        raise AttentionError("a rollout needs the weights of at least one layer")
    return result


def rollout_step(
    before: Tensor | None, weights: Tensor, discard: float = 0.0, num_prefix_tokens: int = 1
) -> Tensor:
    """Return a rollout (B, N, N) through one more layer; `before` is None at the first. See `attention_rollout`."""
    _refuse_other_queries(weights)
    fused = weights.float().mean(1)  # (B, N, N)
    if discard:
        patches = fused[..., num_prefix_tokens:].flatten(1)  # (B, N L)
        lowest = patches.topk(int(patches.shape[1] * discard), dim=1, largest=False).indices
        kept = patches.scatter(1, lowest, 0.0).view_as(fused[..., num_prefix_tokens:])
        fused = torch.cat([fused[..., :num_prefix_tokens], kept], dim=-1)
    mixed = 0.5 * (
        fused / fused.sum(-1, keepdim=True).clamp(min=1e-12) + torch.eye(fused.shape[-1]).to(fused)
    )
    mixed = mixed / mixed.sum(-1, keepdim=True)
    return mixed if before is None else mixed @ before


def relevance(
    model: nn.Module,
    inputs: Tensor,
    score: int | Callable[[Tensor], Tensor],
    run: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return which input tokens a result depends on: attention weighted by its gradient (Chefer, Gur and Wolf 2021).

    R = I, then in each layer R = R + mean over heads of max(gradient * A, 0) times R; per image.

    Args:
        model: the relevance passes through its attention layers; left as it was.
        inputs: (B, C, H, W), normalised.
        score: the index of a class if `run` returns logits (B, classes); else a function from what it returns to one score per
            image (B,).
        run: from inputs to a result; None for `model`.

    Returns:
        (B, N, N): row = token, column = the input token that it depends on.

    Raises:
        AttentionError: there is no such class, no score per image, or layers see different tokens.
    """
    with eval_mode(model), torch.enable_grad(), AttentionMaps(model, gradients=True) as maps:
        # Frozen layers give their attention no gradient, so the input requires one.
        result = (run or model)(inputs.detach().clone().requires_grad_())
        scores = score(result) if callable(score) else _class_scores(result, score)
        if scores.shape != inputs.shape[:1]:
            raise AttentionError(
                f"score gives {tuple(scores.shape)} for {len(inputs)} images; one number per image is needed"
            )
        layers = [maps.weights[layer] for layer in sorted(maps.weights)]
        gradients = torch.autograd.grad(scores.sum(), layers, allow_unused=True)
    batch, _, tokens, _ = layers[0].shape
    if any(weights.shape[-2:] != (tokens, tokens) for weights in layers):
        raise AttentionError(
            "these attention layers see different numbers of tokens; follow a part, model.encoder, and give run= for the whole"
        )
    found = torch.eye(tokens, device=layers[0].device).expand(batch, -1, -1)
    for weights, gradient in zip(layers, gradients, strict=True):  # pairs by layer
        if gradient is not None:
            found = found + (gradient * weights.detach()).float().clamp(min=0).mean(dim=1) @ found
    return found.detach()


def _class_scores(logits: Tensor, number: int) -> Tensor:
    """Return the logits (B, classes) of one class (B,)."""
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        call = (
            "model(x).logits"
            if hasattr(logits, "logits")
            else "model.encoder.forward_head(model.encoder(x))"
        )
        way = f"give run=, e.g. lambda x: {call}, or a function as score"
        raise AttentionError(
            f"a class has a score among logits (B, classes), and the model returns {found}; {way}"
        )
    if not 0 <= number < logits.shape[1]:
        raise AttentionError(f"there is no class {number}: the model has {logits.shape[1]}, from 0")
    return logits[:, number]


def _refuse_other_queries(weights: Tensor) -> None:
    """Refuse a layer whose queries are not its keys (B, h, N, M), e.g. one that pools all tokens into one."""
    queries, keys = weights.shape[-2:]
    if queries != keys:
        raise AttentionError(
            f"a layer has {queries} queries and {keys} keys: its rows are not tokens; leave it out with layers="
        )


def attention_distance(weights: Tensor, geometry: Geometry) -> Tensor:
    """Return the mean distance between a patch and the patches it attends to, weighted by attention.

    Attention on prefix tokens, which have no place, is left out, and the rest is scaled to sum to 1 (Dosovitskiy et al. 2021,
    fig. 7).

    Args:
        weights: (B, h, N, N).

    Returns:
        (B, h), pixels.

    Raises:
        AttentionError: the layer's tokens are not those of `geometry`.
    """
    _refuse_other_queries(weights)
    if weights.shape[-1] != geometry.num_tokens:
        raise AttentionError(
            f"{weights.shape[-1]} tokens are not the {geometry.num_tokens} of {geometry}"
        )
    (rows, columns), (p, q) = geometry.grid_size, geometry.patch_size
    y = torch.arange(rows, device=weights.device).repeat_interleave(columns) * p
    x = torch.arange(columns, device=weights.device).repeat(rows) * q
    apart = ((y[:, None] - y) ** 2 + (x[:, None] - x) ** 2).float().sqrt()  # (L, L)
    weights = weights.float()  # in half precision, squared pixels overflow
    between = weights[..., geometry.num_prefix_tokens :, geometry.num_prefix_tokens :]
    between = between / between.sum(-1, keepdim=True).clamp(min=1e-12)
    return (between * apart).sum(-1).mean(-1)


def attention_entropy(weights: Tensor, num_prefix_tokens: int = 0) -> Tensor:
    """Return the mean entropy of a query's weights: 0 bits if all are on one key, log2 N if even.

    Args:
        weights: (B, h, N, N).
        num_prefix_tokens: queries to leave out, the class token's and the registers', for the mean over patches.

    Returns:
        (B, h), bits.
    """
    weights = weights[..., num_prefix_tokens:, :].float()
    return -torch.special.xlogy(weights, weights).sum(-1).mean(-1) / math.log(2)


def top_mass_mask(maps: Tensor, share: float = 0.6) -> Tensor:
    """Return the fewest patches that hold `share` of a map's mass, as DINO shows at 60%.

    Args:
        maps: (B, h, rows, columns); nan counts as 0.
        share: above 0 and at most 1.

    Returns:
        bool (B, h, rows, columns).
    """
    if not 0 < share <= 1:
        raise AttentionError(f"share is above 0 and at most 1, got {share}")
    flat = maps.double().nan_to_num().flatten(2)  # (B, h, L)
    values, order = flat.sort(dim=-1, descending=True)
    before = values.cumsum(-1) - values  # the mass of all larger ones
    kept = (before < share * values.sum(-1, keepdim=True)) & (values > 0)
    return torch.zeros_like(kept).scatter(-1, order, kept).unflatten(-1, maps.shape[2:])


@torch.no_grad()
def head_ablation(model: nn.Module, loss: Callable[[], Tensor]) -> Tensor:
    """Return the loss with each head silenced (its output set to zero), minus the loss of the whole model.

    Args:
        model: its heads are silenced one at a time; left as it was.
        loss: runs the model and returns a scalar, the same each time.

    Returns:
        (layers, h); nan if a layer has fewer heads than another.

    Raises:
        AttentionError: `loss` computes no attention that can be silenced.
    """
    heads: dict[int, int] = {}

    def count(layer: int, weights: Tensor, values: Tensor) -> Tensor:
        heads[layer] = weights.shape[1]
        return weights @ values

    with eval_mode(model):
        with intercept_attention(model, count) as layers:
            whole = float(loss())
        if not heads:
            raise AttentionError(
                "no attention was computed, or in a way that cannot be followed (as by torch's own layer)"
            )
        lost = torch.full((len(layers), max(heads.values())), float("nan"))
        for layer, head in (
            (layer, head) for layer, number in heads.items() for head in range(number)
        ):

            def without(
                number: int, weights: Tensor, values: Tensor, layer: int = layer, head: int = head
            ) -> Tensor:
                mixed = weights @ values
                if number == layer:
                    mixed[:, head] = 0
                return mixed

            with intercept_attention(model, without):
                lost[layer, head] = float(loss()) - whole
    return lost
