"""The vision transformer (Dosovitskiy et al. 2021): pre-norm blocks over prefix tokens and patches.

Names are timm's, so that a timm state dict loads as it is.
Letters: B batch, L patches, K visible patches, N tokens (prefix + patches), D width, h heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.attention import NORM_EPS, MultiHeadSelfAttention
from vit.masking import Mask, keep_visible
from vit.patches import PatchEmbed, patchify, position_table


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """A block in which `model` is evaluated, not trained; it is put back as it was, also when the block raises."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


class Mlp(nn.Module):
    """Two linear layers with an exact GELU between: D -> mlp_ratio D -> D, each token by itself."""

    def __init__(self, dim: int, hidden_dim: int):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        return self.fc2(self.act(self.fc1(x)))


class GatedMlp(nn.Module):
    """An MLP whose hidden values are a product, silu(gate) * value (SwiGLU, Shazeer 2020), as in the largest DINOv2.

    `fc1` computes gate and value side by side (timm's packed layout): D -> 2 hidden, then hidden -> D.
    """

    def __init__(self, dim: int, hidden_dim: int):
        super().__init__()
        self.fc1 = nn.Linear(dim, 2 * hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(F.silu(gate) * value)


MLPS = {"gelu": Mlp, "swiglu": GatedMlp}


class LayerScale(nn.Module):
    """A learned factor a channel on a residual branch (Touvron et al. 2021, CaiT)."""

    def __init__(self, dim: int, initial: float):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), initial))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        return x * self.gamma


