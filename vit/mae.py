"""The masked autoencoder (He et al. 2022): encode the visible patches, fill in the hidden ones.

Letters: B batch, L patches, K visible patches, D width of the encoder, E width of the decoder, P = C p q values a patch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.attention import NORM_EPS
from vit.encoder import Block, VisionTransformer, init_weights
from vit.masking import Mask, restore_order
from vit.patches import patchify, position_table


class MaskedDecoder(nn.Module):
    """From the encoder's tokens to the pixels of every patch: a mask token stands where a patch was hidden.

    Positions are the fixed sin-cos table; prefix tokens travel along without one.

    Args:
        encoder_dim: D.
        dim: E, a multiple of 4.
        depth: number of blocks.
        num_heads: h.
        grid_size: (rows, columns).
        num_prefix_tokens: tokens before the patches.
        patch_values: P.
        mlp_ratio, qkv, qkv_bias, qk_norm, mlp, norm_eps: as in `Block`.

    Attributes:
        arguments: those that do not follow from the encoder.
    """

    def __init__(
        self,
        encoder_dim: int,
        dim: int,
        depth: int,
        num_heads: int,
        grid_size: tuple[int, int],
        num_prefix_tokens: int,
        patch_values: int,
        mlp_ratio: float = 4.0,
        qkv: str = "linear",
        qkv_bias: bool = True,
        qk_norm: bool = False,
        mlp: str = "gelu",
        norm_eps: float = NORM_EPS,
    ):
        super().__init__()
        kind = dict(mlp_ratio=mlp_ratio, qkv=qkv, qkv_bias=qkv_bias, qk_norm=qk_norm, mlp=mlp, norm_eps=norm_eps)
        self.arguments: dict[str, Any] = dict(dim=dim, depth=depth, num_heads=num_heads) | kind
        self.num_prefix_tokens = num_prefix_tokens
        self.embed = nn.Linear(encoder_dim, dim)
        self.mask_token = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = position_table("sincos", grid_size, num_prefix_tokens, dim)
        block = partial(Block, qk_norm=qk_norm, mlp=mlp, norm_eps=norm_eps)
        self.blocks = nn.Sequential(*(block(dim, num_heads, mlp_ratio, qkv, qkv_bias) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=norm_eps)
        self.pred = nn.Linear(dim, patch_values)
        init_weights(self)

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Tokens of the visible patches (B, prefix + K, D) -> predictions for all patches in grid order (B, L, P)."""
        batch, hidden = len(tokens), mask.mask.shape[1] - mask.ids_keep.shape[1]
        x = self.embed(tokens)  # (B, prefix + K, E)
        prefix, visible = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :]
        patches = torch.cat(
            [visible, self.mask_token.to(x.dtype).expand(batch, hidden, -1)], dim=1
        )  # (B, L, E), shuffled
        x = torch.cat([prefix, restore_order(patches, mask)], dim=1) + self.pos_embed  # (B, prefix + L, E)
        x = self.norm(self.blocks(x))
        return self.pred(x[:, self.num_prefix_tokens :])  # (B, L, P)


class MaskedAutoencoder(nn.Module):
    """Encoder and decoder; `forward` is a pure function of (weights, images, mask).

    Args:
        encoder: sees only the visible patches.
        decoder: predicts the pixels of all patches.
        norm_pix_loss: the target is each patch normalised by its own mean and deviation (see `patch_targets`).

    Attributes:
        origin: of a loaded model, where it came from (`vit.checkpoints.Origin`).
    """

    origin: Any = None

    def __init__(self, encoder: VisionTransformer, decoder: MaskedDecoder, norm_pix_loss: bool = True):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.norm_pix_loss = norm_pix_loss

    def forward(self, images: Tensor, mask: Mask) -> Tensor:
        """Images (B, C, H, W) and a mask -> predicted patches (B, L, P) in grid order, in the space of `targets`."""
        return self.decoder(self.encoder(images, mask), mask)

    def targets(self, images: Tensor) -> Tensor:
        """What the model is to predict: images (B, C, H, W) -> (B, L, P)."""
        return patch_targets(patchify(images, self.encoder.patch_embed.patch_size), self.norm_pix_loss)


def build_autoencoder(encoder: dict[str, Any], decoder: dict[str, Any], norm_pix_loss: bool) -> MaskedAutoencoder:
    """A masked autoencoder from plain values, as they stand in config.json.

    Args:
        encoder: arguments of `VisionTransformer`.
        decoder: dim, depth and num_heads of `MaskedDecoder`; what it does not name of the kind of block (mlp_ratio, qkv,
            qkv_bias, qk_norm, mlp, norm_eps) is the encoder's.
        norm_pix_loss: as in `MaskedAutoencoder`.
    """
    vision = VisionTransformer(**encoder)
    embed = vision.patch_embed
    kind = ("mlp_ratio", "qkv", "qkv_bias", "qk_norm", "mlp", "norm_eps")
    shared = {key: encoder[key] for key in kind if key in encoder} | decoder
    values = embed.proj.weight[0].numel()
    filling = MaskedDecoder(
        vision.embed_dim, grid_size=embed.grid_size, num_prefix_tokens=vision.num_prefix_tokens,
        patch_values=values, **shared,
    )  # fmt: skip
    return MaskedAutoencoder(vision, filling, norm_pix_loss)


def patch_targets(patches: Tensor, norm_pix: bool) -> Tensor:
    """Patches (B, L, P) as targets: as they are, or each one normalised by itself as in MAE.

    MAE's normalisation uses the unbiased variance, and eps 1e-6 inside the root.
    """
    if not norm_pix:
        return patches
    return (patches - patches.mean(-1, keepdim=True)) / (patches.var(-1, keepdim=True) + 1e-6).sqrt()


def masked_patch_loss(prediction: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Mean squared error over the hidden patches only, in float32.

    Args:
        prediction: (B, L, P).
        target: (B, L, P).
        mask: (B, L), 1 = hidden.

    Returns:
        A scalar: the mean over all values of all hidden patches of the batch.
    """
    error = (prediction.float() - target.float()).square().mean(dim=-1)  # (B, L)
    return (error * mask).sum() / mask.sum()


def uniformity(features: Tensor) -> Tensor:
    """How alike the images of a batch are: the mean squared cosine between any two, float32.

    Filling in patches alone lets all images share a few directions; a small weight on this spreads them out (U-MAE, Zhang et
    al. 2022, "How mask matters"). Unlike other losses it depends on which images are computed together.

    Args:
        features: (B, D), B at least 2 (of a single image it is 0).

    Returns:
        A scalar from 0, all images at right angles, to 1, all on one line.
    """
    with torch.autocast(features.device.type, enabled=False):
        unit = F.normalize(features.float(), dim=1)
        cosines = unit @ unit.T  # (B, B)
    pairs = max(len(features) * (len(features) - 1), 1)
    return (cosines.square().sum() - cosines.diagonal().square().sum()) / pairs
