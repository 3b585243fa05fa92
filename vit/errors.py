"""What a person can put right: one line on the terminal and a non-zero exit, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable


class UserError(Exception):
    """The base of all errors whose message is for the user: one line that says what, where, and what to do.

    Attributes:
        exit_code: of the process; 2 for anything that was asked for wrongly.
    """

    exit_code = 2


def exit_code_of(program: str, work: Callable[[], int]) -> int:
    """Do `work` and return its exit code; a UserError becomes one line on stderr and its own exit code."""
    try:
        return work()
    except UserError as error:
        print(f"{program}: error: {one_line(str(error))}", file=sys.stderr)
        return error.exit_code


def one_line(text: str) -> str:
    """`text` on one line, without control characters, so that a hostile file name cannot write on the terminal."""
    return " ".join("".join(c if c.isprintable() or c.isspace() else repr(c)[1:-1] for c in text).split())
