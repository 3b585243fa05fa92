"""Tables of names: which tensor of a foreign format is which of ours. One table serves both ways, in and out.

Ours are timm's for the encoder, and `decoder.` in front of what belongs to the decoder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from einops import rearrange
from torch import Tensor

from vit.checkpoints.reading import CheckpointError

Shape = tuple[int, ...]

NOTES = {
    "": "",
    "stack": "stacked on dimension 0",
    "pixels": "rows from (p q c) to (c p q): here a patch is flattened channel first",
}
"""What is done to the values of a row, for the user."""


@dataclass(frozen=True)
class Row:
    """One tensor, or one of every block, under our name and theirs.

    In both, `#` stands for the number of a block and `@` for "weight" or "bias"; `*`, in theirs alone, for another number.

    Attributes:
        ours: our name.
        theirs: their name; several, where ours holds theirs side by side.
        change: a key of `NOTES`.
    """

    ours: str
    theirs: tuple[str, ...]
    change: str = ""


@dataclass(frozen=True)
class Move:
    """Which of their tensors, changed how, become one of ours."""

    target: str
    sources: tuple[str, ...]
    change: str

    def read(self, tensors: list[Tensor], channels: int) -> Tensor:
        """Theirs -> ours; `channels` is C of the images."""
        if self.change == "stack":
            return torch.cat(tensors)
        if self.change == "pixels":
            return rearrange(tensors[0], "(pixel c) ... -> (c pixel) ...", c=channels)
        return tensors[0]

    def write(self, tensor: Tensor, channels: int) -> list[Tensor]:
        """Ours -> theirs, the inverse of `read` to the bit."""
        if self.change == "stack":
            return list(tensor.chunk(len(self.sources)))
        if self.change == "pixels":
            return [rearrange(tensor, "(c pixel) ... -> (pixel c) ...", c=channels)]
        return [tensor]


@dataclass
class Value:
    """One tensor of ours to be: its sources, their move, and what is done after.

    Attributes:
        move: from their names.
        shape: after all steps.
        steps: functions of the tensor, in turn.
    """

    move: Move
    shape: Shape
    steps: list[Callable[[Tensor], Tensor]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def then(self, step: Callable[[Tensor], Tensor], shape: Shape, note: str) -> None:
        """Do `step` too, which gives `shape`; `note` says so to the user."""
        self.steps.append(step)
        self.notes.append(note)
        self.shape = shape


def row(ours: str, *theirs: str, change: str = "") -> Row:
    """A row of a table; without `theirs`, both have the name."""
    return Row(ours, theirs or (ours,), change or ("stack" if len(theirs) > 1 else ""))


def within(rows: Iterable[Row], ours: str, theirs: str) -> tuple[Row, ...]:
    """The rows of one block as rows of a model: with the container's name in front."""
    return tuple(Row(ours + r.ours, tuple(theirs + name for name in r.theirs), r.change) for r in rows)


@cache
def _pattern(name: str) -> re.Pattern[str]:
    escaped = re.escape(name).replace(r"\#", r"(?P<block>\d{1,4})").replace(r"\*", r"\d{1,4}")
    return re.compile(escaped.replace("@", "(?P<kind>weight|bias)"))


def _fill(name: str, match: re.Match[str]) -> str:
    found = match.groupdict()
    return name.replace("#", str(int(found.get("block") or 0))).replace("@", found.get("kind") or "")


def moves_in(rows: Iterable[Row], keys: Iterable[str]) -> tuple[dict[str, Move], list[str]]:
    """Read a table from theirs to ours.

    Args:
        rows: the table; of several spellings of one name, any may be there.
        keys: of their tensors.

    Returns:
        the moves by our names, and the keys that no row knows. A stack of which a part is missing counts as unknown.

    Raises:
        CheckpointError: two of their tensors claim the same name of ours.
    """
    keys = dict.fromkeys(keys)
    table = [(_pattern(name), r) for r in rows for name in r.theirs]
    moves: dict[str, Move] = {}
    known: set[str] = set()
    for key in keys:
        for pattern, r in table:
            match = pattern.fullmatch(key)
            if match is None:
                continue
            sources = tuple(_fill(name, match) for name in r.theirs) if len(r.theirs) > 1 else (key,)
            move = Move(_fill(r.ours, match), sources, r.change)
            if not all(source in keys for source in sources):
                continue
            if moves.setdefault(move.target, move) != move:
                raise CheckpointError(f"{moves[move.target].sources[0]} and {key} are both {move.target}; keep one")
            known.update(sources)
            break
    return moves, [key for key in keys if key not in known]


def moves_out(rows: Iterable[Row], targets: Iterable[str]) -> tuple[dict[str, Move], list[str]]:
    """Read a table from ours to theirs; of several spellings the first is taken.

    Returns:
        the moves by our names, and those of our names that the format has no place for.
    """
    table = [(_pattern(r.ours), r) for r in rows]
    moves: dict[str, Move] = {}
    homeless: list[str] = []
    for target in targets:
        for pattern, r in table:
            match = pattern.fullmatch(target)
            if match is not None:
                moves[target] = Move(target, tuple(_fill(name, match) for name in r.theirs), r.change)
                break
        else:
            homeless.append(target)
    return moves, homeless


def write_out(moves: Mapping[str, Move], state: Mapping[str, Tensor], channels: int) -> dict[str, Tensor]:
    """The tensors `state`, by our names, under theirs."""
    return {
        name: part.contiguous()
        for target, move in moves.items()
        for name, part in zip(move.sources, move.write(state[target], channels), strict=True)
    }
