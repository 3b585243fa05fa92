"""`vit evaluate`: what a pretrained model is worth, measured in minutes, without a training run of its own."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor

from vit import __version__
from vit.checkpoints import load_trained
from vit.checkpoints.native import fingerprint
from vit.config import ConfigError, DataConfig, TrainConfig
from vit.data import Dataset, load_data
from vit.data.augment import evenly_spaced
from vit.data.subsets import spread_over_classes
from vit.device import Compute, choose_compute, device_name
from vit.errors import UserError, one_line
from vit.evaluate.classification import accuracy, head_logits, worth
from vit.evaluate.features import Prepare, encoder_features, pixel_features
from vit.evaluate.neighbours import TEMPERATURE, K, neighbour_accuracy
from vit.evaluate.probe import linear_probe
from vit.evaluate.reconstruction import score_reconstruction
from vit.mae import MaskedAutoencoder, Model
from vit.masking import NOISE, num_keep
from vit.runs import aligned, results_lines

METHODS = ("knn", "linear", "reconstruction", "head")
RATIOS = (0.5, 0.75, 0.9)
MEANS = ("accuracy", "raw_pixel_accuracy", "cross_entropy", "expected_calibration_error")
"""What is averaged over seeds."""


class EvaluationError(UserError):
    """A checkpoint and data that cannot be measured so; the message is one line."""


@dataclass(frozen=True)
class Measure:
    """What is asked of `vit evaluate`.

    Attributes:
        methods: of METHODS; empty for all that apply.
        every_layer: probe each layer, and choose the best one on held-out training images.
        labels: share of the training images whose labels may be used, by neighbours and probe, above 0 and at most 1.
        holdout: training images that choose the probe's layer and regularisation; at most half of those with labels.
        bank: of those, images that nearest neighbours search, spread evenly; 0: all.
        seeds: of the two subsets; with several, figures are means over them. Neighbours that may use all labels have none.
        flip: the head sees each image and its mirror image too; reported apart.
        device: "auto", "cpu", "cuda" or "mps".
        threads: on the CPU; 0: torch's choice.
    """

    methods: tuple[str, ...] = ()
    every_layer: bool = False
    labels: float = 1.0
    holdout: int = 5000
    bank: int = 0
    seeds: tuple[int, ...] = (0,)
    flip: bool = False
    device: str = "auto"
    threads: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came out.

    Attributes:
        results: plain values for JSON: every figure, and what is needed to measure it again.
        logits: (N, classes) of the test images, by the head or else the linear probe, one seed's after the other; None
            where neither was measured.
        labels: int64 (N,), of the test images, likewise.
        class_names: one a class.
        classifier: what made the logits.
    """

    results: dict[str, Any]
    logits: Tensor | None
    labels: Tensor
    class_names: tuple[str, ...]
    classifier: str


