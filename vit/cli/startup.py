"""How each program starts and ends: output, warnings and errors by the line."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr

from vit.errors import exit_code_of, one_line
from vit.progress import OptionalStream

SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""The environment variables for how torch's threads wait; the user's own settings win.

OpenMP reads them once, when torch loads.
"""


def start(program: str, work: Callable[[list[str]], int], argv: Sequence[str]) -> int:
    """Do the work that a program's words ask for, and return its exit code; see `exit_code_of`.

    `--debug` among the words, or VIT_DEBUG=1 in the environment, shows tracebacks.

    Args:
        program: as its messages call it.
        work: takes the other words.
        argv: the words after the program.
    """
    words = [word for word in argv if word != "--debug"]
    debug = len(words) < len(argv) or os.environ.get("VIT_DEBUG", "0") not in ("", "0")

    # People watch the progress in files and pipes too; names may be any characters, as on stderr
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(line_buffering=True, errors="backslashreplace")

    def one_warning(message: Warning | str, *_: object, **__: object) -> str:
        return f"{program}: warning: {one_line(str(message))}\n"

    warnings.formatwarning = one_warning
    limit_spinning()
    # Work does not end because nobody reads what is said about it; what it returns is on stdout
    stderr = OptionalStream(sys.stderr)
    with redirect_stderr(stderr):
        code = exit_code_of(program, lambda: work(words), debug)

    # What could not be written Python would write at its end, and complain
    OptionalStream(stdout).flush()
    return code


def limit_spinning() -> None:
    """Let a waiting thread sleep after spinning 1,000 times, unless the environment says otherwise.

    GNU's OpenMP spins 300,000 times, for some milliseconds, and 1,000 times only if it has more
    threads than cores. It does not see other processes: next to one, each thread spends its time on
    a core waiting for a thread that has none, and a run with two threads drops to a few percent of
    its speed (docs/speed.md).
    """
    # a loaded torch has read the environment already
    if "torch" in sys.modules:
        return
    if not any(name in os.environ for name in SETTINGS):
        os.environ["GOMP_SPINCOUNT"] = "1000"
