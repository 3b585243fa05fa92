"""The masked autoencoder (He et al. 2022): encode the visible patches, fill in the hidden ones.

Letters: B batch, L patches, K visible patches, D width of the encoder, E width of the decoder, P = C p q values per patch.
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
    """Map the encoder's tokens to the pixels of every patch, with a mask token in place of each hidden patch.

    Positions are the fixed sin-cos table; prefix tokens have none.

    Args:
        config: the architecture.
        encoder: the encoder's architecture, which decides the rest: image, patches, prefix tokens and kind of block.

    Attributes:
        config: the architecture, with every None replaced by the encoder's value.
    """

    def __init__(self, config: DecoderConfig, encoder: ViTConfig):
        super().__init__()
        self.config = config.complete(encoder)
        (height, width), (p, q) = encoder.image_size, encoder.patch_size
        self.num_prefix_tokens = encoder.class_token + encoder.registers
        self.embed = nn.Linear(encoder.embed_dim, config.dim)
        self.mask_token = nn.Parameter(torch.empty(1, 1, config.dim))
        self.pos_embed = position_table(
            "sincos", (height // p, width // q), self.num_prefix_tokens, config.dim
        )
        blocks = config.blocks(encoder)
        self.blocks = nn.Sequential(*(Block(blocks) for _ in range(config.depth)))
        self.norm = nn.LayerNorm(config.dim, eps=blocks.norm_eps)
        self.pred = nn.Linear(config.dim, encoder.channels * p * q)
        init_weights(self)

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Map tokens of the visible patches (B, prefix + K, D) to predictions for all patches in grid order (B, L, P)."""
        return self.pred(self.features(tokens, mask))

    def features(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Compute `forward` up to its last linear map: (B, L, E)."""
        batch, hidden = len(tokens), mask.mask.shape[1] - mask.ids_keep.shape[1]
        x = self.embed(tokens)  # (B, prefix + K, E)
        prefix, visible = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :]
        mask_tokens = self.mask_token.to(x.dtype).expand(batch, hidden, -1)  # (B, L - K, E)
        patches = torch.cat([visible, mask_tokens], dim=1)  # (B, L, E), shuffled
        x = (
            torch.cat([prefix, restore_order(patches, mask)], dim=1) + self.pos_embed
        )  # (B, prefix + L, E)
        return self.norm(self.blocks(x))[:, self.num_prefix_tokens :]  # (B, L, E)

    def hidden(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Predict only the hidden patches (B, L - K, P), in the order of `mask.ids_hidden`.

        Blocks do not depend on the order of tokens, so grid order is not restored. The last block computes only the hidden
        tokens, because nothing reads the others.
        """
        batch, prefix = len(tokens), self.num_prefix_tokens
        ids_hidden = mask.ids_hidden  # (B, L - K)
        order = torch.cat([mask.ids_keep, ids_hidden], dim=1)  # (B, L)
        table = self.pos_embed.expand(batch, -1, -1)
        positions = torch.cat([table[:, :prefix], take(table[:, prefix:], order)], dim=1)
        hidden = ids_hidden.shape[1]
        x = self.embed(tokens)  # (B, prefix + K, E)
        mask_tokens = self.mask_token.to(x.dtype).expand(batch, hidden, -1)  # (B, L - K, E)
        x = torch.cat([x, mask_tokens], dim=1) + positions  # (B, prefix + L, E)
        for block in self.blocks[:-1]:
            x = block(x)
        return self.pred(self.norm(self.blocks[-1](x, queries=hidden)))  # (B, L - K, P)


class MaskedAutoencoder(nn.Module):
    """Encoder and decoder. `forward` encodes or, given a mask, fills in patches; `loss` measures how well. Both are pure.

    Args:
        encoder: sees only the visible patches.
        decoder: predicts the pixels of all patches.
        norm_pix_loss: normalise each target patch by its own mean and standard deviation (see `patch_targets`).

    Attributes:
        origin: where a loaded model came from (`vit.checkpoints.Origin`).
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
        """Encode whole images, as `VisionTransformer.forward` does, or fill in the patches that a mask hides.

        Args:
            images: (B, C, H, W).
            mask: which patches are hidden; None hides none, and skips the decoder.

        Returns:
            Without a mask, the encoder's tokens (B, N, D); with one, the predicted patches (B, L, P) in grid order, in the
            space of `targets`.
        """
        return (
            self.encoder(images) if mask is None else self.decoder(self.encoder(images, mask), mask)
        )

    def targets(self, images: Tensor) -> Tensor:
        """Turn images (B, C, H, W) into the patches to predict (B, L, P)."""
        return patch_targets(self.encoder.patchify(images), self.norm_pix_loss)

    def loss(
        self, images: Tensor, mask: Mask, drop_path: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the training loss: fill in the hidden patches, and compare with the targets.

        Args:
            images: (B, C, H, W).
            mask: which patches are hidden.
            drop_path: as in `VisionTransformer.forward`.

        Returns:
            The mean squared error over the hidden patches, a scalar, and the encoder's tokens (B, prefix + K, D).
        """
        patches = self.encoder.patchify(images)  # (B, L, P)
        tokens = self.encoder.encode(patches, mask, drop_path)  # (B, prefix + K, D)
        prediction = self.decoder.hidden(tokens, mask)  # (B, L - K, P)
        targets = patch_targets(take(patches, mask.ids_hidden), self.norm_pix_loss)
        return F.mse_loss(prediction.float(), targets.float()), tokens


Model = VisionTransformer | MaskedAutoencoder


def build_autoencoder(
    encoder: ViTConfig, decoder: DecoderConfig, norm_pix_loss: bool = True
) -> MaskedAutoencoder:
    """Build a masked autoencoder with random weights from the fields of config.json."""
    return MaskedAutoencoder(
        VisionTransformer(encoder), MaskedDecoder(decoder, encoder), norm_pix_loss
    )


def patch_targets(patches: Tensor, norm_pix: bool) -> Tensor:
    """Turn patches (B, L, P) into targets: unchanged, or each normalised by itself as in MAE.

    MAE uses the unbiased variance, with eps 1e-6 inside the root.
    """
    if not norm_pix:
        return patches
    return (patches - patches.mean(-1, keepdim=True)) / (
        patches.var(-1, keepdim=True) + 1e-6
    ).sqrt()


def masked_patch_loss(prediction: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Return the mean squared error over the hidden patches only, in float32.

    Args:
        prediction: (B, L, P).
        target: (B, L, P).
        mask: (B, L), 1 = hidden.

    Returns:
        A scalar: the mean over all values of all hidden patches of the batch.
    """
    error = (prediction.float() - target.float()).square().mean(dim=-1)  # (B, L)
    return (error * mask).sum() / mask.sum()
