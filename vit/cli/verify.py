"""`vit verify`: check that the files of a finished run are as it left them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vit.cli.options import POSITIONAL, read_options
from vit.config import Section
from vit.pretrained import located
from vit.runs import RunError, RunFiles, check_manifest


@dataclass(frozen=True)
class VerifyOptions(Section):
    """Compare the files of a finished run with manifest.json, which holds the SHA-256 of each: settings, metrics, figures,
    weights and snapshots. Pictures and the page are not in it: they can be drawn again. Of another folder with weights, compare
    these with the SHA-256 in its config.json."""

    run: str = field(metadata=POSITIONAL)
    """run folder, another folder with weights, or the name of a shipped model"""


OPTIONS = (VerifyOptions,)


def run(argv: Sequence[str]) -> int:
    """Print a line for each file that is not as it was; return 1 if there is one."""
    (options,) = read_options("vit verify", argv, *OPTIONS)
    files = RunFiles(located(options.run) or Path(options.run))
    if not files.manifest.is_file() and not files.config.is_file():
        from vit.checkpoints.reading import read_checkpoint  # with torch

        source = read_checkpoint(files.path)
        if not source.verified:
            raise RunError(f"{options.run} is no run folder, and no config.json in it has a SHA-256 of its weights")
        print(f"{source.files[0].name} has the SHA-256 in config.json")
        return 0
    if not files.manifest.is_file():
        older = ", or an earlier version ran it" if files.summary.is_file() else ""
        raise RunError(f"{options.run} has no manifest.json: the run, which writes it at its end, has not ended{older}")
    problems = check_manifest(files.path)
    print("\n".join(problems) or f"{len(files.kept)} files are unchanged since the run ended")
    return 1 if problems else 0
