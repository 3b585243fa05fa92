"""`vit compare`: finished runs side by side, with the settings that differ and the scores."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.config import pair, spelled
from vit.errors import RunError, one_line
from vit.metrics import METRICS, Metric, aligned, tested_images
from vit.report.record import (
    WRONG_VALUES,
    RunRecord,
    read_run,
    settings_that_matter,
    tested_images_of,
)

NOT_COMPARED = ("train.seed", "data.fallback")
"""Settings that runs in one row may differ in; the images that a fallback gave are compared."""
LOSS = METRICS["masked_loss"]
LINEAR = METRICS["linear_probe"]
BEST_LAYER = f"{LINEAR.short}, best layer"


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, for comparison.

    Attributes:
        record: its files.
        identity: settings, data and initial weights, equal for runs that differ only in the seed.
        seed: of its weights, order, augmentation and masks.
        scores: what it measured, by column.
    """

    record: RunRecord
    identity: dict[str, Any]
    seed: str
    scores: dict[str, float]


# ---- One run -------------------------------------------------------------------------------------


def read_finished(folder: Path) -> FinishedRun:
    """Read a finished run.

    Raises:
        RunError: there is no run, it is not finished, a file is damaged, or a value is missing.
    """
    record = read_run(folder)
    if not record.summary:
        raise RunError(
            f"{folder} holds no finished run: summary.json is missing; finish it with --resume"
        )
    try:
        seed = str(record.settings["train.seed"])
        return FinishedRun(record, identity_of(record), seed, scores_of(record))
    except WRONG_VALUES as error:
        raise RunError(f"{folder} cannot be read: {type(error).__name__}: {error}") from error


def identity_of(record: RunRecord) -> dict[str, Any]:
    """Return what two runs have in common if they differ only in the seed."""
    # Settings
    summary = record.summary
    data = summary["data"]
    identity = {}
    for key, value in settings_that_matter(record.settings).items():
        if key not in NOT_COMPARED:
            identity[key] = value

    # The initial weights themselves, wherever they were
    identity["model.init"] = summary.get("init_content_hash") or record.settings["model.init"]
    # All images, whichever of them are held out or have labels
    identity["data"] = data.get("whole_content_hash", data["content_hash"])
    identity["counts"] = (data["train_images"], data["test_images"], data["tested_on"])
    identity["bank"] = (summary.get("neighbours") or {}).get("bank")
    return identity


def scores_of(record: RunRecord) -> dict[str, float]:
    """Return what a run measured, by column.

    These are its summary's scores, and linear probes on its own images with all labels.
    """
    scores = {}
    for metric in METRICS.values():
        value = metric.of_summary(record.summary)
        if value is not None and not metric.baseline_of:
            scores[metric.short] = value

    # A probe belongs to the run if it saw the run's images, and all their labels
    method, key = LINEAR.in_results
    for results in record.results.values():
        images_hash = results["data"]["content_hash"]
        if method not in results or images_hash != record.summary["data"]["content_hash"]:
            continue
        settings = results["settings"]
        column = BEST_LAYER if settings["every_layer"] else LINEAR.short
        if settings["labels"] == 1 and column not in scores:
            scores[column] = float(results[method][key])
    return scores


def target_of(run: FinishedRun) -> str:
    """Return what a pretraining's loss is measured against; "" for a classifier."""
    settings = run.record.settings
    if run.record.learns_labels:
        return ""
    pixels = "plain pixels"
    if settings["reconstruct.norm_pix_loss"]:
        pixels = "normalised pixels"
    return f"{pixels}, {settings['mask.kind']} mask {settings['mask.ratio']:.0%}"


def patches_of(run: FinishedRun) -> str:
    """Return the size of a run's patches in words."""
    settings = run.record.settings
    sides = []
    for key in ("model.patch_size", "model.image_size"):
        height, width = pair(settings[key])
        sides.append(spelled(height if height == width else [height, width]))
    return f"patch {' of '.join(sides)}"


# ---- Side by side --------------------------------------------------------------------------------


def group_by_seed(runs: Sequence[FinishedRun]) -> list[list[FinishedRun]]:
    """Group runs that differ only in the seed.

    Raises:
        RunError: a run is given twice.
    """
    groups: dict[str, list[FinishedRun]] = {}
    paths = set()
    for run in runs:
        # One folder may have several names
        path = run.record.files.path
        if path.resolve() in paths:
            raise RunError(f"{path} is given twice")
        paths.add(path.resolve())

        # A seed that is already in the group is no other seed: the run stands alone
        key = json.dumps(run.identity, sort_keys=True)
        if any(run.seed == member.seed for member in groups.get(key, [])):
            key = str(path.resolve())
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def compare_runs(runs: Sequence[FinishedRun]) -> list[dict[str, str]]:
    """Return a row for each group of runs that differ only in the seed, with mean and deviation.

    All rows have the same columns: run, settings and data that differ, images, what was measured
    on, seeds, and the scores that any run has.

    Raises:
        RunError: a run is given twice.
    """
    settings = different_settings(runs)
    data_names = data_columns(runs)
    targets = target_columns(runs)

    rows = []
    for group in group_by_seed(runs):
        # What was trained
        first = group[0]
        row = {"run": ", ".join(one_line(str(run.record.files.path)) for run in group)}
        for key in settings:
            row[key] = setting_cell(first, key)
        if len(data_names) > 1:
            row["data"] = data_names[first.identity["data"]]

        # What it was measured on, and the scores
        data = first.record.summary["data"]
        row["images"] = f"{data['train_images']:,}"
        row["measured on"] = tested_images_of(data)
        row["seeds"] = ", ".join(run.seed for run in group)
        row |= score_cells(group, targets)
        rows.append(row)

    # Columns that no run fills are left out
    filled = []
    for name in rows[0]:
        if any(row[name] for row in rows):
            filled.append(name)
    table = []
    for row in rows:
        table.append({name: row[name] for name in filled})
    return table


