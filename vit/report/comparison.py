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
from vit.metrics import MEASURES, Measure, read_scores, usual_scores
from vit.report.record import RunRecord, read_run, settings_that_matter, tested_images_of

NOT_COMPARED = ("train.seed", "data.fallback")
"""Settings that runs in one row may differ in; the images that a fallback gave are compared."""
BEST_LAYER = Measure("accuracy", "linear probe of the best layer", "linear probe, best layer")

Row = dict[str, str]
# A column of scores: its measure, and what a loss is measured against ("" for other measures)
Column = tuple[Measure, str]


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
    scores: dict[Column, float]

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.record.files.path


# ---- One run -------------------------------------------------------------------------------------


def read_finished(folder: Path) -> FinishedRun:
    """Read a finished run."""
    record = read_run(folder)
    if not record.summary:
        raise RunError(
            f"{folder} holds no finished run: summary.json is missing; finish it with --resume"
        )
    seed = str(record.settings["train.seed"])
    return FinishedRun(record, identity_of(record), seed, scores_of(record))


def identity_of(record: RunRecord) -> dict[str, Any]:
    """Return what two runs have in common if they differ only in the seed."""
    summary = record.summary
    data = record.data
    identity = {}
    for key, value in settings_that_matter(record.settings).items():
        if key not in NOT_COMPARED:
            identity[key] = value
    # The initial weights themselves, wherever they were
    identity["model.init"] = summary.get("init_content_hash") or record.settings["model.init"]
    # All images, whichever of them are held out or have labels
    identity["data"] = data.get("whole_content_hash", data["content_hash"])
    identity["counts"] = (data["train_images"], data["test_images"], data["tested_on"])
    identity["bank"] = [row.get("bank") for row in record.scores.get("knn", [])]
    return identity


def scores_of(record: RunRecord) -> dict[Column, float]:
    """Return what a run measured: its own scores, and linear probes on its own images."""
    scores: dict[Column, float] = {}
    for (method, key), value in usual_scores(record.scores).items():
        detail = ""
        if method == "reconstruction":
            detail = target_of(record.settings)
        scores[MEASURES[method, key], detail] = value

    # A probe belongs to the run if it saw the run's images, and all their labels
    for results in record.results.values():
        settings = results["settings"]
        same_images = results["data"]["content_hash"] == record.data["content_hash"]
        for row in read_scores(results).get("linear", []):
            measure = BEST_LAYER if settings["every_layer"] else MEASURES["linear", "accuracy"]
            if same_images and settings["labels"] == 1:
                scores.setdefault((measure, ""), row["accuracy"])
    return scores


def target_of(settings: Mapping[str, Any]) -> str:
    """Return what a pretraining's loss is measured against: those of others are not comparable."""
    pixels = "normalised pixels" if settings["reconstruct.norm_pix_loss"] else "plain pixels"
    mask = f"{settings['mask.kind']} mask {settings['mask.ratio']:.0%}"
    sides = []
    for key in ("model.patch_size", "model.image_size"):
        height, width = pair(settings[key])
        sides.append(spelled(height if height == width else [height, width]))
    return f"{pixels}, {mask}, patch {' of '.join(sides)}"


# ---- Side by side --------------------------------------------------------------------------------


def group_by_seed(runs: Sequence[FinishedRun]) -> list[list[FinishedRun]]:
    """Group runs that differ only in the seed."""
    groups: dict[str, list[FinishedRun]] = {}
    paths = set()
    for run in runs:
        # One folder may have several names
        path = run.path.resolve()
        if path in paths:
            raise RunError(f"{run.path} is given twice")
        paths.add(path)
        # A seed that is already in the group is no other seed: the run stands alone
        key = json.dumps(run.identity, sort_keys=True)
        if any(run.seed == member.seed for member in groups.get(key, [])):
            key = str(path)
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def compare_runs(runs: Sequence[FinishedRun]) -> list[Row]:
    """Return a row for each group of runs that differ only in the seed, with mean and deviation.

    All rows have the same columns: run, settings and data that differ, images, what was measured
    on, seeds, and the scores that any run has; " *" marks the best of a column where all were
    measured on the same images.
    """
    groups = group_by_seed(runs)
    settings = different_settings(runs)
    data_names = name_data(runs)
    columns = list(dict.fromkeys(column for run in runs for column in run.scores))

    rows = []
    for group in groups:
        first = group[0]
        row = {"run": ", ".join(one_line(str(run.path)) for run in group)}
        for key in settings:
            row[key] = setting_cell(first, key)
        if len(data_names) > 1:
            row["data"] = data_names[first.identity["data"]]
        row["images"] = f"{first.record.data['train_images']:,}"
        row["measured on"] = tested_images_of(first.record.data)
        row["seeds"] = ", ".join(run.seed for run in group)
        rows.append(row)

    # Scores of the same images can be better than others
    is_fair = len({(run.identity["data"], run.identity["counts"][1:]) for run in runs}) == 1
    for column in columns:
        measure, target = column
        name = measure.short
        if [other for other, _ in columns].count(measure) > 1:
            name += f", {target}"
        for row, cell in zip(rows, score_cells(groups, column, is_fair), strict=True):
            row[name] = cell
    for row, group in zip(rows, groups, strict=True):
        seconds = [run.record.summary["seconds"] for run in group]
        row["seconds"] = f"{statistics.mean(seconds):,.0f}"
    return rows


def different_settings(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the settings in which any two runs differ, in order."""
    # A run of another version may lack some of them
    keys = dict.fromkeys(key for run in runs for key in run.record.settings if key in run.identity)
    # As JSON, because lists cannot be in a set
    return [key for key in keys if len({json.dumps(run.identity.get(key)) for run in runs}) > 1]


def setting_cell(run: FinishedRun, key: str) -> str:
    """Return a setting as text, with the hash of initial weights, whose name may mean several."""
    value = run.record.settings.get(key)
    cell = one_line(value) if isinstance(value, str) else json.dumps(value)
    if run.identity.get(key) != value:
        cell += f" ({run.identity[key]})"
    return cell


def name_data(runs: Sequence[FinishedRun]) -> dict[str, str]:
    """Return the name of each data set by its hash; equal names are told apart by the hash."""
    names = {run.identity["data"]: one_line(run.record.data["name"]) for run in runs}
    if len(set(names.values())) == len(names):
        return names
    told_apart = {}
    for images_hash, name in names.items():
        # of the training and of the test images
        short = "-".join(part[:8] for part in images_hash.split("-"))
        told_apart[images_hash] = f"{name} ({short})"
    return told_apart


def score_cells(
    groups: Sequence[Sequence[FinishedRun]], column: Column, mark_best: bool
) -> list[str]:
    """Return a score of each group as text: the mean over seeds with its standard deviation."""
    measure, _ = column
    means = {}
    cells = [""] * len(groups)
    for number, group in enumerate(groups):
        values = [run.scores[column] for run in group if column in run.scores]
        # The mean of some of them would belong to other runs than the row names
        if len(values) < len(group):
            continue
        images = group[0].record.data["test_images"]
        means[number] = measure.write(statistics.mean(values), images)
        cells[number] = means[number]
        if len(values) > 1:
            cells[number] += f" ± {measure.write(statistics.stdev(values), images)}"

    # As printed, so that a difference that is not shown decides nothing
    if mark_best and len(means) > 1:
        best_of = max if measure.kind == "accuracy" else min
        best = best_of(means.values(), key=lambda text: float(text.rstrip("%")))
        for number, mean in means.items():
            if mean == best:
                cells[number] += " *"
    return cells
