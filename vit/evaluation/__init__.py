"""Measure what a model has learned: `evaluate(model, data, methods, prepare, compute)` -> scores.

The one driver of all measurements: at the end of a run, in `vit evaluate`, and in studies.

Throughout this package:
    model, encoder  on the device of `compute`; put into eval mode, and back afterwards
    images          uint8 (N, C, h, w), of any size
    prepare         uint8 (B, C, h, w) -> the model's input (B, C, H, W)
    compute         device and precision
    batch_size      images at a time
    labels          int64 (N,)
    features        float32 (N, D), or (layers, N, D) for several layers, on the CPU
    logits          float32 (N, classes), on the CPU
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from vit.data import Dataset, ImageSet
from vit.data.images import hold_out, match_classes, spread, spread_over_classes
from vit.device import Compute
from vit.encoder import VisionTransformer
from vit.errors import ConfigError
from vit.evaluation.classification import (
    accuracy,
    classification_metrics,
    head_logits,
    plain_confusion,
    read_confusion,
    reliability,
)
from vit.evaluation.features import (
    TEMPERATURE,
    K,
    Prepare,
    encoder_features,
    knn_accuracy,
    pixel_features,
)
from vit.evaluation.probe import L2_GRID, linear_probe
from vit.evaluation.reconstruction import score_reconstruction
from vit.inputs import Images
from vit.isolation import isolated
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
        labels: share of the training images whose labels knn and linear may use, above 0 and at
            most 1.
        seeds: of that subset and of `holdout`; with several, scores are means over them.
            With all labels, knn has one result.
        knn_images: training images in which knn searches, spread over all; 0: all.
        raw_pixels: also measure knn on raw pixels, the baseline.
        every_layer: probe every layer and choose the best on held-out training images; else only
            the last.
        holdout: training images to choose the probe's layer and regularisation by; at most half of
            those with labels.
        held_out: bool (N,) over the training images, to hold out these instead; None: `holdout`
            images, spread over classes.
        l2_grid: the probe's regularisations to try.
        masks: (kind, ratio) of the masks for reconstruction; empty: every kind with RATIOS.
        flip: also measure the head on each image together with its mirror image; reported
            separately.
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
        scores: plain values by method, as in results.json.
        seconds: by method, and for "features".
        logits: (seeds * N, classes) of the test images from the head, else from the linear probe,
            seed after seed; None if neither was measured.
        classifier: where the logits come from.
    """

    scores: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    logits: Tensor | None = None
    classifier: str = ""


@isolated()
def evaluate(
    model: Model,
    data: Dataset,
    methods: Collection[str],
    prepare: Prepare | None = None,
    compute: Compute | None = None,
    options: Options | None = None,
) -> Evaluation:
    """Measure a model on the test images of a data set.

    Args:
        data: with labels for knn, linear and head.
        methods: some of METHODS: nearest neighbours, a linear probe, reconstruction (with a
            decoder), and the model's own head (of a classifier); see `obstacles`.
        prepare: None: as the model's `origin` does.
        compute: None: in float32, where the model is.

    Raises:
        TrainingError: a feature, logit or loss is nan or infinite.
        UserError: there is no such method, or no or all training images are held out to choose the
            probe.
    """
    unknown = sorted(set(methods) - set(METHODS))
    if unknown:
        raise ConfigError(f"methods are some of {', '.join(METHODS)}, got {', '.join(unknown)}")
    options = options or Options()
    encoder = model.encoder
    prepare = prepare or partial(model.origin.inputs, whole=data.prepared)
    compute = compute or Compute(next(model.parameters()).device)
    evaluation = Evaluation()

    # k-NN searches in some training images; without a probe, the others' features are not needed
    if "knn" in methods and "linear" not in methods and options.labels == 1:
        searched = spread(len(data.train), options.knn_images, data.source)
        if len(searched) < len(data.train):
            data = replace(data, train=data.train.subset(searched))

    # features of all images, which knn and linear share
    if "knn" in methods or "linear" in methods:
        last = len(encoder.blocks) - 1
        layers = [last]
        if options.every_layer:
            layers = list(range(last + 1))
        # measured once, because they take longer than all that is done with them
        with _timed(evaluation, "features"):
            train = encoder_features(
                encoder,
                data.train.images,
                prepare,
                compute,
                layers,
                title="features of training images, 1 of 2",
            )
            test = encoder_features(
                encoder,
                data.test.images,
                prepare,
                compute,
                layers,
                title="features of test images, 2 of 2",
            )
            features = Features(
                train=train,
                test=test,
                layers=layers,
                labelled=_choose_labelled(data, options),
            )

    # nearest neighbours and a linear probe
    if "knn" in methods:
        with _timed(evaluation, "knn"):
            evaluation.scores["knn"] = _score_knn(features, data, compute.device, options)
    if "linear" in methods:
        with _timed(evaluation, "linear"):
            scores, logits = _score_linear(features, data, options)
            evaluation.scores["linear"] = scores
            evaluation.logits = logits
            evaluation.classifier = "a linear probe of frozen features"

    # the masked patches, which only an autoencoder reconstructs
    if "reconstruction" in methods:
        with _timed(evaluation, "reconstruction"):
            autoencoder = cast(MaskedAutoencoder, model)
            evaluation.scores["reconstruction"] = _score_masks(
                autoencoder, data.test.images, prepare, compute, options
            )

    # the head, whose logits count more than a probe's
    if "head" in methods:
        with _timed(evaluation, "head"):
            order = _class_order(model, data.test.class_names)
            scores, logits = _score_head(encoder, data.test, order, prepare, compute, options.flip)
            evaluation.scores["head"] = scores
            evaluation.logits = logits
            evaluation.classifier = "the model's own head"
    return evaluation


