"""The commands `vit checkpoint inspect`, `convert` and `export`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.checkpoints.card import read_finished
from vit.checkpoints.convert import convert_model
from vit.checkpoints.inspection import describe, facts
from vit.checkpoints.loading import find, load_model
from vit.checkpoints.plan import plan_model
from vit.errors import one_line
from vit.load_options import LoadOptions


def inspect(checkpoint: str, asked: dict[str, Any], every: bool, as_json: bool) -> int:
    """Print what a checkpoint is and what would become of each tensor.

    Args:
        checkpoint: as for `load_model`.
        asked: its keyword arguments.
        every: list each tensor.
        as_json: print `facts` instead of a table.

    Returns:
        the exit code: 0, or 2 where it could not be loaded so.
    """
    request = LoadOptions(**asked)
    plan = plan_model(find(checkpoint), request)
    known = facts(plan, request)
    print(json.dumps(known, indent=2) if as_json else describe(plan, known, every))
    return 2 if known["problems"] else 0


@dataclass(frozen=True)
class Beside:
    """What of `convert --to safetensors` is asked for beside the format.

    Attributes:
        half: weights in half precision.
        card: a model card, from the files of the run.
        results: folders of `vit evaluate --out`, for the card.
        note: a sentence on the data, for the card.
    """

    half: bool = False
    card: bool = False
    results: Sequence[str] = ()
    note: str = ""


def write(
    checkpoint: str, asked: dict[str, Any], command: str, to: str, out: Path, beside: Beside | None = None
) -> int:
    """Load a checkpoint and write it in another format (`convert`) or as a program (`export`).

    Returns:
        the exit code.
    """
    beside = beside or Beside()
    run = read_finished(checkpoint, beside.results) if beside.card else None
    model = load_model(checkpoint, **asked)
    origin = model.origin
    if command == "convert":
        notes = convert_model(model, to, out, beside.half, run, beside.note)
    else:
        from vit.checkpoints.export import export_program

        said = {"mean": str(origin.normalize.mean), "std": str(origin.normalize.std)}
        difference = export_program(model, out, to, said)
        notes = [f"run again, the program differs from the model by at most {difference:.1e}"]
    print(f"{out}: {origin.format} as {to}")
    print(origin.report)
    for note in notes:
        print(f"note: {one_line(note)}")
    return 0
