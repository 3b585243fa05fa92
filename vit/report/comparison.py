"""`vit compare`: finished runs side by side, with the settings that differ and what the runs measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vit.config import OBJECTIVES, spelled
from vit.errors import UserError, one_line
from vit.figures import Panel, RunLine, compared_figure, save_figure
from vit.figures.measures import SERIES
from vit.metrics import METRICS, Metric
from vit.report.pictures import curves_of
from vit.report.record import WRONG_VALUES, RunRecord, read_run, settings_that_matter

WIDEST = 120
"""Characters of a line in a terminal."""
SEEDS = ("train.seed", "data.subset_seed")
NOT_COMPARED = (*SEEDS, "data.fallback")  # a run's data.source is the one that it used
LOSS, LINEAR = METRICS["masked_loss"], METRICS["linear_probe"]
BEST_LAYER = f"{LINEAR.short}, best layer"
OVER_HOURS = {
    "val_knn_accuracy": ("nearest neighbours", METRICS["knn_accuracy"]),
    "val_accuracy": ("accuracy of the classifier", METRICS["accuracy"]),
}
"""Key of metrics.jsonl -> the panel that draws it over the hours, and the final metric."""


class ComparisonError(UserError):
    """Runs that cannot be compared; the message is one line."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, for comparison."""

    record: RunRecord
    identity: dict[str, Any]  # settings, data and first weights: equal for runs that differ only in the seed
    seeds: str
    figures: dict[str, float]  # what it measured, by column


def read_finished(folder: Path) -> FinishedRun:
    """Read a finished run.

    Raises:
        ComparisonError: it is not finished, or its files lack something that is compared.
        RunError: there is no run, or a file is damaged.
    """
    record = read_run(folder)
    summary, settings = record.summary, record.settings
    if not summary:
        raise ComparisonError(f"{folder} holds no finished run: summary.json is missing; finish it with --resume")
    try:
        data = summary["data"]
        identity = {key: value for key, value in settings_that_matter(settings).items() if key not in NOT_COMPARED}
        identity["model.init"] = summary.get("init_content_hash") or settings["model.init"]  # wherever it was
        # All images: another seed takes other labels and held-out images
        identity["data"] = data.get("whole_content_hash", data["content_hash"])
        identity["counts"] = data["train_images"], data["test_images"], data["tested_on"]
        identity["bank"] = (summary.get("neighbours") or {}).get("bank")
        seeds = str(settings["train.seed"])
        if settings["data.subset_seed"] and (settings["data.labels"] < 1 or settings["data.val_size"]):
            seeds += f" (subset {settings['data.subset_seed']})"
        return FinishedRun(record, identity, seeds, _figures(record))
    except WRONG_VALUES as error:
        raise ComparisonError(f"{folder} cannot be read: {type(error).__name__}: {error}") from error


def _figures(record: RunRecord) -> dict[str, float]:
    """Return what a run measured, by column: its summary, and linear probes on its own images with all labels."""
    found = {metric.short: metric.of_summary(record.summary) for metric in METRICS.values() if not metric.baseline_of}
    method, key = LINEAR.in_results
    for results in record.results.values():
        if method in results and results["data"]["content_hash"] == record.summary["data"]["content_hash"]:
            how = results["settings"]
            column = BEST_LAYER if how["every_layer"] else LINEAR.short
            if how["labels"] == 1 and found.get(column) is None:
                found[column] = float(results[method][key])
    return {column: value for column, value in found.items() if value is not None}


