"""Measure what a model has learned: `evaluate(model, data, methods, compute)` -> scores.

The one driver of all measurements: at the end of a run, in `vit evaluate`, and in studies.

Throughout this package:
    model, encoder  on the device of `compute`; put into eval mode, and back afterwards
    images          uint8 (N, C, h, w), of any size
    prepare         uint8 (B, C, h, w) -> the model's input (B, C, H, W)
    compute         device and precision
    labels          int64 (N,)
    features        float32 (N, D), or (layers, N, D) for several layers, on the CPU
    logits          float32 (N, classes), on the CPU
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor

from vit.data import Dataset, ImageSet
from vit.data.draws import seeded_weights
from vit.data.images import hold_out, in_folds, lowest_of_classes, spread
from vit.device import Compute
from vit.encoder import VisionTransformer
from vit.errors import ConfigError, plural, shortened
from vit.evaluation.classification import (
    accuracy,
    classification_metrics,
    confident_mistakes,
    head_logits,
    why_no_classifier,
)
from vit.evaluation.features import (
    K,
    Prepare,
    encoder_features,
    geometry_of,
    knn_accuracy,
    pixel_features,
)
from vit.evaluation.probe import L2_GRID, linear_probe
from vit.evaluation.reconstruction import score_reconstruction
from vit.isolation import isolated
from vit.mae import MaskedAutoencoder, Model
from vit.masking import NOISE, num_keep
from vit.weights import match_classes

METHODS = ("knn", "linear", "reconstruction", "head")
RATIOS = (0.5, 0.75, 0.9)
SIDE_BY_SIDE = 3
"""The last so many layers, together, are also a choice of the probe."""
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
        cross_validate: measure knn and linear on training and test images together, with all their
            labels: knn leaves each image out, linear a fold at a time. See `in_folds`.
        baselines: also measure what needs no training: knn on raw pixels and in the features of an
            untrained network of the same architecture.
        every_layer: the probe may choose any layer; else the last, or the last SIDE_BY_SIDE.
        holdout: training images to choose the probe's layers and regularisation by; at most half of
            those with labels.
        held_out: bool (N,) over the training images, to hold out these instead; None: `holdout`
            images, spread over classes.
        l2_grid: the probe's regularisations to try.
        masks: (kind, ratio) of the masks for reconstruction; empty: every kind with RATIOS.
        views: of each image for the head, 1 to 6 (`classification.views_of`); the accuracy by
            their mean has a row of its own.
    """

    labels: float = 1.0
    seeds: tuple[int, ...] = (0,)
    knn_images: int = 0
    cross_validate: bool = False
    baselines: bool = True
    every_layer: bool = False
    holdout: int = 5000
    held_out: Tensor | None = None
    l2_grid: tuple[float, ...] = L2_GRID
    masks: tuple[tuple[str, float], ...] = ()
    views: int = 1


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`.

    Attributes:
        scores: by method a row for each protocol, in plain values: see `vit.metrics`.
        seconds: by method, and for "features".
    """

    scores: dict[str, list[Row]]
    seconds: dict[str, float]


@isolated()
def evaluate(
    model: Model,
    data: Dataset,
    methods: Collection[str],
    compute: Compute | None = None,
    options: Options | None = None,
) -> Evaluation:
    """Measure a model on the test images of a data set.

    Args:
        model: its `origin` prepares the images, as every trained or loaded model's does.
        data: with labels for knn, linear and head.
        methods: some of METHODS: nearest neighbours, a linear probe, reconstruction (with a
            decoder), and the model's own head (of a classifier); see `obstacles`.
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
    origin = model.origin
    if data.prepared:
        # the images are cropped already
        origin = replace(origin, crop_share=1.0)
    compute = compute or Compute(next(model.parameters()).device)

    # k-NN searches in some training images; without a probe, the others' features are not needed
    if "knn" in methods and "linear" not in methods and options.labels == 1:
        searched = spread(len(data.train), options.knn_images, data.source)
        if len(searched) < len(data.train):
            data = replace(data, train=data.train.subset(searched))

    # knn and linear share the features, which take longest
    names = [method for method in METHODS if method in methods]
    if "knn" in methods or "linear" in methods:
        names.insert(0, "features")
    # k-NN needs only the last layer's
    depth = len(model.encoder.blocks) if "linear" in methods else 1
    choices = choices_of_layers(depth, options.every_layer)
    measures = _Measures(model, data, origin.inputs, compute, options, choices)
    results = {}
    seconds = {}
    for name in names:
        start = time.perf_counter()
        results[name] = getattr(measures, name)
        seconds[name] = time.perf_counter() - start
    results.pop("features", None)
    return Evaluation(results, seconds)


@dataclass
class _Measures:
    """The features and the rows of each of METHODS, each measured when it is asked for."""

    model: Model
    data: Dataset
    prepare: Prepare
    compute: Compute
    options: Options
    choices: Mapping[str, list[int]]  # of layers, for the probe: see `choices_of_layers`

    @cached_property
    def splits(self) -> list[ImageSet]:
        """Training and test images of knn and linear; if they cross-validate, all images in one."""
        train = self.data.train
        test = self.data.test
        if not self.options.cross_validate:
            return [train, test]
        whole = replace(
            train,
            images=torch.cat([train.images[:], test.images[:]]),
            labels=torch.cat([train.labels, test.labels]),
            image_hashes=torch.cat([train.image_hashes, test.image_hashes]),
            files=(),
        )
        return [whole]

    @cached_property
    def features(self) -> list[Tensor]:
        """The model's own, of all layers from the first that the probe may choose."""
        earliest = min(self.choices.values())[0]
        return self.features_of(self.model.encoder, range(earliest, 0))

    def features_of(self, encoder: VisionTransformer, layers: Sequence[int]) -> list[Tensor]:
        """Return those of each of the splits, (layers, N, D)."""
        return [
            encoder_features(encoder, split.images, self.prepare, self.compute, layers)
            for split in self.splits
        ]

    @cached_property
    def labelled(self) -> list[Tensor]:
        """For each seed the training images whose labels may be used, int64."""
        train = self.splits[0]
        hashes = train.image_hashes
        count = max(1, round(self.options.labels * len(train)))
        return [
            lowest_of_classes(hashes, train.labels, count, "labels", seed).nonzero()[:, 0]
            for seed in self.options.seeds
        ]

    @property
    def knn(self) -> list[Row]:
        """Nearest neighbours by the last layer's features, beside the baselines."""
        train = self.splits[0]
        test = self.splits[-1]

        # of each split, also by what has learned nothing
        features = {"": [split[-1] for split in self.features]}
        if self.options.baselines:
            features["raw_pixels"] = [pixel_features(split.images) for split in self.splits]
            with seeded_weights(0):
                untrained = VisionTransformer(self.model.encoder.config).to(self.compute.device)
            features["untrained"] = [split[-1] for split in self.features_of(untrained, [-1])]

        # an image is not its own neighbour
        hashes = train.image_hashes if self.options.cross_validate else None

        # with all labels, every seed gives the same
        banks = [
            images[spread(len(images), self.options.knn_images, self.data.source)]
            for images in self.labelled[: 1 if self.options.labels == 1 else None]
        ]
        bank = len(banks[0])
        geometry = geometry_of(bank, features[""][0].shape[1])
        found = {}
        for name, of_splits in features.items():
            found[name] = [
                knn_accuracy(
                    of_splits[0][images],
                    train.labels[images],
                    of_splits[-1],
                    test.labels,
                    geometry,
                    device=self.compute.device,
                    image_hashes=hashes,
                )
                for images in banks
            ]
        own = found.pop("")
        protocol = plural(bank, "training image")
        if self.options.cross_validate:
            protocol = f"leave-one-out over {plural(bank, 'image')}"
            bank -= 1
        row: Row = {
            "protocol": f"k {min(K, bank)}, {protocol}, {geometry}",
            "images": len(test),
            "k": min(K, bank),
            "bank": bank,
            "geometry": geometry,
            "accuracy": statistics.mean(own),
            "baselines": {name: statistics.mean(values) for name, values in found.items()},
        }
        return [row | self.spread_of(own)]

    @property
    def linear(self) -> list[Row]:
        """A linear probe for each seed, and for each fold of it, measured together."""
        train = self.splits[0]
        test = self.splits[-1]
        classes = len(train.class_names)
        logits = []
        fits = []
        for images, seed in zip(self.labelled, self.options.seeds, strict=True):
            # the images to fit and those to test
            parts: list[tuple[Tensor, Tensor | slice]] = [(images, slice(None))]
            if self.options.cross_validate:
                folds = in_folds(train.image_hashes, train.labels, seed)
                for_test = [folds == fold for fold in folds.unique()]
                parts = [((~tested).nonzero()[:, 0], tested) for tested in for_test]
            answers = torch.empty(len(test), classes)
            for fitted, tested in parts:
                # images to choose layers and strength by
                labels = train.labels[fitted]
                if self.options.held_out is None:
                    # a copy of a fitted image would choose the probe that knows it by heart
                    share = min(self.options.holdout / len(fitted), 0.5)
                    hashes = train.image_hashes[fitted]
                    held_out = hold_out(hashes, labels, share, "holdout", seed)
                else:
                    held_out = self.options.held_out[fitted]

                # selecting would copy gigabytes, so not if all are selected
                features = self.features[0]
                if len(fitted) < len(train):
                    features = features[:, fitted]
                queries = self.features[-1][:, tested]
                answers[tested], fit = linear_probe(
                    features, labels, queries, held_out, classes, self.choices, self.options.l2_grid
                )
                fits.append(fit)
            logits.append(answers)

        # the answers of all seeds together, and each fit
        protocol = _fits_in_words(fits)
        if self.options.cross_validate:
            protocol = f"{len(parts)}-fold over {plural(len(test), 'image')}: {protocol}"
        row = {
            "protocol": protocol,
            "images": len(test),
            "fits": fits,
            **classification_metrics(torch.cat(logits), test.labels.repeat(len(logits))),
            "baselines": {},
        }
        return [row | self.spread_of([accuracy(answers, test.labels) for answers in logits])]

    def spread_of(self, accuracies: Sequence[float]) -> Row:
        """Return how much the choice of images matters, if there are several seeds."""
        if len(accuracies) == 1:
            return {}
        return {
            "spread": statistics.stdev(accuracies),
            "accuracy_by_seed": accuracies,
            "seeds": list(self.options.seeds),
        }

    @property
    def reconstruction(self) -> list[Row]:
        """The loss on masked patches of test images, under each mask."""
        model = cast(MaskedAutoencoder, self.model)
        images = self.data.test.images

        # every kind with RATIOS; among few patches, several may mask the same number: once, then
        masks = self.options.masks
        if not masks:
            patches = model.encoder.patch_embed.num_patches
            counts = {patches - num_keep(patches, ratio) for ratio in RATIOS}
            masks = tuple(product(NOISE, (count / patches for count in sorted(counts))))
        rows = []
        for kind, ratio in masks:
            losses = score_reconstruction(model, images, self.prepare, kind, ratio, self.compute)
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

    @property
    def head(self) -> list[Row]:
        """A classifier's own head on the test images; with `views`, by their mean, too."""
        test = self.data.test
        # the number of each of the data's classes in the head
        names = self.model.origin.class_names
        order = match_classes(names, test.class_names)
        assumed = ""
        if not names:
            assumed = "its classes have no names; assuming the data's order"
            if order is not None:
                assumed = (
                    "its classes have no names; assuming that the data's names are their numbers"
                )

        views = self.options.views
        encoder = self.model.encoder
        of_views = head_logits(encoder, test.images, self.prepare, self.compute, views)
        of_views = of_views[..., order or slice(None)]
        logits = of_views[0]
        counts = test.labels.bincount()
        row = {
            "protocol": assumed,
            "images": len(test),
            **classification_metrics(logits, test.labels),
            "baselines": {"most_common_class": int(counts.max()) / len(test)},
            "mistakes": confident_mistakes(logits, test),
        }
        rows = [row]
        if views > 1:
            mean = accuracy(of_views.mean(0), test.labels)
            rows.append({"protocol": f"{views} views", "images": len(test), "accuracy": mean})
        return rows


def choices_of_layers(depth: int, every_layer: bool) -> dict[str, list[int]]:
    """Return what a probe chooses from: single layers, the last ones side by side.

    Returns:
        By name the layers' indices, which are negative, -1 for the last of `depth`.
    """
    singles = range(-depth if every_layer else -1, 0)
    choices = {f"layer {depth + index}": [index] for index in singles}
    last = [*range(-min(SIDE_BY_SIDE, depth), 0)]
    if depth > 1:
        choices[f"layers {depth + last[0]} to {depth - 1} side by side"] = last
    return choices


def _fits_in_words(fits: Sequence[Row]) -> str:
    """Return how probes were fitted; choices that differ come one after another."""
    each = {}
    for key, form in (("layers", ""), ("strength", ".0e"), ("held_out", ",")):
        each[key] = ", ".join(dict.fromkeys(format(fit[key], form) for fit in fits))
    words = (
        f"{plural(fits[0]['labels'], 'label')}, {each['layers']}; L2 {each['strength']}, "
        f"chosen on {each['held_out']} held-out training images"
    )
    if not all(fit["converged"] for fit in fits):
        words += "; the fit has not converged"
    return words


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
    elif encoder.patch_embed.num_patches < 2:
        reasons["reconstruction"] = "this model has one patch; masking needs at least two"

    # the head must choose between the classes of this data
    own_names = model.origin.class_names
    classes = encoder.config.num_classes
    reason = why_no_classifier(model)
    if reason:
        reasons["head"] = reason
    elif classes != len(names):
        reasons["head"] = f"this model has a head of {classes} classes, {data.name} {len(names)}"
    elif own_names and match_classes(own_names, names) is None:
        own = shortened(", ".join(own_names), 40)
        reasons["head"] = f"the classes of this model ({own}) are not those of {data.name}"
    return reasons
