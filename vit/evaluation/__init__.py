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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from vit.data import Dataset, ImageSet
from vit.data.draws import seeded_weights
from vit.data.images import hold_out, spread, spread_over_classes
from vit.device import Compute
from vit.encoder import VisionTransformer
from vit.errors import ConfigError, plural
from vit.evaluation.classification import (
    accuracy,
    classification_metrics,
    confident_mistakes,
    head_logits,
    plain_confusion,
    read_confusion,
    reliability,
)
from vit.evaluation.features import K, Prepare, encoder_features, knn_accuracy, pixel_features
from vit.evaluation.probe import L2_GRID, linear_probe
from vit.evaluation.reconstruction import score_reconstruction
from vit.inputs import Images
from vit.isolation import isolated
from vit.mae import MaskedAutoencoder, Model
from vit.masking import NOISE, num_keep
from vit.weights import match_classes

METHODS = ("knn", "linear", "reconstruction", "head")
RATIOS = (0.5, 0.75, 0.9)
Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """How to measure.

    Attributes:
        labels: share of the training images whose labels knn and linear may use, above 0 and at
            most 1.
        seeds: of that subset and of `holdout`; with several, scores are means over them.
            With all labels, knn has one result.
        knn_images: training images in which knn searches, spread over all; 0: all.
        baselines: also measure what needs no training: knn on raw pixels and in the features of an
            untrained network of the same architecture.
        every_layer: probe every layer and choose the best on held-out training images; else only
            the last.
        holdout: training images to choose the probe's layer and regularisation by; at most half of
            those with labels.
        held_out: bool (N,) over the training images, to hold out these instead; None: `holdout`
            images, spread over classes.
        l2_grid: the probe's regularisations to try.
        masks: (kind, ratio) of the masks for reconstruction; empty: every kind with RATIOS.
        flip: also measure the head on each image together with its mirror image, in a row of its
            own.
    """

    labels: float = 1.0
    seeds: tuple[int, ...] = (0,)
    knn_images: int = 0
    baselines: bool = True
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
        scores: by method a row for each protocol, in plain values: see `vit.metrics`.
        seconds: by method, and for "features".
    """

    scores: dict[str, list[Row]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Store the seconds that the block takes."""
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


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

    # features of all images, (layers, N, D), which knn and linear share: they take longest
    if "knn" in methods or "linear" in methods:
        layers = range(len(encoder.blocks)) if options.every_layer else [len(encoder.blocks) - 1]
        features_of = partial(encoder_features, encoder, prepare=prepare, compute=compute)
        with evaluation.timed("features"):
            train = features_of(data.train.images, layers=layers, title="training images, features")
            test = features_of(data.test.images, layers=layers, title="test images, features")
        labelled = _choose_labelled(data, options)

    if "knn" in methods:
        with evaluation.timed("knn"):
            row = _score_knn(
                encoder, train[-1], test[-1], labelled, data, prepare, compute, options
            )
            evaluation.scores["knn"] = [row]
    if "linear" in methods:
        with evaluation.timed("linear"):
            row = _score_linear(train, test, layers, labelled, data, options)
            evaluation.scores["linear"] = [row]
    if "reconstruction" in methods:
        with evaluation.timed("reconstruction"):
            autoencoder = cast(MaskedAutoencoder, model)
            rows = _score_masks(autoencoder, data.test.images, prepare, compute, options.masks)
            evaluation.scores["reconstruction"] = rows
    if "head" in methods:
        with evaluation.timed("head"):
            rows = _score_head(model, data.test, prepare, compute, options.flip)
            evaluation.scores["head"] = rows
    return evaluation