def evaluate(checkpoint: str, config: DataConfig, asked: dict[str, Any], measure: Measure) -> Outcome:
    """Measure a checkpoint on a data set.

    Args:
        checkpoint: as for `load_model`.
        config: the data.
        asked: keyword arguments of `load_model`.
        measure: what to measure, and how.

    Raises:
        EvaluationError: nothing of what was asked can be measured here.
    """
    model = load_trained(checkpoint, **asked)
    origin, encoder = model.origin, model.encoder
    compute = choose_compute(TrainConfig(device=measure.device, precision="fp32", threads=measure.threads))  # type: ignore[arg-type]
    try:
        data = load_data(config, origin.image_size)
    except ConfigError as error:
        raise EvaluationError(str(error).replace("data.val_size", "--tuning")) from error
    methods = _applicable(model, data, measure)
    model.to(compute.device)
    prepare, train, test = origin.inputs, data.train, data.test
    results: dict[str, Any] = {
        "checkpoint": origin.source,
        "fingerprint": fingerprint(model),
        "trained_on": origin.data,
        "data": {"name": data.name, "source": data.source, "train_images": len(train), "test_images": len(test),
                 "tested_on": data.tested_on, "stamp": data.stamp, "warning": data.warning},
        "settings": asdict(measure),
        "note": "",
    }  # fmt: skip
    if measure.labels < 1 and _was_taught(model, data):
        results["note"] = (
            "this model has been taught classes, perhaps by more labels: it does not show what these few give"
        )
    seconds: dict[str, float] = {}
    logits, classifier = None, ""
    if "knn" in methods or "linear" in methods:
        since = time.perf_counter()
        depth = len(encoder.blocks)
        layers = list(range(depth)) if measure.every_layer else [depth - 1]
        features = [encoder_features(encoder, part.images, prepare, compute, layers) for part in (train, test)]
        seconds["features"] = time.perf_counter() - since
        count = max(1, round(measure.labels * len(train)))
        used = [spread_over_classes(train.labels, count, seed, "labels").nonzero()[:, 0] for seed in measure.seeds]
    for method in methods:
        since = time.perf_counter()
        if method == "knn":
            drawn = used if measure.labels < 1 else used[:1]  # of all labels there is one choice
            banks = [part[evenly_spaced(len(part), measure.bank)] for part in drawn]
            rows = [_neighbours(features[0][-1], features[1][-1], bank, data) for bank in banks]
            results["knn"] = over_seeds(rows, measure.seeds)
        elif method == "linear":
            probes = [
                _probe(features[0], features[1], part, data, layers, measure.holdout, seed)
                for part, seed in zip(used, measure.seeds, strict=True)
            ]
            results["linear"] = over_seeds([row for row, _ in probes], measure.seeds)
            logits = torch.cat([found for _, found in probes])
            classifier = "a linear probe of frozen features"
        elif method == "reconstruction":
            assert model.decoder is not None
            results["reconstruction"] = _reconstruction(model, data, prepare, compute)
        else:
            logits = head_logits(encoder, test.images, prepare, compute)
            results["head"] = worth(logits, test.labels) | {"classes_named": bool(origin.class_names)}
            if measure.flip:
                flipped = head_logits(encoder, test.images, prepare, compute, flip=True)
                results["head"]["accuracy_with_flip"] = accuracy(flipped, test.labels)
            classifier = "the model's own head"
        seconds[method] = time.perf_counter() - since
    results |= {
        "seconds": seconds,
        "device": device_name(compute.device),
        "threads": torch.get_num_threads(),
        "versions": {
            "vit-patch-trainer": __version__, "torch": str(torch.__version__), "torchvision": torchvision.__version__,
            "python": sys.version.split()[0],
        },
    }  # fmt: skip
    labels = test.labels if logits is None else test.labels.repeat(len(logits) // len(test))
    return Outcome(results, logits, labels, test.class_names, classifier)


def describe(results: dict[str, Any]) -> list[str]:
    """The figures in lines for people."""
    data = results["data"]
    count = f"{data['train_images']:,} training and {data['test_images']:,} {data['tested_on']}"
    lines = [f"{one_line(data['name'])}: {count}, stamp {data['stamp']}"]
    if data["warning"]:
        lines.append(f"WARNING: {one_line(data['warning'])}")
    if results["note"]:
        lines.append(f"note: {results['note']}")
    lines += aligned(results_lines(results))
    spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in results["seconds"].items())
    return [*lines, f"on {results['device']}, threads {results['threads']}: {spent}"]


def caption(outcome: Outcome) -> str:
    """What the pictures show, for under a title."""
    data = outcome.results["data"]
    found = outcome.results.get("head") or outcome.results["linear"]
    images = f"{data['name']}, {data['test_images']:,} {data['tested_on']}"
    name, seeds = Path(outcome.results["checkpoint"]).name, len(found.get("seeds", [0]))
    together = f", {seeds} seeds together" if seeds > 1 else ""
    return f"{name} · {outcome.classifier} · {images} · accuracy {found['accuracy']:.2%}{together}"


def _was_taught(model: Model, data: Dataset) -> bool:
    """Whether a model has been taught as many classes as this data has, perhaps those of its training images.

    What counts is the head of its checkpoint, also where it was left out in loading.
    """
    own = model.origin.details.get("encoder")
    classes = own.get("num_classes") if isinstance(own, dict) else model.encoder.config.num_classes
    return classes == len(data.test.class_names) > 0


