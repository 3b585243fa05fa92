"""What a study comes to: an answer in words, tables with seeds and spread, pictures; and how it is written down."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.atomic import write_json, write_text
from vit.errors import UserError

if TYPE_CHECKING:
    from vit.figures.style import Figure


class StudyError(UserError):
    """A study that cannot be made; the message is one line."""


@dataclass(frozen=True)
class Seeds:
    """One measure, once a seed.

    Attributes:
        values: in the order of the seeds.
        share: whether it is a share of one, written in percent.
        digits: after the point; None for as many as the spread leaves meaning.
    """

    values: tuple[float, ...]
    share: bool = False
    digits: int | None = None

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds (n - 1); None for a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        """ "50.2% ± 0.4" or "0.512 ± 0.003": as many digits as the spread leaves meaning."""
        if not all(map(math.isfinite, self.values)):
            return "not finite"
        factor, unit = (100, "%") if self.share else (1, "")
        mean, spread = self.mean * factor, self.spread and self.spread * factor
        if self.digits is not None:
            mean = round(mean, self.digits) + 0.0  # not -0.00
            return f"{mean:.{self.digits}f}{unit}" + (f" ± {spread:.{self.digits}f}" if spread is not None else "")
        if not self.share and 0 < abs(mean) < 1e-4:
            return f"{mean:.1e}" + (f" ± {spread:.0e}" if spread is not None else "")
        if self.share:
            digits = 1
        elif spread:
            digits = min(max(1 - math.floor(math.log10(spread)), 0), 6)
        else:
            digits = min(max(2 - math.floor(math.log10(abs(mean))), 0), 6) if mean else 0
        mean = round(mean, digits) + 0.0
        return f"{mean:.{digits}f}{unit}" + (f" ± {spread:.{digits}f}" if spread is not None else "")


def seeds(values: Sequence[float], share: bool = False, digits: int | None = None) -> Seeds:
    """`Seeds` of plain numbers."""
    return Seeds(tuple(float(value) for value in values), share, digits)


def brief(measure: Seeds, digits: int = 2) -> Seeds:
    """The same, written as short as a sentence wants it: shares of 10% and more in whole percents, where the spread shows so.

    Args:
        measure: of which tables have all digits that its spread leaves meaning.
        digits: after the point, if it is no share.
    """
    if measure.share:
        digits = 0 if abs(measure.mean) >= 0.1 and (measure.spread is None or measure.spread >= 0.01) else 1
    return replace(measure, digits=digits)


Cell = str | int | Seeds


@dataclass(frozen=True)
class Table:
    """Rows of measures.

    Attributes:
        title: what they are.
        columns: one name each.
        rows: as wide as `columns`.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]

    def as_markdown(self) -> str:
        """The table as Markdown, its title above it."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        cells = (" | ".join(str(cell).replace("|", r"\|") for cell in line) for line in lines)
        return "\n".join([f"**{self.title}**", "", *(f"| {line} |" for line in cells)])

    def as_plain(self) -> dict[str, Any]:
        """Plain values for JSON, each seed's own."""
        plain = [[list(cell.values) if isinstance(cell, Seeds) else cell for cell in row] for row in self.rows]
        return {"title": self.title, "columns": list(self.columns), "rows": plain}


@dataclass(frozen=True)
class Finding:
    """What a study comes to.

    Attributes:
        answer: two or three sentences, with the figures that were measured.
        limits: what it was measured on and does not show.
        tables: the measures.
        pictures: by file name without suffix, the first one first.
        captions: what each picture shows, by the same names.
    """

    answer: str
    limits: str
    tables: list[Table]
    pictures: dict[str, Figure]
    captions: dict[str, str] = field(default_factory=dict)


def write_finding(folder: Path, question: str, finding: Finding, about: Mapping[str, Any], command: str) -> None:
    """Write answer.md, the pictures, and last results.json into `folder`.

    Args:
        folder: made where missing.
        question: of the study.
        finding: what it came to.
        about: data, settings, seeds, machine and date, for JSON.
        command: that repeats it.
    """
    from vit.figures import save_figure

    for name, picture in finding.pictures.items():
        save_figure(picture, folder / f"{name}.png")
    parts = [f"# {question}", finding.answer]
    for name in finding.pictures:
        caption = finding.captions.get(name, question)
        parts += [f"![{caption}]({name}.png)"]
    parts += [table.as_markdown() for table in finding.tables]
    parts += [f"*Limits.* {finding.limits}", f"    {command}", measured(about)]
    write_text(folder / "answer.md", "\n\n".join(parts) + "\n")
    plain = {"question": question, "answer": finding.answer, "limits": finding.limits}
    tables = {"tables": [table.as_plain() for table in finding.tables]}
    write_json(folder / "results.json", plain | tables | {"command": command} | dict(about))


def measured(about: Mapping[str, Any]) -> str:
    """What a finding was measured on, in a sentence for people."""
    count = len(about["seeds"])
    names = ", ".join(map(str, about["seeds"]))
    data = " and ".join(one["name"] for one in about["data"]) or "no images"
    on = f"Measured on {data}, {count} {'seed' if count == 1 else 'seeds'} ({names}), on {about['device']}"
    took = f"{about['training_seconds']:,.0f} s of training and {about['measuring_seconds']:,.0f} s of measuring"
    return f"{on}, torch {about['versions']['torch']}, {about['date']}: {took}."
