"""Errors, and signals: a program turns each into a line and an exit code."""

from __future__ import annotations

import difflib
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, NoReturn

READER_GONE = 141
"""The exit code that a shell reports of SIGPIPE."""
INTERRUPTED = 130
"""The exit code that a shell reports of SIGINT."""
OUT_OF_MEMORY = re.compile(
    "out of memory|not enough memory|can't allocate memory|could not create a primitive$",
    re.IGNORECASE,
)
"""How torch and its libraries say that there is too little; the last is oneDNN."""


class UserError(Exception):
    """The base of all errors whose message is for the user: one line on what, where, what to do.

    Args:
        key: of the setting that is at fault, "data.val_size", or of a load option; without a
            `text`, the whole message.
        text: what is wrong with it, and what is allowed.

    Attributes:
        key: "" if no single setting is at fault.
        text: the message without the key.
        exit_code: the process's; 2 for a wrong request.
    """

    exit_code = 2

    def __init__(self, key: str, text: str = ""):
        message = f"{key}: {text}" if text else key
        # file names and other libraries' messages may have several lines, and be of any length
        super().__init__(shortened(one_line(message), 1000))
        self.key = key if text else ""
        self.text = text or key


class CheckpointError(UserError):
    """A checkpoint that cannot be used."""


class DataError(UserError):
    """Data that cannot be used, or an image that cannot be decoded."""


class ConfigError(UserError, ValueError):
    """A setting that cannot be used; the message names key, value and what is allowed."""


class RunError(UserError):
    """A run folder, or a file in it, that cannot be used."""


class TrainingError(UserError):
    """A computation that cannot continue: a value is nan or infinite, or another process is lost.

    A run stops before the step that would spoil its weights.
    """

    exit_code = 1


class AttentionError(UserError):
    """Attention that cannot be captured, or a layer, head or patch that does not exist."""


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end. It is no Exception, so that no error handler catches it.

    Attributes:
        exit_code: 128 + the signal's number, as in a shell.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


# Schedulers send SIGTERM, SIGUSR1 or SIGUSR2, a keyboard SIGINT, a closed terminal SIGHUP, and the
# system SIGXCPU when the time of `ulimit -t` is over; Windows has two of them.
NAMES = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGXCPU")
SIGNALS = [signal.Signals[name] for name in NAMES if hasattr(signal, name)]


def stop(number: int, _: FrameType | None = None) -> NoReturn:
    """End what runs. Nothing is lost, because every file is written whole or not at all."""
    raise Stopped(number)


@contextmanager
def received_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let a handler receive SIGNALS within the block; only the main thread gets them."""
    with ExitStack() as undo:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # nohup ignores SIGHUP, and a shell SIGINT in the background of a script
                if signal.getsignal(number) != signal.SIG_IGN:
                    undo.callback(signal.signal, number, signal.signal(number, handler))
        yield


def exit_code_of(program: str, work: Callable[[], int], debug: bool = False) -> int:
    """Do `work` and return its exit code; any error becomes one line on stderr.

    A UserError has an exit code of its own, an interruption a signal's, every other error 1.

    Args:
        program: as the line calls it.
        work: returns an exit code.
        debug: print the traceback, too.
    """
    try:
        code = work()
        # a full disk is an error too
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # whoever read the output has gone, as head does: end quietly, as other programs do
        return READER_GONE
    except KeyboardInterrupt as stopped:
        code = getattr(stopped, "exit_code", INTERRUPTED)
        message = f"stopped by {str(stopped) or 'SIGINT'}"
    except Exception as error:
        if debug:
            traceback.print_exc()
        code = getattr(error, "exit_code", 1)
        message = f"error: {sentence_of(error)}"
    print(f"{program}: {message}", file=sys.stderr)
    return code


def sentence_of(error: Exception) -> str:
    """Return an error on one line: what, where, and what to do if that is known."""
    # The project's own
    if isinstance(error, UserError):
        return str(error)

    # The system's: a full disk, a missing permission
    message = one_line(str(error).strip().partition("\n")[0])
    if isinstance(error, OSError) and error.strerror:
        message = error.strerror
        if error.filename:
            message = f"{error.filename}: {message}"
        elif isinstance(error, FileNotFoundError):
            # only the one that everything else is looked for in has no name
            message = f"the current folder: {message}"
        return one_line(message)

    # Too little memory, which torch reports as a RuntimeError
    if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)):
        advice = "use fewer images at once (in training: train.batch_size)"
        return f"out of memory: {shortened(message)}; {advice} or a smaller model"

    # A library's, or a bug
    return f"{type(error).__name__}: {shortened(message, 500)}; --debug (VIT_DEBUG=1) shows where"


def require_finite(what: str, values: Any) -> None:
    """Refuse a tensor that damaged weights have made: it would give a result all the same."""
    if not bool(values.isfinite().all()):
        problem = "are nan or infinite; the weights, or the images, are damaged"
        raise TrainingError(f"{what} {problem}")


def quoted(value: object) -> str:
    """Return a value as Python writes it, in at most 200 characters."""
    return shortened(repr(value))


def shortened(text: str, most: int = 200) -> str:
    """Return a text, or the beginning of one that is longer than `most` characters."""
    if len(text) <= most:
        return text
    return f"{text[:most]} ..."


def printable(text: str) -> str:
    """Return `text` with characters that control lines, direction or the terminal escaped.

    So a hostile file name controls neither a terminal nor a page.
    """
    # most is printable as it is, and an image in a page is a long text
    if text.isprintable():
        return text
    # as Python escapes it, without the quotes
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """Return `text` on one line, and printable."""
    return printable(" ".join(text.split()))


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
