"""Where a model's attention is computed, and how to step in between: for our models, timm's, transformers' and torch's own.

Fused attention (`F.scaled_dot_product_attention`) never forms its weights. So for the length of a `with` block every
attention layer is made to call it, and it is replaced by one that forms them. Nothing of the model is changed for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.attention import MultiHeadSelfAttention
from vit.errors import UserError

Mix = Callable[[int, Tensor, Tensor], Tensor]
"""What is done in a layer, given its number, its weights (B, h, N, M) and values (B, h, M, d) -> (B, h, N, d)."""


class AttentionError(UserError):
    """A model whose attention cannot be looked at, or a layer, head or patch that is not there; the message is one line."""


_looked_into: set[int] = set()  # ids of the layers that somebody steps into at the moment


def attention_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The attention layers of a model by name, in the order in which it holds them.

    Raises:
        AttentionError: there are none, or the model is compiled, exported or scripted: nobody can step into it then.
    """
    for name, module in model.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if hasattr(module, "_orig_mod"):
            raise AttentionError(
                f"{where} is compiled and closed to a look inside; pass the model that it was made from, ._orig_mod"
            )
        if getattr(module, "_compiled_call_impl", None) is not None:
            raise AttentionError(
                f"{where} was compiled in place and is closed to a look inside; load it again without .compile()"
            )
        if isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule):
            raise AttentionError(
                f"{where} is a program, scripted or exported, and closed to a look inside; pass the model itself"
            )
    found = [(name, module) for name, module in model.named_modules() if _is_attention(module)]
    # A layer within a layer (a wrapper with its core) counts once, by the inner one.
    names = [name for name, _ in found]
    found = [(name, module) for name, module in found if not any(other.startswith(f"{name}.") for other in names)]
    if not found:
        raise AttentionError(
            f"{type(model).__name__} has no attention layers that are known here (ours, timm's, transformers', torch's)"
        )
    return found


def _is_attention(module: nn.Module) -> bool:
    if isinstance(module, MultiHeadSelfAttention | nn.MultiheadAttention):
        return True
    if isinstance(getattr(module, "fused_attn", None), bool):  # timm
        return True
    config = getattr(module, "config", None)  # transformers
    return hasattr(config, "_attn_implementation") and isinstance(getattr(module, "scaling", None), float)


@contextmanager
def stepping_in(model: nn.Module, mix: Mix) -> Iterator[list[tuple[str, nn.Module]]]:
    """A block in which `mix` does what each attention layer of `model` does with its weights and values.

    The model comes back as it was, also when the block raises.

    Raises:
        AttentionError: as `attention_layers`; within the block, where a layer attends more than once in a pass, so that it
            has no one map.
    """
    layers = attention_layers(model)
    if any(id(module) in _looked_into for _, module in layers):
        raise AttentionError("another block looks into this model already; leave that one first")
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
        if not passing:  # a part of the model is run by itself: each layer's entry is a pass of its own
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
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        logits = query * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.transpose(-2, -1)  # (B, h, N, M)
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
            raise AttentionError(f"{name} attends more than once in a pass, so that no one map says what it looks at")
        attended.add(within[-1])
        return mix(within[-1], weights, value)

    with ExitStack() as undo:
        undo.callback(model.register_forward_pre_hook(begin, prepend=True).remove)
        undo.callback(model.register_forward_hook(end, always_call=True).remove)
        for _, module in layers:
            _looked_into.add(id(module))
            undo.callback(_looked_into.discard, id(module))
            undo.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
            undo.callback(module.register_forward_hook(leave, always_call=True).remove)
            undo.enter_context(_fused(module))
        F.scaled_dot_product_attention = attend  # type: ignore[assignment]
        undo.callback(setattr, F, "scaled_dot_product_attention", original)
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # torch's own layer would compute all of itself elsewhere
        undo.callback(torch.backends.mha.set_fastpath_enabled, fast)
        yield layers


@contextmanager
def _fused(module: nn.Module) -> Iterator[None]:
    """Have an attention layer call `F.scaled_dot_product_attention`, whatever it was set to."""
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
