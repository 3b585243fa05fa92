"""The report that a loaded model carries: what became of each tensor of its checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from vit.checkpoints.reading import first_few, size_text
from vit.errors import one_line, plural

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
        assumed: the notes that nothing in the checkpoint confirms, each with the options that set
            it.
        warnings: the notes that report a loss.
        problems: why the checkpoint cannot be loaded; empty if it can.
    """

    used: dict[str, str] = field(default_factory=dict)
    converted: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    missing: dict[str, Shape] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return a table: used tensors are counted, all others named, similar layers together."""
        converted = [
            f"{', '.join(theirs)} -> {ours}: {change}"
            for ours, (theirs, change) in self.converted.items()
        ]
        # the names of the dropped tensors by their reason
        dropped: dict[str, list[str]] = {}
        for name, reason in self.dropped.items():
            dropped.setdefault(reason, []).append(name)
        reasons = [f"{first_few(names)}: {reason}" for reason, names in dropped.items()]
        missing = [f"{name} ({size_text(shape)})" for name, shape in self.missing.items()]

        lines = [f"{'used as they are':<18} {plural(len(self.used), 'tensor')}"]
        for title, tensors, details in (
            ("converted", self.converted, converted),
            ("dropped", self.dropped, reasons),
            ("missing, untrained", self.missing, missing),
            ("unexpected", self.unexpected, self.unexpected),
        ):
            if tensors:
                lines.append(f"{title:<18} {plural(len(tensors), 'tensor')}")
                lines += [f"    {one_line(line)}" for line in _ranges(details)]
        for note in self.notes:
            kind = "assumed" if note in self.assumed else "note"
            lines.append(f"{'warning' if note in self.warnings else kind}: {one_line(note)}")
        lines += [f"cannot be loaded: {one_line(problem)}" for problem in self.problems]
        return "\n".join(lines)


def _ranges(lines: list[str]) -> list[str]:
    """Join lines that differ only in the numbers within names: blocks.0-11.attn.qkv.weight."""
    # the lines with # for each number -> the numbers of each line
    number = re.compile(r"(?<=\.)\d+(?=\.)")
    groups: dict[str, list[list[int]]] = {}
    for line in lines:
        numbers = [int(digits) for digits in number.findall(line)]
        groups.setdefault(number.sub("#", line), []).append(numbers)

    # in place of each #, the range of its numbers, or all of them
    result = []
    for text, rows in groups.items():
        for column in zip(*rows, strict=True):
            numbers = sorted(set(column))
            shown = ", ".join(map(str, numbers))
            if numbers[-1] - numbers[0] == len(numbers) - 1 > 0:
                shown = f"{numbers[0]}-{numbers[-1]}"
            text = text.replace("#", shown, 1)
        result.append(text)
    return result
