"""What a study returns (tables with each seed's own value, and pictures), and how `vit study` writes it."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vit import __version__
from vit.atomic import write_json, write_text
from vit.config import flat_settings
from vit.device import choose_compute, device_name
from vit.errors import UserError
from vit.figures import save_figure
from vit.figures.style import Figure, captioned
from vit.report.record import settings_that_matter
from vit.runs import read_mapping
from vit.studies import STUDIES
from vit.weights import weights_hash

if TYPE_CHECKING:
    from vit.mae import Model
    from vit.studies.experiment import Experiment


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
        return f"{mean:.{digits}f}{unit}" + (f" ± {spread:.{digits}f}" if spread is not None else "")


def seeds(values: Tensor | Sequence[float], share: bool = False, digits: int | None = None) -> Seeds:
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
        plain = [
            [
                [x if math.isfinite(x) else None for x in cell.values] if isinstance(cell, Seeds) else cell
                for cell in row
            ]
            for row in self.rows
        ]
        return {"title": self.title, "columns": list(self.columns), "rows": plain}


@dataclass(frozen=True)
class Results:
    """What a study returns: the measures, and pictures by file name without suffix."""

    tables: Sequence[Table]
    pictures: dict[str, Figure]


def run_study(name: str, experiment: Experiment, out: Path, command: str) -> str:
    """Run a study, and write results.json, tables.md and its pictures into `out`/`name`.

    Results of the same settings are replaced; any other file there raises a StudyError. Returns how to read the results, from
    the docstring of the study's module.
    """
    # Refuse what cannot be made or written
    folder, config = out / name, experiment.config
    checkpoint, sections = experiment.checkpoint, config.to_dict()
    if checkpoint is not None:
        sections = {key: sections[key] for key in ("data", "model", "mask")}  # the others are about training
    settings = {
        "settings": settings_that_matter(flat_settings(sections)),
        "seeds": list(experiment.study.seeds),
        "images": experiment.study.images,
        "checkpoint": checkpoint and {"name": experiment.name, "content_hash": weights_hash(checkpoint)},
    }
    found = read_mapping(folder / "results.json", StudyError)
    if any(found.get(key) != value for key, value in settings.items()) and folder.exists() and any(folder.iterdir()):
        what = "a study with other settings" if found else "other files"
        raise StudyError(f"{folder} holds {what}; name another folder with --out")
    if missing := [package for package in ("scipy", "sklearn") if find_spec(package) is None]:
        raise StudyError(f"{name}: {' and '.join(missing)} cannot be imported; pip install -e '.[studies]'")

    # Train and measure, on the images of the results found
    experiment.measured_on = {one["content_hash"]: one["name"] for one in found.get("data", [])}
    module, since = import_module(f"vit.studies.{name.replace('-', '_')}"), time.perf_counter()
    try:
        with captioned(experiment.name):
            results = module.study(experiment)
    except StudyError as error:
        raise StudyError(f"{name}: {error}") from error

    # Write, the numbers first: what is interrupted here can be made again
    used = [
        {"name": data.name, "content_hash": data.content_hash, "train_images": len(data.train)}
        for data in experiment.used.values()
    ]
    reading = cleandoc(module.__doc__ or "").partition("\n\n")[2]  # without the question, which is the title
    if checkpoint is not None:
        reading += f"\n\n{_about_checkpoint(experiment, checkpoint)}"
    about: dict[str, Any] = {
        "question": STUDIES[name],
        "tables": [table.as_plain() for table in results.tables],
        "command": command,
        **settings,
        "data": used,
        "training_seconds": sum(experiment.seconds.values()),
        "measuring_seconds": time.perf_counter() - since - experiment.waited,
        "device": device_name(choose_compute(config.run, "fp32").device),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {
            "vit-patch-trainer": __version__,
            "python": sys.version.split()[0],
            **{package: version(package) for package in ("torch", "scipy", "scikit-learn")},
        },
    }
    write_json(folder / "results.json", about)
    for key, picture in results.pictures.items():
        save_figure(picture, folder / f"{key}.png")
    pictures = [f"![{key}]({key}.png)" for key in results.pictures]
    tables = [table.as_markdown() for table in results.tables]
    measured = (
        f"Measured on {' and '.join(data.name for data in experiment.used.values())},"
        f" seeds {', '.join(map(str, experiment.study.seeds))}, on {about['device']}, {about['date']}:"
        f" {about['training_seconds']:,.0f} s of training, {about['measuring_seconds']:,.0f} s of measuring."
    )
    parts = [f"# {STUDIES[name]}", reading, *pictures, *tables, f"    {command}", measured]
    write_text(folder / "tables.md", "\n\n".join(parts) + "\n")
    return reading


def _about_checkpoint(experiment: Experiment, checkpoint: Model) -> str:
    """Return sentences on what the checkpoint stands for, and on what is left out."""
    data, (seed,), left_out = checkpoint.origin.data, experiment.study.seeds, ", ".join(experiment.left_out)
    trained = f"*Checkpoint.* What is called trained is {experiment.name}{data and f', which was trained on {data}'}."
    said = f"{trained} Random weights are those that its architecture begins with, of seed {seed}."
    return said + (f" Left out, because they take other trainings: {left_out}." if left_out else "")
