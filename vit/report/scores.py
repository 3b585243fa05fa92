"""What a run measured, for its page: the scores at the top, and bar charts beside the baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vit.errors import plural
from vit.evaluation.classification import read_confusion
from vit.metrics import METRICS, Metric, baselines, results_lines, summary_values, tested_images
from vit.report.record import WRONG_VALUES, RunRecord, tested_images_of

MIXED_UP = 5
"""Pairs of classes to name as most often confused."""


# The caption, the bars, sentences about what was measured, and the classes most often confused.
# A bar is its name, its length in percent of the longest, and its value as text.
Chart = tuple[str, list[tuple[str, str, str]], list[str], list[tuple[str, str, str]]]


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


# ---- At the top ----------------------------------------------------------------------------------


# The number as text, its error or "", what it is, and beside which baseline
KeyScore = tuple[str, str, str, str]


def key_scores(record: RunRecord) -> list[KeyScore]:
    """Return the most telling scores."""
    summary = record.summary
    if not summary:
        return scores_so_far(record)
    # What each number means
    values = summary_values(summary)
    images = tested_images(summary)
    training = "this run" if record.settings["model.init"] else "training"
    meanings = {
        "accuracy": f"of {record.tested} are classified correctly",
        "calibration_error": "mean gap between confidence and accuracy",
        "masked_loss": f"on masked patches of {record.tested_on}",
        "knn_accuracy": f"with no labels in {training}",
    }

    # Those that this run has
    scores = []
    for key, meaning in meanings.items():
        if key not in values:
            continue
        metric = METRICS[key]
        name = metric.label
        if key in ("accuracy", "masked_loss"):
            name = metric.short
        # One baseline is enough here: the best
        measured = [baseline for baseline in baselines(key) if baseline.key in values]
        if measured:
            best = max if metric.kind == "accuracy" else min
            baseline = best(measured, key=lambda other: values[other.key])
            value = baseline.write(values[baseline.key], brief=True, images=images)
            meaning += f"; {baseline.label}: {value}"
        number = metric.write(values[key], brief=True, images=images)
        error = metric.write_error(values[key], images, brief=True)
        scores.append((number, error, name, meaning))
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


def charts_of(record: RunRecord) -> list[Chart]:
    """Return what a finished run measured, beside its baselines."""
    summary = record.summary
    if not summary:
        return []
    # A classifier
    values = summary_values(summary)
    if "test_confusion" in summary:
        return [classification_chart(record, values)]

    # A pretraining
    charts = []
    if "masked_loss" in values:
        charts.append(loss_chart(record, values))
    if "knn_accuracy" in values:
        charts += neighbour_charts(record, values)
    return charts


def loss_chart(record: RunRecord, values: Mapping[str, float]) -> Chart:
    """Chart the loss on masked patches beside the guesses that need no model."""
    # The bars
    metric = METRICS["masked_loss"]
    rows = [("the model", values[metric.key])]
    for baseline in baselines(metric.key):
        if baseline.key in values:
            rows.append((baseline.label, values[baseline.key]))

    # What the numbers are
    unit = "colours"
    if record.settings["reconstruct.norm_pix_loss"]:
        unit = "normalised patches"
    sentences = [f"The mean squared error over masked patches, in {unit}, on {record.tested}."]
    return "Loss on masked patches: lower is better", bars_of_losses(rows), sentences, []


def neighbour_charts(record: RunRecord, values: Mapping[str, float]) -> list[Chart]:
    """Chart the accuracy of nearest neighbours in the model's features beside those of others.

    One chart, if all were measured on the same images; else one of all images, and one of some.
    """
    summary = record.summary
    neighbours = summary["neighbours"]
    compared = (summary.get("baselines") or {}).get("knn") or {}

    # All images
    images = neighbours["queries"]
    rows = [("the model's features", values["knn_accuracy"])]
    if "pixel_knn_accuracy" in values:
        rows.append(("raw pixels", values["pixel_knn_accuracy"]))
    sentences = [
        f"Of {plural(images, 'image')}, each gets its class from its {neighbours['k']} nearest of "
        f"{plural(neighbours['bank'], 'training image')}."
    ]
    if record.settings["model.init"]:
        sentences.append("This run, which began with another model's weights, used no labels.")
    else:
        sentences.append("The model never saw a label.")
    if "skipped" in compared:
        sentences.append(f"Baselines were not measured: {compared['skipped']}.")

    # The networks that this run has not trained
    names = {"untrained": "the untrained network", "shipped": compared.get("shipped", "")}
    network_rows = []
    for key, name in names.items():
        if key in compared.get("correct", {}):
            if key == "shipped":
                name += ", not trained here"
            network_rows.append((name, compared["correct"][key] / compared["queries"]))

    # One chart, if all saw the same images
    caption = "Classes by nearest neighbours: higher is better"
    if all_compared(summary):
        return [(caption, bars_of_accuracies(rows + network_rows, images), sentences, [])]

    # Else two: an accuracy among few images to search is no measure of one among many
    charts: list[Chart] = [(caption, bars_of_accuracies(rows, images), sentences, [])]
    if network_rows:
        queries = compared["queries"]
        model_row = ("the model's features", compared["correct"]["model"] / queries)
        bars = bars_of_accuracies([model_row, *network_rows], queries)
        sentences = [
            f"On {queries:,} of these images, with {plural(compared['bank'], 'training image')} to"
            " search: the fewer there are, the lower the accuracy.",
        ]
        charts.append(("What the training has added", bars, sentences, []))
    return charts


def all_compared(summary: Mapping[str, Any]) -> bool:
    """Return whether the baselines were measured on all images that the run was measured on."""
    neighbours = summary.get("neighbours") or {}
    compared = (summary.get("baselines") or {}).get("knn") or {}
    if "pairs" not in compared:
        return False
    measured = (neighbours.get("queries"), neighbours.get("bank"))
    return measured == (compared["queries"], compared["bank"])


def classification_chart(record: RunRecord, values: Mapping[str, float]) -> Chart:
    """Chart a classifier's accuracy beside a constant guess, with the classes that it confuses."""
    # 10,000 classes have 100 million cells, few with a count
    table = read_confusion(record.summary["test_confusion"]).to_sparse().coalesce()
    images = images_by_class(table)  # (classes,)
    count = int(images.sum())

    # The bars
    rows = [("the model", values["accuracy"])]
    if "accuracy_with_flip" in values:
        rows.append(("the model, with mirror images", values["accuracy_with_flip"]))
    rows.append(("always the most common class", float(images.max()) / count))

    # What the numbers are
    cross_entropy = METRICS["cross_entropy"].write(values["cross_entropy"])
    calibration_metric = METRICS["calibration_error"]
    calibration = calibration_metric.write(values["calibration_error"], True, count)
    sentences = [
        f"On {record.tested}.",
        f"The cross-entropy is {cross_entropy}; the calibration error is {calibration}, the average"
        " gap between confidence and accuracy.",
    ]
    confused = confused_classes(record, table)
    return "Accuracy: higher is better", bars_of_accuracies(rows, count), sentences, confused


