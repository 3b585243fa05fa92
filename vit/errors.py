"""Errors that the user can fix: one line on the terminal and an exit code, never a traceback."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable

READER_GONE = 141
"""The exit code that a shell reports of SIGPIPE."""
OUT_OF_MEMORY = re.compile("out of memory|not enough memory|can't allocate memory", re.IGNORECASE)


class UserError(Exception):
    """The base of all errors whose message is for the user: one line on what, where, what to do.

    Attributes:
        exit_code: the process's; 2 for a wrong request.
    """

    exit_code = 2

    def __init__(self, message: str):
        # file names and other libraries' messages may have several lines
        super().__init__(one_line(message))


class CheckpointError(UserError):
    """A checkpoint that cannot be used."""

    def __init__(self, message: str):
        # names of tensors may be of any length
        line = one_line(message)
        if len(line) > 1000:
            line = f"{line[:700]} ... {line[-300:]}"
        super().__init__(line)


class DataError(UserError):
    """Data that cannot be used, or an image that cannot be decoded."""


class ConfigError(UserError, ValueError):
    """A setting that cannot be used; the message names key, value and what is allowed."""


class RunError(UserError):
    """A run folder, or a file in it, that cannot be used."""


class TrainingError(UserError):
    """A computation that cannot go on: a value is nan or infinite, or another process is lost.

    A run stops before the step that would spoil its weights.
    """

    exit_code = 1


class AttentionError(UserError):
    """Attention that cannot be captured, or a layer, head or patch that does not exist."""


def exit_code_of(program: str, work: Callable[[], int]) -> int:
    """Do `work` and return its exit code; errors that the user can fix become one line on stderr.

    These are UserErrors, with their own exit codes, and the system's errors (a full disk, missing
    permission, too little memory), with 1.
    """
    try:
        return work()
    except UserError as error:
        code = error.exit_code
        message = str(error)
    except BrokenPipeError:
        # whoever read the output has gone, as head does: end quietly, as other programs do
        return READER_GONE
    except OSError as error:
        code = 1
        message = str(error.strerror or error)
        if error.filename:
            message = f"{error.filename}: {message}"
    except (MemoryError, RuntimeError) as error:
        # torch reports missing memory as a RuntimeError; any other one is a bug
        if not isinstance(error, MemoryError) and not OUT_OF_MEMORY.search(str(error)):
            raise
        code = 1
        message = (
            f"out of memory: {one_line(str(error))[:200]}; use fewer images at once "
            "(train.batch_size, run.grad_accum_steps) or a smaller model"
        )
    print(f"{program}: error: {one_line(message)}", file=sys.stderr)
    return code


def one_line(text: str) -> str:
    """Return `text` on one line, without control characters.

    So a hostile file name cannot control the terminal.
    """
    characters = []
    for character in text:
        if character.isprintable() or character.isspace():
            characters.append(character)
        else:
            # as Python escapes it, without the quotes
            characters.append(repr(character)[1:-1])
    return " ".join("".join(characters).split())


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the candidate closest to `word`, or "" if none is close."""
    matches = difflib.get_close_matches(word, list(candidates), n=1)
    if not matches:
        return ""
    return f"; did you mean {matches[0]}?"
