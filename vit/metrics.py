"""The name and format of each score: the one table for terminal, report and comparison.

`vit.evaluation.evaluate` makes the scores; summary.json and results.json hold them as they are, by
method, a row for each protocol, of which the first is the usual one:

    {"knn": [{"protocol": "k 20, 10,000 training images", "images": 10000, "accuracy": 0.592,
              "baselines": {"raw_pixels": 0.544, "untrained": 0.507}, ...}], ...}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Scores = Mapping[str, Sequence[Row]]

FORMATS = {"accuracy": ".2%", "error": ".2%", "loss": ".4f"}
"""How to write each kind of measure. Higher is better for accuracy, lower for all others."""
FEW_IMAGES = 1000
"""Below this number of images, a percentage has no decimals: one image is 0.1% or more."""


@dataclass(frozen=True)
class Measure:
    """A kind of score: its name and format.

    Attributes:
        kind: a key of FORMATS.
        label: its full name.
        short: its name in a column head.
    """

    kind: str
    label: str
    short: str

    def write(self, value: float, images: int = 0) -> str:
        """Return the value as text; a percentage from few images has no decimals.

        Args:
            images: behind the value, 0 if unknown.
        """
        form = FORMATS[self.kind]
        # Decimals from few images would be noise
        if 0 < images < FEW_IMAGES and form.endswith("%"):
            form = ".0%"
        return format(value, form)

    def write_error(self, value: float, images: int) -> str:
        """Return the standard error of an accuracy on `images` images, "± 0.50%".

        One that would be written as 0 is given as a count: "(499 of 500)". Other kinds have "".
        """
        if self.kind != "accuracy" or not images:
            return ""
        # for a fraction p of n images, sqrt(p (1 - p) / n)
        error = self.write(math.sqrt(value * (1 - value) / images), images)
        if float(error.removesuffix("%")) == 0:
            return f"({round(value * images):,} of {images:,})"
        return f"± {error}"

    def write_with_error(self, value: float, images: int) -> str:
        """Return the value and its standard error: "45.30% ± 0.50%", or "0.4310" for a loss."""
        return f"{self.write(value, images)} {self.write_error(value, images)}".rstrip()


MEASURES = {
    ("reconstruction", "loss"): Measure("loss", "loss on masked patches", "loss"),
    ("head", "accuracy"): Measure("accuracy", "classifier accuracy", "accuracy"),
    ("head", "expected_calibration_error"): Measure(
        "error", "expected calibration error", "calibration error"
    ),
    ("head", "cross_entropy"): Measure("loss", "cross-entropy", "cross-entropy"),
    ("knn", "accuracy"): Measure("accuracy", "k-NN accuracy", "k-NN"),
    ("linear", "accuracy"): Measure("accuracy", "linear probe of frozen features", "linear probe"),
}
"""The measures shown for each method, in this order."""

MAIN = {"head": "accuracy", "reconstruction": "loss", "linear": "accuracy", "knn": "accuracy"}
"""The measure of each method that has its protocol and baselines, in the order of pages."""

BASELINES = {
    "raw_pixels": "raw pixels",
    "untrained": "an untrained network",
    "most_common_class": "always the most common class",
    "mean_of_visible_patches": "the mean of the visible patches",
    "nearest_visible_patch": "the nearest visible patch",
}
"""The baselines of scores, which need no training."""


def score_lines(scores: Scores) -> list[tuple[str, str, str]]:
    """Return each score as its name, its value, and its baselines and protocol in words."""
    lines = []
    for (method, key), measure in MEASURES.items():
        for row in scores.get(method, []):
            if key not in row:
                continue
            # a row's main measure also has its protocol and baselines
            remark = ""
            if key == MAIN[method]:
                parts = [write_baselines(row, measure), row["protocol"]]
                remark = "; ".join(filter(None, parts))
            lines.append((measure.label, _value(row, key, measure), remark))
    return lines


def write_baselines(row: Row, measure: Measure) -> str:
    """Return a row's baselines in words; its main measure is `measure`."""
    return ", ".join(
        f"{BASELINES[name]} {measure.write(value, row['images'])}"
        for name, value in row.get("baselines", {}).items()
    )


def mistakes_of(scores: Scores) -> list[tuple[str, str, str, str]]:
    """Return the most confident mistakes of a head as text: file, class, prediction, confidence."""
    usual = scores.get("head", [{}])[0]
    return [
        (
            mistake.get("file") or f"image {mistake['image']:,}",
            mistake["class"],
            mistake["predicted"],
            f"{mistake['confidence']:.1%}",
        )
        for mistake in usual.get("mistakes", [])
    ]


def _value(row: Row, key: str, measure: Measure) -> str:
    """Return a measure of a row as text, with its error."""
    images = row["images"]
    # several seeds have a deviation, which includes the choice of images
    if key == "accuracy" and "spread" in row:
        spread = measure.write(row["spread"], images)
        return f"{measure.write(row[key], images)} ± {spread} over {len(row['seeds'])} seeds"
    return measure.write_with_error(row[key], images)
