"""The one driver of all measurements: at the end of a run, in `vit evaluate`, and in studies."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from vit.data import Dataset
from vit.data.images import evenly_spaced, spread_over_classes
from vit.device import Compute
from vit.evaluate.classification import (
    accuracy,
    classification_metrics,
    head_logits,
    plain_confusion,
    read_confusion,
    reliability,
)
from vit.evaluate.features import Prepare, encoder_features, pixel_features
from vit.evaluate.knn import TEMPERATURE, K, knn_accuracy
from vit.evaluate.probe import L2_GRID, linear_probe
from vit.evaluate.reconstruction import score_reconstruction
from vit.mae import MaskedAutoencoder, Model
from vit.masking import NOISE, num_keep

METHODS = ("knn", "linear", "reconstruction", "head")
RATIOS = (0.5, 0.75, 0.9)
MEANS = ("accuracy", "raw_pixel_accuracy", "cross_entropy", "expected_calibration_error")
"""Measures that are averaged over seeds."""


@dataclass(frozen=True)
class Options:
    """How to measure.

    Attributes:
        labels: share of the training images whose labels knn and linear may use, above 0 and at most 1.
        seeds: of that subset and of the held-out images; with several, figures are means over them. With all labels, knn
            has one result.
        knn_images: training images, evenly spaced, in which knn searches; 0: all.
        raw_pixels: also measure knn on raw pixels, the baseline.
        every_layer: probe every layer and choose the best on held-out training images; else only the last.
        holdout: training images to choose the probe's layer and regularisation by; at most half of those with labels.
        held_out: bool (N,) over the training images, to hold out these instead; None: `holdout` images, spread over classes.
        l2_grid: the probe's regularisations to try.
        masks: (kind, ratio) of the masks for reconstruction; empty: every kind with RATIOS.
        flip: also measure the head on each image together with its mirror image; reported separately.
    """

    labels: float = 1.0
    seeds: tuple[int, ...] = (0,)
    knn_images: int = 0
    raw_pixels: bool = True
    every_layer: bool = False
    holdout: int = 5000
    held_out: Tensor | None = None
    l2_grid: tuple[float, ...] = L2_GRID
    masks: tuple[tuple[str, float], ...] = ()
    flip: bool = False


@dataclass
class Evaluation:
    """The result of `evaluate`.

    Attributes:
        figures: plain values by method, as in results.json.
        seconds: by method, and for "features".
        logits: (seeds * N, classes) of the test images from the head, else from the linear probe, seed after seed; None if
            neither was measured.
        classifier: where the logits come from.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    logits: Tensor | None = None
    classifier: str = ""


