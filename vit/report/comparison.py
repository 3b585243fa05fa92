"""`vit compare`: finished runs side by side, with the settings that differ and what the runs measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.config import OBJECTIVES, spelled
from vit.errors import UserError, one_line
from vit.metrics import METRICS, Metric
from vit.report.record import WRONG_VALUES, RunRecord, read_run, settings_that_matter

WIDEST = 120
"""Characters of a line in a terminal."""
SEEDS = ("train.seed", "data.subset_seed")
NOT_COMPARED = (*SEEDS, "data.fallback")  # a run's data.source is the one that it used
LOSS, LINEAR = METRICS["masked_loss"], METRICS["linear_probe"]
BEST_LAYER = f"{LINEAR.short}, best layer"


class ComparisonError(UserError):
    """Runs that cannot be compared; the message is one line."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, for comparison."""

    record: RunRecord
    identity: dict[
        str, Any
    ]  # settings, data and first weights: equal for runs that differ only in the seed
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
        raise ComparisonError(
            f"{folder} holds no finished run: summary.json is missing; finish it with --resume"
        )
    try:
        data = summary["data"]
        identity = {
            key: value
            for key, value in settings_that_matter(settings).items()
            if key not in NOT_COMPARED
        }
        identity["model.init"] = (
            summary.get("init_content_hash") or settings["model.init"]
        )  # wherever it was
        # All images: another seed takes other labels and held-out images
        identity["data"] = data.get("whole_content_hash", data["content_hash"])
        identity["counts"] = data["train_images"], data["test_images"], data["tested_on"]
        identity["bank"] = (summary.get("neighbours") or {}).get("bank")
        seeds = str(settings["train.seed"])
        if settings["data.subset_seed"] and (
            settings["data.labels"] < 1 or settings["data.val_size"]
        ):
            seeds += f" (subset {settings['data.subset_seed']})"
        return FinishedRun(record, identity, seeds, _figures(record))
    except WRONG_VALUES as error:
        raise ComparisonError(
            f"{folder} cannot be read: {type(error).__name__}: {error}"
        ) from error


def _figures(record: RunRecord) -> dict[str, float]:
    """Return what a run measured, by column: its summary, and linear probes on its own images with all labels."""
    found = {
        metric.short: metric.of_summary(record.summary)
        for metric in METRICS.values()
        if not metric.baseline_of
    }
    method, key = LINEAR.in_results
    for results in record.results.values():
        if (
            method in results
            and results["data"]["content_hash"] == record.summary["data"]["content_hash"]
        ):
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
        if any(
            run.seeds == other.seeds for other in groups.get(key, [])
        ):  # a repeated seed is no other seed
            key = str(path)
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def compare_runs(runs: Sequence[FinishedRun]) -> list[dict[str, str]]:
    """Return a row per run, all with the same columns; runs that differ only in the seed share one, with mean and deviation.

    The columns: run, settings and data that differ, images, what was measured on, seeds, and figures that any run has.
    """
    keys = dict.fromkeys(key for run in runs for key in run.identity if key in run.record.settings)
    different = [
        key for key in keys if len({json.dumps(run.identity.get(key)) for run in runs}) > 1
    ]
    targets, names = (
        _targets(runs),
        {run.identity["data"]: one_line(run.record.data["name"]) for run in runs},
    )
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
                text = mean_of(values, metric) if len(values) == len(alike) else ""
                if metric is LOSS and len({*targets.values()}) > 1:
                    own = targets.get(record.files.path)
                    row |= {
                        f"{column}, {target}": text if target == own else ""
                        for target in targets.values()
                    }
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
        found[record.files.path] = (
            f"{pixels}, {settings['mask.kind']} mask {settings['mask.ratio']:.0%}"
        )
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
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]


def mean_of(values: Sequence[float], metric: Metric) -> str:
    """Return the mean of several seeds with its standard deviation, or the one value."""
    spread = f" ± {metric.write(statistics.stdev(values))}" if len(values) > 1 else ""
    return metric.write(statistics.mean(values)) + spread
