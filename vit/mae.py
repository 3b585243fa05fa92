"""The masked autoencoder (He et al. 2022): encode the visible patches, reconstruct the masked ones.

Letters: B batch, L patches, K visible patches, D width of the encoder, E width of the decoder,
P = C p q values per patch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.config import DecoderConfig, ViTConfig
from vit.encoder import Block, VisionTransformer, init_weights
from vit.masking import Mask, restore_order, take
from vit.patches import position_table


class MaskedDecoder(nn.Module):
    """Map the encoder's tokens to the pixels of every patch; mask tokens stand for masked patches.

    Positions are the fixed sin-cos table; prefix tokens have none.

    Args:
        config: the architecture.
        encoder: the encoder's architecture, which decides the rest: image, patches, prefix tokens
            and kind of layer.

    Attributes:
        config: the architecture, with every None replaced by the encoder's value.
    """

    def __init__(self, config: DecoderConfig, encoder: ViTConfig):
        super().__init__()
        self.config = config.complete(encoder)
        p, q = encoder.patch_size
        self.num_prefix_tokens = encoder.class_token + encoder.registers

        # the encoder's tokens and mask tokens, with positions
        self.embed = nn.Linear(encoder.embed_dim, config.dim)
        self.mask_token = nn.Parameter(torch.empty(1, 1, config.dim))
        self.pos_embed = position_table(
            "sincos", encoder.grid_size, self.num_prefix_tokens, config.dim
        )

        # layers without drop path, and one linear map to a patch's pixels
        block_config = config.blocks(encoder)
        self.blocks = nn.Sequential(*(Block(block_config) for _ in range(config.depth)))
        self.norm = nn.LayerNorm(config.dim, eps=block_config.norm_eps)
        self.pred = nn.Linear(config.dim, encoder.channels * p * q)
        init_weights(self)

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Predict every patch.

        Args:
            tokens: (B, prefix + K, D), the encoder's, of the visible patches.
            mask: which patches are masked.

        Returns:
            (B, L, P) in grid order.
        """
        return self.pred(self.features(tokens, mask))

    def features(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Compute `forward` up to its last linear map: (B, L, E)."""
        prefix = self.num_prefix_tokens
        x = self._embed_with_mask_tokens(tokens, mask)  # (B, prefix + L, E), shuffled
        patches = restore_order(x[:, prefix:], mask)  # (B, L, E), grid order
        x = torch.cat([x[:, :prefix], patches], dim=1) + self.pos_embed

        # the patches have attended to the prefix; it predicts nothing itself
        return self.norm(self.blocks(x))[:, prefix:]  # (B, L, E)

    def predict_masked(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Predict only the masked patches, which is all that the loss needs.

        Layers do not depend on the order of tokens, so grid order is not restored. The last layer
        computes only the masked tokens, because nothing reads the others.

        Args:
            tokens: (B, prefix + K, D), the encoder's, of the visible patches.
            mask: which patches are masked.

        Returns:
            (B, L - K, P), in the order of `mask.ids_masked`.
        """
        # positions in the order of the tokens: prefix, visible, masked
        prefix = self.num_prefix_tokens
        order = torch.cat([mask.ids_keep, mask.ids_masked], dim=1)  # (B, L)
        table = self.pos_embed.expand(len(tokens), -1, -1)  # (B, prefix + L, E)
        positions = torch.cat([table[:, :prefix], take(table[:, prefix:], order)], dim=1)

        # all layers but the last compute every token, as keys for the masked ones
        x = self._embed_with_mask_tokens(tokens, mask) + positions  # (B, prefix + L, E)
        for block in self.blocks[:-1]:
            x = block(x)
        x = self.blocks[-1](x, queries=mask.ids_masked.shape[1])  # (B, L - K, E)
        return self.pred(self.norm(x))  # (B, L - K, P)

    def _embed_with_mask_tokens(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Map tokens (B, prefix + K, D) to (B, prefix + L, E): prefix, visible, mask tokens."""
        x = self.embed(tokens)  # (B, prefix + K, E)
        masked = mask.ids_masked.shape[1]
        # under autocast, `embed` computes in bfloat16
        mask_tokens = self.mask_token.to(x.dtype).expand(len(tokens), masked, -1)  # (B, L - K, E)
        return torch.cat([x, mask_tokens], dim=1)


class MaskedAutoencoder(nn.Module):
    """An encoder and a decoder; `forward` encodes or reconstructs, `loss` measures how well.

    Both are pure, if training hands over the draws of stochastic depth: their results depend on
    their arguments and the weights alone.

    Args:
        encoder: sees only the visible patches.
        decoder: predicts the pixels of all patches.
        norm_pix_loss: normalise each target patch by its own mean and standard deviation (see
            `patch_targets`).

    Attributes:
        origin: where a trained or loaded model came from (`vit.weights.Origin`).
    """

    origin: Any = None

    def __init__(
        self, encoder: VisionTransformer, decoder: MaskedDecoder, norm_pix_loss: bool = True
    ):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.norm_pix_loss = norm_pix_loss

    def forward(self, images: Tensor, mask: Mask | None = None) -> Tensor:
        """Encode whole images, as `VisionTransformer.forward` does, or reconstruct masked ones.

        Args:
            images: (B, C, H, W).
            mask: which patches are masked; None masks none, and skips the decoder.

        Returns:
            Without a mask, the encoder's tokens (B, N, D); with one, the predicted patches
            (B, L, P) in grid order, in the space of `targets`.
        """
        if mask is None:
            return self.encoder(images)
        return self.decoder(self.encoder(images, mask), mask)

    def targets(self, images: Tensor) -> Tensor:
        """Turn images (B, C, H, W) into the patches to predict (B, L, P)."""
        return patch_targets(self.encoder.patchify(images), self.norm_pix_loss)

    def loss(
        self, images: Tensor, mask: Mask, drop_path: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the training loss: reconstruct the masked patches, and compare with the targets.

        Args:
            images: (B, C, H, W).
            mask: which patches are masked.
            drop_path: as in `VisionTransformer.forward`.

        Returns:
            The mean squared error over the masked patches, a scalar, and the encoder's tokens
            (B, prefix + K, D).
        """
        patches = self.encoder.patchify(images)  # (B, L, P)
        tokens = self.encoder.encode(patches, mask, drop_path)  # (B, prefix + K, D)
        prediction = self.decoder.predict_masked(tokens, mask)  # (B, L - K, P)
        masked_patches = take(patches, mask.ids_masked)  # (B, L - K, P)
        targets = patch_targets(masked_patches, self.norm_pix_loss)
        # in float32 even under autocast: a mean of many squares needs the precision
        return F.mse_loss(prediction.float(), targets.float()), tokens


Model = VisionTransformer | MaskedAutoencoder


def build_autoencoder(
    encoder: ViTConfig, decoder: DecoderConfig, norm_pix_loss: bool = True
) -> MaskedAutoencoder:
    """Build a masked autoencoder with new weights."""
    return MaskedAutoencoder(
        VisionTransformer(encoder), MaskedDecoder(decoder, encoder), norm_pix_loss
    )


def patch_targets(patches: Tensor, norm_pix: bool) -> Tensor:
    """Turn patches (B, L, P) into targets: unchanged, or each normalised by itself as in MAE.

    MAE uses the unbiased variance, with eps 1e-6 inside the root.
    """
    if not norm_pix:
        return patches
    mean = patches.mean(-1, keepdim=True)  # (B, L, 1)
    variance = patches.var(-1, keepdim=True)
    return (patches - mean) / (variance + 1e-6).sqrt()


def masked_patch_loss(
    prediction: Tensor, target: Tensor, mask: Tensor, dim: int | None = None
) -> Tensor:
    """Return the mean squared error over the masked patches only, in float32.

    Args:
        prediction: (B, L, P).
        target: (B, L, P).
        mask: (B, L), 1 = masked.
        dim: 1 for the mean of each image; None for that of the batch.

    Returns:
        The mean over all values of all masked patches: a scalar, or (B,).
    """
    error = (prediction.float() - target.float()).square().mean(dim=-1)  # (B, L)
    return (error * mask).sum(dim) / mask.sum(dim)