def evaluate(
    model: Model,
    data: Dataset,
    methods: Collection[str],
    prepare: Prepare,
    compute: Compute,
    options: Options | None = None,
) -> Evaluation:
    """Measure a model on the test images of a data set.

    Args:
        data: with labels for knn, linear and head.
        methods: some of METHODS: nearest neighbours, a linear probe, reconstruction (with a decoder), and the model's own
            head (of a classifier); see `obstacles`.

    Raises:
        EvaluationError: a feature or logit is nan or infinite, or no or all training images are held out to choose the probe.
    """
    options = options or Options()
    encoder, train, test = model.encoder, data.train, data.test
    evaluation = Evaluation()

    # For knn and linear: the features of all images, (layers, N, D), and which images' labels to use
    if "knn" in methods or "linear" in methods:
        since = time.perf_counter()
        last = len(encoder.blocks) - 1
        layers = list(range(last + 1)) if options.every_layer else [last]
        known, queries = (
            encoder_features(encoder, part.images, prepare, compute, layers)
            for part in (train, test)
        )
        evaluation.seconds["features"] = time.perf_counter() - since
        labelled = [torch.arange(len(train))] * len(options.seeds)
        if options.labels < 1:
            count = max(1, round(options.labels * len(train)))
            chosen = (
                spread_over_classes(train.labels, count, seed, "labels") for seed in options.seeds
            )
            labelled = [part.nonzero()[:, 0] for part in chosen]

    for method in [name for name in METHODS if name in methods]:
        since = time.perf_counter()
        if method == "knn":
            drawn = (
                labelled if options.labels < 1 else labelled[:1]
            )  # with all labels, every seed gives the same
            banks = [part[evenly_spaced(len(part), options.knn_images)] for part in drawn]
            rows = [_knn(known[-1], queries[-1], bank, data, options.raw_pixels) for bank in banks]
            evaluation.figures["knn"] = over_seeds(rows, options.seeds)
        elif method == "linear":
            seeds = zip(labelled, options.seeds, strict=True)
            probes = [
                _linear(known, queries, used, data, layers, seed, options) for used, seed in seeds
            ]
            evaluation.figures["linear"] = over_seeds([row for row, _ in probes], options.seeds)
            evaluation.logits = torch.cat([logits for _, logits in probes])
            evaluation.classifier = "a linear probe of frozen features"
        elif method == "reconstruction":
            autoencoder = cast(MaskedAutoencoder, model)
            evaluation.figures["reconstruction"] = [
                {"mask": kind, "ratio": ratio}
                | score_reconstruction(autoencoder, test.images, prepare, kind, ratio, compute)
                for kind, ratio in options.masks
                or standard_masks(math.prod(encoder.patch_embed.grid_size))
            ]
        else:
            evaluation.logits = head_logits(encoder, test.images, prepare, compute)
            evaluation.figures["head"] = {
                **classification_metrics(evaluation.logits, test.labels),
                "reliability": reliability(evaluation.logits, test.labels)[0],
            }
            if options.flip:
                flipped = head_logits(encoder, test.images, prepare, compute, flip=True)
                evaluation.figures["head"]["accuracy_with_flip"] = accuracy(flipped, test.labels)
            evaluation.classifier = "the model's own head"
        evaluation.seconds[method] = time.perf_counter() - since
    return evaluation


def obstacles(model: Model, data: Dataset) -> dict[str, str]:
    """Return why each of METHODS cannot measure a loaded model on this data; "" if it can."""
    encoder, names, own_names = model.encoder, data.test.class_names, model.origin.class_names
    classes, found = encoder.config.num_classes, dict.fromkeys(METHODS, "")
    if not (data.train.labelled and data.test.labelled):
        found["knn"] = found["linear"] = f"{data.name} has {'one class' if names else 'no labels'}"
    if model.decoder is None:
        found["reconstruction"] = "this model has no decoder"
    elif math.prod(encoder.patch_embed.grid_size) < 2:
        found["reconstruction"] = "this model has one patch: none to hide and one to see"
    if not classes:
        found["head"] = "this model has no classification head"
    elif classes != len(names):
        found["head"] = f"this model has a head of {classes} classes, {data.name} {len(names)}"
    elif classes == 1 or model.origin.problem_type:
        kind = model.origin.problem_type or "one output"
        found["head"] = f"the head of this model is for {kind}, no choice between classes"
    elif own_names and own_names != names:
        found["head"] = (
            f"the classes of this model ({', '.join(own_names[:3])}, ...) are not those of {data.name}"
        )
    return found


def standard_masks(patches: int) -> list[tuple[str, float]]:
    """Return every kind of mask with RATIOS; among few patches, each number of hidden ones comes once, by its exact ratio."""
    hidden = {patches - num_keep(patches, ratio) for ratio in RATIOS}
    return [
        (kind, ratio) for kind in NOISE for ratio in sorted(count / patches for count in hidden)
    ]


