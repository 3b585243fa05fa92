"""Stateless batches: every random choice of a run is a pure function of (seed, what it is for, when).

Any step can be made without the ones before it, so a run continues from any step as if it had never stopped.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import torch
from torch import Generator, Tensor


def stream_seed(seed: int, purpose: str, number: int) -> int:
    """A 63-bit seed for one purpose ("order", "augment", "mask", ...) at one step or epoch.

    A hash, so that neighbouring seeds, purposes and numbers share nothing.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream(seed: int, purpose: str, number: int = 0) -> Generator:
    """A generator of its own, on the CPU (so that every device gets the same draws); see `stream_seed`."""
    return Generator().manual_seed(stream_seed(seed, purpose, number))


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """`values` on `device`, without waiting for what the device is doing."""
    if device.type == "cuda" and not values.is_cuda:  # from pinned memory, else the copy waits
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> Tensor:
    """The order in which epoch `epoch` (from 0) visits `count` images: int64 (count,), a permutation."""
    return torch.randperm(count, generator=stream(seed, "order", epoch))


def steps_per_epoch(count: int, batch_size: int) -> int:
    """Steps that `count` images take; the last one may have fewer images than `batch_size`."""
    return -(-count // batch_size)


def batch_indices(seed: int, step: int, count: int, batch_size: int) -> Tensor:
    """Which images step `step` (from 0) is made of: int64 (B,).

    Every image comes exactly once an epoch. The last batch of an epoch holds what remains, from 1 to `batch_size` images;
    its loss is the mean over those, and its learning rate the schedule's, like any other step's.
    """
    epoch, position = divmod(step, steps_per_epoch(count, batch_size))
    return epoch_order(seed, epoch, count)[position * batch_size : (position + 1) * batch_size]
