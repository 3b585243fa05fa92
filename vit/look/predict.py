"""Apply a loaded model to new images: class probabilities, features, nearest images.

Letters: B images, N tokens, L patches, D width, K nearest images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vit.errors import CheckpointError, require_finite
from vit.evaluation.classification import view_logits, why_no_classifier
from vit.evaluation.features import for_neighbours, geometry_of
from vit.inputs import Picture
from vit.isolation import eval_mode
from vit.look.subject import inputs_of
from vit.mae import Model


class Embeddings(NamedTuple):
    """The features of B images from a model's last layer, after its final norm.

    A model whose norm comes after the mean over the patches (timm's `fc_norm`) has it in `pooled`
    only.

    Attributes:
        pooled: float32 (B, D), the head's input: the class token or the mean over the patches
            (`encoder.config.global_pool`).
        patches: float32 (B, L, D), the token of each patch, row by row; None if not requested.
    """

    pooled: Tensor
    patches: Tensor | None


def require_head(model: Model) -> None:
    """Refuse a model that is no classifier."""
    reason = why_no_classifier(model)
    if reason:
        source = model.origin.source if model.origin else "this model"
        raise CheckpointError(f"{source}: {reason}")


@torch.no_grad()
def predict(
    model: Model,
    images: Tensor | Picture | Sequence[Picture],
    batch_size: int = 64,
    views: int = 1,
) -> Tensor:
    """Return a classifier's class probabilities.

    Args:
        model: from `load_model`, on any device; `model.origin.class_names` names the columns of the
            result.
        images: files, PIL images, or uint8 (B, 3, h, w) of any size; they are prepared as in the
            model's training.
        batch_size: images at a time.
        views: average the logits of that many views of each image, 1 to 6: of 2, one is mirrored;
            of 6, four are shifted by a pixel.

    Returns:
        float32 (B, classes) on the CPU; every row sums to 1.

    Raises:
        CheckpointError: the model has no head.
        TrainingError: the model computes nan or infinity.
        DataError: an image cannot be read.
    """
    require_head(model)
    with eval_mode(model):
        parts = [
            view_logits(model.encoder, inputs, views).mean(0)
            for inputs in inputs_of(model, images, batch_size)
        ]
    logits = torch.cat(parts)
    require_finite(f"{model.origin.source}: its results", logits)
    return logits.softmax(1).cpu()


@torch.no_grad()
def embed(
    model: Model,
    images: Tensor | Picture | Sequence[Picture],
    batch_size: int = 64,
    patches: bool = False,
) -> Embeddings:
    """Return the features of whole images, pooled, and on request per patch.

    Args:
        model: from `load_model`, on any device; it needs no head.
        images: files, PIL images, or uint8 (B, 3, h, w) of any size; they are prepared as in the
            model's training.
        batch_size: images at a time.
        patches: also keep each patch's, L times as many numbers.

    Raises:
        TrainingError: the model computes nan or infinity.
        DataError: an image cannot be read.
    """
    # Pooled as for the head, and each patch's token unchanged
    encoder = model.encoder
    pooled = []
    of_patches = []
    with eval_mode(model):
        for inputs in inputs_of(model, images, batch_size):
            tokens = encoder(inputs)
            require_finite(f"{model.origin.source}: its results", tokens)
            pooled.append(encoder.fc_norm(encoder.pool(tokens)).float().cpu())
            if patches:
                of_patches.append(tokens[:, encoder.num_prefix_tokens :].float().cpu())
    return Embeddings(torch.cat(pooled), torch.cat(of_patches) if patches else None)


class Nearest(NamedTuple):
    """The images of a collection that are nearest to another one.

    Attributes:
        numbers: int64 (K,), the nearest first; of equally near ones, the first in the collection.
        similarities: float64 (K,), each one's similarity, from -1 to 1: see `nearest`.
        median: that of all N images.
        geometry: of the features compared, "whitened" or "standardised".
    """

    numbers: Tensor
    similarities: Tensor
    median: float
    geometry: str


def nearest(features: Tensor, query: Tensor, count: int) -> Nearest:
    """Find the nearest images by the cosine of the angle between their features, as k-NN does.

    First the features are whitened by the collection's covariance, or standardised if it has fewer
    than 50 images per dimension: `vit.evaluation.features.for_neighbours`. So 0 is as similar as
    two images of the collection usually are. An image with the query's features has 1.

    Args:
        features: (N, D), as `embed` returns them, pooled; on any device.
        query: (D,), those of one image.
        count: how many to find; all of them if there are fewer.

    Returns:
        tensors on the CPU.
    """
    # In float64, because float32 would round an image's similarity to itself; on the
    # CPU, because Apple's GPUs have none
    collection = features.detach().cpu().double()
    query = query.detach().cpu().double()
    geometry = geometry_of(*collection.shape)
    vectors, mapped = for_neighbours(collection, query[None], geometry)
    similarities = torch.cosine_similarity(vectors, mapped, dim=1).clamp(-1, 1)  # (N,)

    # Even if the collection does not vary, so that nothing of it is left
    similarities[(collection == query).all(1)] = 1
    order = similarities.argsort(descending=True, stable=True)[:count]
    median = float(similarities.quantile(0.5))
    return Nearest(order, similarities[order], median, geometry)