def as_summary(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of `evaluate`, with at most one mask, under their names in summary.json."""
    summary: dict[str, Any] = {}
    if head := figures.get("head"):
        summary |= {
            "test_accuracy": head["accuracy"],
            "test_loss": head["cross_entropy"],
            "test_calibration_error": head["expected_calibration_error"],
            "test_confusion": head["confusion"],
            "test_reliability": head["reliability"],
        }
        if "accuracy_with_flip" in head:
            summary["test_accuracy_with_flip"] = head["accuracy_with_flip"]
    if rows := figures.get("reconstruction"):
        (row,) = rows
        summary |= {
            "test_loss": row["loss"],
            "test_loss_of_baselines": {
                key: row[key] for key in ("mean_of_visible_patches", "nearest_visible_patch")
            },
            "test_mask": {"kind": row["mask"], "ratio": row["ratio"], "fixed": True},
            "neighbours": None,
        }
    if knn := figures.get("knn"):
        names = {"accuracy": "encoder_accuracy", "raw_pixel_accuracy": "raw_pixel_accuracy"}
        keys = [key for key in ("k", "bank", "queries", *names) if key in knn]
        summary["neighbours"] = {names.get(key, key): knn[key] for key in keys}
    return summary


def over_seeds(rows: list[dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """Combine the figures of knn or linear over several seeds; a single row stays as it is.

    Measures become means, with the "spread" (standard deviation) of the accuracy; confusions are summed; choices that differ
    become a list.
    """
    if len(rows) == 1:
        return rows[0]
    combined: dict[str, Any] = {}
    for key, first in rows[0].items():
        values = [row[key] for row in rows]
        if key in MEANS:
            combined[key] = statistics.mean(values)
        elif key == "confusion":
            first, *others = map(read_confusion, values)
            table = sum(others, first)
            combined[key] = plain_confusion(table.coalesce() if table.is_sparse else table)
        elif key == "converged":
            combined[key] = all(values)
        else:
            alike = not isinstance(first, list) and values == [first] * len(values)
            combined[key] = first if alike else values
    accuracies = [row["accuracy"] for row in rows]
    return combined | {
        "spread": statistics.stdev(accuracies),
        "accuracy_by_seed": accuracies,
        "seeds": list(seeds),
    }


def _knn(
    train: Tensor, test: Tensor, bank: Tensor, data: Dataset, raw_pixels: bool
) -> dict[str, Any]:
    """Measure nearest neighbours among the training images `bank` (int64), by features (N, D) and by pixels."""
    labels, truth = data.train.labels[bank], data.test.labels
    figures = {"accuracy": knn_accuracy(train[bank], labels, test, truth)}
    if raw_pixels:
        pixels = pixel_features(data.train.images, bank), pixel_features(data.test.images)
        figures["raw_pixel_accuracy"] = knn_accuracy(pixels[0], labels, pixels[1], truth)
    return figures | {
        "k": min(K, len(bank)),
        "temperature": TEMPERATURE,
        "bank": len(bank),
        "queries": len(truth),
    }


def _linear(
    train: Tensor,
    test: Tensor,
    used: Tensor,
    data: Dataset,
    layers: Sequence[int],
    seed: int,
    options: Options,
) -> tuple[dict[str, Any], Tensor]:
    """Fit a linear probe to the features (layers, N, D) of the training images `used`; return figures and test logits."""
    labels, classes = data.train.labels[used], len(data.train.class_names)
    if options.held_out is None:
        held_out = spread_over_classes(
            labels, min(options.holdout, len(used) // 2), seed, "holdout"
        )
    else:
        held_out = options.held_out[used]
    features = train if len(used) == train.shape[1] else train[:, used]  # no copy if all are used
    probe = linear_probe(features, labels, test, held_out, classes, options.l2_grid)
    return {
        **classification_metrics(probe.logits, data.test.labels),
        "labels": len(used),
        "held_out": int(held_out.sum()),
        "layer": layers[probe.layer],
        "strength": probe.strength,
        "converged": probe.converged,
        "held_out_accuracy_by_layer": [accuracy for accuracy, _ in probe.held_out],
    }, probe.logits
