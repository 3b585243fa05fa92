"""The one table of metrics: their names, formats and places in files; and scores for a terminal."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vit.errors import plural

FORMATS = {
    "accuracy": (".2%", ".1%"),
    "error": (".2%", ".1%"),
    "loss": (".4f", ".3f"),
    "time": (",.0f", ",.0f"),
}
"""How to write each kind of metric: in full, and with fewer digits.

More accuracy is better, less of all else.
"""
FEW_IMAGES = 1000
"""Below so many images, a percentage has no decimals: one image is a tenth of a percent or more."""


def standard_error(share: float, count: int) -> float:
    """Return the standard error of a share p that was measured on n images: sqrt(p (1 - p) / n)."""
    return math.sqrt(share * (1 - share) / count)


@dataclass(frozen=True)
class Metric:
    """A measured quantity: its names, how it is written, and where it is stored.

    Attributes:
        key: its name in code.
        kind: a key of FORMATS.
        label: its full name.
        short: its name in a column head.
        in_summary: its place in summary.json, with dots; "" if it is not there.
        in_results: its method and key in results.json; "" if it is not there.
        baseline_of: the key of the metric whose baseline it is; "" if it is not a baseline.
        of_classifier: True for classifiers only, False for pretraining only, None if its place in
            the file says so.
    """

    key: str
    kind: str
    label: str
    short: str
    in_summary: str = ""
    in_results: tuple[str, str] = ("", "")
    baseline_of: str = ""
    of_classifier: bool | None = None

    def of_summary(self, summary: Mapping[str, Any]) -> float | None:
        """Return its value in summary.json, or None."""
        # The same key means another quantity in a classifier's summary
        if self.of_classifier not in (None, "test_accuracy" in summary):
            return None
        # Step down; a branch may be null, as that of neighbours is without labels
        value: Any = summary
        for key in self.in_summary.split("."):
            value = (value or {}).get(key)
        return None if value is None else float(value)

    def write(self, value: float, brief: bool = False, images: int = 0) -> str:
        """Return the value as text.

        Args:
            value: as measured.
            brief: with fewer digits.
            images: the number of images behind it, 0 if unknown; a percentage of few has no
                decimals.
        """
        # Decimals of few images would claim what they cannot tell
        full_format, brief_format = FORMATS[self.kind]
        if 0 < images < FEW_IMAGES and full_format.endswith("%"):
            return format(value, ".0%")
        if brief:
            return format(value, brief_format)
        return format(value, full_format)

    def write_error(self, value: float, images: int, brief: bool = False) -> str:
        """Return how sure an accuracy on `images` images is, as text: its standard error, "± 0.5%".

        An accuracy of 0 or 1 has none by the formula: "(4 of 4)". Other kinds have "".
        """
        if self.kind != "accuracy" or not images:
            return ""
        error = standard_error(value, images)
        if error == 0:
            return f"({round(value * images):,} of {images:,})"
        return f"± {self.write(error, brief, images)}"

    def write_with_error(self, value: float, images: int, brief: bool = False) -> str:
        """Return the value and how sure it is: "45.3% ± 0.5%", or "0.431" for a loss."""
        text = self.write(value, brief, images)
        return f"{text} {self.write_error(value, images, brief)}".rstrip()


ALL_METRICS = (
    # Of a pretraining: the loss, and two guesses that need no model
    Metric(
        key="masked_loss",
        kind="loss",
        label="loss on masked patches",
        short="loss",
        in_summary="test_loss",
        in_results=("reconstruction", "loss"),
        of_classifier=False,
    ),
    Metric(
        key="mean_visible",
        kind="loss",
        label="guessing the mean of the visible patches",
        short="visible mean",
        in_summary="test_loss_of_baselines.mean_of_visible_patches",
        in_results=("reconstruction", "mean_of_visible_patches"),
        baseline_of="masked_loss",
    ),
    Metric(
        key="nearest_visible",
        kind="loss",
        label="copying the nearest visible patch",
        short="nearest visible",
        in_summary="test_loss_of_baselines.nearest_visible_patch",
        in_results=("reconstruction", "nearest_visible_patch"),
        baseline_of="masked_loss",
    ),
    # Of a classifier
    Metric(
        key="accuracy",
        kind="accuracy",
        label="classifier accuracy",
        short="accuracy",
        in_summary="test_accuracy",
        in_results=("head", "accuracy"),
    ),
    Metric(
        key="accuracy_with_flip",
        kind="accuracy",
        label="classifier accuracy with mirror images",
        short="with mirror images",
        in_summary="test_accuracy_with_flip",
        in_results=("head", "accuracy_with_flip"),
    ),
    Metric(
        key="calibration_error",
        kind="error",
        label="expected calibration error",
        short="calibration error",
        in_summary="test_calibration_error",
        in_results=("head", "expected_calibration_error"),
    ),
    Metric(
        key="cross_entropy",
        kind="loss",
        label="cross-entropy",
        short="cross-entropy",
        in_summary="test_loss",
        in_results=("head", "cross_entropy"),
        of_classifier=True,
    ),
    # Of features, with no training on top, and with a linear layer
    Metric(
        key="knn_accuracy",
        kind="accuracy",
        label="nearest-neighbour accuracy",
        short="neighbours",
        in_summary="neighbours.encoder_accuracy",
        in_results=("knn", "accuracy"),
    ),
    Metric(
        key="pixel_knn_accuracy",
        kind="accuracy",
        label="by raw pixels",
        short="by raw pixels",
        in_summary="neighbours.raw_pixel_accuracy",
        in_results=("knn", "raw_pixel_accuracy"),
        baseline_of="knn_accuracy",
    ),
    Metric(
        key="linear_probe",
        kind="accuracy",
        label="linear probe of frozen features",
        short="linear probe",
        in_results=("linear", "accuracy"),
    ),
    # Of the run
    Metric(
        key="seconds",
        kind="time",
        label="seconds of training",
        short="seconds",
        in_summary="seconds",
    ),
)
METRICS = {metric.key: metric for metric in ALL_METRICS}
"""Every metric, by key, in the order in which they are shown."""


@dataclass(frozen=True)
class Line:
    """A metric for people.

    Attributes:
        metric: what was measured.
        value: as text.
        remark: how it was measured; may be "".
    """

    metric: Metric
    value: str
    remark: str = ""


def baselines(key: str) -> list[Metric]:
    """Return the baselines of the metric with this key."""
    return [metric for metric in METRICS.values() if metric.baseline_of == key]


def summary_values(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores in summary.json, by the metric's key."""
    scores = {}
    for key, metric in METRICS.items():
        value = metric.of_summary(summary)
        if value is not None:
            scores[key] = value
    return scores


