"""Features of a frozen encoder, layer by layer, their baseline, raw pixels, and k-NN on both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.device import Compute
from vit.encoder import VisionTransformer
from vit.errors import require_finite
from vit.inputs import Images, Preparation, to_float
from vit.isolation import eval_mode
from vit.progress import track

Prepare = Callable[[Tensor], Tensor]
"""uint8 (B, C, h, w) -> the model's input (B, C, H, W)."""
SHRUNK = Preparation("bilinear", squash=True)
"""How images become the features of `pixel_features`: nothing is cut off."""

# of k nearest neighbours, never tuned here: from DINO (Caron et al. 2021) and its predecessors
K = 20
TEMPERATURE = 0.07

IMAGES_PER_DIMENSION = 50
"""With fewer images, their covariance is too uncertain to whiten by."""
RIDGE = 0.3
"""Added to the variances to whiten by, whose mean is 1; 0.1 and 1 give about the same."""

BATCH = 256
"""Images at a time; the masks of images depend on it, so it is part of the protocol."""


def batches(images: Images, prepare: Prepare, compute: Compute, title: str) -> Iterator[Tensor]:
    """Yield images as a model's input (B, C, H, W), with a progress bar called `title`."""
    for start in track(range(0, len(images), BATCH), title, unit=" batches"):
        yield prepare(images[start : start + BATCH].to(compute.device))


@torch.no_grad()
def encoder_features(
    encoder: VisionTransformer,
    images: Images,
    prepare: Prepare,
    compute: Compute,
    layers: Sequence[int],
) -> Tensor:
    """Return the mean of the patch tokens of unmasked images, after some of the blocks.

    The class token is not used: masked reconstruction does not ask it to sum up the image.

    Args:
        layers: block numbers; negative ones count from the last, whose tokens go through the final
            norm (but not through an `fc_norm`).

    Returns:
        Features (layers, N, D).
    """
    # the last layer is what the encoder returns, after its norm
    modules = [*encoder.blocks[:-1], encoder.norm]
    # allocated at once, because joining parts at the end takes twice the memory
    features = torch.empty(len(layers), len(images), encoder.config.embed_dim)
    start = 0

    def store(number: int, module: nn.Module, inputs: object, tokens: Tensor) -> None:
        """Keep a batch's means (B, N, D) -> (B, D): a forward hook."""
        mean = tokens[:, encoder.num_prefix_tokens :].float().mean(dim=1)
        features[number, start : start + len(mean)] = mean

    with eval_mode(encoder), compute.autocast(), ExitStack() as hooks:
        for number, layer in enumerate(layers):
            handle = modules[layer].register_forward_hook(partial(store, number))
            hooks.callback(handle.remove)
        for inputs in batches(images, prepare, compute, "features"):
            encoder(inputs)
            start += len(inputs)
    # nan compares as false with everything: an accuracy would come out all the same
    require_finite("the features of some images", features)
    return features


def pixel_features(images: Images) -> Tensor:
    """Return the pixels as features.

    Larger images are shrunk to 32 x 32, which keeps the features small and helps the baseline.

    Args:
        images: uint8 (N, C, h, w), read in parts, so they may be memory-mapped.

    Returns:
        float32 (N, C h w).
    """
    # small images keep every pixel
    size = (min(images.shape[-2], 32), min(images.shape[-1], 32))
    parts = [
        to_float(images[start : start + 1024], size, SHRUNK)
        for start in range(0, len(images), 1024)
    ]
    return torch.cat(parts).flatten(1)


def standardised(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Standardise every dimension of two sets of features, by the statistics of the first.

    It acts like a BatchNorm without weights before a probe: without it, the common part and a few
    large dimensions make all features similar. A dimension that is constant in `train` carries no
    information and becomes 0.

    Args:
        train: (N, D).
        test: (M, D).
    """
    mean = train.mean(0)  # (D,)
    std = train.std(0, correction=0)
    # a std of rounding errors alone would be blown up to 1
    varies = std > 1e-5 * mean.abs().clamp(min=1)
    scale = torch.where(varies, 1 / std.clamp(min=1e-12), 0)
    return (train - mean).mul_(scale), (test - mean).mul_(scale)


def geometry_of(images: int, dim: int) -> str:
    """Return how the features of a collection are compared: "whitened" or "standardised"."""
    return "whitened" if images >= IMAGES_PER_DIMENSION * dim else "standardised"


def for_neighbours(collection: Tensor, queries: Tensor, geometry: str) -> tuple[Tensor, Tensor]:
    """Return features whose cosines say which images are neighbours.

    They are standardised. If asked, they are also whitened: the principal directions get about the
    same variance, else the few that vary most would decide.

    Args:
        collection: of the images to search, (N, D), by whose statistics both are mapped.
        queries: (M, D).
        geometry: "whitened" or "standardised", from `geometry_of`; a baseline has the model's.
    """
    vectors, queries = standardised(collection, queries)
    if geometry == "whitened":
        # on the CPU, because Apple's GPUs have no decomposition
        covariance = (vectors.T @ vectors / len(vectors)).cpu()  # (D, D)
        variances, directions = torch.linalg.eigh(covariance)
        whitening = (directions / (variances + RIDGE).sqrt()).to(vectors.device)
        return vectors @ whitening, queries @ whitening
    return vectors, queries


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    features: Tensor,
    labels: Tensor,
    geometry: str,
    k: int = K,
    temperature: float = TEMPERATURE,
    device: torch.device | str = "cpu",
    image_hashes: Tensor | None = None,
) -> float:
    """Return the accuracy of k nearest neighbours, whose votes are exp(cosine / temperature).

    Args:
        train_features, train_labels: of the images to search, (N, D) and (N,).
        features, labels: of the M test images, (M, D) and (M,).
        geometry: see `for_neighbours`.
        k: neighbours; all training images if there are fewer.
        temperature: the smaller, the more the nearest decide.
        device: where to search; the votes are counted on the CPU, in the same order everywhere.
        image_hashes: int64 (N,), for leave-one-out, where the test images are the images to search:
            each finds neither itself nor a copy, which has the same hash. All of them whiten, since
            that needs no label.
    """
    # unit vectors, whose products are cosines; in place, to save memory
    mapped = for_neighbours(train_features.to(device), features.to(device), geometry)
    train_features, features = (F.normalize(vectors, out=vectors) for vectors in mapped)

    classes = int(train_labels.max()) + 1
    k = min(k, len(train_features))
    correct = 0
    for start in track(range(0, len(features), 1024), "neighbours", unit=" batches"):
        part = slice(start, start + 1024)
        queries = features[part]
        cosine = queries @ train_features.T  # (m, N)
        if image_hashes is not None:
            copies = image_hashes[part, None] == image_hashes  # (m, N)
            cosine.masked_fill_(copies.to(device), -torch.inf)
        similarities, images = cosine.topk(k, dim=1)  # both (m, k)

        # relative to the nearest, so up to 0: no exponential overflows
        similarities = similarities.cpu()
        differences = similarities - similarities[:, :1]
        votes = similarities.new_zeros(len(queries), classes)
        votes.scatter_add_(1, train_labels[images.cpu()], (differences / temperature).exp())
        correct += int((votes.argmax(1) == labels[part]).sum())
    return correct / len(features)
