"""The figures in a run's folder, drawn at the end of the run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from vit.config import flat_settings
from vit.data import ImageSet
from vit.errors import plural
from vit.evaluation.classification import read_confusion
from vit.evaluation.reconstruction import fixed_mask
from vit.figures import style
from vit.figures.attention import attention_figure
from vit.figures.classification import MOST_DRAWN, confusion_figure, reliability_figure
from vit.figures.curves import curves_figure
from vit.figures.dynamics import dynamics_figure
from vit.figures.images import mistakes_figure, reconstruction_figure
from vit.interpret.geometry import usual_query
from vit.look.datasets import of_sets
from vit.look.panels import head_panels
from vit.look.subject import ModelWithImages
from vit.metrics import MEASURES, Row
from vit.report.curves import curves_of
from vit.report.record import RunRecord
from vit.runs import RunFiles
from vit.training.dynamics import read_dynamics
from vit.training.run import Run

RECONSTRUCTED = 10
"""Test images in reconstructions.png; for CIFAR-10, one per class."""
ATTENDED = 6
"""Test images in attention.png."""
MATRICES: dict[str, tuple[str, ...]] = {
    "W_Q": ("encoder.W_Q",),
    "W_K": ("encoder.W_K",),
    "W_V": ("encoder.W_V",),
    "W_O": ("encoder.W_O",),
    "MLP": ("encoder.fc1", "encoder.fc2"),
    "W_E": ("encoder.W_E",),
    "positions": ("encoder.pos_embed",),
    "head": ("encoder.head",),
}
"""The lines of dynamics.png, and the matrices that each is the mean of."""


def draw_pictures(run: Run) -> None:
    """Draw the figures of a finished run into its folder."""
    folder = run.folder
    assert folder is not None
    epochs = plural(run.config.train.epochs, "epoch")
    training = f"{epochs} on {plural(len(run.data.train), 'image')}"
    # data, images and epochs, below the title of every figure
    caption = f"{run.data.name}, {run.data.tested_on} · {training}"
    if "reconstruction" in run.objective.measures:
        draw_reconstructions(run, folder, caption)
    if "head" in run.objective.measures:
        about = f"{caption} · accuracy"
        row = run.summary["scores"]["head"][0]
        draw_classification(row, run.data.test, folder.path, about)
    draw_attention(run, folder, caption)

    # the course of the training
    seed = f"seed {run.config.train.seed}"
    record = RunRecord(folder, flat_settings(run.config.to_dict()), run.summary)
    about = f"{caption} · {seed}"
    figure = curves_figure(record.metrics, curves_of(record), "Training curves", about)
    style.save_figure(figure, folder.path / "curves.png")
    if folder.dynamics.exists():
        draw_dynamics(folder, f"{run.data.name} · {training} · {seed}")


def draw_reconstructions(run: Run, folder: RunFiles, caption: str) -> None:
    """Draw reconstructions.png: test images, their visible patches, and the reconstructions."""
    # Masks that are always the same
    mask = run.config.mask
    images = of_sets(run.data, test=run.data.test.showcase(RECONSTRUCTED))
    fixed = fixed_mask(mask.kind, 0, len(images.files), run.config.model.grid_size, mask.ratio)
    subject = ModelWithImages(run.result, images, fixed)

    caption += f" · {mask.kind} mask, {subject.mask_caption}"
    if run.result.norm_pix_loss:
        caption += (
            " · the model predicts normalised patches: brightness and contrast are estimated from"
            " the visible patches around"
        )
    title = "Reconstructions of masked patches"
    figure = reconstruction_figure(
        subject.images, subject.fill_in(), subject.masked, subject.names, title, caption
    )
    style.save_figure(figure, folder.path / "reconstructions.png")


def draw_classification(row: Row, test: ImageSet, folder: Path, caption: str) -> list[str]:
    """Draw reliability.png, confusion.png of not too many classes, and mistakes.png.

    Args:
        row: the scores of a head or a probe.
        test: the images that it was measured on.
        folder: of the figures.
        caption: to be followed by the accuracy.

    Returns:
        The files' names.
    """
    accuracy = MEASURES["head", "accuracy"].write_with_error(row["accuracy"], row["images"])
    caption += f" {accuracy}"
    error = row["expected_calibration_error"]
    title = "Calibration: accuracy by confidence"
    figure = reliability_figure(row["reliability"], error, title, caption)
    figures = {"reliability.png": figure}
    table = read_confusion(row["confusion"])
    if len(table) <= MOST_DRAWN:
        title = "Confusion matrix"
        figures["confusion.png"] = confusion_figure(table, test.class_names, title, caption)
    # a probe keeps none
    mistakes = row.get("mistakes")
    if mistakes:
        images = test.images[torch.tensor([mistake["image"] for mistake in mistakes])]
        title = "Most confident mistakes"
        figures["mistakes.png"] = mistakes_figure(images, mistakes, title, caption)
    for name, figure in figures.items():
        style.save_figure(figure, folder / name)
    return list(figures)


def draw_attention(run: Run, folder: RunFiles, caption: str) -> None:
    """Draw attention.png: attention of the last layer on some test images, head by head."""
    encoder = run.result.encoder
    images = of_sets(run.data, test=run.data.test.showcase(ATTENDED))
    subject = ModelWithImages(run.result, images, query=usual_query(encoder))
    panels = head_panels(subject, -1, "all")
    last = len(encoder.blocks) - 1
    caption += f" · layer {last} of 0 to {last}, whole images"
    figure = attention_figure(
        subject.images,
        panels.maps,
        panels.names,
        subject.names,
        f"Attention of {subject.query_name}",
        caption,
        masses=panels.prefix_mass,
        query=subject.query_patch,
    )
    style.save_figure(figure, folder.path / "attention.png")


def draw_dynamics(folder: RunFiles, caption: str) -> None:
    """Draw dynamics.png: gradient norm and movement of each kind of weight matrix."""
    # A line is the mean of its matrices over the layers; a model may lack some matrices
    steps, recorded = read_dynamics(folder.dynamics)
    courses: dict[str, dict[str, Tensor]] = {}
    for quantity, values in recorded.items():
        courses[quantity] = {}
        for line, names in MATRICES.items():
            # Matrices side by side: (records, layers) each
            parts = [values[name] for name in names if name in values]
            if parts:
                courses[quantity][line] = torch.cat(parts, dim=1)
    figure = dynamics_figure(
        steps,
        courses,
        "Gradients and movement of the weight matrices",
        f"{caption} · encoder, means over layers · each layer: dynamics.jsonl",
    )
    style.save_figure(figure, folder.path / "dynamics.png")
