"""Which images of a collection are nearest to another, by a model's features.

Letters: N images, D width of the features, K nearest ones.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Nearest(NamedTuple):
    """The images of a collection that are nearest to another one.

    Attributes:
        numbers: int64 (K,), the nearest first; of equally near ones, the first in the collection.
        similarities: float64 (K,), each one's cosine similarity, from -1 to 1.
        median: that of all N images.
    """

    numbers: Tensor
    similarities: Tensor
    median: float


def nearest(features: Tensor, query: Tensor, count: int) -> Nearest:
    """Find the nearest images by the cosine of the angle between their features.

    Args:
        features: (N, D), as `vit.look.predict.embed` returns them, pooled; on any device.
        query: (D,), those of one image.
        count: how many to find; all of them if there are fewer.

    Returns:
        tensors on the CPU.
    """
    # In float64, because the difference of an image from itself would be of float32's size; on the
    # CPU, because Apple's GPUs have none
    vectors = features.detach().cpu().double()
    direction = query.detach().cpu().double()
    lengths = vectors.norm(dim=1) * direction.norm()  # (N,)
    similarities = (vectors @ direction) / lengths.clamp(min=1e-12)  # (N,)

    # A vector's cosine with itself may be off 1 by rounding
    similarities = similarities.clamp(-1, 1)
    order = similarities.argsort(descending=True, stable=True)[:count]
    return Nearest(order, similarities[order], float(similarities.quantile(0.5)))
