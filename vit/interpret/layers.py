"""Find a model's attention layers and intercept them: ours, timm's, transformers', torch's, others.

Fused attention (`F.scaled_dot_product_attention`) never forms its weights. So within a `with` block
every attention layer is made to call it, and a function that forms them is called in its place, in
the thread of the block alone. Afterwards the model is as it was. A block waits for those of other
threads: torch keeps its modes by thread, but a model has one set of layers.

Letters: B batch, h heads, N queries, M keys, d width of a head.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.attention import MultiHeadSelfAttention
from vit.errors import AttentionError
from vit.isolation import held

# Mixes a layer's values: its number, weights (B, h, N, M) and values (B, h, M, d) -> (B, h, N, d)
Hook = Callable[[int, Tensor, Tensor], Tensor]
NamedLayer = tuple[str, nn.Module]


def attention_layers(model: nn.Module, every: bool) -> list[NamedLayer]:
    """Return the attention layers of a model with their names, in the order of its modules.

    Args:
        model: any.
        every: refuse a model that also has attention layers of another kind.
    """
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
            "(ours, timm's, transformers', torch's, or one whose forward calls "
            "F.scaled_dot_product_attention)"
        )
    if not every:
        return layers

    # Libraries name their attention classes alike, so an unknown one is recognised by its name
    intercepted = {part for _, layer in layers for part in layer.modules()}
    for name, part in model.named_modules():
        kind = type(part).__name__
        if re.search("Attn|Attention|^XCA$", kind) and intercepted.isdisjoint(part.modules()):
            count = len(layers)
            raise AttentionError(
                f"{name} ({kind}) attends in a way that cannot be followed; AttentionMaps follows "
                f"the {count} other layers with layers=range({count}), or a part of them"
            )
    return layers


def _is_attention(part: nn.Module) -> bool:
    """Tell whether a module computes attention in a way that can be intercepted."""
    # Ours and torch's
    if isinstance(part, MultiHeadSelfAttention | nn.MultiheadAttention):
        return True
    # timm's layers say whether they are fused; its XCA attends from channel to channel
    if isinstance(getattr(part, "fused_attn", None), bool):
        return type(part).__name__ != "XCA"
    # transformers' layers have `scaling`, in CLIP and SigLIP `scale`
    scale = getattr(part, "scaling", getattr(part, "scale", None))
    if _implementation(part) and isinstance(scale, float):
        return True
    # Anybody's whose forward itself calls the fused attention
    code = getattr(type(part).forward, "__code__", None)
    return code is not None and "scaled_dot_product_attention" in code.co_names


def _implementation(part: nn.Module) -> str:
    """Return which attention a layer of transformers computes, perhaps "None"; else ""."""
    return str(getattr(getattr(part, "config", None), "_attn_implementation", ""))


def in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook of a module that leaves the passes of other threads alone."""
    thread = threading.get_ident()

    def guarded(*arguments: Any) -> Any:
        if threading.get_ident() != thread:
            return None
        return hook(*arguments)

    return guarded


