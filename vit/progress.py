"""Progress of long work: the one bar, and its lines where nobody watches a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 20.0

T = TypeVar("T")


def track(items: Iterable[T], what: str, total: int | None = None, unit: str = "") -> Iterator[T]:
    """Yield `items`, with a bar on stderr that goes when they end; into a file or a pipe, with a line now and then.

    Both say how long it has gone on and, where the number of items is known, how long it still will.

    Args:
        items: one per step of the work.
        what: is being done, in a word or two.
        total: number of items, where `items` has no length.
        unit: of the items, " images" say; by default steps.
    """
    unit = unit or " steps"
    if sys.stderr.isatty():
        return iter(tqdm(items, what, total, leave=False, unit=unit, dynamic_ncols=True))
    return _lines(items, what, len(items) if total is None and isinstance(items, Sized) else total, unit)


def _lines(items: Iterable[T], what: str, total: int | None, unit: str) -> Iterator[T]:
    began = shown = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - shown >= SECONDS_BETWEEN_LINES:
            shown = now
            text = f"{what}  {count:,}{f'/{total:,}' if total else ''}{unit}  {tqdm.format_interval(now - began)} gone"
            left = f"  {tqdm.format_interval((now - began) / count * (total - count))} left" if total else ""
            print(text + left, file=sys.stderr, flush=True)
