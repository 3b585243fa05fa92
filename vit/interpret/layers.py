"""Find a model's attention layers and intercept what they compute: ours, timm's, transformers' and torch's own.

Fused attention (`F.scaled_dot_product_attention`) never forms its weights. So within a `with` block every attention layer is
made to call it, and a function that forms them takes its place. Afterwards the model is as it was.
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

Hook = Callable[[int, Tensor, Tensor], Tensor]
"""Replaces a layer's mixing: its number, weights (B, h, N, M) and values (B, h, M, d) -> (B, h, N, d)."""


_intercepted: set[int] = set()  # ids of the layers intercepted now


def attention_layers(model: nn.Module, every: bool = True) -> list[tuple[str, nn.Module]]:
    """Return the attention layers of a model with their names, in the order that it holds them.

    Args:
        every: refuse a model that also has attention layers of another kind.

    Raises:
        AttentionError: there are none, or the model is compiled, exported or scripted and cannot be intercepted; or as `every`
            says.
    """
    for name, module in model.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if hasattr(module, "_orig_mod"):
            raise AttentionError(
                f"{where} is compiled and cannot be inspected; pass the original model, ._orig_mod"
            )
        if getattr(module, "_compiled_call_impl", None) is not None:
            raise AttentionError(
                f"{where} was compiled in place and cannot be inspected; load it again without .compile()"
            )
        if isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule):
            raise AttentionError(
                f"{where} is a scripted or exported program and cannot be inspected; pass the model itself"
            )
    found = [(name, module) for name, module in model.named_modules() if _is_attention(module)]
    # A layer within a layer (a wrapper and its core) counts once, as the inner one.
    names = [name for name, _ in found]
    found = [
        (name, module)
        for name, module in found
        if not any(other.startswith(f"{name}.") for other in names)
    ]
    if not found:
        raise AttentionError(
            f"{type(model).__name__} has no attention layers of a known kind (ours, timm's, transformers', torch's)"
        )
    parts = {part for _, module in found for part in module.modules()}
    for name, module in model.named_modules() if every else ():
        kind = type(module).__name__
        if re.search("Attn|Attention|^XCA$", kind) and parts.isdisjoint(module.modules()):
            way = f"AttentionMaps takes the {len(found)} others if they are asked for: layers=range({len(found)}), or some"
            raise AttentionError(f"{name} ({kind}) attends in a way that cannot be followed; {way}")
    return found


def _is_attention(module: nn.Module) -> bool:
    if isinstance(module, MultiHeadSelfAttention | nn.MultiheadAttention):
        return True
    if isinstance(
        getattr(module, "fused_attn", None), bool
    ):  # timm; its XCA attends from channel to channel
        return type(module).__name__ != "XCA"
    config = getattr(module, "config", None)  # transformers: `scale` in its CLIP and SigLIP
    scale = getattr(module, "scaling", getattr(module, "scale", None))
    return hasattr(config, "_attn_implementation") and isinstance(scale, float)


@contextmanager
def intercept_attention(
    model: nn.Module, hook: Hook, every: bool = True
) -> Iterator[list[tuple[str, nn.Module]]]:
    """Let `hook` mix the values of each attention layer of `model` by its weights, within the block.

    Yields the layers with their names. The model is left as it was, even if the block raises.

    Raises:
        AttentionError: as in `attention_layers`; or, within the block, a layer attends more than once per pass, so that no
            single map describes it.
    """
    layers = attention_layers(model, every)
    if any(id(module) in _intercepted for _, module in layers):
        raise AttentionError(
            "another `with` block already records this model; leave that one first"
        )
    numbers = {module: number for number, (_, module) in enumerate(layers)}
    within: list[int] = []
    attended: set[int] = set()  # in this pass
    passing: list[nn.Module] = []  # the model, while it runs as a whole
    original = F.scaled_dot_product_attention

    def begin(module: nn.Module, _: Any) -> None:
        attended.clear()
        passing.append(module)

    def end(*_: Any) -> None:
        passing.clear()

    def enter(module: nn.Module, _: Any) -> None:
        if not passing:  # a part of the model runs alone: each call of a layer is a pass of its own
            attended.discard(numbers[module])
        within.append(numbers[module])

    def leave(*_: Any) -> None:
        within.pop()

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
        if not within or enable_gqa:
            return original(
                query,
                key,
                value,
                attn_mask,
                dropout_p,
                is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
        logits = (
            query * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.transpose(-2, -1)
        )  # (B, h, N, M)
        if is_causal:
            attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        if attn_mask is not None:
            hidden = attn_mask.dtype is torch.bool
            logits = logits.masked_fill(~attn_mask, float("-inf")) if hidden else logits + attn_mask
        weights = logits.softmax(dim=-1)
        if dropout_p:
            weights = F.dropout(weights, dropout_p)
        if within[-1] in attended:
            name = layers[within[-1]][0] or "the model itself"
            raise AttentionError(
                f"{name} attends more than once per forward pass, so no single map shows where it looks"
            )
        attended.add(within[-1])
        return hook(within[-1], weights, value)

    with ExitStack() as undo:
        undo.callback(model.register_forward_pre_hook(begin, prepend=True).remove)
        undo.callback(model.register_forward_hook(end, always_call=True).remove)
        for _, module in layers:
            _intercepted.add(id(module))
            undo.callback(_intercepted.discard, id(module))
            undo.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
            undo.callback(module.register_forward_hook(leave, always_call=True).remove)
            undo.enter_context(_fused(module))
        F.scaled_dot_product_attention = attend  # type: ignore[assignment]
        undo.callback(setattr, F, "scaled_dot_product_attention", original)
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(
            False
        )  # torch's own layer would compute everything in one kernel
        undo.callback(torch.backends.mha.set_fastpath_enabled, fast)
        yield layers


@contextmanager
def _fused(module: nn.Module) -> Iterator[None]:
    """Make an attention layer call `F.scaled_dot_product_attention`, whatever its settings say."""
    owner: Any = module
    if isinstance(module, MultiHeadSelfAttention):
        key, value = "kernel", "flash"
    elif hasattr(module, "fused_attn"):
        key, value = "fused_attn", True  # type: ignore[assignment]
    elif hasattr(module, "config"):
        owner, key, value = module.config, "_attn_implementation", "sdpa"
    else:
        yield
        return
    before = getattr(owner, key)
    setattr(owner, key, value)
    try:
        yield
    finally:
        setattr(owner, key, before)
