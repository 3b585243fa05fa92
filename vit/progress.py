"""Progress of long work: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 15.0

T = TypeVar("T")


def track(items: Iterable[T], what: str, total: int | None = None, unit: str = "") -> Tracked[T]:
    """Yield `items`, with a bar on stderr that disappears at the end; in a file or pipe, with a line now and then.

    Both show the time elapsed and, if the number of items is known, the time left.

    Args:
        items: one per step of the work.
        what: the work, in a word or two.
        total: number of items, if `items` has no length.
        unit: the items' unit, e.g. " images"; by default " steps".
    """
    return Tracked(items, what, len(items) if total is None and isinstance(items, Sized) else total, unit or " steps")


class Tracked(Iterator[T]):
    """The items of `track`; an item is done when the next one is requested."""

    def __init__(self, items: Iterable[T], what: str, total: int | None, unit: str):
        self._items, self._what, self._total, self._unit = iter(items), what, total, unit
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(desc=what, total=total, leave=False, unit=unit, dynamic_ncols=True)
        self._count = -1  # items done; -1 before the first is requested
        self._began = self._shown = 0.0

    def __next__(self) -> T:
        """Return the next item; close the bar after the last."""
        self._count += 1
        if self._count == 0:
            self._began = self._shown = time.monotonic()
        elif self._bar is not None:
            self._bar.update()
        else:
            self.pulse()
        try:
            return next(self._items)
        except BaseException:
            if self._bar is not None:
                self._bar.close()
            raise

    def pulse(self) -> None:
        """Show, if it is time to, that the work continues within a long item."""
        if self._bar is not None:
            self._bar.update(0)
            return
        now = time.monotonic()
        if now - self._shown < SECONDS_BETWEEN_LINES:
            return
        self._shown, gone = now, now - self._began
        text = f"{self._what}  {self._count:,}{f'/{self._total:,}' if self._total else ''}{self._unit}"
        text += f"  {tqdm.format_interval(gone)} elapsed"
        if self._total and self._count:
            text += f"  {tqdm.format_interval(gone / self._count * (self._total - self._count))} left"
        print(text, file=sys.stderr, flush=True)
