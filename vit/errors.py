"""Errors that the user can fix: one line on the terminal and a non-zero exit code, never a traceback."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable

READER_GONE = 141
"""The exit code that a shell reports of SIGPIPE."""
OUT_OF_MEMORY = re.compile("out of memory|not enough memory|can't allocate memory", re.IGNORECASE)


class UserError(Exception):
    """The base of all errors whose message is for the user: one line that says what, where, and what to do.

    Attributes:
        exit_code: the process's; 2 for a wrong request.
    """

    exit_code = 2

    def __init__(self, message: str):
        super().__init__(
            one_line(message)
        )  # file names and other libraries' messages may have several


class CheckpointError(UserError):
    """A checkpoint that cannot be used; the message is one line: what, where, what to do."""

    def __init__(self, message: str):
        line = one_line(message)
        super().__init__(
            line if len(line) <= 1000 else f"{line[:700]} ... {line[-300:]}"
        )  # names may be of any length


class DataError(UserError):
    """Data that cannot be used; the message is one line: what, where, what to do."""


class UnreadableImage(DataError):  # noqa: N818 - its state, not a mistake
    """An image file that cannot be decoded, where it was not asked to leave such files out."""


class ConfigError(UserError, ValueError):
    """A setting that cannot be used; the message is one line: key, value, what is allowed."""


class RunError(UserError):
    """A run folder, or a file in it, that cannot be read; the message is one line."""


class TrainingError(UserError):
    """A run that cannot go on: its loss or gradient is not finite; the weights are still those before that step."""

    exit_code = 1


class AttentionError(UserError):
    """Attention that cannot be captured, or a layer, head or patch that does not exist; the message is one line."""


def exit_code_of(program: str, work: Callable[[], int]) -> int:
    """Do `work` and return its exit code; errors that the user can fix become one line on stderr.

    These are UserErrors, with their own exit codes, and the system's errors (a full disk, missing permission, too little
    memory), with 1.
    """
    try:
        return work()
    except UserError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return error.exit_code
    except (
        BrokenPipeError
    ):  # the reader of the output has gone, as head does: end quietly, as other programs do
        return READER_GONE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"{program}: error: {one_line(f'{where}{error.strerror or error}')}", file=sys.stderr)
        return 1
    except (MemoryError, RuntimeError) as error:  # torch raises a RuntimeError, also for the GPU
        if not isinstance(error, MemoryError) and not OUT_OF_MEMORY.search(str(error)):
            raise
        ways = (
            "use fewer images at once (train.batch_size, run.grad_accum_steps) or a smaller model"
        )
        print(
            f"{program}: error: out of memory: {one_line(str(error))[:200]}; {ways}",
            file=sys.stderr,
        )
        return 1


def one_line(text: str) -> str:
    """Return `text` on one line, without control characters, so that a hostile file name cannot control the terminal."""
    return " ".join(
        "".join(c if c.isprintable() or c.isspace() else repr(c)[1:-1] for c in text).split()
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the known word closest to `word`, or "" if none is close."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""
