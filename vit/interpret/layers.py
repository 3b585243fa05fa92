"""Find a model's attention layers and intercept them: ours, timm's, transformers' and torch's own.

Fused attention (`F.scaled_dot_product_attention`) never forms its weights. So within a `with` block
every attention layer is made to call it, and a function that forms them takes its place. Afterwards
the model is as it was.

Letters: B batch, h heads, N queries, M keys, d width of a head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.attention import MultiHeadSelfAttention
from vit.errors import AttentionError

# Mixes a layer's values: its number, weights (B, h, N, M) and values (B, h, M, d) -> (B, h, N, d)
Hook = Callable[[int, Tensor, Tensor], Tensor]
NamedLayer = tuple[str, nn.Module]

_intercepted: set[int] = set()  # ids of the layers that are intercepted now


def attention_layers(model: nn.Module, every: bool = True) -> list[NamedLayer]:
    """Return the attention layers of a model with their names, in the order of its modules.

    Args:
        model: any.
        every: refuse a model that also has attention layers of another kind.

    Raises:
        AttentionError: there are none, the model is compiled, exported or scripted and cannot be
            intercepted, or a layer is of another kind.
    """
    _require_open(model)
    candidates = [(name, part) for name, part in model.named_modules() if _is_attention(part)]

    # A layer within a layer (a wrapper and its core) counts once, as the inner one
    names = [name for name, _ in candidates]
    layers = []
    for name, layer in candidates:
        if not any(inner.startswith(f"{name}.") for inner in names):
            layers.append((name, layer))
    if not layers:
        raise AttentionError(
            f"{type(model).__name__} has no attention layers of a known kind "
            "(ours, timm's, transformers', torch's)"
        )
    if every:
        _require_no_unknown_attention(model, layers)
    return layers


def _require_open(model: nn.Module) -> None:
    """Refuse a model with a part whose calls cannot be intercepted."""
    for name, part in model.named_modules():
        label = f"{name or 'the model'} ({type(part).__name__})"
        if hasattr(part, "_orig_mod"):
            raise AttentionError(
                f"{label} is compiled and cannot be inspected; pass the original model, ._orig_mod"
            )
        if getattr(part, "_compiled_call_impl", None) is not None:
            raise AttentionError(
                f"{label} was compiled in place and cannot be inspected; "
                "load it again without .compile()"
            )
        if isinstance(part, torch.jit.ScriptModule | torch.fx.GraphModule):
            raise AttentionError(
                f"{label} is a scripted or exported program and cannot be inspected; "
                "pass the model itself"
            )


def _require_no_unknown_attention(model: nn.Module, layers: list[NamedLayer]) -> None:
    """Refuse a model with a part that is called attention and is in none of `layers`."""
    known_parts: set[nn.Module] = set()
    for _, layer in layers:
        known_parts.update(layer.modules())
    # Libraries name their attention classes alike, so an unknown one is recognised by its name
    for name, part in model.named_modules():
        kind = type(part).__name__
        if re.search("Attn|Attention|^XCA$", kind) and known_parts.isdisjoint(part.modules()):
            count = len(layers)
            raise AttentionError(
                f"{name} ({kind}) attends in a way that cannot be followed; AttentionMaps follows "
                f"the {count} other layers with layers=range({count}), or a part of them"
            )


def _is_attention(part: nn.Module) -> bool:
    """Tell whether a module computes attention in a way that can be intercepted."""
    # Ours and torch's
    if isinstance(part, MultiHeadSelfAttention | nn.MultiheadAttention):
        return True
    # timm's layers say whether they are fused; its XCA attends from channel to channel
    if isinstance(getattr(part, "fused_attn", None), bool):
        return type(part).__name__ != "XCA"
    # transformers' layers have `scaling`, in CLIP and SigLIP `scale`
    config = getattr(part, "config", None)
    scale = getattr(part, "scaling", getattr(part, "scale", None))
    return hasattr(config, "_attn_implementation") and isinstance(scale, float)


@contextmanager
def intercept_attention(
    model: nn.Module, hook: Hook, every: bool = True
) -> Iterator[list[NamedLayer]]:
    """Let `hook` mix the values of each attention layer of `model`, within the block.

    The model is left as it was, even if the block raises.

    Args:
        model: any with attention layers of known kinds.
        hook: gets a layer's number, weights and values, and returns the mixed values.
        every: refuse a model that also has attention layers of another kind.

    Yields:
        the layers with their names.

    Raises:
        AttentionError: the model cannot be intercepted, another block does so already, or, within
            the block, a layer attends more than once per pass, so that no single map describes it.
    """
    layers = attention_layers(model, every)
    if any(id(layer) in _intercepted for _, layer in layers):
        raise AttentionError(
            "another `with` block already records this model; leave that one first"
        )

    # What the hooks below know about the pass that runs now
    numbers = {layer: number for number, (_, layer) in enumerate(layers)}
    running: list[int] = []  # numbers of the layers that run now, the innermost last
    attended: set[int] = set()  # numbers of the layers that have attended in this pass
    passing: list[nn.Module] = []  # the model, while it runs as a whole
    # Read here, so that blocks around different models or parts can be nested
    original = F.scaled_dot_product_attention

    def begin_pass(module: nn.Module, _inputs: Any) -> None:
        attended.clear()
        passing.append(module)

    def end_pass(*_: Any) -> None:
        passing.clear()

    def enter_layer(layer: nn.Module, _inputs: Any) -> None:
        # If a part of the model runs alone, each call of a layer is a pass of its own
        if not passing:
            attended.discard(numbers[layer])
        running.append(numbers[layer])

    def leave_layer(*_: Any) -> None:
        running.pop()

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        # Another model's attention, or one whose heads share keys, is computed as ever
        if not running or enable_gqa:
            return original(
                query, key, value, attn_mask, dropout_p, is_causal,
                scale=scale, enable_gqa=enable_gqa,
            )  # fmt: skip

        # A layer that attends twice, e.g. for a difference of two maps, has no one map
        number = running[-1]
        if number in attended:
            name = layers[number][0] or "the model itself"
            raise AttentionError(
                f"{name} attends more than once per forward pass, so no single map describes it"
            )
        attended.add(number)
        weights = _weights(query, key, attn_mask, dropout_p, is_causal, scale)
        return hook(number, weights, value)

    with ExitStack() as undo:
        # Know when a pass begins and ends, and which layer runs
        undo.callback(model.register_forward_pre_hook(begin_pass, prepend=True).remove)
        undo.callback(model.register_forward_hook(end_pass, always_call=True).remove)
        for _, layer in layers:
            _intercepted.add(id(layer))
            undo.callback(_intercepted.discard, id(layer))
            undo.callback(layer.register_forward_pre_hook(enter_layer, prepend=True).remove)
            undo.callback(layer.register_forward_hook(leave_layer, always_call=True).remove)
            _choose_fused_attention(layer, undo)
        _set_until(undo, F, "scaled_dot_product_attention", attend)

        # torch's own layer would compute everything in one kernel
        undo.callback(
            torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()
        )
        torch.backends.mha.set_fastpath_enabled(False)
        yield layers


def _weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """Return the weights that `F.scaled_dot_product_attention` mixes values by, by its definition.

    Args:
        query: (B, h, N, d).
        key: (B, h, M, d).
        attn_mask: broadcast to (B, h, N, M); bool, True where attention is allowed, or added to
            the scores.
        dropout_p: probability of setting a weight to 0.
        is_causal: each query attends only to keys up to its own number.
        scale: factor of the scores; None for 1 / sqrt(d).

    Returns:
        (B, h, N, M).
    """
    if scale is None:
        scale = query.shape[-1] ** -0.5
    # Queries are scaled before the product, as in `vit.attention`, or half precision overflows
    scores = query * scale @ key.transpose(-2, -1)  # (B, h, N, M)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()

    # A mask of bool says which keys a query may attend to, any other is added to the scores
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = scores.softmax(dim=-1)
    if dropout_p:
        weights = F.dropout(weights, dropout_p)
    return weights


def _choose_fused_attention(layer: nn.Module, undo: ExitStack) -> None:
    """Make a layer call `F.scaled_dot_product_attention`, whatever its settings say."""
    if isinstance(layer, MultiHeadSelfAttention):
        _set_until(undo, layer, "kernel", "flash")
    elif hasattr(layer, "fused_attn"):
        _set_until(undo, layer, "fused_attn", True)
    elif hasattr(layer, "config"):
        _set_until(undo, layer.config, "_attn_implementation", "sdpa")


def _set_until(undo: ExitStack, owner: Any, name: str, value: object) -> None:
    """Set an attribute, until `undo` closes."""
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