@contextmanager
def _timed(evaluation: Evaluation, name: str) -> Iterator[None]:
    """Store the seconds that the block takes."""
    start = time.perf_counter()
    yield
    evaluation.seconds[name] = time.perf_counter() - start


# ---- The methods, one by one ---------------------------------------------------------------------


@dataclass(frozen=True)
class Features:
    """The features that knn and linear measure.

    Attributes:
        train, test: (layers, N, D) and (layers, M, D).
        layers: the numbers of the layers.
        labelled: per seed, int64, the training images whose labels may be used.
    """

    train: Tensor
    test: Tensor
    layers: list[int]
    labelled: list[Tensor]


def _choose_labelled(data: Dataset, options: Options) -> list[Tensor]:
    """Return for each seed the training images whose labels may be used, int64."""
    total = len(data.train)
    if options.labels == 1:
        return [torch.arange(total)] * len(options.seeds)
    # the same share of each class, drawn by the seed
    count = max(1, round(options.labels * total))
    chosen = []
    for seed in options.seeds:
        is_used = spread_over_classes(data.train.labels, count, seed, "labels")
        chosen.append(is_used.nonzero().flatten())
    return chosen


def _score_knn(
    features: Features, data: Dataset, device: torch.device, options: Options
) -> dict[str, Any]:
    """Measure nearest neighbours by the last layer's features, over seeds."""
    # with all labels, every seed gives the same
    labelled = features.labelled
    if options.labels == 1:
        labelled = labelled[:1]
    rows = []
    for images in labelled:
        bank = images[spread(len(images), options.knn_images, data.source)]
        row = _score_bank(
            features.train[-1], features.test[-1], bank, data, device, options.raw_pixels
        )
        rows.append(row)
    return over_seeds(rows, options.seeds)


def _score_bank(
    train: Tensor,
    test: Tensor,
    bank: Tensor,
    data: Dataset,
    device: torch.device,
    raw_pixels: bool,
) -> dict[str, Any]:
    """Measure nearest neighbours among the training images `bank`, by features and by pixels.

    Args:
        train, test: (N, D) and (M, D).
        bank: int64, training images to search.
        device: where to search.
    """
    labels = data.train.labels[bank]
    test_labels = data.test.labels
    search = partial(knn_accuracy, train_labels=labels, labels=test_labels, device=device)
    scores = {"accuracy": search(train_features=train[bank], features=test)}
    # the baseline: what an encoder must beat
    if raw_pixels:
        train_pixels = pixel_features(data.train.images, bank)
        test_pixels = pixel_features(data.test.images)
        scores["raw_pixel_accuracy"] = search(train_features=train_pixels, features=test_pixels)
    return scores | {
        "k": min(K, len(bank)),
        "temperature": TEMPERATURE,
        "bank": len(bank),
        "queries": len(test_labels),
    }


