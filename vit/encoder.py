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

from vit.attention import MultiHeadSelfAttention
from vit.config import ViTConfig
from vit.masking import Mask, keep_visible
from vit.patches import PatchEmbed, patchify, position_table


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put `model` in evaluation mode within the block; restore every module's mode afterwards, even after an error."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


class Mlp(nn.Module):
    """Two linear layers with an exact GELU between them: D -> mlp_ratio D -> D, per token."""

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
    """A learned factor per channel on a residual branch (Touvron et al. 2021, CaiT)."""

    def __init__(self, dim: int, initial: float):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), initial))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        return x * self.gamma


class DropPath(nn.Module):
    """Drop a residual branch for random images (stochastic depth, Huang et al. 2016).

    In training, each image keeps the branch with probability 1 - rate; what is kept is divided by 1 - rate.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor, chance: Tensor | None = None) -> Tensor:
        """Drop or scale the branch's output x (B, N, D), per image.

        Args:
            x: the branch's output.
            chance: (B,) from 0 to 1, one draw per image; below the rate, the branch is dropped. None: drawn here.
        """
        if not self.training or self.rate == 0:
            return x
        if chance is None:
            chance = torch.rand(x.shape[0], device=x.device)
        kept = chance.reshape(-1, *[1] * (x.ndim - 1)) >= self.rate  # (B, 1, 1)
        return x * kept / (1 - self.rate)


class Block(nn.Module):
    """A pre-norm transformer block: attention between tokens, then an MLP on each, both added to the residual stream.

    Args:
        config: the transformer's architecture.
        drop_path: this block's rate of stochastic depth.
    """

    def __init__(self, config: ViTConfig, drop_path: float = 0.0):
        super().__init__()
        if config.mlp not in MLPS:
            raise ValueError(f"the MLPs are {', '.join(MLPS)}, got {config.mlp!r}")
        dim, scale = config.embed_dim, config.layer_scale
        self.norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.attn = MultiHeadSelfAttention(config)
        self.ls1 = nn.Identity() if scale is None else LayerScale(dim, scale)
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mlp = MLPS[config.mlp](dim, round(dim * config.mlp_ratio))
        self.ls2 = nn.Identity() if scale is None else LayerScale(dim, scale)
        self.drop_path1 = DropPath(drop_path)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, x: Tensor, drop_path: Tensor | None = None, queries: int = 0) -> Tensor:
        """Compute the next layer's tokens.

        Args:
            x: (B, N, D).
            drop_path: (B, 2), the draws of the two branches (see `DropPath`).
            queries: compute only the last `queries` tokens, because nothing reads the others; 0: all.

        Returns:
            (B, N, D), or (B, queries, D).
        """
        chance1, chance2 = (None, None) if drop_path is None else drop_path.unbind(1)
        attended = self.attn(self.norm1(x), queries)
        x = x[:, -queries:] + self.drop_path1(self.ls1(attended), chance1)
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))), chance2)


class VisionTransformer(nn.Module):
    """Map images to tokens; with a mask, embed and see only the visible patches.

    Args:
        config: the architecture.

    Attributes:
        config: the architecture, from which the model can be rebuilt.
        decoder: None; a `MaskedAutoencoder` has one.
        origin: where a loaded model came from (`vit.checkpoints.Origin`).
    """

    decoder: None = None
    origin: Any = None

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config
        dim, pool = config.embed_dim, config.global_pool
        if pool not in ("token", "avg") or (pool == "token" and not config.class_token):
            raise ValueError(
                f"global_pool is 'avg', or 'token' where there is a class token; got {pool!r}"
            )
        self.num_prefix_tokens = config.class_token + config.registers

        # patches and prefix tokens to tokens with positions
        self.patch_embed = PatchEmbed(config.image_size, config.patch_size, config.channels, dim)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim)) if config.class_token else None
        self.reg_token = (
            nn.Parameter(torch.empty(1, config.registers, dim)) if config.registers else None
        )
        table_prefix = 0 if config.no_embed_class else self.num_prefix_tokens
        self.pos_embed = position_table(
            config.pos_embed, self.patch_embed.grid_size, table_prefix, dim
        )

        # blocks, whose drop path grows linearly from 0
        rates = [config.drop_path * i / max(config.depth - 1, 1) for i in range(config.depth)]
        self.blocks = nn.Sequential(*(Block(config, rate) for rate in rates))

        # the final norm, before the pooling or after it, and the head
        self.norm = nn.Identity() if config.fc_norm else nn.LayerNorm(dim, eps=config.norm_eps)
        self.fc_norm = nn.LayerNorm(dim, eps=config.norm_eps) if config.fc_norm else nn.Identity()
        self.head = nn.Linear(dim, config.num_classes) if config.num_classes else nn.Identity()
        init_weights(self)

    @property
    def encoder(self) -> VisionTransformer:
        """Itself: like a `MaskedAutoencoder`, it has `encoder` and `decoder`."""
        return self

    def attention(self, layer: int) -> MultiHeadSelfAttention:
        """Return the attention of block `layer`; negative numbers count from the last."""
        block = self.blocks[layer]
        assert isinstance(block, Block)
        return block.attn

    def patchify(self, images: Tensor) -> Tensor:
        """Cut images (B, C, H, W) into this model's patches (B, L, C p q).

        Raises:
            ValueError: the images have another size than the model's; their patches would get wrong positions.
        """
        if images.shape[-2:] != self.patch_embed.image_size:
            (height, width), (h, w) = images.shape[-2:], self.patch_embed.image_size
            ways = "resize them, e.g. by model.origin.transform, or load the model with load_model(..., image_size=...)"
            raise ValueError(
                f"the images have {height} x {width} pixels, the model takes {h} x {w}; {ways}"
            )
        return patchify(images, self.patch_embed.patch_size)

    def embed(self, patches: Tensor, mask: Mask | None = None) -> Tensor:
        """Embed patches (B, L, C p q) as tokens with positions (B, N, D), N = prefix + L, or prefix + K under a mask."""
        batch = patches.shape[
            0
        ]  # len(patches) would be a plain number, which an exported program could not vary
        prefix: list[Tensor] = [
            token for token in (self.cls_token, self.reg_token) if token is not None
        ]
        positions = self.pos_embed[:, self.pos_embed.shape[1] - patches.shape[1] :]  # (1, L, D)

        # the visible patches and their positions
        if mask is not None:
            patches = keep_visible(patches, mask)  # (B, K, C p q)
            positions = keep_visible(positions.expand(batch, -1, -1), mask)  # (B, K, D)
        x = self.patch_embed(patches) + positions  # (B, K, D)

        # class token and registers, before the patches
        if not prefix:
            return x
        head = torch.cat(prefix, dim=1)  # (1, prefix, D)
        if not self.config.no_embed_class:
            head = head + self.pos_embed[:, : self.num_prefix_tokens]
        return torch.cat([head.expand(batch, -1, -1), x], dim=1)  # (B, prefix + K, D)

    def encode(
        self, patches: Tensor, mask: Mask | None = None, drop_path: Tensor | None = None
    ) -> Tensor:
        """Compute `forward` from the images' patches (B, L, C p q)."""
        x = self.embed(patches, mask)  # (B, N, D)
        draws = (
            [None] * len(self.blocks) if drop_path is None else [None, *drop_path.unbind(1)]
        )  # (B, 2) per block
        for block, chance in zip(self.blocks, draws, strict=True):
            x = block(x, chance)
        return self.norm(x)

    def forward(
        self, images: Tensor, mask: Mask | None = None, drop_path: Tensor | None = None
    ) -> Tensor:
        """Encode images into tokens (B, N, D): the prefix first, then the patches (under a mask, the visible ones).

        Args:
            images: (B, C, H, W).
            mask: which patches are visible; None for all.
            drop_path: (B, depth - 1, 2) from 0 to 1, the draws of `DropPath` in training, for all blocks but the first,
                which drops nothing; None: each block draws its own.
        """
        return self.encode(self.patchify(images), mask, drop_path)

    def pool(self, tokens: Tensor) -> Tensor:
        """Pool tokens (B, N, D) into one vector per image (B, D): the class token, or the mean over the patches."""
        return (
            tokens[:, 0]
            if self.config.global_pool == "token"
            else tokens[:, self.num_prefix_tokens :].mean(dim=1)
        )

    def forward_head(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, N, D) to logits (B, classes) or, without a head, to pooled features (B, D)."""
        return self.head(self.fc_norm(self.pool(tokens)))


def init_weights(model: nn.Module) -> None:
    """Initialise every matrix and token, all in one place.

    Linear maps: Xavier-uniform as in MAE, bias 0. W_Q, W_K and W_V are three maps that happen to share a layer, so each has
    its own range (Xavier on the fused (3 D, D) matrix would start them smaller by sqrt 2). The patch embedding counts as
    a linear map, not as a convolution with a larger fan-out. The output maps, `head` and `pred`, start small (std 0.02): an
    untrained model then predicts nearly 0, and its loss starts at the targets' variance.
    Tokens: normal, std 0.02. Norms: 1 and 0; layer scales and position tables come initialised.
    """
    if next(
        model.parameters()
    ).is_meta:  # has shapes alone; to draw nothing, torch would load its compiler
        return
    # linear maps, including the patch embedding
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight.data.flatten(1))
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    # W_Q, W_K and W_V, each in its own range
    for module in model.modules():
        if isinstance(module, MultiHeadSelfAttention) and module.qkv is not None:
            for third in module.qkv.weight.data.chunk(3):
                nn.init.xavier_uniform_(third)

    # tokens and output maps
    small = ("cls_token", "reg_token", "mask_token", "head.weight", "pred.weight")
    for name, parameter in model.named_parameters():
        if name.endswith(small):
            nn.init.normal_(parameter, std=0.02)