# ---- The methods, one by one ---------------------------------------------------------------------


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
    encoder: VisionTransformer,
    train: Tensor,
    test: Tensor,
    labelled: Sequence[Tensor],
    data: Dataset,
    prepare: Prepare,
    compute: Compute,
    options: Options,
) -> Row:
    """Measure nearest neighbours by features and by the baselines, over seeds.

    Args:
        train, test: the last layer's features, (N, D) and (M, D).
    """
    # what has learned nothing: features of some images, (n, D) each
    baselines: dict[str, Callable[[Images], Tensor]] = {}
    if options.baselines:
        with seeded_weights(0):
            untrained = VisionTransformer(encoder.config).to(compute.device)
        baselines["raw_pixels"] = pixel_features
        baselines["untrained"] = lambda images: encoder_features(
            untrained, images, prepare, compute, title="an untrained network, features"
        )[-1]
    test_features = {name: make(data.test.images) for name, make in baselines.items()}

    # with all labels, every seed gives the same
    if options.labels == 1:
        labelled = labelled[:1]
    rows = []
    for images in labelled:
        searched = images[spread(len(images), options.knn_images, data.source)]
        search = partial(
            knn_accuracy,
            train_labels=data.train.labels[searched],
            labels=data.test.labels,
            device=compute.device,
        )
        k = min(K, len(searched))
        row: Row = {
            "protocol": f"k {k}, {plural(len(searched), 'training image')}",
            "images": len(data.test),
            "k": k,
            "bank": len(searched),
            "accuracy": search(train_features=train[searched], features=test),
        }
        if baselines:
            bank = data.train.subset(searched).images
            row["baselines"] = {
                name: search(train_features=make(bank), features=test_features[name])
                for name, make in baselines.items()
            }
        rows.append(row)
    return over_seeds(rows, options.seeds)