def group_by_seed(runs: Sequence[FinishedRun]) -> list[list[FinishedRun]]:
    """Group runs that differ only in the seed.

    Raises:
        ComparisonError: a run is given twice.
    """
    groups: dict[str, list[FinishedRun]] = {}
    paths = [run.record.files.path.resolve() for run in runs]
    for run, path in zip(runs, paths, strict=True):
        if paths.count(path) > 1:
            raise ComparisonError(f"{run.record.files.path} is given twice")
        key = json.dumps(run.identity, sort_keys=True)
        if any(run.seeds == other.seeds for other in groups.get(key, [])):  # a repeated seed is no other seed
            key = str(path)
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def compare_runs(runs: Sequence[FinishedRun]) -> list[dict[str, str]]:
    """Return a row per run, all with the same columns; runs that differ only in the seed share one, with mean and deviation.

    The columns: run, settings and data that differ, images, what was measured on, seeds, and figures that any run has.
    """
    keys = dict.fromkeys(key for run in runs for key in run.identity if key in run.record.settings)
    different = [key for key in keys if len({json.dumps(run.identity.get(key)) for run in runs}) > 1]
    targets, names = _targets(runs), {run.identity["data"]: one_line(run.record.data["name"]) for run in runs}
    rows = []
    for alike in group_by_seed(runs):
        record, identity = alike[0].record, alike[0].identity
        row = {"run": ", ".join(one_line(str(run.record.files.path)) for run in alike)}
        for key in different:
            value = record.settings.get(key)
            row[key] = one_line(value) if isinstance(value, str) else json.dumps(value)
            if identity.get(key) != value:  # the initial weights: one name may stand for several
                row[key] += f" ({identity[key]})"
        if len(names) > 1:
            name, same_name = names[identity["data"]], len({*names.values()}) < len(names)
            row["data"] = f"{name} ({identity['data'][:8]})" if same_name else name
        train, test, tested_on = identity["counts"]
        row |= {"images": f"{train:,}", "measured on": f"{test:,} {tested_on}"}
        row["seeds"] = ", ".join(run.seeds for run in alike)
        for metric in METRICS.values():
            for column in [metric.short, BEST_LAYER] if metric is LINEAR else [metric.short]:
                values = [run.figures[column] for run in alike if column in run.figures]
                text = _mean(values, metric) if len(values) == len(alike) else ""
                if metric is LOSS and len({*targets.values()}) > 1:
                    own = targets.get(record.files.path)
                    row |= {f"{column}, {target}": text if target == own else "" for target in targets.values()}
                else:
                    row[column] = text
        rows.append(row)
    return [{name: row[name] for name in row if any(other[name] for other in rows)} for row in rows]


def _targets(runs: Sequence[FinishedRun]) -> dict[Path, str]:
    """Return the target of each pretraining's loss, by folder: losses of different targets are not comparable."""
    found, sizes = {}, {}
    for record in [run.record for run in runs]:
        settings = record.settings
        if OBJECTIVES[settings["train.objective"]].labels:
            continue
        pixels = "normalised pixels" if settings["reconstruct.norm_pix_loss"] else "plain pixels"
        found[record.files.path] = f"{pixels}, {settings['mask.kind']} mask {settings['mask.ratio']:.0%}"
        patch, image = (spelled(settings[f"model.{name}_size"]) for name in ("patch", "image"))
        sizes[record.files.path] = f", patch {patch} of {image}"
    if len({*sizes.values()}) > 1:  # else they are left out
        return {path: target + sizes[path] for path, target in found.items()}
    return found


def as_table(rows: Sequence[Mapping[str, str]], markdown: bool = False) -> list[str]:
    """Return rows with the same columns as lines: aligned, on its side if that is too wide, or as a Markdown table."""
    columns = list(rows[0])
    if markdown:
        cells = [[row[name].replace("|", "\\|") for name in columns] for row in rows]
        return [f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *cells)]
    table = [columns, *([row[name] for name in columns] for row in rows)]
    upright, on_its_side = _aligned(table), _aligned(list(zip(*table, strict=True)))
    return upright if max(map(len, upright)) <= WIDEST or len(rows) >= len(columns) else on_its_side


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]