def tested_images(document: Mapping[str, Any]) -> int:
    """Return the number of images behind summary.json or results.json; 0 if it does not say."""
    data = document.get("data") or {}
    return int(data.get("test_images", 0))


def summary_lines(summary: Mapping[str, Any]) -> list[Line]:
    """Return what a run measured at its end, without the time; baselines follow their metric."""
    images = tested_images(summary)
    mask = summary.get("test_mask")
    lines = []
    for key, value in summary_values(summary).items():
        if key == "seconds":
            continue
        # A loss means little without its mask
        remark = ""
        if key == "masked_loss" and mask:
            remark = f"{mask['kind']} mask, {mask['ratio']:.0%} masked"
        text = METRICS[key].write_with_error(value, images)
        lines.append(Line(METRICS[key], text, remark))
    return lines


def results_lines(results: Mapping[str, Any]) -> list[Line]:
    """Return what `vit evaluate` measured; the remarks include the baselines."""
    images = tested_images(results)
    lines = []
    for metric in METRICS.values():
        method, key = metric.in_results
        if metric.baseline_of:
            continue

        # Reconstruction has a row per mask, the others have one
        rows = results.get(method) or []
        if not isinstance(rows, list):
            rows = [rows]

        for row in rows:
            if key not in row:
                continue
            # Several seeds have a deviation, which includes the choice of images
            if key == "accuracy" and "spread" in row:
                spread = metric.write(row["spread"], images=images)
                value = f"{metric.write(row[key], images=images)} ± {spread}"
                value += f" over {len(row['seeds'])} seeds"
            else:
                value = metric.write_with_error(row[key], images)
            # How it was measured, and beside what
            remarks = _protocol(method, key, row)
            for baseline in baselines(metric.key):
                _, baseline_key = baseline.in_results
                baseline_value = baseline.write(row[baseline_key], images=images)
                remarks.append(f"{baseline.short} {baseline_value}")
            lines.append(Line(metric, value, "; ".join(remarks)))
    return lines


def _protocol(method: str, key: str, row: Mapping[str, Any]) -> list[str]:
    """Return how a metric of results.json was measured, as remarks."""
    if method == "knn":
        return [f"k {row['k']}, {plural(row['bank'], 'training image')}"]
    if method == "reconstruction":
        return [f"{row['mask']} mask, {row['ratio']:.0%} masked"]
    if method == "linear":
        remarks = [f"{plural(row['labels'], 'label')}, layer {_of_seeds(row['layer'])}"]
        if "strength" in row:
            strength = _of_seeds(row["strength"], ".0e")
            held_out = _of_seeds(row["held_out"], ",")
            remarks.append(f"L2 {strength}, chosen on {held_out} held-out training images")
        if not row.get("converged", True):
            remarks.append("the fit has not converged")
        return remarks
    if key == "accuracy" and row.get("classes_by_number"):
        return ["its classes have no names; assuming that the data's names are their numbers"]
    if key == "accuracy" and not row.get("classes_named", True):
        return ["its classes have no names; assuming the data's order"]
    return []


def _of_seeds(choice: Any, form: str = "") -> str:
    """Return a choice as text, or those of several seeds."""
    if isinstance(choice, list):
        return ", ".join(format(value, form) for value in choice)
    return format(choice, form)


def score_table(lines: Sequence[Line]) -> list[str]:
    """Return scores for a terminal: labels, values and remarks in columns, baselines indented."""
    table = []
    for line in lines:
        indent = "  " if line.metric.baseline_of else ""
        remark = f"({line.remark})" if line.remark else ""
        table.append((indent + line.metric.label, line.value, remark))
    return aligned(table)


def aligned(table: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the lines of a table with columns as wide as their longest cell.

    Args:
        table: rows of cells.
        right: numbers of the columns whose cells stand at the right.
    """
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for cells in table:
        padded = []
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            padded.append(cell.rjust(width) if number in right else cell.ljust(width))
        lines.append("  ".join(padded).rstrip())
    return lines
