"""`vit compare`: finished runs side by side: what differs between their settings, and what they came to."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vit.checkpoints.card import is_about
from vit.config import FREE_ON_RESUME, Config
from vit.errors import UserError, one_line
from vit.figures import RunLine, RunPanel, compared_figure, save_figure
from vit.figures.measures import SERIES
from vit.report.pictures import curves_of
from vit.report.record import settings_of
from vit.training.metrics import read_metrics
from vit.training.run_folder import RunFolder

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


def _linear(run: FinishedRun, every_layer: bool) -> float | None:
    """Of a probe of the run's own weights on the same images, by all their labels."""
    probes = [
        found["linear"]["accuracy"]
        for found in run.results
        if "linear" in found
        and found["data"]["stamp"] == run.summary["data"]["stamp"]
        and is_about(run.summary, found)
        and (found["settings"]["labels"], found["settings"]["every_layer"]) == (1, every_layer)
    ]
    return probes[0] if probes else None


def _neighbours(run: FinishedRun) -> float | None:
    return (run.summary.get("neighbours") or {}).get("encoder_accuracy")


FIGURES: dict[str, tuple[Callable[[FinishedRun], float | None], str]] = {
    "loss": (lambda run: run.summary.get("test_loss"), ".4f"),
    "accuracy": (lambda run: run.summary.get("test_accuracy"), ".2%"),
    "with mirror images": (lambda run: run.summary.get("test_accuracy_with_flip"), ".2%"),
    "calibration error": (lambda run: run.summary.get("test_calibration_error"), ".2%"),
    "neighbours": (_neighbours, ".2%"),
    "linear probe": (lambda run: _linear(run, False), ".2%"),
    "linear probe, best layer": (lambda run: _linear(run, True), ".2%"),
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
        settings = settings_of(Config().to_dict()) | settings_of(sections)  # what an earlier version did not know yet
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
    keys = {key: None for run in runs for key in _what(run)}
    different = [key for key in keys if len({json.dumps(run.settings.get(key)) for run in runs}) > 1]
    begun_with: dict[str, set[str]] = {}
    for run in runs:
        marks = begun_with.setdefault(run.settings["model.init"], set())
        marks |= {mark for mark in [run.summary.get("init_fingerprint")] if mark}
    if any(len(marks) > 1 for marks in begun_with.values()) and "model.init" not in different:
        different.insert(0, "model.init")  # one name, other weights
    rows = []
    for alike in _groups(runs):
        row = {"run": ", ".join(one_line(str(run.folder)) for run in alike)}
        row |= {key: _plain(alike[0].settings.get(key)) for key in different}
        if len(begun_with[init := alike[0].settings["model.init"]]) > 1:
            row["model.init"] = f"{_plain(init)} ({alike[0].summary.get('init_fingerprint') or 'unknown weights'})"
        data = alike[0].summary["data"]
        row |= {"images": f"{data['train_images']:,}", "measured on": f"{data['test_images']:,} {data['tested_on']}"}
        row["seeds"] = ", ".join(_seeds(run) for run in alike)
        found = [_row(run) for run in alike]
        for name, (_, form) in FIGURES.items():
            values = [value for values in found if (value := values[name]) is not None]
            row[name] = _mean(values, form) if len(values) == len(alike) else ""
        rows.append(row)
    return [{name: row[name] for name in row if any(other[name] for other in rows)} for row in rows]


def draw_runs(runs: Sequence[FinishedRun], path: Path) -> None:
    """A picture of how they went: loss, and accuracy of classifiers, over the epochs, and what was measured in the end.

    Runs that share a row of `compare_runs` share a colour. One that was measured on held-out images while it trained is drawn
    by these, the others by what they measured on their own varied images.

    Args:
        runs: as for `compare_runs`.
        path: .png, .svg or .pdf.

    Raises:
        ComparisonError: there are more rows than can be told apart, or a run is given twice.
        MetricsError: a metrics.jsonl is damaged.
    """
    groups = _groups(runs)
    if len(groups) > len(SERIES):
        raise ComparisonError(
            f"{len(groups)} kinds of runs cannot be told apart in one picture; give at most {len(SERIES)}"
        )
    panels: dict[str, list[RunLine]] = {}
    for series, alike in enumerate(groups):
        names = ", ".join(run.folder.resolve().name for run in alike)
        drawn = [_lines(run, series) for run in alike]
        for title, first in drawn[0].items():
            lines = [one[title] for one in drawn]
            ends = _mean([line.end[1] for line in lines if line.end], ".2%" if title == "accuracy" else ".4f")
            panels.setdefault(title, []).extend([replace(first, label=f"{ends}  {names}"), *lines[1:]])
    tested = [run.summary["data"] for run in runs]
    measured = {f"{data['test_images']:,} {data['tested_on']} of {one_line(data['name'])}": None for data in tested}
    about = (
        "lines: while training, on varied images (a running mean) or held-out ones · marks and figures: in the end, on "
    )
    figure = compared_figure(
        [RunPanel(title, lines, title == "accuracy") for title, lines in panels.items()], "How the runs went",
        about + ", or ".join(measured),
    )  # fmt: skip
    save_figure(figure, path)


def _lines(run: FinishedRun, series: int) -> dict[str, RunLine]:
    """What is drawn of a run, by the panel it belongs to."""
    settings, metrics = run.settings, read_metrics(RunFolder(run.folder).metrics)
    lines = {}
    try:
        tested_on, uniformity = run.summary["data"]["tested_on"], settings["mask.uniformity"] > 0
        for curve in curves_of(settings["train.task"], uniformity, tested_on, run.summary):
            key = curve.held_out if any(curve.held_out in line for line in metrics) else curve.key
            found = [(line["epoch"], line[key]) for line in metrics if key in line]
            epoch, values = zip(*found, strict=True) if found else ((), ())
            end = run.summary["epochs"], next(iter(curve.lines.values()))  # the first of these is the run's own
            lines[curve.title] = RunLine(series, epoch, values, end, rough=key == curve.key)
    except LookupError as error:
        raise ComparisonError(f"{run.folder} cannot be drawn: its files do not say {error}") from error
    return lines


def _groups(runs: Sequence[FinishedRun]) -> list[list[FinishedRun]]:
    """Those together that differ in nothing but the seed."""
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
    return list(groups.values())


def _row(run: FinishedRun) -> dict[str, float | None]:
    found = {name: find(run) for name, (find, _) in FIGURES.items()}
    return {name: None if value is None else float(value) for name, value in found.items()}


def _key(run: FinishedRun) -> str:
    """Equal for runs that differ in their seeds alone."""
    data, what = run.summary["data"], _what(run)
    if begun_with := run.summary.get("init_fingerprint"):  # the same weights, wherever they lie
        what["model.init"] = begun_with
    stamp = data.get("whole_stamp")  # of all images: another seed, other labels and held-out images
    if stamp is None:  # an earlier version's
        stamp = data["stamp"].rpartition("-")[2] if run.settings.get("data.labels", 1) < 1 else data["stamp"]
    bank = (run.summary.get("neighbours") or {}).get("bank")
    return json.dumps([what, data["train_images"], data["test_images"], data["tested_on"], stamp, bank], sort_keys=True)


def _seeds(run: FinishedRun) -> str:
    seed, subset = (run.settings.get(key, 0) for key in SEEDS)
    drawn = run.settings.get("data.labels", 1) < 1 or run.settings.get("data.holdout", 0)
    return f"{seed} (subset {subset})" if subset and drawn else str(seed)


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
