"""What a run measured at its end, beside baselines, and what `vit evaluate` measured."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vit.figures import confusion_figure, png_of, reliability_figure
from vit.figures.document import Markup, element
from vit.report.pieces import DOTS, Section, bars, command, figure, paragraph, section, table
from vit.runs import FIGURES, RunRecord, baselines, results_lines, summary_values

MIXED_UP = 5
"""Pairs of classes that are named as those most mixed up."""


def outcome(record: RunRecord) -> Section | None:
    """What came out, against what learns nothing."""
    summary = record.summary
    if not summary:
        return None
    if "test_accuracy" in summary:
        return _outcome_of_classes(record)
    values = summary_values(summary)
    normalised = "normalised patches" if record.settings["reconstruct.norm_pix_loss"] else "colours"
    verdict = (
        "The model fills in better than both."
        if _beats_baselines("masked_loss", values) else "A guess without a model does as well or better."
    )  # fmt: skip
    explained = f"The mean squared error over the patches that were hidden, in {normalised}, on {record.tested}."
    parts = [
        _compared("masked_loss", "the model", values, "Loss on hidden patches: less is better"),
        paragraph(f"{explained} {verdict}"),
    ]
    if "knn_accuracy" in values:
        found = summary["neighbours"]
        verdict = (
            "Images of a class lie closer together in the features than in the pixels."
            if _beats_baselines("knn_accuracy", values)
            else "Raw pixels do as well or better: the features do not tell these classes apart yet."
        )  # fmt: skip
        explained = (
            f"The class of each of {found['queries']:,} images, by its {found['k']} nearest of {found['bank']:,}"
        )
        about = "Classes by nearest neighbours: more is better"
        parts += [
            _compared("knn_accuracy", "by the model's features", values, about),
            paragraph(f"{explained} training images. The model never saw a label. {verdict}"),
        ]
    lede = "The model on images that it was not trained on, beside what needs no model."
    return section("outcome", "What came out", lede, *parts)


def _compared(key: str, name: str, values: dict[str, float], about: str) -> Markup:
    """The model's figure and its baselines as bars."""
    others = [(other.label, values[other.key]) for other in baselines(key) if other.key in values]
    return bars([(name, values[key]), *others], FIGURES[key].write, about)


def _beats_baselines(key: str, values: dict[str, float]) -> bool:
    """Whether the model is better than each baseline."""
    better = operator.gt if FIGURES[key].higher_is_better else operator.lt
    return all(better(values[key], values[other.key]) for other in baselines(key) if other.key in values)


def _outcome_of_classes(record: RunRecord) -> Section:
    summary = record.summary
    counts = torch.tensor(summary["test_confusion"])
    commonest = float(counts.sum(1).max() / counts.sum())
    values = summary_values(summary)
    names_of = {"accuracy": "the model", "accuracy_with_flip": "the model, with mirror images"}
    rows = [(name, values[key]) for key, name in names_of.items() if key in values]
    rows.append(("always naming the commonest class", commonest))
    names = record.samples.class_names if record.samples else [f"class {i}" for i in range(len(counts))]
    written = {key: FIGURES[key].write(values[key]) for key in ("cross_entropy", "calibration_error")}
    explained = (
        f"Of {record.tested}. The cross-entropy is {written['cross_entropy']}; the calibration error "
        f"{written['calibration_error']}, how far its confidence is from how often it is right, on average."
    )
    confusion = figure(
        lambda dark: png_of(confusion_figure(counts, names, "", "", dark), DOTS),
        f"Which of {len(names)} classes is taken for which, in percent; the diagonal is right.",
        "A row is a class, a column what it is taken for, in percent of its images. Colour: the mistakes.", "wide",
    )  # fmt: skip
    return section(
        "outcome", "What came out", "The model on images that it was not trained on.",
        bars(rows, FIGURES["accuracy"].write, "Accuracy: more is better"), paragraph(explained),
        element("div", _mixed_up(counts, names), _reliability(summary), class_="figures"), confusion,
    )  # fmt: skip


def _mixed_up(counts: Tensor, names: Sequence[str]) -> Markup | None:
    """The pairs of classes with the most mistakes, of counts (classes, classes)."""
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    wrong = shares.clone().fill_diagonal_(0).flatten()
    pairs = [divmod(place, len(counts)) for place in wrong.argsort(descending=True)[:MIXED_UP].tolist() if wrong[place]]
    rows = [(names[label], names[taken], f"{shares[label, taken]:.1%}") for label, taken in pairs]
    return table(["most often mixed up", "taken for", "of its images"], rows, "classes mixed up") if rows else None


def _reliability(summary: dict[str, Any]) -> Markup | None:
    """Confidence against accuracy; None of a run of an earlier version, whose summary does not hold it."""
    bins = summary.get("test_reliability")
    if bins is None:
        return None
    confidence, accuracy = (
        torch.tensor([float("nan") if value is None else value for value in bins[key]])
        for key in ("confidence", "accuracy")
    )
    count, error = torch.tensor(bins["count"]), summary["test_calibration_error"]
    return figure(
        lambda dark: png_of(reliability_figure(confidence, accuracy, count, error, "", "", dark), DOTS),
        f"How often it is right against how sure it is; calibration error {error:.1%}.",
        "Below the dashed line it is surer than it should be, above it less sure.",
    )


def evaluation(record: RunRecord) -> tuple[Section | None, list[str]]:
    """Return what `vit evaluate` measured, and notes on what cannot be read."""
    parts: list[Markup | None] = []
    notes = []
    for name, results in record.results.items():
        try:
            parts += [element("h3", name, dir="auto"), *_measured(name, results)]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            notes.append(f"{name}/results.json is not as vit evaluate writes it: {type(error).__name__}: {error}")
    lede = "What vit evaluate measured of the model, each in a folder of the run."
    return (section("evaluation", "Evaluation", lede, *parts) if parts else None), notes


def _measured(name: str, results: dict[str, Any]) -> list[Markup | None]:
    """The content of a results.json."""
    data = results["data"]
    about = f"{data['name']}: {data['train_images']:,} training images, measured on"
    parts = [
        paragraph(f"{about} {data['test_images']:,} {data['tested_on']}."), paragraph(data.get("warning"), "warning"),
        paragraph(results.get("note") or None, "warning"),
    ]  # fmt: skip
    lines = results_lines(results)
    if rows := [(line.figure.label, line.value, line.how) for line in lines if line.figure.key != "masked_loss"]:
        parts.append(table(["figure", "value", "how"], rows, f"figures of {name}"))
    if found := results.get("reconstruction"):
        columns = [FIGURES["masked_loss"], *baselines("masked_loss")]
        losses = [
            (row["mask"], f"{row['ratio']:.0%}", *(figure.write(row[figure.in_results[1]]) for figure in columns))
            for row in found
        ]
        parts.append(table(["mask", "hidden", *(figure.short for figure in columns)], losses, f"losses of {name}"))
    line = results.get("command")
    return [*parts, command("Measured by", line) if line else None]
