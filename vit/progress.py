"""Progress of long work: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 15.0


class OptionalStream:
    """A stream that drops its text once it cannot be written, so that work continues.

    Its reader may have ended, its disk be full, or its terminal be closed.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text`, or drop it."""
        try:
            return self._stream.write(text)
        except OSError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        """Write what is still in memory, or drop it."""
        try:
            self._stream.flush()
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        """Let the file descriptor itself lead nowhere, so that no later write raises."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        # e.g. isatty, encoding and fileno
        return getattr(self._stream, name)


def say(line: str) -> None:
    """Print a line on stdout; characters that its encoding lacks, as a file's on Windows, escaped.

    It also arrives at once in files and pipes.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)


class Bar(tqdm):
    """tqdm's bar without its monitor, a thread that would stay in the caller's process."""

    monitor_interval = 0


class Lines:
    """A stream that writes each state of a bar as a line on stderr, e.g. in a file or pipe."""

    def write(self, text: str) -> None:
        """Write `text` without what moves a terminal's cursor, unless nothing is left."""
        # tqdm begins with a carriage return, and pads with spaces what it overwrites
        line = text.strip()
        if line:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def flush(self) -> None:
        """Do nothing: each line has been flushed."""


def progress_bar(line: str, **options: Any) -> Bar:
    """Return a bar on stderr; if that is no terminal, one that writes a line from time to time.

    Args:
        line: what a line shows, as tqdm's `bar_format`.
        options: tqdm's, for a terminal.
    """
    if sys.stderr.isatty():
        return Bar(dynamic_ncols=True, **options)

    # A line by the clock, not by the number of items, and none for quick work. The time left
    # follows from the mean rate so far, because the last items alone may be slow ones.
    options |= dict(
        delay=SECONDS_BETWEEN_LINES,
        mininterval=SECONDS_BETWEEN_LINES,
        miniters=0,
        smoothing=0,
        leave=False,
        bar_format=line,
    )
    return Bar(file=Lines(), **options)  # type: ignore[call-overload]


def track(
    items: Iterable[Any] | None, title: str, total: int | None = None, unit: str = " steps"
) -> Bar:
    """Return a bar on stderr that yields `items`, and disappears at their end.

    In a file or pipe, it is a line from time to time. Both show the time elapsed and the time
    left. An item is done when the next is requested.

    Args:
        items: one per step of the work; None: the caller updates and closes the bar.
        title: the work, in a word or two.
        total: number of items, if `items` has no length.
        unit: the items' unit, e.g. " images".
    """
    # tqdm replaces the names in braces
    line = f"{{desc}}  {{n:,}}/{{total:,}}{unit}  {{elapsed}} elapsed  {{remaining}} left"
    return progress_bar(line, iterable=items, desc=title, total=total, unit=unit, leave=False)
