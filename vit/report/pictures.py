"""The pictures in a run's folder, drawn at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from vit import figures as draw
from vit.config import flat_settings
from vit.encoder import VisionTransformer, eval_mode
from vit.evaluate.classification import read_confusion
from vit.evaluate.reconstruction import fixed_mask, reconstruct
from vit.figures import save_figure
from vit.figures.dynamics import QUANTITIES
from vit.figures.style import Figure
from vit.inputs import to_float
from vit.interpret import AttentionMaps, geometry_of
from vit.mae import MaskedAutoencoder
from vit.report.curves import curves_of
from vit.runs import RunFiles, read_metrics
from vit.training.dynamics import Dynamics, read_dynamics
from vit.training.run import Run

FILLED_IN = 10  # test images in reconstructions.png; for CIFAR-10, one per class
LOOKED_AT = 6  # test images in attention.png
MATRICES: dict[str, tuple[str, ...]] = {
    "W_Q": ("W_Q",),
    "W_K": ("W_K",),
    "W_V": ("W_V",),
    "W_O": ("W_O",),
    "MLP": ("fc1", "fc2"),
    "W_E": ("W_E",),
    "positions": ("pos_embed",),
    "head": ("head",),
}
"""The lines of dynamics.png, and the matrices that each is the mean of."""


def draw_pictures(run: Run, folder: RunFiles, scores: Mapping[str, Any]) -> None:
    """Draw what was measured, attention, curves, and dynamics if recorded, into a run's folder.

    Args:
        run: at its last step.
        folder: with metrics.jsonl, and perhaps dynamics.jsonl.
        scores: what was measured at the end, by its name in summary.json.
    """
    draw_measured(run, folder, scores)
    draw_attention(run, folder)
    draw_curves(run, folder, scores)
    if folder.dynamics.exists():
        draw_dynamics(run, folder)


def caption_of(run: Run) -> str:
    """Return the line below the title of every picture: data, images, epochs."""
    images = f"{len(run.data.train):,} images"
    return f"{run.data.name}, {run.data.tested_on} · {run.config.train.epochs} epochs on {images}"


def draw_measured(run: Run, folder: RunFiles, scores: Mapping[str, Any]) -> None:
    """Draw what the objective measures: reconstructions, or a classifier's mistakes and confidence."""
    measures = run.objective.measures
    if "reconstruction" in measures:
        draw_reconstructions(run, folder)
    if "head" in measures:
        draw_classification(run, folder, scores)


def draw_reconstructions(run: Run, folder: RunFiles) -> None:
    """Draw reconstructions.png: test images, what the model sees of them, and what it fills in."""
    # Fill some test images in
    mask, test = run.config.mask, run.data.test
    shown = test.subset(test.showcase(FILLED_IN))
    fixed = fixed_mask(mask.kind, 0, len(shown), run.config.model.grid_size, mask.ratio)
    model = cast(MaskedAutoencoder, run.result)
    result = reconstruct(model, shown.images[:], run.normalize, fixed, run.compute)

    # The caption
    hidden = int(fixed.mask[0].sum())
    patches = fixed.mask.shape[1]
    how = f"{caption_of(run)} · {mask.kind} mask, {hidden} of {patches} patches hidden"
    if result.from_normalized:
        how += (
            " · the model predicts normalised patches: their brightness and contrast are estimated"
            " from the visible patches around, not taken from the original"
        )
    title = "Filled in from what is visible"
    figure = draw.reconstruction_figure(
        result.original, result.filled, result.hidden, shown.label_names, title, how
    )
    save_figure(figure, folder.reconstructions)


def draw_classification(run: Run, folder: RunFiles, scores: Mapping[str, Any]) -> None:
    """Draw reliability.png (accuracy by confidence) and confusion.png, unless it has too many classes."""
    about = f"{caption_of(run)} · accuracy {scores['test_accuracy']:.2%}"
    bins = scores["test_reliability"]
    error = scores["test_calibration_error"]
    question = "Can its confidence be trusted?"
    save_figure(draw.reliability_figure(bins, error, question, about), folder.reliability)

    table = read_confusion(scores["test_confusion"])
    if not draw.why_not_drawn(len(table)):
        names = run.data.test.class_names
        figure = draw.confusion_figure(table, names, "Confusion matrix", about)
        save_figure(figure, folder.confusion)


