"""What a loaded model carries: its source, how its input is made, what became of each tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from vit.checkpoints.reading import first_few, size_text
from vit.errors import one_line
from vit.weights import Origin

Shape = tuple[int, ...]


@dataclass
class Report:
    """What became of every tensor of a checkpoint, and what was assumed.

    Attributes:
        used: their names -> ours, as they are.
        converted: our name -> (their names, what was done): rearranged, resized, folded.
        dropped: their name -> the reason.
        missing: our name -> its shape: not in the file, so untrained.
        unexpected: their names that are unknown.
        notes: what was assumed or changed, for the user.
        guesses: those of them that nothing in the checkpoint confirms, each a warning.
        problems: why the checkpoint cannot be loaded; empty if it can.
    """

    used: dict[str, str] = field(default_factory=dict)
    converted: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    missing: dict[str, Shape] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return a table: used tensors are counted, all others named, similar blocks together."""
        lines = [f"{'used as they are':<18} {_tensors(len(self.used))}"]

        # what was done to the others
        converted = []
        for ours, (theirs, change) in self.converted.items():
            converted.append(f"{', '.join(theirs)} -> {ours}: {change}")
        lines += _section("converted", len(self.converted), converted)

        # what was dropped, by its reason
        dropped: dict[str, list[str]] = {}
        for name, reason in self.dropped.items():
            dropped.setdefault(reason, []).append(name)
        reasons = [f"{first_few(names)}: {reason}" for reason, names in dropped.items()]
        lines += _section("dropped", len(self.dropped), reasons)

        # what has no partner
        missing = [f"{name} ({size_text(shape)})" for name, shape in self.missing.items()]
        lines += _section("missing, untrained", len(self.missing), missing)
        lines += _section("unexpected", len(self.unexpected), self.unexpected)

        for note in self.notes:
            kind = "guess" if note in self.guesses else "note"
            lines.append(f"{kind}: {one_line(note)}")
        lines += [f"cannot be loaded: {one_line(problem)}" for problem in self.problems]
        return "\n".join(lines)


def _section(title: str, count: int, details: list[str]) -> list[str]:
    """Return a part of the table; nothing for no tensors."""
    if not count:
        return []
    lines = [f"{title:<18} {_tensors(count)}"]
    for line in _ranges(details):
        lines.append(f"    {one_line(line)}")
    return lines


def _ranges(lines: list[str]) -> list[str]:
    """Join lines that differ only in the numbers within names: blocks.0-11.attn.qkv.weight."""
    # the lines with # for each number -> the numbers of each line
    number = re.compile(r"(?<=\.)\d+(?=\.)")
    groups: dict[str, list[list[int]]] = {}
    for line in lines:
        numbers = [int(digits) for digits in number.findall(line)]
        groups.setdefault(number.sub("#", line), []).append(numbers)

    # in place of each #, the range of its numbers
    result = []
    for text, rows in groups.items():
        for column in zip(*rows, strict=True):
            text = text.replace("#", _runs(set(column)), 1)
        result.append(text)
    return result


def _runs(numbers: set[int]) -> str:
    """Return numbers in order, those in a row as a range: 0-2, 5."""
    texts = []
    for first in sorted(numbers):
        if first - 1 in numbers:
            continue
        last = first
        while last + 1 in numbers:
            last += 1
        texts.append(str(first) if first == last else f"{first}-{last}")
    return ", ".join(texts)


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"


@dataclass(frozen=True, kw_only=True)
class LoadedOrigin(Origin):
    """Where a loaded model came from: the `origin` of every model from `load_model`.

    Attributes:
        format: the file's format.
        report: what became of each tensor.
        details: the checkpoint's whole config.json.
    """

    format: str
    report: Report
    details: dict[str, Any]

    @property
    def problem_type(self) -> str:
        problem_type = str(self.details.get("problem_type") or "")
        if problem_type == "single_label_classification":
            return ""
        return problem_type

    @property
    def notes(self) -> list[str]:
        return self.report.notes

    @property
    def untrained(self) -> list[str]:
        return list(self.report.missing)
