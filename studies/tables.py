"""What a study returns: tables with each seed's own value, and figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vit.figures.style import Figure


@dataclass(frozen=True)
class Seeds:
    """One measure, once per seed.

    Attributes:
        values: of the seeds.
        share: whether they are shares, written in percent.
        digits: decimals; None: as many as are meaningful given the spread.
    """

    values: tuple[float, ...]
    share: bool = False
    digits: int | None = None

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds (n - 1); None for a single one."""
        if len(self.values) == 1:
            return None
        return statistics.stdev(self.values)

    def plain(self) -> list[float | None]:
        """Return the values for JSON; None for those that are not finite."""
        return [value if math.isfinite(value) else None for value in self.values]

    def __sub__(self, other: Seeds) -> Seeds:
        """Subtract seed by seed, so that what both share cancels; shares differ by points."""
        unit = 100 if self.share else 1
        differences = []
        for value, subtracted in zip(self.values, other.values, strict=True):
            differences.append(unit * (value - subtracted))
        return Seeds(tuple(differences))

    def __str__(self) -> str:
        """Return "50.2% ± 0.4" or "0.512 ± 0.003"."""
        if not all(math.isfinite(value) for value in self.values):
            return "not finite"

        # In percent or not
        mean = self.mean
        spread = self.spread
        unit = ""
        if self.share:
            unit = "%"
            mean *= 100
            if spread is not None:
                spread *= 100

        # How many digits mean anything
        digits = self.digits
        if digits is None and self.share:
            digits = 1
        elif digits is None and 0 < abs(mean) < 1e-4:
            return _with_spread(f"{mean:.1e}", spread, ".0e")
        elif digits is None:
            digits = meaningful_digits(mean, spread)

        # Adding 0.0 turns -0.00 into 0.00
        mean = round(mean, digits) + 0.0
        return _with_spread(f"{mean:.{digits}f}{unit}", spread, f".{digits}f")


@dataclass(frozen=True)
class Draws(Seeds):
    """One measure, once per draw, of several seeds or one."""

    def __str__(self) -> str:
        """Return "27.0% (24.7 to 33.3)": the mean, and the range of the draws."""
        of_one = [
            str(Seeds((value,), self.share, self.digits)).removesuffix("%")
            for value in (self.mean, min(self.values), max(self.values))
        ]
        unit = "%" if self.share else ""
        return f"{of_one[0]}{unit} ({of_one[1]} to {of_one[2]})"


def meaningful_digits(mean: float, spread: float | None) -> int:
    """Return the decimals of a mean: up to the second digit of its spread, or its own third."""
    digits = 2 - math.floor(math.log10(abs(mean) or 100))
    if spread:
        digits = 1 - math.floor(math.log10(spread))
    return min(max(digits, 0), 6)


def _with_spread(mean: str, spread: float | None, form: str) -> str:
    """Return "mean ± spread", or the mean alone."""
    if spread is None:
        return mean
    return f"{mean} ± {spread:{form}}"


def seeds(
    values: Tensor | Sequence[float], share: bool = False, digits: int | None = None
) -> Seeds:
    """Return `Seeds` of a number per seed, or of a tensor (seeds, ...), averaged over all else."""
    if isinstance(values, Tensor):
        if values.ndim > 1:
            values = values.flatten(1).mean(1)
        values = values.tolist()
    return Seeds(tuple(float(value) for value in values), share, digits)


@dataclass(frozen=True)
class Table:
    """Rows of names, counts and `Seeds`."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def as_markdown(self) -> str:
        """Return the table as Markdown, its title above it."""
        lines = [f"**{self.title}**", ""]
        for row in (self.columns, ["---"] * len(self.columns), *self.rows):
            cells = [str(cell).replace("|", r"\|") for cell in row]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def as_plain(self) -> dict[str, Any]:
        """Return plain values for JSON, each seed's own; None for those that are not finite."""
        rows = []
        for row in self.rows:
            cells = [cell.plain() if isinstance(cell, Seeds) else cell for cell in row]
            rows.append(cells)
        return {"title": self.title, "columns": list(self.columns), "rows": rows}


@dataclass(frozen=True)
class Results:
    """What a study returns: the measures, and figures by file name without suffix."""

    tables: Sequence[Table]
    pictures: dict[str, Figure]