def _applicable(model: Model, data: Dataset, measure: Measure) -> list[str]:
    """The methods that were asked for, or all that apply, in the order of METHODS.

    Raises:
        EvaluationError: one that was asked for does not apply, or none does.
    """
    asked, classes = measure.methods, model.encoder.config.num_classes
    labelled = data.train.labelled and data.test.labelled
    names = len(data.test.class_names)
    if data.held_out and _was_taught(model, data) and not model.origin.was_tested_on(data.test.stamp):
        ways = "train it with data.val_size, as many and with the same data.subset_seed"
        raise EvaluationError(f"this model may have been taught these {len(data.test):,} images' classes; {ways}")
    head = f"this model has a head of {classes} classes, {data.name} {names}"
    if classes and classes == names:
        head, theirs = "", model.origin.class_names
        if theirs and theirs != data.test.class_names:
            head = f"the classes of this model ({', '.join(theirs[:3])}, ...) are not those of {data.name}"
    missing = "" if model.decoder is not None else "this model has no decoder"
    if not missing and math.prod(model.encoder.patch_embed.grid_size) < 2:
        missing = "this model has one patch: none to hide and one to see"
    hindrance = {
        "knn": "" if labelled else f"{data.name} has no labels",
        "linear": "" if labelled else f"{data.name} has no labels",
        "reconstruction": missing,
        "head": head,
    }
    for method in asked:
        if hindrance[method]:
            raise EvaluationError(f"--method {method}: {hindrance[method]}")
    methods = [method for method in METHODS if method in (asked or METHODS) and not hindrance[method]]
    if not methods:
        raise EvaluationError(f"nothing can be measured: {'; '.join(why for why in hindrance.values() if why)}")
    if measure.flip and "head" not in methods:
        raise EvaluationError(f"--flip: is about a model's own head; {hindrance['head']}")
    return methods


def over_seeds(rows: list[dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """What was found with several seeds, as one.

    Args:
        rows: of each seed, with "accuracy".
        seeds: as many, or more where only the first was needed.

    Returns:
        Of a single row, that row. Else means of what MEANS names, with "spread" (standard deviation) and "accuracy_by_seed";
        the sum of the confusions; of lists a list with each seed's; of all else the value where it is one, or such a list.
    """
    if len(rows) == 1:
        return rows[0]
    found: dict[str, Any] = {}
    for key in rows[0]:
        values = [row[key] for row in rows]
        if key in MEANS:
            found[key] = statistics.mean(values)
        elif key == "confusion":
            found[key] = torch.tensor(values).sum(0).tolist()
        elif key == "converged":
            found[key] = all(values)
        else:
            alike = all(value == values[0] for value in values) and not isinstance(values[0], list)
            found[key] = values[0] if alike else values
    each = [row["accuracy"] for row in rows]
    return found | {"spread": statistics.stdev(each), "accuracy_by_seed": each, "seeds": list(seeds)}


def _neighbours(bank: Tensor, queries: Tensor, chosen: Tensor, data: Dataset) -> dict[str, Any]:
    labels, truth = data.train.labels[chosen], data.test.labels
    pixels = pixel_features(data.train.images, chosen), pixel_features(data.test.images)
    return {
        "accuracy": neighbour_accuracy(bank[chosen], labels, queries, truth),
        "raw_pixel_accuracy": neighbour_accuracy(pixels[0], labels, pixels[1], truth),
        "k": K,
        "temperature": TEMPERATURE,
        "bank": len(chosen),
    }


def _probe(
    train: Tensor, test: Tensor, used: Tensor, data: Dataset, layers: Sequence[int], most_held_out: int, seed: int
) -> tuple[dict[str, Any], Tensor]:
    labels, classes = data.train.labels[used], len(data.train.class_names)
    holdout = min(most_held_out, len(used) // 2)
    held_out = spread_over_classes(labels, holdout, seed, "holdout")
    features = train if len(used) == train.shape[1] else train[:, used]  # all of them need no copy
    found = linear_probe(features, labels, test, held_out, classes)
    return {
        **worth(found.logits, data.test.labels),
        "labels": len(used),
        "held_out": holdout,
        "layer": layers[found.layer],
        "strength": found.strength,
        "converged": found.converged,
        "held_out_accuracy_by_layer": [accuracy for accuracy, _ in found.held_out],
    }, found.logits


def _reconstruction(
    model: MaskedAutoencoder, data: Dataset, prepare: Prepare, compute: Compute
) -> list[dict[str, Any]]:
    """The masked loss by kind and ratio of the mask, beside the baselines that learn nothing."""
    rows, columns = model.encoder.patch_embed.grid_size
    # On a small grid, some ratios hide equally many patches: each number of hidden ones once, by its own share.
    hidden = {rows * columns - num_keep(rows * columns, ratio) for ratio in RATIOS}
    found = []
    for kind in NOISE:
        for share in sorted(count / (rows * columns) for count in hidden):
            scores = score_reconstruction(model, data.test.images, prepare, kind, share, compute)
            found.append({"mask": kind, "ratio": share, "loss": scores.model,
                          "mean_of_visible_patches": scores.mean_visible,
                          "nearest_visible_patch": scores.nearest_visible})  # fmt: skip
    return found
