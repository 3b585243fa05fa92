"""What a run's scores are compared with: networks that this run has not trained, image by image.

`vit train` measures it after the run, so that the training itself needs no other model. Some images
are enough and keep it short; all networks see the same ones.
"""

from __future__ import annotations

import math
from typing import Any, cast

from torch import Tensor

from vit.data.draws import seeded_weights
from vit.data.images import evenly_spaced
from vit.encoder import VisionTransformer
from vit.evaluation.features import K, Prepare, encoder_features, knn_correct, pixel_features
from vit.evaluation.reconstruction import reconstruction_losses
from vit.mae import MaskedAutoencoder, Model
from vit.training.run import Run

MOST = 1000
"""Images to search, and images to classify or to fill in, at the most."""
NO_LABELS = "the images have no labels: put them into class folders to measure nearest neighbours"
ONE_CLASS = "the images have one class: nearest neighbours tell two or more apart"


def measure_baselines(run: Run, shipped: Model | None = None) -> dict[str, Any]:
    """Compare a trained model with others on some test images, by the measures of its objective.

    Args:
        run: at its last step.
        shipped: a loaded model that this run has not trained, to be measured too.

    Returns:
        Plain values for summary.json, by measure: see `compare_neighbours` and `compare_losses`.
    """
    # What the objective measures, as far as the images allow
    compared: dict[str, Any] = {}
    measures = run.objective.measures
    if "reconstruction" in measures:
        compared["reconstruction"] = compare_losses(run)
    if "knn" in measures:
        if run.data.has_classes:
            compared["knn"] = compare_neighbours(run, shipped)
        else:
            reason = ONE_CLASS if run.data.train.class_names else NO_LABELS
            compared["knn"] = {"skipped": reason}
    return compared


def compare_neighbours(run: Run, shipped: Model | None = None) -> dict[str, Any]:
    """Classify some images by nearest neighbours, in features of several networks and in pixels.

    Returns:
        queries, bank: the number of images classified, and of those searched.
        k: neighbours.
        shipped: the name of that model; "" without one.
        correct: the number of images that are right, by "model", "raw_pixels", "untrained" and
            perhaps "shipped".
        pairs: for each but the model, [images that only the model has right, images that only the
            baseline has right].
    """
    # The images: as in the run's own measurement, but fewer
    train = run.data.train
    test = run.data.test
    most = min(run.config.run.knn_images or MOST, MOST)
    bank_indices = evenly_spaced(len(train), most)
    query_indices = evenly_spaced(len(test), MOST)
    images = (train.images[bank_indices], test.images[query_indices])
    labels = (train.labels[bank_indices], test.labels[query_indices])

    # What each network makes of them
    encoder = run.result.encoder
    prepare = run.prepare
    networks = 2
    if shipped is not None:
        networks = 3
    features = {
        "model": features_of(run, encoder, images, prepare, f"model, 1 of {networks}"),
        "raw_pixels": (pixel_features(images[0]), pixel_features(images[1])),
        "untrained": features_of(
            run, untrained(run), images, prepare, f"untrained network, 2 of {networks}"
        ),
    }
    shipped_name = ""
    if shipped is not None:
        shipped_name = str(shipped.origin.source)
        features["shipped"] = features_of(
            run, shipped.encoder, images, shipped.origin.inputs, f"{shipped_name}, 3 of {networks}"
        )

    # Right or wrong, image by image
    correct = {}
    for name, (bank, queries) in features.items():
        correct[name] = knn_correct(bank, labels[0], queries, labels[1], device=run.compute.device)
    pairs = {}
    for name, baseline in correct.items():
        if name != "model":
            only_model = int((correct["model"] & ~baseline).sum())
            only_baseline = int((baseline & ~correct["model"]).sum())
            pairs[name] = [only_model, only_baseline]

    return {
        "queries": len(query_indices),
        "bank": len(bank_indices),
        "k": min(K, len(bank_indices)),
        "shipped": shipped_name,
        "correct": {name: int(right.sum()) for name, right in correct.items()},
        "pairs": pairs,
    }


def features_of(
    run: Run,
    encoder: VisionTransformer,
    images: tuple[Tensor, Tensor],
    prepare: Prepare,
    name: str,
) -> tuple[Tensor, Tensor]:
    """Return an encoder's features of two sets of images: (N, D) and (M, D).

    Args:
        name: of the encoder, for the progress bars.
    """
    encoder = encoder.to(run.compute.device)
    title = f"comparing, {name}"
    bank = encoder_features(encoder, images[0], prepare, run.compute, title=title)[-1]
    title += ", test images"
    queries = encoder_features(encoder, images[1], prepare, run.compute, title=title)[-1]
    return bank, queries


def untrained(run: Run) -> VisionTransformer:
    """Return the run's encoder with the random weights that its seed gives, as at its first step.

    A run that began with another model's weights would have begun with these.
    """
    # As `vit.training.run.setup` does
    with seeded_weights(run.config.train.seed):
        model = run.objective.build_model(run.config, run.result.encoder.config)
    return model.encoder


def compare_losses(run: Run) -> dict[str, Any]:
    """Fill in the same images by the model, and by the guesses that need no model.

    Returns:
        images: their number.
        mean_of_visible_patches, nearest_visible_patch: "mean", by how much the guess's loss is
            above the model's, and its "standard_error", None for fewer than ten images.
    """
    test = run.data.test
    images = test.images[evenly_spaced(len(test), MOST)]
    model = cast(MaskedAutoencoder, run.result)
    mask = run.config.mask
    losses = reconstruction_losses(
        model, images, run.prepare, mask.kind, mask.ratio, run.compute, title="comparing, guesses"
    )

    # The differences image by image: images differ more from each other than the guesses do
    compared: dict[str, Any] = {"images": len(images)}
    of_model = losses.pop("loss")
    for name, of_guess in losses.items():
        differences = of_guess - of_model
        # the spread of fewer than ten images says too little of the next ones
        error = None
        if len(images) >= 10:
            error = float(differences.std()) / math.sqrt(len(images))
        compared[name] = {"mean": float(differences.mean()), "standard_error": error}
    return compared
