"""Attention(Q, K, V) = softmax(Q K^T / sqrt(d)) V, with the weights and the mixing kept apart.

Vaswani et al. 2017, "Attention is all you need", eq. 1.
Letters: B batch, N tokens, D width, h heads, d = D / h.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from vit.config import ViTConfig

# On a CPU, the backward pass of torch's fused kernel is slow at a vision transformer's lengths: two
# products and a softmax are faster up to about this many keys (in bfloat16 still three times as
# fast at 257). On a GPU the fused kernel wins.
CPU_FLASH_FROM = {torch.float32: 192, torch.bfloat16: 512}


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """Compute how much each query attends to each key: softmax(q k^T / sqrt(d)).

    Args:
        q: queries (B, h, N, d).
        k: keys (B, h, M, d).

    Returns:
        (B, h, N, M): batch, head, query, key; every row sums to 1.
    """
    # A product of two random vectors grows with sqrt(d). Without the scale, the softmax of a wide
    # head would put all weight on one key, where its gradient vanishes.
    scale = q.shape[-1] ** -0.5
    scores = (q * scale) @ k.transpose(-2, -1)  # (B, h, N, M)
    return scores.softmax(dim=-1)


def choose_kernel(device: torch.device, dtype: torch.dtype, keys: int) -> str:
    """Return the faster kernel for this many keys: "math" or "flash"."""
    if device.type == "cpu" and keys < CPU_FLASH_FROM.get(dtype, 192):
        return "math"
    return "flash"


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: str = "auto") -> Tensor:
    """Mix the values by the attention weights.

    Args:
        q: queries (B, h, N, d).
        k: keys (B, h, M, d).
        v: values (B, h, M, d).
        kernel: "math" for two products and a softmax, "flash" for torch's fused kernel, "auto" for
            the faster one. Both compute the same; "flash" never stores the weights.

    Returns:
        (B, h, N, d): for each query, the sum of the values by its weights.
    """
    if kernel == "auto":
        kernel = choose_kernel(q.device, q.dtype, keys=k.shape[-2])
    if kernel == "math":
        return attention_weights(q, k) @ v
    return F.scaled_dot_product_attention(q, k, v)


def set_kernel(model: nn.Module, kernel: str) -> None:
    """Make every attention in `model` use `kernel` (see `attend`) from now on."""
    for module in model.modules():
        if isinstance(module, MultiHeadSelfAttention):
            module.kernel = kernel


class MultiHeadSelfAttention(nn.Module):
    """Self-attention: Q = X W_Q, K = X W_K, V = X W_V; W_O maps the heads' joined outputs.

    One fused layer `qkv` (timm's name and layout) computes the three products. W_Q, W_K and W_V are
    views of its weight, to be read, plotted or frozen one by one.

    Args:
        config: only embed_dim, num_heads, qkv, qkv_bias, qk_norm and norm_eps are read.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        dim = config.embed_dim
        self.num_heads = config.num_heads
        # a matter of speed, not of the result: see `set_kernel`
        self.kernel = "auto"

        # W_Q, W_K and W_V, or none: "identity" is attention without learned projections
        self.qkv = None
        if config.qkv == "linear":
            self.qkv = nn.Linear(dim, 3 * dim, bias=config.qkv_bias)

        # a norm of each head's queries and keys bounds the scores (Dehghani et al. 2023)
        width = dim // config.num_heads
        self.q_norm = nn.LayerNorm(width, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(width, eps=config.norm_eps) if config.qk_norm else nn.Identity()

        # W_O
        self.proj = nn.Linear(dim, dim)

    def _third(self, index: int) -> Tensor:
        """Return W_Q, W_K or W_V (D, D), a view of `qkv.weight` (3 D, D)."""
        if self.qkv is None:
            # no AttributeError: nn.Module.__getattr__ would swallow it, message and all
            raise ValueError(
                "this attention has Q = K = V = X (qkv: identity): it has no W_Q, W_K or W_V"
            )
        return self.qkv.weight.chunk(3)[index].T

    @property
    def W_Q(self) -> Tensor:
        """(D, D), a view: Q = X W_Q + b_Q; head i has the columns i d to (i + 1) d."""
        return self._third(0)

    @property
    def W_K(self) -> Tensor:
        """(D, D), a view: K = X W_K + b_K."""
        return self._third(1)

    @property
    def W_V(self) -> Tensor:
        """(D, D), a view: V = X W_V + b_V."""
        return self._third(2)

    @property
    def W_O(self) -> Tensor:
        """(D, D), a view: output = (heads side by side) W_O + b_O."""
        return self.proj.weight.T

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project tokens (B, N, D) to queries, keys and values, each (B, h, N, d)."""
        if self.qkv is None:
            q = k = v = rearrange(x, "b n (h d) -> b h n d", h=self.num_heads)
        else:
            qkv = self.qkv(x)  # (B, N, 3 D)
            pattern = "b n (three h d) -> three b h n d"
            q, k, v = rearrange(qkv, pattern, three=3, h=self.num_heads).unbind(0)
        return self.q_norm(q), self.k_norm(k), v

    def forward(self, x: Tensor, queries: int | None = None) -> Tensor:
        """Let every token attend to all tokens.

        Args:
            x: (B, N, D).
            queries: compute only the last `queries` tokens; None for all.

        Returns:
            (B, N, D), or (B, queries, D).
        """
        q, k, v = self.project(x)  # each (B, h, N, d)
        if queries is not None:
            q = q[:, :, -queries:]  # (B, h, queries, d)
        mixed = attend(q, k, v, self.kernel)  # (B, h, queries, d)
        return self.proj(rearrange(mixed, "b h n d -> b n (h d)"))
