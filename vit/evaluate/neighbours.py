"""k nearest neighbours on frozen features: what an encoder separates without any training on top."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.data.augment import Normalization, to_float
from vit.encoder import VisionTransformer, eval_mode
from vit.training.device import Compute

K, TEMPERATURE = 20, 0.07  # never tuned here; those of DINO (Caron et al. 2021) and its predecessors


@torch.no_grad()
def encoder_features(
    encoder: VisionTransformer, images: Tensor, normalize: Normalization, compute: Compute, batch_size: int = 256
) -> Tensor:
    """The mean of the patch tokens of whole, unmasked images: uint8 (N, C, h, w) -> float32 (N, D) on the CPU.

    The class token is not used: masked reconstruction leaves it untrained.
    """
    features = []
    with eval_mode(encoder):
        for batch in images.split(batch_size):
            inputs = normalize(to_float(batch.to(compute.device), encoder.patch_embed.image_size))
            with compute.autocast():
                tokens = encoder(inputs)
            features.append(tokens[:, encoder.num_prefix_tokens :].float().mean(dim=1).cpu())
    return torch.cat(features)


def pixel_features(images: Tensor) -> Tensor:
    """The baseline's features: the pixels themselves, uint8 (N, C, h, w) -> float32 (N, C h w).

    Images larger than 32 x 32 are shrunk to it: that keeps the bank small and helps the baseline.
    """
    size = (min(images.shape[-2], 32), min(images.shape[-1], 32))
    return torch.cat([to_float(batch, size).flatten(1) for batch in images.split(1024)])


def neighbour_accuracy(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, labels: Tensor, k: int = K, temperature: float = TEMPERATURE
) -> float:
    """The share of queries whose class the k nearest features of the bank name, weighted by exp(cosine / temperature).

    Every dimension is standardised first, by the bank's mean and deviation (as probes on such features do, with a
    BatchNorm without weights): else the common part and a few large dimensions make all features alike.

    Args:
        bank: (N, D) float32.
        bank_labels: int64 (N,).
        queries: (M, D) float32.
        labels: int64 (M,), of the queries.
        k: neighbours; all of the bank where it has fewer.
        temperature: small ones let the nearest decide.

    Returns:
        Accuracy from 0 to 1.
    """
    centre, spread = bank.mean(0), bank.std(0).clamp(min=1e-6)
    bank = (bank - centre).div_(spread)
    bank.div_(bank.norm(dim=1, keepdim=True).clamp(min=1e-12))
    classes = int(bank_labels.max()) + 1
    correct = 0
    for part, part_labels in zip(queries.split(1024), labels.split(1024), strict=True):
        cosine = F.normalize((part - centre) / spread, dim=1) @ bank.T  # (m, N)
        nearest = cosine.topk(min(k, len(bank)), dim=1)
        votes = torch.zeros(len(part), classes)
        votes.scatter_add_(1, bank_labels[nearest.indices], (nearest.values / temperature).exp())
        correct += (votes.argmax(1) == part_labels).sum().item()
    return correct / len(queries)
