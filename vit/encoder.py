"""The vision transformer (Dosovitskiy et al. 2021): pre-norm layers over prefix tokens and patches.

Names are timm's, so that a timm state dict loads unchanged.
Letters: B batch, L patches, K visible patches, N tokens (prefix + patches), D width, h heads.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.attention import MultiHeadSelfAttention
from vit.config import ViTConfig
from vit.masking import Mask, keep_visible
from vit.patches import PatchEmbed, patchify, position_table


class Mlp(nn.Module):
    """Two linear layers with an exact GELU between them: D -> mlp_ratio D -> D, per token."""

    def __init__(self, dim: int, hidden_dim: int):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Transform every token by itself: (B, N, D) -> (B, N, D)."""
        return self.fc2(self.act(self.fc1(x)))


class GatedMlp(nn.Module):
    """An MLP whose hidden values are a product, silu(gate) * value, as in the largest DINOv2.

    SwiGLU (Shazeer 2020). `fc1` computes gate and value side by side (timm's packed layout):
    D -> 2 hidden, then hidden -> D.
    """

    def __init__(self, dim: int, hidden_dim: int):
        super().__init__()
        self.fc1 = nn.Linear(dim, 2 * hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Transform every token by itself: (B, N, D) -> (B, N, D)."""
        gate, value = self.fc1(x).chunk(2, dim=-1)  # each (B, N, hidden)
        return self.fc2(F.silu(gate) * value)


MLPS = {"gelu": Mlp, "swiglu": GatedMlp}


class LayerScale(nn.Module):
    """A learned factor per channel on a residual branch (Touvron et al. 2021, CaiT)."""

    def __init__(self, dim: int, initial: float):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), initial))

    def forward(self, x: Tensor) -> Tensor:
        """Scale every channel of x (B, N, D)."""
        return x * self.gamma


class DropPath(nn.Module):
    """Drop a residual branch for random images (stochastic depth, Huang et al. 2016).

    In training, each image keeps the branch with probability 1 - rate; a branch that is kept is
    divided by 1 - rate, so that its mean stays the same.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor, chance: Tensor | None = None) -> Tensor:
        """Drop or scale the branch's output x (B, N, D), per image.

        Args:
            x: the branch's output.
            chance: (B,) from 0 to 1, one draw per image; below the rate, the branch is dropped.
                None: drawn here.
        """
        if not self.training or self.rate == 0:
            return x
        if chance is None:
            chance = torch.rand(x.shape[0], device=x.device)
        keep = chance[:, None, None] >= self.rate  # (B, 1, 1)
        return x * keep / (1 - self.rate)


class Block(nn.Module):
    """A pre-norm transformer layer: attention between tokens, then an MLP on each token.

    Each adds its output to the residual stream.

    Args:
        config: the transformer's architecture.
        drop_path: this layer's rate of stochastic depth.
    """

    def __init__(self, config: ViTConfig, drop_path: float = 0.0):
        super().__init__()
        dim = config.embed_dim
        self.norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.attn = MultiHeadSelfAttention(config)
        self.ls1 = layer_scale(config)
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mlp = MLPS[config.mlp](dim, config.hidden_dim)
        self.ls2 = layer_scale(config)
        self.drop_path1 = DropPath(drop_path)
        self.drop_path2 = DropPath(drop_path)

    def forward(
        self, x: Tensor, drop_path: Tensor | None = None, queries: int | None = None
    ) -> Tensor:
        """Compute the next layer's tokens.

        Args:
            x: (B, N, D).
            drop_path: (B, 2), the draws of the two branches (see `DropPath`).
            queries: compute only the last `queries` tokens, if nothing reads the others; None: all.

        Returns:
            (B, N, D), or (B, queries, D).
        """
        chance1 = chance2 = None
        if drop_path is not None:
            chance1, chance2 = drop_path.unbind(1)  # each (B,)

        # attention: every token is a key, the last ones are the queries
        attended = self.attn(self.norm1(x), queries)  # (B, queries, D)
        if queries is not None:
            x = x[:, -queries:]  # (B, queries, D)
        x = x + self.drop_path1(self.ls1(attended), chance1)

        # the MLP
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))), chance2)


def layer_scale(config: ViTConfig) -> nn.Module:
    """Make a branch's layer scale, or an identity if the architecture has none."""
    if config.layer_scale is None:
        return nn.Identity()
    return LayerScale(config.embed_dim, config.layer_scale)