def _score_linear(
    train: Tensor,
    test: Tensor,
    layers: Sequence[int],
    labelled: Sequence[Tensor],
    data: Dataset,
    options: Options,
) -> Row:
    """Fit a linear probe for each seed; return the scores over seeds.

    Args:
        train, test: features, (layers, N, D) and (layers, M, D).
        layers: the numbers of the layers.
    """
    rows = []
    parts = []
    for images, seed in zip(labelled, options.seeds, strict=True):
        # images to choose layer and strength by
        labels = data.train.labels[images]
        if options.held_out is None:
            most = min(options.holdout, len(images) // 2)
            held_out = _hold_out(labels, data.train.image_hashes[images], most, seed)
        else:
            held_out = options.held_out[images]

        # selecting would copy gigabytes, so not if all are selected
        features = train
        if len(images) != train.shape[1]:
            features = train[:, images]
        classes = len(data.train.class_names)
        logits, found = linear_probe(features, labels, test, held_out, classes, options.l2_grid)
        parts.append(logits)
        rows.append(
            {
                "images": len(data.test),
                **classification_metrics(logits, data.test.labels),
                "labels": len(images),
                "held_out": int(held_out.sum()),
                **found,
                "layer": layers[found["layer"]],
            }
        )
    row = over_seeds(rows, options.seeds)
    # the bins of all seeds together
    labels = data.test.labels.repeat(len(parts))
    row["reliability"] = reliability(torch.cat(parts), labels)[0]
    return {"protocol": _probe_in_words(row), **row}


def _hold_out(labels: Tensor, image_hashes: Tensor, most: int, seed: int) -> Tensor:
    """Hold out up to `most` labelled images, spread over the classes: bool (N,)."""

    def choose(among: Tensor, most: int) -> Tensor:
        return spread_over_classes(labels[among], most, seed, "holdout")

    # a copy of a fitted image would choose the probe that knows it by heart
    return hold_out(image_hashes, most, choose)


def _probe_in_words(row: Row) -> str:
    """Return how a probe was fitted; choices of several seeds come one after another."""
    words = f"{plural(row['labels'], 'label')}, layer {_each(row['layer'])}"
    if "strength" in row:
        words += f"; L2 {_each(row['strength'], '.0e')}, chosen on {_each(row['held_out'], ',')}"
        words += " held-out training images"
    if not row.get("converged", True):
        words += "; the fit has not converged"
    return words


def _each(choice: Any, form: str = "") -> str:
    """Return a choice as text, or those of several seeds."""
    choices = choice if isinstance(choice, list) else [choice]
    return ", ".join(format(value, form) for value in choices)


def _score_masks(
    model: MaskedAutoencoder,
    images: Images,
    prepare: Prepare,
    compute: Compute,
    masks: Sequence[tuple[str, float]],
) -> list[Row]:
    """Measure the reconstruction of test images under each mask."""
    rows = []
    for kind, ratio in masks or standard_masks(math.prod(model.encoder.patch_embed.grid_size)):
        losses = score_reconstruction(model, images, prepare, kind, ratio, compute)
        rows.append(
            {
                "protocol": f"{kind} mask, {ratio:.0%} masked",
                "images": len(images),
                "mask": kind,
                "ratio": ratio,
                "loss": losses.pop("loss"),
                "baselines": losses,
            }
        )
    return rows


def standard_masks(patches: int) -> list[tuple[str, float]]:
    """Return (kind, ratio) for every kind of mask with RATIOS.

    Among few patches, ratios may mask the same number; it comes once, by its exact ratio.
    """
    counts = {patches - num_keep(patches, ratio) for ratio in RATIOS}
    ratios = sorted(count / patches for count in counts)
    return [(kind, ratio) for kind in NOISE for ratio in ratios]


def _score_head(
    model: Model, test: ImageSet, prepare: Prepare, compute: Compute, flip: bool
) -> list[Row]:
    """Measure a classifier's own head on the test images, in a row for each protocol."""
    order, assumed = _class_order(model, test.class_names)
    encoder = model.encoder
    logits = head_logits(encoder, test.images, prepare, compute)[:, order]
    counts = test.labels.bincount()
    row = {
        "protocol": assumed,
        "images": len(test),
        **classification_metrics(logits, test.labels),
        "baselines": {"most_common_class": int(counts.max()) / len(test)},
        "mistakes": confident_mistakes(logits, test),
    }
    rows = [row]
    if flip:
        mirrored = head_logits(encoder, test.images, prepare, compute, flip=True)[:, order]
        mean = {"protocol": "with mirror images", "images": len(test)}
        rows.append({**mean, "accuracy": accuracy(mirrored, test.labels)})
    return rows


def _class_order(model: Model, names: Sequence[str]) -> tuple[list[int] | slice, str]:
    """Return the number of each of the data's classes in a head, and what this assumes, in words.

    A model that was not loaded has been trained on this data.
    """
    if model.origin is None or model.origin.class_names == tuple(names):
        return slice(None), ""
    if model.origin.class_names:
        order = match_classes(model.origin.class_names, names)
        return order or slice(None), ""
    # classes without names may have the data's order, or be its names, which are numbers
    order = match_classes((), names)
    if order is not None:
        return order, "its classes have no names; assuming that the data's names are their numbers"
    return slice(None), "its classes have no names; assuming the data's order"


# ---- Over seeds, and what cannot be measured -----------------------------------------------------


def over_seeds(rows: Sequence[Row], seeds: Sequence[int]) -> Row:
    """Combine the rows of knn or linear over several seeds; a single row stays as it is.

    Measures become means, with the "spread" (standard deviation) of the accuracy; confusions are
    summed; choices that differ become a list.
    """
    if len(rows) == 1:
        return rows[0]
    combined: Row = {}
    for key, first in rows[0].items():
        values = [row[key] for row in rows]
        if key in ("accuracy", "cross_entropy", "expected_calibration_error"):
            combined[key] = statistics.mean(values)
        elif key == "baselines":
            combined[key] = {
                name: statistics.mean(baselines[name] for baselines in values) for name in first
            }
        elif key == "confusion":
            tables = [read_confusion(value) for value in values]
            combined[key] = plain_confusion(sum(tables[1:], tables[0]))
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