def draw_runs(runs: Sequence[FinishedRun], path: Path, hours: bool = False) -> None:
    """Draw the runs: a line for the training, a mark for the measurement at the end, a colour per row of the table.

    A run's line shows its held-out images if it measured any while training, else its own augmented images.

    Args:
        hours: draw accuracy over the hours of training, for runs that measured it while training; the others get a note.

    Raises:
        ComparisonError: there are no rows, or too many to tell apart, or a run's files lack what is drawn.
        RunError: a metrics.jsonl is damaged.
    """
    if hours:
        runs = _watched(runs)
    groups = group_by_seed(runs)
    if len(groups) > (most := len(SERIES)):
        raise ComparisonError(f"{len(groups)} kinds of runs are too many for one picture; give at most {most}")

    # The lines of each panel, by its title and whether it shows shares
    panels: dict[tuple[str, bool], list[RunLine]] = {(title, True): [] for title, _ in OVER_HOURS.values() if hours}
    tested, targets = [], _targets(runs)
    for series, alike in enumerate(groups):
        drawn: dict[tuple[str, bool], list[RunLine]] = {}
        for run in alike:
            try:
                lines, on = (_over_hours if hours else _over_epochs)(run.record, series)
            except WRONG_VALUES as error:
                found = f"{type(error).__name__}: {error}"
                raise ComparisonError(f"{run.record.files.path} cannot be drawn: {found}") from error
            tested.append(on)
            target = targets.get(run.record.files.path) if len({*targets.values()}) > 1 else ""
            for (name, share), line in lines.items():
                panel = (f"loss: {target}" if target and not share else name, share)
                drawn.setdefault(panel, []).append(replace(line, label=run.record.name))
        for panel, (first, *others) in drawn.items():
            names = ", ".join(line.label for line in (first, *others))
            ends = [line.end[1] for line in (first, *others) if line.end]
            label = f"{_mean(ends, METRICS['accuracy' if panel[1] else 'cross_entropy'])}  {names}" if ends else names
            unnamed = [replace(line, label="") for line in others]
            panels.setdefault(panel, []).extend([replace(first, label=label), *unnamed])

    # The figure
    title, about = "Training curves of the runs", "during training, on augmented images (running mean) or held-out ones"
    if hours:
        devices = dict.fromkeys(str(run.record.summary["device"]) for run in runs if "device" in run.record.summary)
        title = f"Accuracy over the hours of training{' on ' if devices else ''}{', '.join(devices)}"
        about = "during training, on held-out images"
        if any(line.start for lines in panels.values() for line in lines):
            about += " · upright lines: where runs began, after the hours behind their first weights"
    about = f"lines: {about} · marks and figures: at the end, on {', or '.join(dict.fromkeys(tested))}"
    shown = [Panel(name, lines, share=share) for (name, share), lines in panels.items() if lines]
    save_figure(compared_figure(shown, title, about, hours), path)


def _watched(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Return the runs that measured accuracy while training; the others get a note.

    Raises:
        ComparisonError: there are none.
    """
    found, way = [], "run.val_every measures it, on images that data.val_size holds out"
    for run in runs:
        if any(key in line for line in run.record.metrics for key in OVER_HOURS):
            found.append(run)
        else:
            run.record.notes.append(f"{run.record.files.path} is not drawn: it has no accuracy during training; {way}")
    if not found:
        raise ComparisonError(f"--hours: none of these runs has its accuracy during training; {way}")
    return found


def _over_epochs(run: RunRecord, series: int) -> tuple[dict[tuple[str, bool], RunLine], str]:
    """Return the line of a run in each panel, and the images that its end was measured on."""
    lines = {}
    for curve in curves_of(run.settings, run.tested_on, run.summary, run.metrics):
        key = curve.val_key if any(curve.val_key in line for line in run.metrics) else curve.key
        found = [(line["epoch"], line[key]) for line in run.metrics if key in line]
        epochs, values = zip(*found, strict=True) if found else ((), ())
        end = (run.summary["epochs"], next(iter(curve.lines.values()))) if curve.lines else None
        lines[curve.title, curve.share] = RunLine(series, epochs, values, end, rough=key == curve.key)
    return lines, _about(run.data)


def _over_hours(run: RunRecord, series: int) -> tuple[dict[tuple[str, bool], RunLine], str]:
    """Return the same over the hours, counted from the start of the training behind its first weights.

    The end is what the run measured, or what `vit evaluate RUN --out RUN/NAME` has measured on the test images since.
    """
    key = next(key for key in OVER_HOURS if any(key in line for line in run.metrics))
    title, metric = OVER_HOURS[key]
    before, data = run.summary.get("init_seconds", 0.0), run.data
    found = [((before + line["seconds"]) / 3600, line[key]) for line in run.metrics if key in line]
    hours, values = zip(*found, strict=True)

    # The end
    last, method, measured_on = metric.of_summary(run.summary), metric.in_results[0], data
    whole = {"content_hash": data.get("whole_content_hash"), "tested_on": "test images"}
    for results in run.results.values():
        if method in results and whole.items() <= results["data"].items() and results["settings"]["labels"] == 1:
            last, measured_on = float(results[method]["accuracy"]), results["data"]
    end = None if last is None else ((before + run.summary["seconds"]) / 3600, last)
    line = RunLine(series, hours, values, end, rough=False, start=before / 3600)
    return {(title, True): line}, _about(measured_on)


def _about(data: Mapping[str, Any]) -> str:
    """Return the images measured on: "10,000 test images of CIFAR-10"."""
    return f"{data['test_images']:,} {data['tested_on']} of {one_line(data['name'])}"


def _mean(values: Sequence[float], metric: Metric) -> str:
    """Return the mean of several seeds with its standard deviation, or the one value."""
    spread = f" ± {metric.write(statistics.stdev(values))}" if len(values) > 1 else ""
    return metric.write(statistics.mean(values)) + spread
