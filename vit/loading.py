"""The first word of a command: torch takes seconds to load, in which a terminal would stay empty."""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import ClassVar


class _FirstWord(MetaPathFinder):
    """Is asked where a module is before it is imported; finds none, but speaks when it is torch."""

    who: ClassVar[str] = ""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        if name == "torch":
            sys.meta_path.remove(self)
            if sys.stderr.isatty() and os.environ.get("RANK", "0") == "0":  # of several processes, the first
                print(f"{self.who}: torch is being loaded ...", file=sys.stderr, flush=True)


def announce_torch(who: str) -> None:
    """Have a terminal told, on stderr, that `who` loads torch, once that begins: by then all that needs none is checked."""
    _FirstWord.who = who
    if "torch" not in sys.modules and not any(isinstance(finder, _FirstWord) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FirstWord())
