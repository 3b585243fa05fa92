"""Find where a model computes attention, and intercept it: any model, whatever its classes.

Fused attention (`F.scaled_dot_product_attention`) never forms its weights. So within a `with` block
a function that forms them is called in its place, wherever the call stands, in the thread of the
block alone; layers of this package, timm and transformers that would multiply by hand are made to
call it. Afterwards the model is as it was. A `with` block waits for those of other threads: torch
keeps its modes per thread, but a model has one set of layers.

Letters: B batch, h heads, N queries, M keys, d width of a head.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
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


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """Return the modules that are called attention, in the model's order.

    Libraries name their classes alike. A forward pass shows which other modules attend.
    """
    candidates = [
        part
        for part in model.modules()
        # timm's layer of ViT-22B, of another name, computes its attention itself
        if re.search("Attn|Attention|^XCA$", type(part).__name__) or hasattr(part, "fused_attn")
    ]

    # A layer within a layer (a wrapper and its core) counts once, as the inner one
    return [layer for layer in candidates if {*candidates} & {*layer.modules()} == {layer}]


def in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook of a module that leaves the passes of other threads alone."""
    thread = threading.get_ident()

    def guarded(*arguments: Any) -> Any:
        if threading.get_ident() != thread:
            return None
        return hook(*arguments)

    return guarded


_capture = threading.RLock()
"""Held by the thread that captures: one at a time."""


class Interception(TorchFunctionMode):
    """Calls a hook wherever a model calls torch's fused attention, within `active()`.

    A layer is the innermost module that runs when the call happens.

    Args:
        model: any.
        hook: gets a layer's number, weights and values, and returns the mixed values.
    """

    def __init__(self, model: nn.Module, hook: Hook):
        super().__init__()
        self._model = model
        self._hook = hook
        self._parts = {part: name for name, part in model.named_modules()}
        # In the model's order
        self._layers = attention_layers(model)

        self._running: list[nn.Module] = []  # the innermost last
        self._attended: set[nn.Module] = set()  # in this pass
        self._weights: dict[nn.Module, Tensor] = {}  # (B, h, N, M) of the layers that run now
        self._fused_multi_head_attention = _copy_with_kernel(self._attend)

    @property
    def names(self) -> list[str]:
        """The attention layers: modules called so, and others from their first call on."""
        return [self._parts[layer] for layer in self._layers]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Intercept within the block, in its thread alone.

        Other threads run the model unseen, their last digits perhaps those of another kernel, or
        wait with a block of their own until this one ends.
        The model is left as it was, even if the block raises.
        """
        with ExitStack() as undo:
            undo.enter_context(_capture)
            # Compiled code would not see this block; who compiles has imported the compiler, which
            # takes seconds
            if "torch._dynamo" in sys.modules:
                undo.enter_context(torch.compiler.set_stance("force_eager"))

            # Layers that return their weights too; these are handed out first of all, so that
            # transformers' own hooks find them
            self._eager = {part for part in self._parts if _implementation(part) == "eager"}
            _fuse(self._parts, undo)
            before = in_this_thread(self._enter_part)
            after = in_this_thread(self._leave_part)
            for part in self._parts:
                entering = part.register_forward_pre_hook(before, prepend=True)
                undo.callback(entering.remove)
                leaving = part.register_forward_hook(after, prepend=True, always_call=True)
                undo.callback(leaving.remove)
            undo.enter_context(self)
            yield

    # --- Which module runs ---

    def _enter_part(self, part: nn.Module, _inputs: Any) -> None:
        # a signal may have ended the pass before, after which torch calls no hook
        if part is self._model:
            self._running.clear()
        # a pass of the model, or of a part of it that runs alone
        if not self._running:
            self._attended.clear()
        self._running.append(part)

    def _leave_part(self, part: nn.Module, _inputs: Any, output: Any) -> Any:
        while self._running and self._running.pop() is not part:
            continue
        weights = self._weights.pop(part, None)
        # transformers' layers return (mixed, weights), None for the weights if they are fused
        if part in self._eager and weights is not None and isinstance(output, tuple):
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
        call: Callable[..., Any] = func
        # timm's XCA attends from channel to channel
        if self._running and type(self._running[-1]).__name__ != "XCA":
            if getattr(func, "__name__", "") == "scaled_dot_product_attention":
                call = self._attend
            elif func is F.multi_head_attention_forward:
                call = self._multi_head_attention
        return call(*args, **(kwargs or {}))

    def _multi_head_attention(
        self,
        *inputs: Any,
        need_weights: bool = True,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        # torch's own layer is fused only if its weights are not requested; the hint that it is
        # causal then replaces its mask
        mixed, _ = self._fused_multi_head_attention(
            *inputs, need_weights=False, is_causal=is_causal and not need_weights, **options
        )
        if not need_weights:
            return mixed, None

        # The layer's caller also gets the weights: (B, h, N, M), or without heads, or without
        # images
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
        layer = self._running[-1]
        # A module named attention is none if the call stands in a module within it or around it
        if layer not in self._layers:
            unattending = {*self._running, *layer.modules()} - self._attended
            layers = {*self._layers} - unattending | {layer}
            self._layers = [part for part in self._parts if part in layers]
        # A layer that attends twice, e.g. for a difference of two maps, has no single map
        if layer in self._attended:
            name = self._parts[layer] or "the model itself"
            raise AttentionError(
                f"{name} attends more than once per forward pass, so no single map describes it"
            )
        self._attended.add(layer)

        # Heads that share their keys and values have the same ones
        if enable_gqa:
            heads = query.shape[1]
            key = key.repeat_interleave(heads // key.shape[1], dim=1)
            value = value.repeat_interleave(heads // value.shape[1], dim=1)
        weights = _weights(query, key, attn_mask, dropout_p, is_causal, scale).to(value.dtype)
        # A single head may have no axis of its own
        has_heads = weights.ndim == 4
        if not has_heads:
            weights = weights[:, None]
            value = value[:, None]
        self._weights[layer] = weights
        mixed = self._hook(self._layers.index(layer), weights, value)
        return mixed if has_heads else mixed[:, 0]


def _implementation(part: nn.Module) -> str:
    """Return which attention a module of transformers computes, perhaps "None"; else ""."""
    return str(getattr(getattr(part, "config", None), "_attn_implementation", ""))


def _fuse(parts: Iterable[nn.Module], undo: ExitStack) -> None:
    """Make modules that may multiply by hand call the fused attention, until `undo` closes."""
    configs: dict[int, Any] = {}
    for part in parts:
        config = getattr(part, "config", None)
        if isinstance(part, MultiHeadSelfAttention):
            undo.enter_context(held(part, "kernel", "flash"))
        elif isinstance(part.__dict__.get("fused_attn"), bool):
            undo.enter_context(held(part, "fused_attn", True))
        elif isinstance(getattr(type(config), "_attn_implementation", None), property):
            configs[id(config)] = config
    for config in configs.values():
        undo.enter_context(held(config, "__class__", _sdpa_in_this_thread(type(config))))


def _sdpa_in_this_thread(kind: Any) -> type:
    """Return settings of transformers for fused attention; other threads see them unchanged."""
    thread = threading.get_ident()
    original = kind._attn_implementation

    def implementation(config: Any) -> Any:
        return "sdpa" if threading.get_ident() == thread else original.fget(config)

    names = {"_attn_implementation": property(implementation, original.fset)}
    return type(kind.__name__, (kind,), names)


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
