"""Progress bars of long work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


def track(items: Iterable[T], what: str, total: int | None = None, unit: str = "") -> Iterator[T]:
    """Yield `items`, with a bar on stderr where that is a terminal, and nothing elsewhere; it goes when they end.

    Args:
        items: one per step of the work.
        what: is being done, in a word or two.
        total: number of items, where `items` has no length.
        unit: of the rate, " images" say; by default steps without a name.
    """
    return iter(tqdm(items, what, total, leave=False, unit=unit or " steps", disable=None, dynamic_ncols=True))
