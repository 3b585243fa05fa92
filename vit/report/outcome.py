"""What a run came to, beside what learns nothing, and as `vit evaluate` found it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints.card import by_seed
from vit.figures import confusion_figure, png_of, reliability_figure
from vit.figures.document import Markup, element
from vit.report.pieces import DOTS, Section, bars, command, figure, paragraph, plural, section, table
from vit.report.record import Record

MIXED_UP = 5
"""Pairs of classes that are named as those most mixed up."""


def outcome(record: Record) -> Section | None:
    """What came out, against what learns nothing."""
    summary = record.summary
    if not summary:
        return None
    if "test_accuracy" in summary:
        return _outcome_of_classes(record)
    baselines, found = summary["test_loss_of_baselines"], summary["neighbours"]
    rows = [
        ("the model", summary["test_loss"]),
        ("guessing the mean of the visible patches", baselines["mean_of_visible_patches"]),
        ("copying the nearest visible patch", baselines["nearest_visible_patch"]),
    ]
    normalised = "normalised patches" if record.settings["mask.norm_pix_loss"] else "colours"
    better = summary["test_loss"] < min(baselines.values())
    verdict = "The model fills in better than both." if better else "A guess without a model does as well or better."
    explained = f"The mean squared error over the patches that were hidden, in {normalised}, on {record.tested}."
    parts = [
        bars(rows, lambda value: f"{value:.4f}", "Loss on hidden patches: less is better"),
        paragraph(f"{explained} {verdict}"),
    ]
    if found:
        rows = [("by the model's features", found["encoder_accuracy"]), ("by raw pixels", found["raw_pixel_accuracy"])]
        parts.append(bars(rows, lambda value: f"{value:.2%}", "Classes by nearest neighbours: more is better"))
        better = found["encoder_accuracy"] > found["raw_pixel_accuracy"]
        verdict = (
            "Images of a class lie closer together in the features than in the pixels."
            if better else "Raw pixels do as well or better: the features do not tell these classes apart yet."
        )  # fmt: skip
        explained = (
            f"The class of each of {found['queries']:,} images, by its {found['k']} nearest of {found['bank']:,}"
        )
        parts.append(paragraph(f"{explained} training images. The model never saw a label. {verdict}"))
    lede = "What the model is worth on images that it was not trained on, beside what needs no model."
    return section("outcome", "What came out", lede, *parts)


def _outcome_of_classes(record: Record) -> Section:
    summary = record.summary
    counts = torch.tensor(summary["test_confusion"])
    commonest = float(counts.sum(1).max() / counts.sum())
    rows = [("the model", summary["test_accuracy"]), ("always naming the commonest class", commonest)]
    if "test_accuracy_with_flip" in summary:
        rows.insert(1, ("the model, with mirror images", summary["test_accuracy_with_flip"]))
    names = record.showcase.class_names if record.showcase else [f"class {i}" for i in range(len(counts))]
    explained = (
        f"Of {record.tested}. The cross-entropy is {summary['test_loss']:.4f}; the calibration error "
        f"{summary['test_calibration_error']:.2%}, how far its confidence is from how often it is right, on average."
    )
    confusion = figure(
        lambda dark: png_of(confusion_figure(counts, names, "", "", dark), DOTS),
        f"Which of {len(names)} classes is taken for which, in percent; the diagonal is right.",
        "A row is a class, a column what it is taken for, in percent of its images. Colour: the mistakes.", "wide",
    )  # fmt: skip
    return section(
        "outcome", "What came out", "What the model is worth on images that it was not trained on.",
        bars(rows, lambda value: f"{value:.2%}", "Accuracy: more is better"), paragraph(explained),
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
    said, right = (
        torch.tensor([float("nan") if value is None else value for value in bins[key]])
        for key in ("confidence", "accuracy")
    )
    count, error = torch.tensor(bins["count"]), summary["test_calibration_error"]
    return figure(
        lambda dark: png_of(reliability_figure(said, right, count, error, "", "", dark), DOTS),
        f"How often it is right against how sure it is; calibration error {error:.1%}.",
        "Below the dashed line it is surer than it should be, above it less sure.",
    )


def evaluation(record: Record) -> tuple[Section | None, list[str]]:
    """What `vit evaluate` found, and what of it cannot be read."""
    parts: list[Markup | None] = []
    notes = []
    for name, results in record.results:
        try:
            parts += [element("h3", name, dir="auto"), *_measured(name, results)]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            notes.append(f"{name}/results.json is not as vit evaluate writes it: {type(error).__name__}: {error}")
    lede = "What vit evaluate measured of the model, each in a folder of the run."
    return (section("evaluation", "Evaluation", lede, *parts) if parts else None), notes


def _measured(name: str, results: dict[str, Any]) -> list[Markup | None]:
    """What a results.json says."""
    data = results["data"]
    about = f"{data['name']}: {data['train_images']:,} training images, measured on"
    parts = [
        paragraph(f"{about} {data['test_images']:,} {data['tested_on']}."), paragraph(data.get("warning"), "warning"),
        paragraph(results.get("note") or None, "warning"),
    ]  # fmt: skip
    if rows := list(_accuracies(results)):
        parts.append(table(["measure", "accuracy", "how"], rows, f"accuracies of {name}"))
    if found := results.get("reconstruction"):
        columns = ("loss", "mean_of_visible_patches", "nearest_visible_patch")
        losses = [(row["mask"], f"{row['ratio']:.0%}", *(f"{row[key]:.4f}" for key in columns)) for row in found]
        parts.append(table(["mask", "hidden", "loss", "visible mean", "nearest visible"], losses, f"losses of {name}"))
    line = results.get("command")
    return [*parts, command("Measured by", line) if line else None]


def _accuracies(results: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Measure, accuracy, and how it was measured."""
    if found := results.get("knn"):
        how = f"k {found['k']}, {found['bank']:,} training images; by raw pixels {found['raw_pixel_accuracy']:.2%}"
        yield "nearest neighbours", _accuracy(found), how
    if found := results.get("linear"):
        how = f"{found['labels']:,} labels, layer {by_seed(found['layer'])}, L2 {by_seed(found['strength'], '.0e')}"
        how += f", chosen on {found['held_out']:,} held-out training images"
        yield "linear probe", _accuracy(found), how + ("" if found["converged"] else "; its fit has not converged")
    if found := results.get("head"):
        flipped = f"; with mirror images {found['accuracy_with_flip']:.2%}" if "accuracy_with_flip" in found else ""
        yield "its own head", _accuracy(found), f"calibration error {found['expected_calibration_error']:.1%}{flipped}"


def _accuracy(found: dict[str, Any]) -> str:
    spread = f" ± {found['spread']:.2%} over {plural(len(found['seeds']), 'seed')}" if "spread" in found else ""
    return f"{found['accuracy']:.2%}{spread}"