def draw_attention(run: Run, folder: RunFiles) -> None:
    """Draw attention.png: where the last layer looks in some test images, head by head."""
    test, encoder = run.data.test, run.result.encoder
    shown = test.subset(test.showcase(LOOKED_AT))
    images = to_float(shown.images[:], run.config.model.image_size_2d)
    looking = last_attention(encoder, run.normalize(images).to(run.compute.device))

    # The mean comes first: it sums up the heads
    names = ["mean of heads", *(f"head {head}" for head in range(looking.maps.shape[1]))]
    maps = _mean_first(looking.maps)
    prefix_mass = _mean_first(looking.prefix_mass)

    # A patch that looks is outlined
    title = f"Where {looking.title}"
    patch = None
    if isinstance(looking.query, tuple):
        patch = looking.query
        title = f"Where {looking.title.removesuffix(' looks')} (outlined) looks"
    last = len(encoder.blocks) - 1
    about = f"{caption_of(run)} · layer {last} of 0 to {last}, whole images"
    labels = shown.label_names
    figure = draw.attention_figure(
        images, maps, names, labels, title, about, masses=prefix_mass, query=patch
    )
    save_figure(figure, folder.attention)


def _mean_first(values: Tensor) -> Tensor:
    """Put the mean of the heads before them: (B, h, ...) -> (B, 1 + h, ...)."""
    return torch.cat([values.mean(dim=1, keepdim=True), values], dim=1)


class LastAttention(NamedTuple):
    """Where the last layer of a model looks in B images.

    Attributes:
        query: the query token, for `AttentionMaps.to_grid`.
        title: the same in words: "the class token looks".
        maps: attention to patches, (B, h, rows, columns).
        prefix_mass: attention to class token and registers, (B, h).
    """

    query: str | tuple[int, int]
    title: str
    maps: Tensor
    prefix_mass: Tensor


def last_attention(encoder: VisionTransformer, inputs: Tensor) -> LastAttention:
    """Return the attention of the most telling query.

    It is that of the patches that a head averages, of the class token, or of the middle patch.

    Args:
        inputs: normalised (B, C, H, W), on the encoder's device. The result is on the CPU.
    """
    row, column = geometry_of(encoder).middle
    query: str | tuple[int, int] = (row, column)
    title = f"the patch in row {row}, column {column} looks"
    if encoder.config.num_classes and encoder.config.global_pool == "avg":
        query = "mean"
        title = "the patches look, on average"
    elif encoder.config.class_token:
        query = "cls"
        title = "the class token looks"
    with eval_mode(encoder), torch.no_grad(), AttentionMaps(encoder, layers=[-1]) as attention:
        encoder(inputs)
    maps, prefix_mass = attention.to_grid(query=query)
    return LastAttention(query, title, maps.float().cpu(), prefix_mass.float().cpu())


def draw_curves(run: Run, folder: RunFiles, scores: Mapping[str, Any]) -> None:
    """Draw curves.png: what was measured in training, the learning rate and the gradient norm."""
    metrics = read_metrics(folder.metrics)
    settings = flat_settings(run.config.to_dict())
    curves = curves_of(settings, run.data.tested_on, scores, metrics)
    about = f"{caption_of(run)} · seed {run.config.train.seed}"
    save_figure(draw.curves_figure(metrics, curves, "Training curves", about), folder.curves)


def draw_dynamics(run: Run, folder: RunFiles) -> None:
    """Draw dynamics.png: how strongly each matrix was trained, and how far it moved."""
    train = run.config.train
    trained = f"{train.epochs} epochs on {len(run.data.train):,} images"
    about = f"{run.data.name} · {trained} · seed {train.seed} · "
    figure = figure_of_dynamics(read_dynamics(folder.dynamics), about)
    save_figure(figure, folder.dynamics_picture)


def figure_of_dynamics(dynamics: Dynamics, about: str = "") -> Figure:
    """Draw the encoder's dynamics; `about` names the run in the subtitle."""
    recorded = dynamics.names("encoder")
    courses: dict[str, dict[str, Tensor]] = {}
    for name, matrices in MATRICES.items():
        present = [matrix for matrix in matrices if matrix in recorded]
        if not present:
            continue
        courses[name] = {}
        for quantity in QUANTITIES:
            parts = [dynamics.of(quantity, matrix, "encoder") for matrix in present]
            courses[name][quantity] = torch.cat(parts, dim=1)
    return draw.dynamics_figure(
        dynamics.steps,
        courses,
        "How strongly each matrix is trained, and how far it moves",
        f"{about}encoder, mean over layers · layer by layer: dynamics.jsonl",
    )