def images_by_class(table: Tensor) -> Tensor:
    """Return the number of images of each class: sparse (classes, classes) -> int64 (classes,)."""
    labels, _ = table.indices()
    images = torch.zeros(len(table), dtype=torch.int64)
    return images.index_add(0, labels, table.values())


def confused_classes(record: RunRecord, table: Tensor) -> list[tuple[str, str, str]]:
    """Return the pairs of classes with the most mistakes: class, prediction, share of its images.

    Args:
        record: whose sample images name the classes.
        table: confusions, sparse (classes, classes).
    """
    # The names of the classes travel with the sample images
    labels, predicted = table.indices()
    images = images_by_class(table)
    names = [f"class {number}" for number in range(len(table))]
    if record.samples:
        names = record.samples.class_names

    # Mistakes, the most frequent first
    shares = table.values() / images[labels]
    wrong = (labels != predicted).nonzero()[:, 0]
    order = table.values()[wrong].argsort(descending=True, stable=True)
    metric = METRICS["accuracy"]
    pairs = []
    for cell in wrong[order[:MIXED_UP]].tolist():
        label = int(labels[cell])
        share = metric.write(float(shares[cell]), brief=True, images=int(images[label]))
        pairs.append((names[label], names[int(predicted[cell])], share))
    return pairs


def bars_of_losses(rows: Sequence[tuple[str, float]]) -> list[tuple[str, str, str]]:
    """Return the bars of a chart of losses; see `Chart`."""
    return bars(rows, [METRICS["masked_loss"].write(value, brief=True) for _, value in rows])


def bars_of_accuracies(
    rows: Sequence[tuple[str, float]], images: int
) -> list[tuple[str, str, str]]:
    """Return the bars of a chart of accuracies, with their standard errors; see `Chart`."""
    metric = METRICS["accuracy"]
    texts = [metric.write_with_error(value, images, brief=True) for _, value in rows]
    return bars(rows, texts)


def bars(rows: Sequence[tuple[str, float]], texts: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return the bars of a chart, whose values are written as `texts`; see `Chart`."""
    # A loss cannot be negative, but a file can hold anything
    longest = max((value for _, value in rows if value > 0), default=1.0)
    chart = []
    for (name, value), text in zip(rows, texts, strict=True):
        length = 100 * max(value, 0) / longest
        chart.append((name, f"{length:.2f}", text))
    return chart


# ---- Measured by vit evaluate --------------------------------------------------------------------


def evaluations(record: RunRecord) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what each `vit evaluate` measured, and notes on what cannot be read."""
    readable = []
    notes = []
    for name, results in record.results.items():
        try:
            readable.append(evaluation(record, name, results))
        except WRONG_VALUES as error:
            problem = f"{type(error).__name__}: {error}"
            notes.append(f"{name}/results.json is not as vit evaluate writes it: {problem}")
    return readable, notes


def evaluation(record: RunRecord, name: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a results.json says.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: it is not as `vit evaluate` writes it.
    """
    # The images
    data = results["data"]
    trained = plural(data["train_images"], "training image")
    tested = tested_images_of(data)

    # A row per metric, but for the losses, which have a table of their own with a row per mask
    loss: Metric = METRICS["masked_loss"]
    scores = []
    for line in results_lines(results):
        if line.metric != loss:
            scores.append((line.metric.label, line.value, line.remark))
    columns = [loss, *baselines(loss.key)]
    losses = []
    for row in results.get("reconstruction") or []:
        cells = [column.write(row[column.in_results[1]]) for column in columns]
        losses.append((row["mask"], f"{row['ratio']:.0%}", *cells))

    # A warning that stands at the top of the page already is not repeated
    warnings = [results.get("note")]
    if data.get("warning") != record.data.get("warning"):
        warnings.insert(0, data.get("warning"))
    return {
        "name": name,
        "about": f"{data['name']}: {trained}, measured on {tested}.",
        "warnings": warnings,
        "scores": scores,
        "head": ["mask", "masked", *(column.short for column in columns)],
        "losses": losses,
        "command": results.get("command"),
    }