class VisionTransformer(nn.Module):
    """Map images to tokens; with a mask, only the visible patches are embedded and encoded.

    Args:
        config: the architecture.

    Attributes:
        config: the architecture, from which the model can be rebuilt.
        decoder: None; a `MaskedAutoencoder` has one.
        origin: where a trained or loaded model came from (`vit.weights.Origin`).
    """

    decoder: None = None
    norm_pix_loss: None = None
    origin: Any = None

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config
        dim = config.embed_dim
        self.reads_class_token = config.global_pool == "token"

        # patches to tokens
        self.patch_embed = PatchEmbed(config)

        # tokens before the patches: a class token, and registers (Darcet et al. 2024)
        self.num_prefix_tokens = config.class_token + config.registers
        self.has_prefix_positions = not config.no_embed_class
        self.cls_token = None
        self.reg_token = None
        if config.class_token:
            self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        if config.registers:
            self.reg_token = nn.Parameter(torch.empty(1, config.registers, dim))

        # positions: of the patches, and of the prefix unless `no_embed_class`
        prefix_rows = self.num_prefix_tokens
        if config.no_embed_class:
            prefix_rows = 0
        self.pos_embed = position_table(
            config.pos_embed, self.patch_embed.grid_size, prefix_rows, dim
        )

        # layers, whose drop path grows linearly from 0
        rates = [config.drop_path * i / max(config.depth - 1, 1) for i in range(config.depth)]
        self.blocks = nn.Sequential(*(Block(config, rate) for rate in rates))

        # the final norm, before the pooling or after it
        norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.norm = nn.Identity() if config.fc_norm else norm
        self.fc_norm = norm if config.fc_norm else nn.Identity()

        # the head, of a classifier
        self.head: nn.Module = nn.Identity()
        if config.num_classes:
            self.head = nn.Linear(dim, config.num_classes)
        init_weights(self)

    @property
    def encoder(self) -> VisionTransformer:
        """Itself: like a `MaskedAutoencoder`, it has `encoder` and `decoder`."""
        return self

    def attention(self, layer: int) -> MultiHeadSelfAttention:
        """Return the attention of layer `layer`; negative numbers count from the last."""
        block = self.blocks[layer]
        assert isinstance(block, Block)
        return block.attn

    def patchify(self, images: Tensor) -> Tensor:
        """Cut images (B, C, H, W) into this model's patches (B, L, C p q).

        Raises:
            ValueError: the images differ in size from the model's, so their patches would get wrong
                positions.
        """
        if images.shape[-2:] != self.patch_embed.image_size:
            h, w = images.shape[-2:]
            height, width = self.patch_embed.image_size
            raise ValueError(
                f"the images have {h} x {w} pixels, the model takes {height} x {width}; "
                "resize them, e.g. by model.origin.transform, "
                "or load the model with load_model(..., image_size=...)"
            )
        return patchify(images, self.patch_embed.patch_size)

    def embed(self, patches: Tensor, mask: Mask | None = None) -> Tensor:
        """Embed patches as tokens with positions, behind the prefix tokens.

        Args:
            patches: (B, L, C p q).
            mask: which patches are visible; None for all.

        Returns:
            (B, prefix + L, D), or under a mask (B, prefix + K, D).
        """
        # len(patches) would be a plain number, which an exported program could not vary
        batch = patches.shape[0]
        positions = self.pos_embed[:, -patches.shape[1] :]  # (1, L, D)

        # the visible patches and their positions; masked patches are not embedded at all
        if mask is not None:
            patches = keep_visible(patches, mask)  # (B, K, C p q)
            positions = keep_visible(positions.expand(batch, -1, -1), mask)  # (B, K, D)
        x = self.patch_embed(patches) + positions  # (B, K, D)

        # class token and registers, before the patches
        if not self.num_prefix_tokens:
            return x
        tokens: list[Tensor] = [
            token for token in (self.cls_token, self.reg_token) if token is not None
        ]
        prefix = torch.cat(tokens, dim=1)  # (1, prefix, D)
        if self.has_prefix_positions:
            prefix = prefix + self.pos_embed[:, : self.num_prefix_tokens]
        return torch.cat([prefix.expand(batch, -1, -1), x], dim=1)  # (B, prefix + K, D)

    def encode(
        self, patches: Tensor, mask: Mask | None = None, drop_path: Tensor | None = None
    ) -> Tensor:
        """Compute `forward` from the images' patches (B, L, C p q)."""
        x = self.embed(patches, mask)  # (B, N, D)

        # per layer: its draws (B, 2), or None; the first layer drops nothing
        draws: list[Tensor | None] = [None] * len(self.blocks)
        if drop_path is not None:
            draws = [None, *drop_path.unbind(1)]

        for block, block_draws in zip(self.blocks, draws, strict=True):
            x = block(x, block_draws)
        return self.norm(x)

    def forward(
        self, images: Tensor, mask: Mask | None = None, drop_path: Tensor | None = None
    ) -> Tensor:
        """Encode images into tokens.

        Args:
            images: (B, C, H, W).
            mask: which patches are visible; None for all.
            drop_path: (B, depth - 1, 2) from 0 to 1, the draws of `DropPath` in training, for all
                layers but the first, which drops nothing; None: each layer draws its own.

        Returns:
            (B, N, D): the prefix first, then the patches (under a mask, the visible ones).
        """
        return self.encode(self.patchify(images), mask, drop_path)

    def pool(self, tokens: Tensor) -> Tensor:
        """Return features (B, D) by `global_pool`: the class token or the mean over patches."""
        if self.reads_class_token:
            return tokens[:, 0]
        return tokens[:, self.num_prefix_tokens :].mean(dim=1)

    def forward_head(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, N, D) to logits (B, classes), or without a head to features (B, D)."""
        return self.head(self.fc_norm(self.pool(tokens)))


def init_weights(model: nn.Module) -> None:
    """Initialise every matrix and token, all in one place.

    Linear maps: Xavier-uniform as in MAE, bias 0. W_Q, W_K and W_V are three maps that happen to
    share a layer, so each has its own range (Xavier on the fused (3 D, D) matrix would start them
    smaller by sqrt 2). The patch embedding counts as a linear map, not as a convolution with a
    larger fan-out. The output maps, `head` and `pred`, start small (std 0.02): an untrained model
    then predicts nearly 0, and its loss starts at the targets' variance.
    Tokens: normal, std 0.02. Norms: 1 and 0; layer scales and position tables come initialised.
    """
    # on "meta" a model has shapes alone; drawing nothing there would make torch load its compiler
    if next(model.parameters()).is_meta:
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
