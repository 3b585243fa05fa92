"""`vit compare`: finished runs side by side: what differs between their settings, and what they came to."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.config import FREE_ON_RESUME
from vit.errors import UserError, one_line
from vit.report.record import settings_of

SEEDS = ("train.seed", "data.subset_seed")


class ComparisonError(UserError):
    """Runs that cannot be compared; the message is one line."""


@dataclass(frozen=True)
class FinishedRun:
    """What a run folder says.

    Attributes:
        folder: of the run.
        settings: of config.yaml, by "section.key".
        summary: summary.json.
        results: every results.json of `vit evaluate` in a folder within the run's.
    """

    folder: Path
    settings: dict[str, Any]
    summary: dict[str, Any]
    results: list[dict[str, Any]]


def _linear(run: FinishedRun) -> float | None:
    """Of a probe of the same images, by all their labels."""
    stamp = run.summary["data"]["stamp"]
    probes = [found for found in run.results if "linear" in found and found["data"]["stamp"] == stamp]
    return next((found["linear"]["accuracy"] for found in probes if found["settings"]["labels"] == 1), None)


def _neighbours(run: FinishedRun) -> float | None:
    return (run.summary.get("neighbours") or {}).get("encoder_accuracy")


FIGURES: dict[str, tuple[Callable[[FinishedRun], float | None], str]] = {
    "loss": (lambda run: run.summary.get("test_loss"), ".4f"),
    "accuracy": (lambda run: run.summary.get("test_accuracy"), ".2%"),
    "with mirror images": (lambda run: run.summary.get("test_accuracy_with_flip"), ".2%"),
    "calibration error": (lambda run: run.summary.get("test_calibration_error"), ".2%"),
    "neighbours": (_neighbours, ".2%"),
    "linear probe": (_linear, ".2%"),
    "seconds": (lambda run: run.summary.get("seconds"), ",.0f"),
}
"""What is compared: how it is found in a run, and how it is written."""


def read_run(folder: Path) -> FinishedRun:
    """A finished run.

    Raises:
        ComparisonError: there is none, or its files cannot be read.
    """
    import yaml

    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        sections = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        settings = settings_of(sections)
        results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/results.json"))]
        run = FinishedRun(folder, settings, summary, results)
        _row(run), _key(run)  # all that is compared is there
        return run
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ComparisonError(f"{folder} holds no finished run: {Path(error.filename).name} is not there") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise ComparisonError(f"{folder} cannot be read: {type(error).__name__}: {one_line(str(error))}") from error


def compare_runs(runs: Sequence[FinishedRun]) -> list[dict[str, str]]:
    """A row for each run; those that differ in nothing but the seed share one, with the mean and the spread.

    Args:
        runs: in the order of the rows.

    Returns:
        Rows with the same columns, as text: the run, the settings that are not the same everywhere, the seeds, what was
        measured on, and of FIGURES those that a run has. The spread is the standard deviation over the seeds.

    Raises:
        ComparisonError: a run is given twice.
    """
    groups: dict[str, list[FinishedRun]] = {}
    places: set[Path] = set()
    for run in runs:
        if run.folder.resolve() in places:
            raise ComparisonError(f"{run.folder} is given twice")
        places.add(run.folder.resolve())
        alike = groups.setdefault(_key(run), [])
        if any(_seeds(run) == _seeds(other) for other in alike):  # another run of the same seed is no other seed
            groups[f"{_key(run)} {run.folder}"] = [run]
        else:
            alike.append(run)
    keys = {key: None for run in runs for key in _what(run)}
    different = [key for key in keys if len({json.dumps(run.settings.get(key)) for run in runs}) > 1]
    rows = []
    for alike in groups.values():
        row = {"run": ", ".join(one_line(str(run.folder)) for run in alike)}
        row |= {key: _plain(alike[0].settings.get(key)) for key in different}
        data = alike[0].summary["data"]
        row |= {"images": f"{data['train_images']:,}", "measured on": f"{data['test_images']:,} {data['tested_on']}"}
        row["seeds"] = ", ".join(_seeds(run) for run in alike)
        found = [_row(run) for run in alike]
        for name, (_, form) in FIGURES.items():
            values = [value for values in found if (value := values[name]) is not None]
            row[name] = _mean(values, form) if len(values) == len(alike) else ""
        rows.append(row)
    return [{name: row[name] for name in row if any(other[name] for other in rows)} for row in rows]


def _row(run: FinishedRun) -> dict[str, float | None]:
    found = {name: find(run) for name, (find, _) in FIGURES.items()}
    return {name: None if value is None else float(value) for name, value in found.items()}


def _key(run: FinishedRun) -> str:
    """Equal for runs that differ in their seeds alone."""
    data = run.summary["data"]
    train, _, test = data["stamp"].rpartition("-")
    stamp = test if run.settings.get("data.labels", 1) < 1 else f"{train}-{test}"  # another seed, other labels
    return json.dumps([_what(run), data["train_images"], data["test_images"], data["tested_on"], stamp], sort_keys=True)


def _seeds(run: FinishedRun) -> str:
    seed, subset = (run.settings.get(key, 0) for key in SEEDS)
    return f"{seed} (subset {subset})" if subset else str(seed)


def as_table(rows: Sequence[Mapping[str, str]], markdown: bool = False) -> list[str]:
    """Rows with the same columns as lines: aligned, or as a Markdown table."""
    columns = list(rows[0])
    if markdown:
        cells = [[row[name].replace("|", "\\|") for name in columns] for row in rows]
        return [f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *cells)]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
    lines = [{name: name for name in columns}, *rows]
    return ["  ".join(line[name].ljust(widths[name]) for name in columns).rstrip() for line in lines]


def _what(run: FinishedRun) -> dict[str, Any]:
    """The settings that make a run what it is, without where and how it was computed, and the seed."""
    return {key: value for key, value in run.settings.items() if key not in FREE_ON_RESUME.union(SEEDS)}


def _plain(value: object) -> str:
    return one_line(value) if isinstance(value, str) else json.dumps(value)


def _mean(values: Sequence[float], form: str) -> str:
    if len(values) == 1:
        return format(values[0], form)
    return f"{format(statistics.mean(values), form)} ± {format(statistics.stdev(values), form)}"