def _score_linear(
    features: Features, data: Dataset, options: Options
) -> tuple[dict[str, Any], Tensor]:
    """Fit a linear probe for each seed; return the scores over seeds, and the test logits."""
    rows = []
    logits = []
    for images, seed in zip(features.labelled, options.seeds, strict=True):
        row, test_logits = _score_probe(features, images, data, seed, options)
        rows.append(row)
        logits.append(test_logits)
    return over_seeds(rows, options.seeds), torch.cat(logits)


def _score_probe(
    features: Features, images: Tensor, data: Dataset, seed: int, options: Options
) -> tuple[dict[str, Any], Tensor]:
    """Fit a linear probe to the training images `images`; return scores and test logits."""
    labels = data.train.labels[images]
    classes = len(data.train.class_names)

    # images to choose layer and strength by
    if options.held_out is None:
        holdout = min(options.holdout, len(images) // 2)

        def choose(among: Tensor, most: int) -> Tensor:
            return spread_over_classes(labels[among], most, seed, "holdout")

        # a copy of a fitted image would choose the probe that knows it by heart
        held_out = hold_out(data.train.image_hashes[images], holdout, choose)
    else:
        held_out = options.held_out[images]

    # selecting would copy gigabytes, so not if all are selected
    train = features.train
    if len(images) != train.shape[1]:
        train = train[:, images]
    logits, found = linear_probe(train, labels, features.test, held_out, classes, options.l2_grid)
    scores = classification_metrics(logits, data.test.labels)
    scores |= {"labels": len(images), "held_out": int(held_out.sum()), **found}
    scores["layer"] = features.layers[found["layer"]]
    return scores, logits


def _score_masks(
    model: MaskedAutoencoder, images: Images, prepare: Prepare, compute: Compute, options: Options
) -> list[dict[str, Any]]:
    """Measure the reconstruction of test images under each mask."""
    masks = options.masks or standard_masks(math.prod(model.encoder.patch_embed.grid_size))
    rows = []
    for kind, ratio in masks:
        losses = score_reconstruction(model, images, prepare, kind, ratio, compute)
        rows.append({"mask": kind, "ratio": ratio, **losses})
    return rows


def _class_order(model: Model, names: Sequence[str]) -> list[int] | None:
    """Return the number of each of the data's classes in a model's head; None if it is the same.

    A model that was not loaded has been trained on this data.
    """
    own_names: Sequence[str] = names
    if model.origin is not None:
        own_names = model.origin.class_names
    order = match_classes(own_names, names)
    # classes without names may be assumed to be in the data's order, which the caller says
    if order is None or order == list(range(len(names))):
        return None
    return order


def _score_head(
    encoder: VisionTransformer,
    test: ImageSet,
    order: list[int] | None,
    prepare: Prepare,
    compute: Compute,
    flip: bool,
) -> tuple[dict[str, Any], Tensor]:
    """Measure a classifier's own head on the test images; return scores and logits.

    Args:
        order: the number of each of the data's classes in the head; None if it is the same.
    """

    def logits_of(flip: bool) -> Tensor:
        logits = head_logits(encoder, test.images, prepare, compute, flip=flip)
        if order is None:
            return logits
        return logits[:, order]

    logits = logits_of(flip=False)
    scores = classification_metrics(logits, test.labels)
    scores["reliability"] = reliability(logits, test.labels)[0]
    if flip:
        scores["accuracy_with_flip"] = accuracy(logits_of(flip=True), test.labels)
    return scores, logits


def over_seeds(rows: list[dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """Combine the scores of knn or linear over several seeds; a single row stays as it is.

    Measures become means, with the "spread" (standard deviation) of the accuracy; confusions are
    summed; choices that differ become a list.
    """
    if len(rows) == 1:
        return rows[0]
    # each key as its meaning demands
    combined: dict[str, Any] = {}
    for key, first in rows[0].items():
        values = [row[key] for row in rows]
        if key in MEANS:
            combined[key] = statistics.mean(values)
        elif key == "confusion":
            combined[key] = _sum_confusions(values)
        elif key == "converged":
            combined[key] = all(values)
        elif not isinstance(first, list) and values == [first] * len(values):
            combined[key] = first
        else:
            combined[key] = values
    # a mean alone would not show how much the choice of images matters
    accuracies = [row["accuracy"] for row in rows]
    return combined | {
        "spread": statistics.stdev(accuracies),
        "accuracy_by_seed": accuracies,
        "seeds": list(seeds),
    }


def _sum_confusions(matrices: list[Any]) -> Any:
    """Sum confusion matrices in plain values."""
    table = read_confusion(matrices[0])
    for matrix in matrices[1:]:
        table = table + read_confusion(matrix)
    # a sum of sparse tables names a cell once for each
    if table.is_sparse:
        table = table.coalesce()
    return plain_confusion(table)


# ---- Around the measurements ---------------------------------------------------------------------


def obstacles(model: Model, data: Dataset) -> dict[str, str]:
    """Return why each of METHODS cannot measure a loaded model on this data; "" if it can."""
    encoder = model.encoder
    names = data.test.class_names
    reasons = dict.fromkeys(METHODS, "")

    # knn and linear need labels of at least two classes
    if not data.has_classes:
        labels = "one class" if names else "no labels"
        reasons["knn"] = f"{data.name} has {labels}"
        reasons["linear"] = reasons["knn"]

    # reconstruction needs a decoder, and a patch to mask beside a visible one
    if model.decoder is None:
        reasons["reconstruction"] = "this model has no decoder"
    elif math.prod(encoder.patch_embed.grid_size) < 2:
        reasons["reconstruction"] = "this model has one patch; masking needs at least two"

    # the head must choose between the classes of this data
    own_names = model.origin.class_names
    classes = encoder.config.num_classes
    if not classes:
        reasons["head"] = "this model has no classification head"
    elif classes != len(names):
        reasons["head"] = f"this model has a head of {classes} classes, {data.name} {len(names)}"
    elif classes == 1 or model.origin.problem_type:
        kind = model.origin.problem_type or "one output"
        reasons["head"] = f"the head of this model is for {kind}, no choice between classes"
    elif own_names and match_classes(own_names, names) is None:
        examples = ", ".join(own_names[:3])
        reasons["head"] = (
            f"the classes of this model ({examples}, ...) are not those of {data.name}"
        )
    return reasons


def standard_masks(patches: int) -> list[tuple[str, float]]:
    """Return (kind, ratio) for every kind of mask with RATIOS.

    Among few patches, ratios may mask the same number; it comes once, by its exact ratio.
    """
    counts = {patches - num_keep(patches, ratio) for ratio in RATIOS}
    ratios = sorted(count / patches for count in counts)
    return [(kind, ratio) for kind in NOISE for ratio in ratios]


def as_summary(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of `evaluate`, with at most one mask, under their names in summary.json."""
    # a classifier, by its head
    summary: dict[str, Any] = {}
    head = scores.get("head")
    if head:
        summary |= {
            "test_accuracy": head["accuracy"],
            "test_loss": head["cross_entropy"],
            "test_calibration_error": head["expected_calibration_error"],
            "test_confusion": head["confusion"],
            "test_reliability": head["reliability"],
        }
        if "accuracy_with_flip" in head:
            summary["test_accuracy_with_flip"] = head["accuracy_with_flip"]

    # a run is measured under its own kind of mask only
    masks = scores.get("reconstruction")
    if masks:
        (row,) = masks
        summary |= {
            "test_loss": row["loss"],
            "test_loss_of_baselines": {
                key: row[key] for key in ("mean_of_visible_patches", "nearest_visible_patch")
            },
            "test_mask": {"kind": row["mask"], "ratio": row["ratio"], "fixed": True},
            "neighbours": None,
        }

    # summary.json says whose accuracy it is
    knn = scores.get("knn")
    if knn:
        names = {"accuracy": "encoder_accuracy", "raw_pixel_accuracy": "raw_pixel_accuracy"}
        keys = [key for key in ("k", "bank", "queries", *names) if key in knn]
        summary["neighbours"] = {names.get(key, key): knn[key] for key in keys}
    return summary