class DropPath(nn.Module):
    """Leaves a residual branch out for a random part of the images (stochastic depth, Huang et al. 2016).

    In training, an image keeps the branch with probability 1 - rate and then gets it divided by 1 - rate. Set `chance`,
    (B, 1, 1) from 0 to 1, to say which images do; while it is None they are drawn here.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate
        self.chance: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        if not self.training or self.rate == 0:
            return x
        chance = torch.rand(x.shape[0], 1, 1, device=x.device) if self.chance is None else self.chance
        kept = chance >= self.rate
        return x * kept / (1 - self.rate)


class Block(nn.Module):
    """A pre-norm transformer block: attention between tokens, then an MLP on each, both added to the residual stream.

    Args:
        dim: D.
        num_heads: h.
        mlp_ratio: hidden width of the MLP / D.
        qkv: "linear" or "identity" (see `MultiHeadSelfAttention`).
        qkv_bias: whether q, k and v have a bias.
        layer_scale: initial value of the layer scale; None for none.
        drop_path: rate of stochastic depth.
        qk_norm: whether queries and keys are normalised.
        mlp: "gelu" (`Mlp`) or "swiglu" (`GatedMlp`).
        norm_eps: of all norms.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        qkv: str = "linear",
        qkv_bias: bool = True,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        qk_norm: bool = False,
        mlp: str = "gelu",
        norm_eps: float = NORM_EPS,
    ):
        super().__init__()
        if mlp not in MLPS:
            raise ValueError(f"the MLPs are {', '.join(MLPS)}, got {mlp!r}")
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attn = MultiHeadSelfAttention(dim, num_heads, qkv, qkv_bias, qk_norm, norm_eps)
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps)
        self.mlp = MLPS[mlp](dim, round(dim * mlp_ratio))
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path1 = DropPath(drop_path)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x))))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Images to tokens; with a mask, it embeds and sees only the visible patches.

    Args:
        image_size: (H, W) in pixels.
        patch_size: (p, q) in pixels; divides the image.
        channels: C.
        embed_dim: D.
        depth: number of blocks.
        num_heads: h.
        mlp_ratio: hidden width of the MLPs / D.
        class_token: whether a class token stands first.
        registers: number of register tokens after it (Darcet et al. 2024).
        pos_embed: "learned" or "sincos".
        no_embed_class: the position table covers the patches only, not the prefix tokens (timm's name).
        qkv: "linear" or "identity".
        qkv_bias: whether q, k and v have a bias.
        layer_scale: initial value; None for none.
        drop_path: rate of the last block; it grows linearly from 0 at the first.
        global_pool: "token" (class token) or "avg" (mean of the patches), what `forward_head` reads.
        fc_norm: the final norm stands after pooling instead of before it (timm's name; MAE's fine-tuning does so).
        num_classes: width of the head; 0 for none.
        qk_norm: whether queries and keys are normalised, head by head.
        mlp: "gelu" or "swiglu".
        norm_eps: of all norms: 1e-6 in timm, MAE and DINO, often 1e-12 in transformers.

    Attributes:
        arguments: all of these, so that the same model can be built again.
        origin: of a loaded model, where it came from (`vit.checkpoints.Origin`).
    """

    origin: Any = None

    def __init__(
        self,
        image_size: tuple[int, int] = (32, 32),
        patch_size: tuple[int, int] = (4, 4),
        channels: int = 3,
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 3,
        mlp_ratio: float = 4.0,
        class_token: bool = True,
        registers: int = 0,
        pos_embed: str = "learned",
        no_embed_class: bool = False,
        qkv: str = "linear",
        qkv_bias: bool = True,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        global_pool: str = "avg",
        fc_norm: bool = False,
        num_classes: int = 0,
        qk_norm: bool = False,
        mlp: str = "gelu",
        norm_eps: float = NORM_EPS,
    ):
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        self.arguments: dict[str, Any] = arguments
        if global_pool not in ("token", "avg") or (global_pool == "token" and not class_token):
            raise ValueError(f"global_pool is 'avg', or 'token' where there is a class token; got {global_pool!r}")
        self.embed_dim = embed_dim
        self.num_prefix_tokens = class_token + registers
        self.no_embed_class = no_embed_class
        self.global_pool = global_pool
        self.patch_embed = PatchEmbed(image_size, patch_size, channels, embed_dim)
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim)) if class_token else None
        self.reg_token = nn.Parameter(torch.empty(1, registers, embed_dim)) if registers else None
        table_prefix = 0 if no_embed_class else self.num_prefix_tokens
        self.pos_embed = position_table(pos_embed, self.patch_embed.grid_size, table_prefix, embed_dim)
        self.blocks = nn.Sequential(
            *(
                Block(
                    embed_dim,
                    num_heads,
                    mlp_ratio,
                    qkv,
                    qkv_bias,
                    layer_scale,
                    drop_path * i / max(depth - 1, 1),
                    qk_norm,
                    mlp,
                    norm_eps,
                )
                for i in range(depth)
            )
        )
        self.norm = nn.Identity() if fc_norm else nn.LayerNorm(embed_dim, eps=norm_eps)
        self.fc_norm = nn.LayerNorm(embed_dim, eps=norm_eps) if fc_norm else nn.Identity()
        self.head = nn.Linear(embed_dim, num_classes) if num_classes else nn.Identity()
        init_weights(self)

    def attention(self, layer: int) -> MultiHeadSelfAttention:
        """The attention of block `layer`; negative numbers count from the last."""
        block = self.blocks[layer]
        assert isinstance(block, Block)
        return block.attn

    def embed(self, images: Tensor, mask: Mask | None = None) -> Tensor:
        """Images (B, C, H, W) -> tokens with positions (B, N, D), N = prefix + L, or prefix + K under a mask."""
        patches = patchify(images, self.patch_embed.patch_size)  # (B, L, C p q)
        prefix: list[Tensor] = [token for token in (self.cls_token, self.reg_token) if token is not None]
        positions = self.pos_embed[:, self.pos_embed.shape[1] - patches.shape[1] :]  # (1, L, D)
        if mask is not None:
            patches = keep_visible(patches, mask)  # (B, K, C p q)
            positions = keep_visible(positions.expand(images.shape[0], -1, -1), mask)  # (B, K, D)
        x = self.patch_embed(patches) + positions
        if not prefix:
            return x
        head = torch.cat(prefix, dim=1)  # (1, prefix, D)
        if not self.no_embed_class:
            head = head + self.pos_embed[:, : self.num_prefix_tokens]
        # len(images) would be a plain number, which an exported program could not vary
        return torch.cat([head.expand(images.shape[0], -1, -1), x], dim=1)  # (B, prefix + K, D)

    def forward(self, images: Tensor, mask: Mask | None = None) -> Tensor:
        """Images (B, C, H, W) -> tokens (B, N, D): the prefix first, then the patches (under a mask, the visible ones)."""
        return self.norm(self.blocks(self.embed(images, mask)))

    def pool(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, D) -> one vector an image (B, D): the class token, or the mean over the patches."""
        return tokens[:, 0] if self.global_pool == "token" else tokens[:, self.num_prefix_tokens :].mean(dim=1)

    def forward_head(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, D) -> logits (B, classes), or pooled features (B, D) without a head."""
        return self.head(self.fc_norm(self.pool(tokens)))


def init_weights(model: nn.Module) -> None:
    """The initialisation of every matrix and token, in this one place.

    Linear maps: Xavier-uniform, as MAE's, with bias 0. W_Q, W_K and W_V are three maps that happen to share a layer, so
    each has its own range (Xavier on the fused (3 D, D) matrix would start them smaller by sqrt 2). The patch embedding
    is the linear map it is, not a convolution with its larger fan-out. The maps that give the answer, `head` and `pred`,
    start small (std 0.02): an untrained model then says nearly nothing, and its loss begins at the targets' variance.
    Tokens: normal, std 0.02. Norms: 1 and 0; layer scales and position tables come initialised.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight.data.flatten(1))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, MultiHeadSelfAttention) and module.qkv is not None:
            for third in module.qkv.weight.data.chunk(3):
                nn.init.xavier_uniform_(third)
    small = ("cls_token", "reg_token", "mask_token", "head.weight", "pred.weight")
    for name, parameter in model.named_parameters():
        if name.endswith(small):
            nn.init.normal_(parameter, std=0.02)
