"""What a study returns: tables with each seed's own value, and pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vit.errors import UserError
from vit.figures.style import Figure


class StudyError(UserError):
    """A study that cannot be made."""


@dataclass(frozen=True)
class Seeds:
    """One measure, once per seed."""

    values: tuple[float, ...]
    share: bool = False  # whether they are shares, written in percent
    digits: int | None = None  # decimals; None: as many as are meaningful given the spread

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds (n - 1); None for a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def plain(self) -> list[float | None]:
        """Return the values for JSON; None for those that are not finite."""
        return [value if math.isfinite(value) else None for value in self.values]

    def __sub__(self, other: Seeds) -> Seeds:
        """Subtract seed by seed, so that what both share cancels; shares differ by points."""
        unit = 100 if self.share else 1
        return Seeds(tuple(unit * (a - b) for a, b in zip(self.values, other.values, strict=True)))

    def __str__(self) -> str:
        """Return "50.2% ± 0.4" or "0.512 ± 0.003"."""
        if not all(map(math.isfinite, self.values)):
            return "not finite"
        factor, unit = (100, "%") if self.share else (1, "")
        mean, spread = self.mean * factor, self.spread and self.spread * factor
        digits = self.digits
        if digits is None and self.share:
            digits = 1
        elif digits is None and 0 < abs(mean) < 1e-4:
            return f"{mean:.1e}" + (f" ± {spread:.0e}" if spread is not None else "")
        elif digits is None:
            size = math.log10(spread or abs(mean) or 100)
            digits = min(max((1 if spread else 2) - math.floor(size), 0), 6)
        mean = round(mean, digits) + 0.0  # not -0.00
        return f"{mean:.{digits}f}{unit}" + (
            f" ± {spread:.{digits}f}" if spread is not None else ""
        )


def seeds(
    values: Tensor | Sequence[float], share: bool = False, digits: int | None = None
) -> Seeds:
    """Return `Seeds` of one number per seed, or of a tensor (seeds, ...), averaged over all else."""
    if isinstance(values, Tensor):
        values = (values.flatten(1).mean(1) if values.ndim > 1 else values).tolist()
    return Seeds(tuple(map(float, values)), share, digits)


@dataclass(frozen=True)
class Table:
    """Rows of names, counts and `Seeds`."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def as_markdown(self) -> str:
        """Return the table as Markdown, its title above it."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        cells = (" | ".join(str(cell).replace("|", r"\|") for cell in line) for line in lines)
        return "\n".join([f"**{self.title}**", "", *(f"| {line} |" for line in cells)])

    def as_plain(self) -> dict[str, Any]:
        """Return plain values for JSON, each seed's own; None for those that are not finite."""
        rows = []
        for row in self.rows:
            cells = [cell.plain() if isinstance(cell, Seeds) else cell for cell in row]
            rows.append(cells)
        return {"title": self.title, "columns": list(self.columns), "rows": rows}


@dataclass(frozen=True)
class Results:
    """What a study returns: the measures, and pictures by file name without suffix."""

    tables: Sequence[Table]
    pictures: dict[str, Figure]
