"""What `vit` and train.py do before their work: output, warnings and errors by the line, and a word while torch loads."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import fields
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import ClassVar

from vit.errors import READER_GONE, exit_code_of, one_line
from vit.load_options import LoadOptions
from vit.openmp import limit_spinning


def start(program: str, work: Callable[[], int]) -> int:
    """Do the work of a program, and return its exit code; see `exit_code_of`."""
    stdout = sys.stdout if isinstance(sys.stdout, io.TextIOWrapper) else None
    if stdout:  # into a file or a pipe too: people watch the progress
        stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # as stderr: names may be any characters
    warnings.formatwarning = lambda message, *_, **__: f"{program}: warning: {one_line(_with_options(str(message)))}\n"
    limit_spinning()
    code = exit_code_of(program, work)
    if stdout and code == READER_GONE:  # what is left cannot be written at Python's end either, which would say so
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
    return code


def _with_options(message: str) -> str:
    """Write a warning's advice, "num_heads sets them", with the options of the command line."""
    what, separator, advice = message.rpartition("; ")
    if re.search(r" sets? (it|them)$", advice):
        for item in fields(LoadOptions):
            advice = re.sub(rf"\b{item.name}\b", f"--{item.name.replace('_', '-')}", advice)
    return f"{what}{separator}{advice}"


class _FirstWord(MetaPathFinder):
    """An import hook that finds no module, but prints a line before torch is imported."""

    who: ClassVar[str] = ""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        if name == "torch":
            sys.meta_path.remove(self)
            if sys.stderr.isatty() and os.environ.get("RANK", "0") == "0":  # only the first of several processes
                print(f"{self.who}: torch is being loaded ...", file=sys.stderr, flush=True)


def announce_torch(who: str) -> None:
    """Print on a terminal's stderr that `who` loads torch, once that begins; what needs no torch is checked by then."""
    _FirstWord.who = who
    if "torch" not in sys.modules and not any(isinstance(finder, _FirstWord) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FirstWord())
