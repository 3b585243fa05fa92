"""`vit compare`: finished runs side by side: what differs between their settings, and what they measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vit.errors import UserError, one_line
from vit.figures import Panel, RunLine, compared_figure, save_figure
from vit.figures.measures import SERIES
from vit.report.pictures import curves_of
from vit.runs import FIGURES, RunRecord, read_run, settings_that_matter

SEEDS = ("train.seed", "data.subset_seed")


class ComparisonError(UserError):
    """Runs that cannot be compared; the message is one line."""


LINEAR = FIGURES["linear_probe"]
BEST_LAYER = f"{LINEAR.short}, best layer"
COLUMNS = {
    name: figure
    for figure in FIGURES.values()
    if not figure.baseline_of
    for name in ([figure.short, BEST_LAYER] if figure is LINEAR else [figure.short])
}
"""The figures that are compared, by their column."""


def read_finished(folder: Path) -> RunRecord:
    """Read a finished run.

    Raises:
        ComparisonError: it is not finished, or its files do not hold all that is compared.
        RunError: there is no run, or a file is damaged.
    """
    run = read_run(folder)
    if not run.summary:
        raise ComparisonError(f"{folder} holds no finished run: summary.json is not there")
    try:
        _row(run), _key(run)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ComparisonError(f"{folder} cannot be read: {type(error).__name__}: {one_line(str(error))}") from error
    return run


def compare_runs(runs: Sequence[RunRecord]) -> list[dict[str, str]]:
    """A row for each run; those that differ in nothing but the seed share one, with the mean and the spread.

    Args:
        runs: in the order of the rows.

    Returns:
        Rows with the same columns, as text: the run, the settings that are not the same everywhere, the seeds, what was
        measured on, and of COLUMNS those that a run has. The spread is the standard deviation over the seeds.

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
        row = {"run": ", ".join(one_line(str(run.files.path)) for run in alike)}
        row |= {key: _plain(alike[0].settings.get(key)) for key in different}
        if len(begun_with[init := alike[0].settings["model.init"]]) > 1:
            row["model.init"] = f"{_plain(init)} ({alike[0].summary.get('init_fingerprint') or 'unknown weights'})"
        data = alike[0].summary["data"]
        row |= {"images": f"{data['train_images']:,}", "measured on": f"{data['test_images']:,} {data['tested_on']}"}
        row["seeds"] = ", ".join(_seeds(run) for run in alike)
        found = [_row(run) for run in alike]
        for name, figure in COLUMNS.items():
            values = [value for values in found if (value := values[name]) is not None]
            row[name] = _mean(values, figure.form) if len(values) == len(alike) else ""
        rows.append(row)
    return [{name: row[name] for name in row if any(other[name] for other in rows)} for row in rows]


def draw_runs(runs: Sequence[RunRecord], path: Path) -> None:
    """A picture of how they went: loss, and accuracy of classifiers, over the epochs, and what was measured in the end.

    Runs that share a row of `compare_runs` share a colour. One that was measured on held-out images while it trained is drawn
    by these, the others by what they measured on their own varied images.

    Args:
        runs: as for `compare_runs`.
        path: .png, .svg or .pdf.

    Raises:
        ComparisonError: there are more rows than can be told apart, or a run is given twice.
        RunError: a metrics.jsonl is damaged.
    """
    groups = _groups(runs)
    if len(groups) > len(SERIES):
        raise ComparisonError(
            f"{len(groups)} kinds of runs cannot be told apart in one picture; give at most {len(SERIES)}"
        )
    panels: dict[str, list[RunLine]] = {}
    for series, alike in enumerate(groups):
        names = ", ".join(run.files.path.resolve().name for run in alike)
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
        [Panel(title, lines, share=title == "accuracy") for title, lines in panels.items()], "How the runs went",
        about + ", or ".join(measured),
    )  # fmt: skip
    save_figure(figure, path)


def _lines(run: RunRecord, series: int) -> dict[str, RunLine]:
    """What is drawn of a run, by the panel it belongs to."""
    settings, metrics = run.settings, run.metrics
    lines = {}
    try:
        for curve in curves_of(settings, run.summary["data"]["tested_on"], run.summary):
            key = curve.val_key if any(curve.val_key in line for line in metrics) else curve.key
            found = [(line["epoch"], line[key]) for line in metrics if key in line]
            epoch, values = zip(*found, strict=True) if found else ((), ())
            end = run.summary["epochs"], next(iter(curve.lines.values()))  # the first of these is the run's own
            lines[curve.title] = RunLine(series, epoch, values, end, rough=key == curve.key)
    except LookupError as error:
        raise ComparisonError(f"{run.files.path} cannot be drawn: its files do not say {error}") from error
    return lines


def _groups(runs: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Those together that differ in nothing but the seed."""
    groups: dict[str, list[RunRecord]] = {}
    places: set[Path] = set()
    for run in runs:
        if run.files.path.resolve() in places:
            raise ComparisonError(f"{run.files.path} is given twice")
        places.add(run.files.path.resolve())
        alike = groups.setdefault(_key(run), [])
        if any(_seeds(run) == _seeds(other) for other in alike):  # another run of the same seed is no other seed
            groups[f"{_key(run)} {run.files.path}"] = [run]
        else:
            alike.append(run)
    return list(groups.values())


def _row(run: RunRecord) -> dict[str, float | None]:
    """The figures of a run, by column."""
    probes = {LINEAR.short: _probe(run, every_layer=False), BEST_LAYER: _probe(run, every_layer=True)}
    return {
        name: probes[name] if name in probes else figure.of_summary(run.summary) for name, figure in COLUMNS.items()
    }


def _probe(run: RunRecord, every_layer: bool) -> float | None:
    """The accuracy of a probe on the run's own images, by all their labels."""
    method, key = LINEAR.in_results
    accuracies = [
        float(found[method][key])
        for found in run.results.values()
        if method in found
        and found["data"]["stamp"] == run.summary["data"]["stamp"]
        and (found["settings"]["labels"], found["settings"]["every_layer"]) == (1, every_layer)
    ]
    return accuracies[0] if accuracies else None


def _key(run: RunRecord) -> str:
    """Equal for runs that differ in their seeds alone."""
    data, what = run.summary["data"], _what(run)
    if begun_with := run.summary.get("init_fingerprint"):  # the same weights, wherever they lie
        what["model.init"] = begun_with
    stamp = data.get("whole_stamp")  # of all images: another seed, other labels and held-out images
    if stamp is None:  # an earlier version's
        stamp = data["stamp"].rpartition("-")[2] if run.settings.get("data.labels", 1) < 1 else data["stamp"]
    bank = (run.summary.get("neighbours") or {}).get("bank")
    return json.dumps([what, data["train_images"], data["test_images"], data["tested_on"], stamp, bank], sort_keys=True)


def _seeds(run: RunRecord) -> str:
    seed, subset = (run.settings.get(key, 0) for key in SEEDS)
    drawn = run.settings.get("data.labels", 1) < 1 or run.settings.get("data.val_size", 0)
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


def _what(run: RunRecord) -> dict[str, Any]:
    """The settings that make a run what it is, without where and how it was computed, and the seed."""

    return {key: value for key, value in settings_that_matter(run.settings).items() if key not in SEEDS}


def _plain(value: object) -> str:
    return one_line(value) if isinstance(value, str) else json.dumps(value)


def _mean(values: Sequence[float], form: str) -> str:
    if len(values) == 1:
        return format(values[0], form)
    return f"{format(statistics.mean(values), form)} ± {format(statistics.stdev(values), form)}"
