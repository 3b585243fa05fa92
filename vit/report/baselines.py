"""What a run's scores are compared with: networks that this run has not trained, image by image.

`vit train` measures it after the run, so that the training itself needs no other model. Some images
are enough and keep it short; all networks see the same ones.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from vit.data.draws import seeded_weights
from vit.data.images import evenly_spaced
from vit.encoder import VisionTransformer
from vit.evaluate.features import Prepare, batches, encoder_features, pixel_features
from vit.evaluate.knn import K, knn_correct
from vit.evaluate.reconstruction import fixed_mask, mean_visible, nearest_visible
from vit.inputs import to_float
from vit.isolation import eval_mode
from vit.mae import MaskedAutoencoder, Model
from vit.training.run import Run

MOST = 1000
"""Images to search, and images to classify or to fill in, at the most."""
OWN_IMAGES = ("folder", "dataset")
"""Values of data.source whose images no model of the package has seen: one can be a baseline."""
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
        if run.data.train.has_classes and run.data.test.has_classes:
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
    measurable = train.measurable()
    bank_indices = measurable[evenly_spaced(len(measurable), most)]
    query_indices = evenly_spaced(len(test), MOST)
    images = (train.images[bank_indices], test.images[query_indices])
    labels = (train.labels[bank_indices], test.labels[query_indices])

    # What each network makes of them
    encoder = run.result.encoder
    prepare = prepare_for(run)
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


def prepare_for(run: Run) -> Prepare:
    """Return what maps uint8 images (B, C, h, w) to the run's input (B, C, H, W)."""
    return lambda images: run.normalize(to_float(images, run.config.model.image_size_2d))


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


@torch.no_grad()
def compare_losses(run: Run) -> dict[str, Any]:
    """Fill in the same images by the model, and by the guesses that need no model.

    Returns:
        images: their number.
        mean_of_visible_patches, nearest_visible_patch: "mean", by how much the guess's loss is
            above the model's, and its "standard_error", None for a single image.
    """
    # The images
    model = cast(MaskedAutoencoder, run.result)
    test = run.data.test
    images = test.images[evenly_spaced(len(test), MOST)]
    mask_kind = run.config.mask.kind
    grid_size = run.config.model.grid_size

    # The loss of each image, in batches: (B,)
    losses: dict[str, list[Tensor]] = {"model": [], "mean_of_visible_patches": []}
    losses["nearest_visible_patch"] = []
    start = 0
    for inputs in batches(images, prepare_for(run), run.compute, "comparing, guesses"):
        mask = fixed_mask(mask_kind, start, len(inputs), grid_size, run.config.mask.ratio)
        mask = mask.to(run.compute.device)
        with eval_mode(model), run.compute.autocast():
            prediction = model(inputs, mask)  # (B, L, P)
        targets = model.targets(inputs)  # (B, L, P)
        # What the model fills in, and the guesses
        losses["model"].append(loss_by_image(prediction, targets, mask.mask))
        guess = mean_visible(targets, mask)
        losses["mean_of_visible_patches"].append(loss_by_image(guess, targets, mask.mask))
        guess = nearest_visible(targets, mask, grid_size)
        losses["nearest_visible_patch"].append(loss_by_image(guess, targets, mask.mask))
        start += len(inputs)

    # The differences image by image: images differ more from each other than the guesses do
    compared: dict[str, Any] = {"images": len(images)}
    of_model = torch.cat(losses.pop("model"))
    for name, parts in losses.items():
        differences = torch.cat(parts) - of_model
        error = None
        if len(images) > 1:
            error = float(differences.std()) / math.sqrt(len(images))
        compared[name] = {"mean": float(differences.mean()), "standard_error": error}
    return compared


def loss_by_image(prediction: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Return the mean squared error over the masked patches of each image: (B,).

    Args:
        prediction, targets: (B, L, P).
        mask: (B, L), 1 = masked.
    """
    error = (prediction.float() - targets.float()).square().mean(dim=-1)  # (B, L)
    return ((error * mask).sum(1) / mask.sum(1)).cpu()