def different_settings(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the settings in which any two runs differ, in order."""
    # A run of another version may lack some of them, so all keys come before any value
    values: dict[str, set[str]] = {}
    for run in runs:
        for key in run.record.settings:
            if key in run.identity:
                values.setdefault(key, set())

    # As JSON, because lists cannot be in a set
    for run in runs:
        for key, spellings in values.items():
            spellings.add(json.dumps(run.identity.get(key)))
    return [key for key, spellings in values.items() if len(spellings) > 1]


def setting_cell(run: FinishedRun, key: str) -> str:
    """Return a setting as text, with the hash of initial weights, whose name may mean several."""
    value = run.record.settings.get(key)
    cell = one_line(value) if isinstance(value, str) else json.dumps(value)
    if run.identity.get(key) != value:
        cell += f" ({run.identity[key]})"
    return cell


def data_columns(runs: Sequence[FinishedRun]) -> dict[str, str]:
    """Return the name of each data set by its hash; equal names are told apart by the hash."""
    names = {}
    for run in runs:
        names[run.identity["data"]] = one_line(run.record.data["name"])
    if len(set(names.values())) == len(names):
        return names
    columns = {}
    for images_hash, name in names.items():
        # of the training and of the test images
        short = "-".join(part[:8] for part in images_hash.split("-"))
        columns[images_hash] = f"{name} ({short})"
    return columns


def target_columns(runs: Sequence[FinishedRun]) -> dict[Path, str]:
    """Return the column of each pretraining's loss, by folder.

    Losses of different targets are not comparable; where all have one, the column is "loss" alone.
    """
    # The size of patches is named only where it differs
    pretrainings = [run for run in runs if target_of(run)]
    with_patches = len({patches_of(run) for run in pretrainings}) > 1
    columns = {}
    for run in pretrainings:
        column = f"{LOSS.short}, {target_of(run)}"
        if with_patches:
            column += f", {patches_of(run)}"
        columns[run.record.files.path] = column
    if len(set(columns.values())) == 1:
        return dict.fromkeys(columns, LOSS.short)
    return columns


def score_cells(group: Sequence[FinishedRun], targets: Mapping[Path, str]) -> dict[str, str]:
    """Return the scores of runs that differ only in the seed; "" for one that not all of them have.

    Args:
        targets: the column of each pretraining's loss, by folder.
    """
    path = group[0].record.files.path
    images = tested_images(group[0].record.summary)
    cells: dict[str, str] = {}
    for metric in METRICS.values():
        # A linear probe of the best layer is another quantity
        columns = [metric.short]
        if metric is LINEAR:
            columns.append(BEST_LAYER)
        for column in columns:
            # The mean of some of them would belong to other runs than the row names
            values = [run.scores[column] for run in group if column in run.scores]
            text = ""
            if len(values) == len(group):
                text = mean_of(values, metric, images)
            if metric is LOSS and targets:
                # A column per target, of which this row fills at most its own
                cells |= dict.fromkeys(targets.values(), "")
                if path in targets:
                    cells[targets[path]] = text
            else:
                cells[column] = text
    return cells


def mean_of(values: Sequence[float], metric: Metric, images: int) -> str:
    """Return the mean of several seeds with its standard deviation, or the single value."""
    text = metric.write(statistics.mean(values), images=images)
    if len(values) > 1:
        text += f" ± {metric.write(statistics.stdev(values), images=images)}"
    return text


# ---- As text -------------------------------------------------------------------------------------


def mark_best(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return rows with " *" after the best value of each score, and after those equal to it.

    Only values of the same images are compared, and no baselines or times.
    """
    marked = [dict(row) for row in rows]
    same_images = len({row["measured on"] for row in rows}) == 1
    if "data" in rows[0] or not same_images:
        return marked
    for column in rows[0]:
        metric = metric_of(column)
        if metric is None:
            continue
        # As printed, so that a difference that is not shown decides nothing
        values = {}
        for number, row in enumerate(rows):
            if row[column]:
                values[number] = float(row[column].split()[0].rstrip("%").replace(",", ""))
        if len(values) < 2:
            continue
        best = min(values.values())
        if metric.kind == "accuracy":
            best = max(values.values())
        for number, value in values.items():
            if value == best:
                marked[number][column] += " *"
    return marked


def metric_of(column: str) -> Metric | None:
    """Return the metric of a column of scores, if one of its values is better than another."""
    for metric in METRICS.values():
        is_own = column == metric.short or column.startswith(f"{metric.short}, ")
        if is_own and metric.kind != "time" and not metric.baseline_of:
            return metric
    return None


def as_table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return rows with the same columns as lines."""
    return aligned([list(rows[0]), *[[*row.values()] for row in rows]])