class _Interception(TorchFunctionMode):
    """Calls a hook wherever an attention layer of a model calls torch's fused attention.

    Only calls in the thread that entered it are intercepted: torch keeps its modes by thread.
    """

    def __init__(self, layers: list[NamedLayer], hook: Hook):
        super().__init__()
        self.layers = layers
        self.numbers = {layer: number for number, (_, layer) in enumerate(layers)}
        # layers that return their weights too
        self._eager = {layer for layer in self.numbers if _implementation(layer) == "eager"}
        self._hook = hook
        self._running: list[int] = []  # numbers of the layers that run now, the innermost last
        self._attended: set[int] = set()  # those that have attended in this pass
        self._is_whole = False  # whether the model runs as a whole; a part of it may run alone
        self._weights: dict[int, Tensor] = {}  # (B, h, N, M) of the layers that run now
        self._fused_multi_head_attention = _copy_with_kernel(self._attend)

    # --- Which layer runs ---

    def watch(self, model: nn.Module, undo: ExitStack) -> None:
        """Follow which layer of `model` runs, until `undo` closes."""
        # the model may be the layer itself, so a pass begins before any layer; the weights are
        # handed out first of all, so that transformers' own hooks find them
        for layer in self.numbers:
            before = in_this_thread(self._enter_layer)
            undo.callback(layer.register_forward_pre_hook(before, prepend=True).remove)
            after = in_this_thread(self._leave_layer)
            hook = layer.register_forward_hook(after, prepend=True, always_call=True)
            undo.callback(hook.remove)
        before = in_this_thread(self._begin_pass)
        undo.callback(model.register_forward_pre_hook(before, prepend=True).remove)
        after = in_this_thread(self._end_pass)
        undo.callback(model.register_forward_hook(after, always_call=True).remove)

    def _begin_pass(self, *_: Any) -> None:
        self._running.clear()
        self._attended.clear()
        self._is_whole = True

    def _end_pass(self, *_: Any) -> None:
        self._is_whole = False

    def _enter_layer(self, layer: nn.Module, _inputs: Any) -> None:
        number = self.numbers[layer]
        # If a part of the model runs alone, each call of a layer is a pass of its own
        if not self._is_whole:
            self._attended.discard(number)
        self._running.append(number)

    def _leave_layer(self, layer: nn.Module, _inputs: Any, output: Any) -> Any:
        self._running.pop()
        weights = self._weights.pop(self.numbers[layer], None)
        # transformers' layers return (mixed, weights), None for the weights if they are fused
        if layer in self._eager and weights is not None and isinstance(output, tuple):
            return (output[0], weights, *output[2:])
        return None

    # --- What it calls ---

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # Within this function the mode is off, so what it calls is not intercepted again
        if self._running:
            if getattr(func, "__name__", "") == "scaled_dot_product_attention":
                func = self._attend
            elif func is F.multi_head_attention_forward:
                func = self._multi_head_attention
        return func(*args, **(kwargs or {}))

    def _multi_head_attention(
        self,
        *inputs: Any,
        need_weights: bool = True,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        # Torch's own layer is fused only if its weights are not asked for; its mask then gives way
        # to the hint that it is causal
        mixed, _ = self._fused_multi_head_attention(
            *inputs, need_weights=False, is_causal=is_causal and not need_weights, **options
        )
        if not need_weights:
            return mixed, None

        # The layer's caller gets the weights too: (B, h, N, M), or without heads, or without images
        weights = self._weights[self._running[-1]]
        if average_attn_weights:
            weights = weights.mean(dim=1)
        is_batched = mixed.ndim == 3
        return mixed, weights if is_batched else weights.squeeze(0)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        # A layer that attends twice, e.g. for a difference of two maps, has no one map
        number = self._running[-1]
        if number in self._attended:
            name = self.layers[number][0] or "the model itself"
            raise AttentionError(
                f"{name} attends more than once per forward pass, so no single map describes it"
            )
        self._attended.add(number)

        # Heads that share their keys and values have the same ones
        if enable_gqa:
            heads = query.shape[1]
            key = key.repeat_interleave(heads // key.shape[1], dim=1)
            value = value.repeat_interleave(heads // value.shape[1], dim=1)
        weights = _weights(query, key, attn_mask, dropout_p, is_causal, scale).to(value.dtype)
        # A single head may have no axis of its own
        if weights.ndim == 3:
            self._weights[number] = weights[:, None]
            return self._hook(number, weights[:, None], value[:, None])[:, 0]
        self._weights[number] = weights
        return self._hook(number, weights, value)


_capture = threading.RLock()
"""Held by the thread that captures: one at a time."""
_captured: set[nn.Module] = set()
"""The layers that are intercepted now."""


@contextmanager
def intercept_attention(
    model: nn.Module, hook: Hook, every: bool = True
) -> Iterator[list[NamedLayer]]:
    """Let `hook` mix the values of each attention layer of `model`, within the block.

    Only in the thread of the block: others run the model as ever, or wait with a block of their
    own until this one ends. The model is left as it was, even if the block raises.

    Args:
        model: any with attention layers of known kinds.
        hook: gets a layer's number, weights and values, and returns the mixed values.
        every: refuse a model that also has attention layers of another kind.

    Yields:
        the layers with their names.
    """
    layers = attention_layers(model, every)
    interception = _Interception(layers, hook)
    with ExitStack() as undo:
        undo.enter_context(_capture)
        if not _captured.isdisjoint(interception.numbers):
            raise AttentionError(
                "another `with` block already records this model; leave that one first"
            )
        _captured.update(interception.numbers)
        undo.callback(_captured.difference_update, interception.numbers)

        for layer in interception.numbers:
            if isinstance(layer, MultiHeadSelfAttention):
                undo.enter_context(held(layer, "kernel", "flash"))
            elif hasattr(layer, "fused_attn"):
                undo.enter_context(held(layer, "fused_attn", True))
            elif _implementation(layer):
                undo.enter_context(held(layer.config, "_attn_implementation", "sdpa"))
        interception.watch(model, undo)
        undo.enter_context(interception)
        yield layers


def _copy_with_kernel(attend: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return a copy of the function of torch's own layer that calls `attend` as fused attention.

    The function finds the fused one among its module's names, so the copy gets names of its own.
    """
    original = F.multi_head_attention_forward
    names = dict(original.__globals__)
    copy = FunctionType(
        original.__code__, names, original.__name__, original.__defaults__, original.__closure__
    )
    names["scaled_dot_product_attention"] = attend
    # Under a mode that was entered before, the function calls itself by its name
    names["multi_head_attention_forward"] = copy
    return copy


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
        (B, h, N, M); a query that may attend to no key has weights of 0.
    """
    if scale is None:
        scale = query.shape[-1] ** -0.5
    # Queries are scaled before the product, as in `vit.attention`, or half precision overflows
    scores = query * scale @ key.transpose(-2, -1)  # (B, h, N, M)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()

    # A mask of bool says which keys a query may attend to, any other is added to the scores
    if attn_mask is None:
        weights = scores.softmax(dim=-1)
    else:
        if attn_mask.dtype is torch.bool:
            allowed = attn_mask
            scores = scores.masked_fill(~allowed, float("-inf"))
        else:
            allowed = ~attn_mask.isneginf()
            scores = scores + attn_mask
        # The softmax of nothing but -inf is nan, and so is its gradient
        no_key = ~allowed.any(dim=-1, keepdim=True)
        weights = scores.masked_fill(no_key, 0.0).softmax(dim=-1).masked_fill(no_key, 0.0)
    if dropout_p:
        weights = F.dropout(weights, dropout_p)
    return weights
