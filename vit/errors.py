"""Errors that the user can fix: one line on the terminal and an exit code, never a traceback."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable

READER_GONE = 141
"""The exit code that a shell reports of SIGPIPE."""
LONG = re.compile(r"""(?<!\w)'[^']{199,}'|(?<!\w)"[^"]{199,}"|[^\s/\\]{201,}""")
"""A quoted text or a word of more than 200 characters, which is no path."""
OUT_OF_MEMORY = re.compile("out of memory|not enough memory|can't allocate memory", re.IGNORECASE)


class UserError(Exception):
    """The base of all errors whose message is for the user: one line on what, where, what to do.

    Attributes:
        exit_code: the process's; 2 for a wrong request.
    """

    exit_code = 2

    def __init__(self, message: str):
        # file names and other libraries' messages may have several lines, and be of any length
        super().__init__(brief(message))


class CheckpointError(UserError):
    """A checkpoint that cannot be used."""


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
    print(f"{program}: error: {brief(message)}", file=sys.stderr)
    return code


def quoted(value: object) -> str:
    """Return a value as Python writes it, in at most 200 characters."""
    try:
        return shortened(repr(value))
    except ValueError:
        # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"


def shortened(text: str, most: int = 200) -> str:
    """Return the beginning and the end of a text that is longer than `most` characters."""
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end - 5]} ... {text[-end:]}"


def brief(message: str) -> str:
    """Return a message on one line that repeats at most 200 characters of any quoted text or word.

    A path may be longer: it says which file.
    """
    line = LONG.sub(lambda match: shortened(match[0]), one_line(message))
    return shortened(line, 1000)


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


def plural(count: int, noun: str) -> str:
    """Return "1 head", "3 heads", "50,000 images"."""
    ending = "" if count == 1 else "s"
    return f"{count:,} {noun}{ending}"


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the candidate closest to `word`, or "" if none is close."""
    matches = difflib.get_close_matches(word, list(candidates), n=1)
    if not matches:
        return ""
    return f"; did you mean {matches[0]}?"
