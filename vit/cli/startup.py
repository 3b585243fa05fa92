"""How each program starts and ends: output, warnings and errors by the line."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import fields

from vit.errors import exit_code_of, one_line
from vit.load_options import LoadOptions
from vit.openmp import limit_spinning
from vit.progress import OptionalStream


def start(program: str, work: Callable[[], int]) -> int:
    """Do the work of a program, and return its exit code; see `exit_code_of`."""
    # People watch the progress in files and pipes too; names may be any characters, as on stderr
    stdout = sys.stdout if isinstance(sys.stdout, io.TextIOWrapper) else None
    if stdout is not None:
        stdout.reconfigure(line_buffering=True, errors="backslashreplace")

    def one_warning(message: Warning | str, *_: object, **__: object) -> str:
        return f"{program}: warning: {one_line(_with_options(str(message)))}\n"

    def flushed() -> int:
        code = work()
        sys.stdout.flush()
        return code

    warnings.formatwarning = one_warning
    limit_spinning()
    # Work does not end because nobody reads what is said about it; what it returns is on stdout
    stderr = sys.stderr
    with redirect_stderr(OptionalStream(stderr)):
        code = exit_code_of(program, flushed)

    # Python would write the rest at its end, and complain
    for stream in (sys.stdout, stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code


def _with_options(message: str) -> str:
    """Write a warning's advice, "num_heads sets them", with the options of the command line."""
    problem, separator, advice = message.rpartition("; ")
    if re.search(r" sets? (it|them)$", advice):
        for item in fields(LoadOptions):
            option = f"--{item.name.replace('_', '-')}"
            advice = re.sub(rf"\b{item.name}\b", option, advice)
    return f"{problem}{separator}{advice}"
