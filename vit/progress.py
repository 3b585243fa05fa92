"""Progress of long work: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TextIO, TypeVar

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 15.0

T = TypeVar("T")


class Lines:
    """A stream, e.g. a file or pipe, on which each state of a bar is a line."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> None:
        """Write `text` without what moves a terminal's cursor, unless nothing is left."""
        if line := text.strip():
            print(line, file=self._stream, flush=True)

    def flush(self) -> None:
        """Do nothing: each line has been flushed."""


def progress_bar(stream: TextIO, line: str, **options: Any) -> tqdm[Any]:
    """Return a bar on a terminal; on any other stream, one that writes lines, seldom, and none for quick work.

    Args:
        stream: where to write.
        line: what a line shows, as tqdm's `bar_format`.
        options: tqdm's, for a terminal.
    """
    if stream.isatty():
        return tqdm(file=stream, dynamic_ncols=True, **options)
    pause = SECONDS_BETWEEN_LINES
    rare = dict(
        delay=pause, mininterval=pause, miniters=0, smoothing=0, leave=False, bar_format=line
    )
    return tqdm(file=Lines(stream), **options | rare)  # type: ignore[call-overload]


def work_bar(what: str, total: int | None, unit: str = " steps") -> tqdm[Any]:
    """Return a bar on stderr that disappears when it is closed, for work of `total` parts, or of any number; see `track`."""
    count, left = ("{n:,}/{total:,}", "  {remaining} left") if total else ("{n:,}", "")
    line = f"{{desc}}  {count}{unit}  {{elapsed}} elapsed{left}"
    return progress_bar(sys.stderr, line, desc=what, total=total, unit=unit, leave=False)


def track(
    items: Iterable[T], what: str, total: int | None = None, unit: str = " steps"
) -> Iterator[T]:
    """Yield `items`, with a bar on stderr that disappears at the end; in a file or pipe, with a line now and then.

    Both show the time elapsed and, if the number of items is known, the time left. An item is done when the next is requested.

    Args:
        items: one per step of the work.
        what: the work, in a word or two.
        total: number of items, if `items` has no length.
        unit: the items' unit, e.g. " images".
    """
    with work_bar(
        what, len(items) if total is None and isinstance(items, Sized) else total, unit
    ) as bar:
        for item in items:
            yield item
            bar.update()
