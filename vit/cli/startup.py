"""What `vit` and train.py do before their work: output, warnings and errors by the line."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import fields

from vit.errors import READER_GONE, exit_code_of, one_line
from vit.load_options import LoadOptions
from vit.openmp import limit_spinning


def start(program: str, work: Callable[[], int]) -> int:
    """Do the work of a program, and return its exit code; see `exit_code_of`."""
    stdout = sys.stdout if isinstance(sys.stdout, io.TextIOWrapper) else None
    if stdout:  # into a file or a pipe too: people watch the progress
        stdout.reconfigure(
            line_buffering=True, errors="backslashreplace"
        )  # as stderr: names may be any characters
    warnings.formatwarning = lambda message, *_, **__: (
        f"{program}: warning: {one_line(_with_options(str(message)))}\n"
    )
    limit_spinning()
    code = exit_code_of(program, work)
    if (
        stdout and code == READER_GONE
    ):  # what is left cannot be written at Python's end either, which would say so
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
    return code


def _with_options(message: str) -> str:
    """Write a warning's advice, "num_heads sets them", with the options of the command line."""
    what, separator, advice = message.rpartition("; ")
    if re.search(r" sets? (it|them)$", advice):
        for item in fields(LoadOptions):
            advice = re.sub(rf"\b{item.name}\b", f"--{item.name.replace('_', '-')}", advice)
    return f"{what}{separator}{advice}"
