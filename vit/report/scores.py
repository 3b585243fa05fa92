"""The scores of a run for its page: the key scores at the top, and bar charts with baselines."""

from __future__ import annotations

from datetime import timedelta
from heapq import nlargest
from operator import itemgetter

from vit.evaluation.classification import read_confusion
from vit.metrics import (
    BASELINES,
    MAIN,
    MEASURES,
    write_baselines,
)
from vit.report.record import RunRecord
from vit.runs import read_mapping

MIXED_UP = 5
"""Pairs of classes to name as most often confused."""

# The number as text, its error or "", its name, and the images and baselines
KeyScore = tuple[str, str, str, str]
# A bar is its name, its length in percent of the longest, and its value as text
Bar = tuple[str, str, str]


def duration(seconds: float) -> str:
    """Return a duration in hours, minutes and seconds: 2:05:00."""
    return str(timedelta(seconds=round(seconds)))


def key_scores(record: RunRecord) -> list[KeyScore]:
    """Return the key scores of a run, or its progress if it is not finished."""
    summary = record.summary
    if not summary:
        return scores_so_far(record)
    scores = []
    for method, key in MAIN.items():
        if method not in record.scores:
            continue
        row = record.scores[method][0]
        measure = MEASURES[method, key]
        meaning = f"on {record.tested}"
        if row["protocol"]:
            meaning += f"; {row['protocol']}"
        if row["baselines"]:
            meaning += f"; baselines: {write_baselines(row, measure)}"
        number = measure.write(row[key], row["images"])
        error = measure.write_error(row[key], row["images"])
        scores.append((number, error, measure.label, meaning))
    speed = f"{summary['images_per_second']:,.0f} images/s"
    return [*scores, (duration(summary["seconds"]), "", "training time", speed)]


def scores_so_far(record: RunRecord) -> list[KeyScore]:
    """Return the scores of a run that is not finished; none before its first step."""
    # Other lines hold what was measured on held-out images, or are callbacks'
    steps = [line for line in record.metrics if "images_per_second" in line]
    if not steps:
        return []
    last = steps[-1]
    epochs = record.settings["train.epochs"]
    share = f"{last['epoch'] / epochs:.0%}"
    step = f"at step {last['step']:,}, on augmented images"
    return [
        (share, "", "of the epochs", f"epoch {last['epoch']:.1f} of {epochs}"),
        (f"{last['loss']:.3f}", "", "training loss", step),
        (f"{last['images_per_second']:,.0f}", "", "images/s", "at the last steps"),
    ]


def charts_of(record: RunRecord) -> list[tuple[str, list[Bar]]]:
    """Return a chart for each method that measured a finished run: caption and bars."""
    charts = []
    for method, key in MAIN.items():
        rows = record.scores.get(method)
        if not rows:
            continue
        usual = rows[0]
        measure = MEASURES[method, key]
        values = [("the model", usual[key])]
        values += [(f"the model, {row['protocol']}", row[key]) for row in rows[1:]]
        values += [(BASELINES[name], value) for name, value in usual["baselines"].items()]
        longest = max(value for _, value in values) or 1.0
        bars = []
        for name, value in values:
            text = measure.write_with_error(value, usual["images"])
            bars.append((name, f"{100 * value / longest:.2f}", text))
        better = "higher" if measure.kind == "accuracy" else "lower"
        charts.append((f"{measure.label}: {better} is better", bars))
    return charts


def confused_classes(record: RunRecord) -> list[tuple[str, str, str]]:
    """Return the pairs of classes with the most mistakes: class, prediction, "3 of 4" images."""
    if "head" not in record.scores:
        return []
    # 10,000 classes have 100 million cells, few with a count
    table = read_confusion(record.scores["head"][0]["confusion"]).to_sparse().coalesce()
    images = table.sum(1).to_dense()  # (classes,)
    # each a label, a prediction and a count
    cells = zip(*table.indices().tolist(), table.values().tolist(), strict=True)
    wrong = [cell for cell in cells if cell[0] != cell[1]]

    # The names of the classes stand beside the model
    numbered = [f"class {number}" for number in range(len(table))]
    names = read_mapping(record.files.model_config).get("class_names", numbered)
    return [
        (names[label], names[predicted], f"{count:,} of {images[label]:,}")
        for label, predicted, count in nlargest(MIXED_UP, wrong, key=itemgetter(2))
    ]
