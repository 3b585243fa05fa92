"""What a run measured, for its page: the scores at the top, and bar charts beside the baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vit.errors import plural
from vit.evaluation.classification import read_confusion
from vit.metrics import (
    BASELINES,
    MEASURES,
    Measure,
    Row,
    read_scores,
    score_lines,
    write_baselines,
    write_mistake,
)
from vit.report.record import RunRecord, tested_images_of

MIXED_UP = 5
"""Pairs of classes to name as most often confused."""
CAPTIONS = {
    "head": "Accuracy: higher is better",
    "reconstruction": "Loss on masked patches: lower is better",
    "knn": "Classes by nearest neighbours: higher is better",
}
"""The methods of which a run's page has a chart."""

# The number as text, its error or "", what it is, and what it means
KeyScore = tuple[str, str, str, str]
# A bar is its name, its length in percent of the longest, and its value as text
Bar = tuple[str, str, str]


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: 2 h 5 min."""
    total = max(round(seconds), 0)
    units = (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))
    for unit, length, smaller_unit, smaller_length in units:
        if total >= length:
            text = f"{total // length} {unit}"
            smaller = total % length // smaller_length
            if smaller:
                text += f" {smaller} {smaller_unit}"
            return text
    return f"{total} s"


def main_measure(method: str) -> tuple[str, Measure]:
    """Return the measure that a method's baselines are of: its key, and how to write it."""
    key = "loss" if method == "reconstruction" else "accuracy"
    return key, MEASURES[method, key]


def key_scores(record: RunRecord) -> list[KeyScore]:
    """Return the most telling scores; of a run that is not finished, those so far."""
    summary = record.summary
    if not summary:
        return scores_so_far(record)
    meanings = {
        "head": f"of {record.tested} are classified correctly",
        "reconstruction": f"on masked patches of {record.tested_on}",
        "knn": "with no labels in " + ("this run" if record.settings["model.init"] else "training"),
    }
    scores = []
    for method, meaning in meanings.items():
        if method not in record.scores:
            continue
        row = record.scores[method][0]
        key, measure = main_measure(method)
        number = measure.write(row[key], row["images"], brief=True)
        error = measure.write_error(row[key], row["images"], brief=True)
        beside = write_baselines(row, measure, brief=True)
        if beside:
            meaning += f"; {beside}"
        scores.append((number, error, measure.short, meaning))
    speed = f"{summary['images_per_second']:,.0f} images/s"
    return [*scores, (duration(summary["seconds"]), "", "of training", speed)]


def scores_so_far(record: RunRecord) -> list[KeyScore]:
    """Return the scores of a run that is not finished; none before its first step."""
    # Other lines hold what was measured on held-out images
    steps = [line for line in record.metrics if "loss" in line]
    if not steps:
        return []
    last = steps[-1]
    epochs = record.settings["train.epochs"]
    share = f"{last['epoch'] / epochs:.0%}"
    step = f"at step {last['step']:,}, on augmented images"
    return [
        (share, "", "of the run", f"epoch {last['epoch']:.1f} of {epochs}"),
        (f"{last['loss']:.3f}", "", "training loss", step),
        (f"{last['images_per_second']:,.0f}", "", "images/s", "so far"),
    ]


# ---- Beside the baselines ------------------------------------------------------------------------


def charts_of(record: RunRecord) -> list[tuple[str, list[Bar], str]]:
    """Return a chart for each method that measured a finished run: caption, bars, and a text."""
    charts = []
    for method, caption in CAPTIONS.items():
        rows = record.scores.get(method)
        if not rows:
            continue
        key, measure = main_measure(method)
        usual = rows[0]
        values = [("the model", usual[key])]
        values += [(f"the model, {row['protocol']}", row[key]) for row in rows[1:]]
        values += [(BASELINES[name], value) for name, value in usual["baselines"].items()]
        charts.append(
            (caption, bars(values, measure, usual["images"]), about(record, method, usual))
        )
    return charts


def about(record: RunRecord, method: str, row: Row) -> str:
    """Return what the numbers of a chart are, in sentences."""
    if method == "head":
        cross_entropy = MEASURES[method, "cross_entropy"].write(row["cross_entropy"])
        error = MEASURES[method, "expected_calibration_error"].write(
            row["expected_calibration_error"], row["images"], brief=True
        )
        return (
            f"On {record.tested}. The cross-entropy is {cross_entropy}; the calibration error is "
            f"{error}, the average gap between confidence and accuracy."
        )
    if method == "reconstruction":
        unit = "colours"
        if record.settings["reconstruct.norm_pix_loss"]:
            unit = "normalised patches"
        return f"The mean squared error over masked patches, in {unit}, on {record.tested}."
    labels = "The model never saw a label."
    if record.settings["model.init"]:
        labels = "This run, which began with another model's weights, used no labels."
    return (
        f"Of {plural(row['images'], 'image')}, each gets its class from its {row['k']} nearest of "
        f"{plural(row['bank'], 'training image')}. {labels}"
    )


def bars(values: Sequence[tuple[str, float]], measure: Measure, images: int) -> list[Bar]:
    """Return the bars of a chart."""
    # A loss cannot be negative, but a file can hold anything
    longest = max((value for _, value in values if value > 0), default=1.0)
    chart = []
    for name, value in values:
        length = 100 * max(value, 0) / longest
        text = measure.write_with_error(value, images, brief=True)
        chart.append((name, f"{length:.2f}", text))
    return chart


def mistakes_of(record: RunRecord) -> list[tuple[str, str, str, str]]:
    """Return the surest mistakes: file, class, prediction, confidence."""
    if "head" not in record.scores:
        return []
    return [write_mistake(mistake) for mistake in record.scores["head"][0].get("mistakes", [])]


def confused_classes(record: RunRecord) -> list[tuple[str, str, str]]:
    """Return the pairs of classes with the most mistakes: class, prediction, images of how many."""
    if "head" not in record.scores:
        return []
    # 10,000 classes have 100 million cells, few with a count
    table = read_confusion(record.scores["head"][0]["confusion"]).to_sparse().coalesce()
    labels, predicted = table.indices()
    counts = table.values()
    images = torch.zeros(len(table), dtype=torch.int64).index_add(0, labels, counts)  # by class

    # The names of the classes travel with the sample images
    names = [f"class {number}" for number in range(len(table))]
    if record.samples:
        names = record.samples.class_names
    wrong = (labels != predicted).nonzero()[:, 0]
    order = counts[wrong].argsort(descending=True, stable=True)
    pairs = []
    for cell in wrong[order[:MIXED_UP]].tolist():
        label = int(labels[cell])
        count = int(counts[cell])
        total = int(images[label])
        share = f"{count:,} of {total:,} ({count / total:.0%})"
        pairs.append((names[label], names[int(predicted[cell])], share))
    return pairs


# ---- Measured by vit evaluate --------------------------------------------------------------------


def evaluation(record: RunRecord, name: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a results.json says, for the page."""
    data = results["data"]
    trained = plural(data["train_images"], "training image")
    # A warning that stands at the top of the page already is not repeated
    warnings = [results.get("note")]
    if data.get("warning") != record.data.get("warning"):
        warnings.insert(0, data.get("warning"))
    return {
        "name": name,
        "about": f"{data['name']}: {trained}, measured on {tested_images_of(data)}.",
        "warnings": warnings,
        "scores": score_lines(read_scores(results)),
        "command": results.get("command"),
    }
