"""`vit compare`: a table of finished runs with the settings that differ and the scores."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path

from vit.config import spelled
from vit.errors import RunError, one_line
from vit.metrics import MEASURES, Measure
from vit.report.record import DEFAULTS, RunRecord, read_run

TARGET = {
    "reconstruct.norm_pix_loss",
    "mask.kind",
    "mask.ratio",
    "model.patch_size",
    "model.image_size",
}
"""Settings that define the target of reconstruction: losses are comparable if these are equal."""

Row = dict[str, str]
Column = tuple[str, Measure]
"""The head of a column of scores, and what is measured."""
Group = list[RunRecord]
"""Runs that differ only in the seed."""


def read_finished(folder: Path) -> RunRecord:
    """Read a finished run."""
    record = read_run(folder)
    if not record.summary:
        raise RunError(
            f"{folder} is not a finished run: summary.json is missing; finish it with --resume"
        )
    return record


def compare_runs(runs: Sequence[RunRecord]) -> list[Row]:
    """Return a row for each group of runs that differ only in the seed, with mean and deviation.

    All rows have the same columns: run, settings and data that differ, images, what was measured
    on, seeds, and the scores that any run has; " *" marks the best of a column where all were
    measured on the same images.
    """
    groups: dict[str, Group] = {}
    for run in runs:
        key = json.dumps(run.identity, sort_keys=True)
        # A seed that is already in the group is no other seed: the run stands alone
        seeds = [other.settings["train.seed"] for other in groups.get(key, [])]
        if run.settings["train.seed"] in seeds:
            key = str(len(groups))
        groups.setdefault(key, []).append(run)

    different = different_settings(runs)
    targets = different_settings([run for run in runs if "reconstruction" in run.scores])
    hashes = {run.identity["data"] for run in runs}

    rows = []
    for group in groups.values():
        first = group[0]
        row = {"run": ", ".join(one_line(str(run.files.path)) for run in group)}
        for name in different:
            row[name] = setting_cell(first, name)
        if len(hashes) > 1:
            # names alone may be equal; the hashes are of the training and of the test images
            parts = first.identity["data"].split("-")
            row["data"] = f"{one_line(first.data['name'])} ({'-'.join(part[:8] for part in parts)})"
        row["images"] = f"{first.data['train_images']:,}"
        row["measured on"] = first.tested
        row["seeds"] = ", ".join(str(run.settings["train.seed"]) for run in group)
        rows.append(row)

    # Scores of the same images can be better than others
    is_fair = len({(run.identity["data"], run.identity["counts"][1:]) for run in runs}) == 1
    add_scores(rows, list(groups.values()), set(targets) & TARGET, is_fair)
    for row, group in zip(rows, groups.values(), strict=True):
        row["seconds"] = f"{statistics.mean(run.summary['seconds'] for run in group):,.0f}"
    return rows


def different_settings(runs: Sequence[RunRecord]) -> list[str]:
    """Return the settings in which any two runs differ, in order."""
    # As JSON, because lists cannot be in a set
    return [key for key in DEFAULTS if len({json.dumps(run.identity.get(key)) for run in runs}) > 1]


def setting_cell(run: RunRecord, key: str) -> str:
    """Return a setting as text, with the hash of initial weights, whose name may mean several."""
    value = run.settings.get(key)
    cell = one_line(value) if isinstance(value, str) else json.dumps(value)
    if run.identity.get(key) != value:
        cell += f" ({run.identity[key]})"
    return cell


def scores_of(run: RunRecord, targets: Collection[str]) -> dict[Column, float]:
    """Return the scores of a run by column: its own, and linear probes on its own images.

    Losses of runs that differ in `targets`, some of TARGET, stand in columns of their own.
    """
    scores = {}
    for (method, key), measure in MEASURES.items():
        row = run.scores.get(method, [{}])[0]
        if key not in row:
            continue
        name = measure.short
        if method == "knn":
            name += f", {row['geometry']}"
        if method == "reconstruction":
            for setting in sorted(targets):
                name += f", {setting} {spelled(run.settings[setting])}"
        scores[name, measure] = row[key]

    # A probe belongs to the run if it saw the run's images, and all their labels
    for results in run.results.values():
        settings = results["settings"]
        same_images = results["data"]["content_hash"] == run.data["content_hash"]
        for row in results["scores"].get("linear", []):
            measure = MEASURES["linear", "accuracy"]
            name = f"{measure.short}, {'any' if settings['every_layer'] else 'last'} layers"
            # `vit evaluate` decides this by itself
            if settings.get("cross_validate"):
                name += ", cross-validated"
            if same_images and settings["labels"] == 1:
                scores.setdefault((name, measure), row["accuracy"])
    return scores


def add_scores(
    rows: Sequence[Row], groups: Sequence[Group], targets: Collection[str], mark_best: bool
) -> None:
    """Add the scores of each group to its row: the means over seeds with standard deviations."""
    scores = [[scores_of(run, targets) for run in group] for group in groups]
    # Each column that any run has, once, in order
    columns = dict.fromkeys(column for of_run in chain(*scores) for column in of_run)
    for column in columns:
        name, measure = column
        means = []
        for row, group, of_group in zip(rows, groups, scores, strict=True):
            values = [of_run[column] for of_run in of_group if column in of_run]
            row[name] = ""
            # The mean of some of them would belong to other runs than the row names
            if len(values) < len(group):
                continue
            images = group[0].data["test_images"]
            mean = measure.write(statistics.mean(values), images)
            means.append((row, mean))
            row[name] = mean
            if len(values) > 1:
                row[name] += f" ± {measure.write(statistics.stdev(values), images)}"

        # As printed, so that a difference that is not shown decides nothing
        if mark_best and len(means) > 1:
            best_of = max if measure.kind == "accuracy" else min
            best = best_of((mean for _, mean in means), key=lambda text: float(text.rstrip("%")))
            for row, mean in means:
                if mean == best:
                    row[name] += " *"
