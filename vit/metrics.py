"""The one table of metrics: where each is stored, its name and format; and measurements as lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FORMS = {
    "accuracy": (".2%", ".1%"),
    "error": (".2%", ".1%"),
    "loss": (".4f", ".3f"),
    "time": (",.0f", ",.0f"),
}
"""How to write each kind of metric: in full, and with fewer digits. Higher accuracy is better; of all else, less is."""


@dataclass(frozen=True)
class Metric:
    """A measured quantity: its names, how it is written, and where it is stored.

    Attributes:
        key: its name in code.
        kind: a key of FORMS.
        label: its full name.
        short: its name in a column head.
        in_summary: its place in summary.json, with dots; "" if it is not there.
        in_results: its method and key in results.json; "" if it is not there.
        baseline_of: the key of the metric whose baseline it is; "" if it is not a baseline.
        of_classifier: True for classifiers only, False for pretraining only, None if its place in the file says so.
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
        if self.of_classifier not in (None, "test_accuracy" in summary):
            return None
        value: Any = summary
        for key in self.in_summary.split("."):
            value = (value or {}).get(key)
        return None if value is None else float(value)

    def write(self, value: float, brief: bool = False) -> str:
        """Return the value as text, with fewer digits if `brief`."""
        return format(value, FORMS[self.kind][brief])


_BASELINES = "test_loss_of_baselines"
METRICS = {metric.key: metric for metric in (
    Metric("masked_loss", "loss", "loss on hidden patches", "loss",
           "test_loss", ("reconstruction", "loss"), of_classifier=False),
    Metric("mean_visible", "loss", "guessing the mean of the visible patches", "visible mean",
           f"{_BASELINES}.mean_of_visible_patches", ("reconstruction", "mean_of_visible_patches"), "masked_loss"),
    Metric("nearest_visible", "loss", "copying the nearest visible patch", "nearest visible",
           f"{_BASELINES}.nearest_visible_patch", ("reconstruction", "nearest_visible_patch"), "masked_loss"),
    Metric("accuracy", "accuracy", "classifier accuracy", "accuracy", "test_accuracy", ("head", "accuracy")),
    Metric("accuracy_with_flip", "accuracy", "classifier accuracy with mirror images", "with mirror images",
           "test_accuracy_with_flip", ("head", "accuracy_with_flip")),
    Metric("calibration_error", "error", "expected calibration error", "calibration error",
           "test_calibration_error", ("head", "expected_calibration_error")),
    Metric("cross_entropy", "loss", "cross-entropy", "cross-entropy",
           "test_loss", ("head", "cross_entropy"), of_classifier=True),
    Metric("knn_accuracy", "accuracy", "nearest-neighbour accuracy", "neighbours",
           "neighbours.encoder_accuracy", ("knn", "accuracy")),
    Metric("pixel_knn_accuracy", "accuracy", "by raw pixels", "by raw pixels",
           "neighbours.raw_pixel_accuracy", ("knn", "raw_pixel_accuracy"), "knn_accuracy"),
    Metric("linear_probe", "accuracy", "linear probe of frozen features", "linear probe", "", ("linear", "accuracy")),
    Metric("seconds", "time", "seconds of training", "seconds", "seconds"),
)}  # fmt: skip
"""Every metric, by key, in the order in which they are shown."""


@dataclass(frozen=True)
class Line:
    """A metric for people: its value as text, and how it was measured, which may be ""."""

    metric: Metric
    value: str
    how: str = ""


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


def summary_lines(summary: Mapping[str, Any]) -> list[Line]:
    """Return what a run measured at its end, without the time; baselines follow their metric."""
    lines = []
    for key, value in summary_values(summary).items():
        if key == "seconds":
            continue
        how = ""
        mask = summary.get("test_mask")
        if key == "masked_loss" and mask:
            how = f"{mask['kind']} mask, {mask['ratio']:.0%} hidden"
        lines.append(Line(METRICS[key], METRICS[key].write(value), how))
    return lines


def results_lines(results: Mapping[str, Any]) -> list[Line]:
    """Return what `vit evaluate` measured; `how` includes the baselines."""
    lines = []
    for metric in METRICS.values():
        method, key = metric.in_results
        if metric.baseline_of:
            continue
        rows = results.get(method) or []
        if not isinstance(rows, list):  # reconstruction has a row per mask, the others have one
            rows = [rows]
        for row in rows:
            if key not in row:
                continue
            value = metric.write(row[key])
            if key == "accuracy" and "spread" in row:
                value += f" ± {row['spread']:.2%} over {len(row['seeds'])} seeds"
            how = _protocol(method, key, row)
            for baseline in baselines(metric.key):
                _, baseline_key = baseline.in_results
                how.append(f"{baseline.short} {baseline.write(row[baseline_key])}")
            lines.append(Line(metric, value, "; ".join(how)))
    return lines


def _protocol(method: str, key: str, row: Mapping[str, Any]) -> list[str]:
    """Return how a metric of results.json was measured."""
    if method == "knn":
        return [f"k {row['k']}, {row['bank']:,} training images"]
    if method == "reconstruction":
        return [f"{row['mask']} mask, {row['ratio']:.0%} hidden"]
    if method == "linear":
        how = [f"{row['labels']:,} labels, layer {_each(row['layer'])}"]
        if "strength" in row:
            strength = _each(row["strength"], ".0e")
            how.append(f"L2 {strength}, chosen on {row['held_out']:,} held-out training images")
        if not row.get("converged", True):
            how.append("the fit has not converged")
        return how
    if key == "accuracy" and not row.get("classes_named", True):
        return ["its classes have no names; assuming the data's order"]
    return []


def _each(value: Any, form: str = "") -> str:
    """Return a choice as text, or a list with one of each seed."""
    if isinstance(value, list):
        return ", ".join(format(choice, form) for choice in value)
    return format(value, form)


def aligned(lines: Sequence[Line]) -> list[str]:
    """Return scores for a terminal: labels, values and remarks in columns, baselines indented."""
    labels = []
    for line in lines:
        indent = "  " if line.metric.baseline_of else ""
        labels.append(indent + line.metric.label)
    label_width = max((len(label) for label in labels), default=0)
    value_width = max((len(line.value) for line in lines), default=0)

    rows = []
    for label, line in zip(labels, lines, strict=True):
        remark = f"({line.how})" if line.how else ""
        rows.append(f"{label:<{label_width}}  {line.value:<{value_width}}  {remark}".rstrip())
    return rows
