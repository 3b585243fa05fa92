"""Tell a terminal that torch is loading, which takes seconds in which it would stay empty."""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import ClassVar


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
