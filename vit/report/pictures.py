"""The pictures that a run ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from vit.checkpoints.formats.outgoing import encoder_of
from vit.data.augment import to_float
from vit.encoder import eval_mode
from vit.evaluate.classification import confusion, reliability
from vit.evaluate.reconstruction import fixed_mask, reconstruct
from vit.figures import (
    Curve,
    attention_figure,
    confusion_figure,
    curves_figure,
    dynamics_figure,
    reconstruction_figure,
    reliability_figure,
    save_figure,
)
from vit.figures.style import Figure
from vit.interpret import AttentionMaps, Dynamics, read_dynamics
from vit.interpret.dynamics import QUANTITIES
from vit.mae import MaskedAutoencoder
from vit.report.development import who_asks
from vit.report.showcase import SHOWN
from vit.runs import RunFiles
from vit.training.run import TrainingRun

LOOKED_AT = 6  # test images in attention.png
OF_A_LAYER = ("W_Q", "W_K", "W_V", "W_O", "fc1", "fc2")  # columns of dynamics.png


def caption(run: TrainingRun) -> str:
    """What all pictures of a run are of, for under their titles."""
    data = run.data
    return f"{data.name}, {data.tested_on} · {run.config.train.epochs} epochs on {len(data.train):,} images"


def draw_reconstructions(run: TrainingRun, folder: RunFiles) -> None:
    """reconstructions.png: test images, what the model sees of them, and how it fills in the rest."""
    config, test, model = run.config, run.data.test, cast(MaskedAutoencoder, run.result)
    some = test.subset(test.showcase(SHOWN))
    mask = fixed_mask(config.mask.kind, 0, len(some), config.model.grid_size, config.mask.ratio)
    result = reconstruct(model, some.images, run.normalize, mask, run.compute)
    how = f"{config.mask.kind} mask, {int(mask.mask[0].sum())} of {mask.mask.shape[1]} patches hidden"
    if result.from_normalized:
        how += (
            " · the model predicts normalised patches: their brightness and contrast are estimated from the visible"
            " patches around, not taken from the original"
        )
    figure = reconstruction_figure(
        result.original, result.filled, result.hidden, some.label_names, "Filled in from what is visible",
        f"{caption(run)} · {how}",
    )  # fmt: skip
    save_figure(figure, folder.reconstructions)


def draw_classes(run: TrainingRun, folder: RunFiles, logits: Tensor) -> None:
    """confusion.png and reliability.png, from the logits (N, classes) of the test images."""
    test = run.data.test
    table, found = confusion(logits, test.labels), reliability(logits, test.labels)
    about = f"{caption(run)} · accuracy {table.diagonal().sum() / table.sum():.2%}"
    save_figure(confusion_figure(table, test.class_names, "What is taken for what", about), folder.confusion)
    figure = reliability_figure(
        found.confidence, found.accuracy, found.count, found.error, "Can its confidence be believed?", about
    )
    save_figure(figure, folder.reliability)


def draw_attention(run: TrainingRun, folder: RunFiles) -> None:
    """attention.png: where the last layer looks in some test images, head by head."""
    config, test, encoder = run.config, run.data.test, encoder_of(run.result)
    some = test.subset(test.showcase(LOOKED_AT))
    images = to_float(some.images, config.model.image_size_2d)
    with eval_mode(encoder), torch.no_grad(), AttentionMaps(encoder, layers=[-1]) as attention:
        encoder(run.normalize(images).to(run.compute.device))
    asks = who_asks(encoder, config.train.task)
    maps, prefix_mass = (part.float().cpu() for part in attention.to_grid(query=asks.query))
    heads = maps.shape[1]
    # The mean stands first: it is what the heads amount to.
    maps, prefix_mass = (torch.cat([part.mean(dim=1, keepdim=True), part], dim=1) for part in (maps, prefix_mass))
    title = f"Where {asks.who}{' (outlined)' if asks.patch else ''} {asks.looks}"
    last = len(encoder.blocks) - 1
    figure = attention_figure(
        images, maps, ["mean of heads", *(f"head {head}" for head in range(heads))], some.label_names,
        title, f"{caption(run)} · layer {last} of 0 to {last}, whole images",
        masses=prefix_mass, query=asks.patch,
    )  # fmt: skip
    save_figure(figure, folder.attention)


def draw_curves(
    run: TrainingRun, folder: RunFiles, metrics: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]
) -> None:
    """curves.png: how the run went, from metrics.jsonl and what `vit.report.summary` measured in the end."""
    config = run.config
    curves = curves_of(config.train.task, config.mask.uniformity > 0, run.data.tested_on, measured)
    about = f"{caption(run)} · seed {config.train.seed}"
    save_figure(curves_figure(metrics, curves, "How the run went", about), folder.curves)


def curves_of(task: str, uniformity: bool, tested_on: str, measured: Mapping[str, Any] | None) -> list[Curve]:
    """What a run's curves show beside learning rate and gradient norm.

    Args:
        task: train.task.
        uniformity: whether a second loss was added to that over the hidden patches.
        tested_on: what `measured` was measured on, `Dataset.tested_on`.
        measured: from `vit.report.summary`, or summary.json; None of a run that is not finished.
    """
    end = f"{tested_on.replace('training ', '')} at the end"
    if task == "classify":
        keys = {"cross-entropy": ("loss", "held_out_loss", "test_loss"),
                "accuracy": ("train_accuracy", "held_out_accuracy", "test_accuracy")}  # fmt: skip
        return [
            Curve(title, key, held_out, {end: measured[at_the_end]} if measured else {})
            for title, (key, held_out, at_the_end) in keys.items()
        ]
    lines = {}
    if measured:
        baselines = measured["test_loss_of_baselines"]
        lines = {
            end: measured["test_loss"],
            "guessing the mean of the visible": baselines["mean_of_visible_patches"],
            "copying the nearest visible": baselines["nearest_visible_patch"],
        }
    return [Curve("loss over the hidden patches", "masked_loss" if uniformity else "loss", "held_out_loss", lines)]


def draw_dynamics(run: TrainingRun, folder: RunFiles) -> None:
    """dynamics.png: how strongly each matrix was trained and how far it moved, from dynamics.safetensors."""
    config, data = run.config, run.data
    about = f"{data.name} · {config.train.epochs} epochs on {len(data.train):,} images · seed {config.train.seed} · "
    save_figure(figure_of_dynamics(read_dynamics(folder.dynamics), about), folder.dynamics_picture)


def figure_of_dynamics(dynamics: Dynamics, about: str = "", dark: bool = False) -> Figure:
    """What was recorded of a training, as a figure.

    Args:
        dynamics: of a run.
        about: which run, for its subtitle.
        dark: for a dark page.
    """
    recorded = dynamics.recorded
    biases = None
    if "encoder.bias_norms" in recorded:
        biases = recorded["encoder.bias_gradients"], recorded["encoder.bias_norms"]
    return dynamics_figure(
        dynamics.steps, _courses(dynamics, OF_A_LAYER, "encoder"), _courses(dynamics, OF_A_LAYER, "decoder"),
        _courses(dynamics, ("W_E", "pos_embed", "head"), "encoder") | _courses(dynamics, ("embed", "pred"), "decoder"),
        recorded.get("encoder.products"), biases, "How strongly each matrix is trained, and how far it moves",
        f"{about}W0: the weights that training began with · all numbers: dynamics.safetensors", dark=dark,
    )  # fmt: skip


def _courses(dynamics: Dynamics, names: Sequence[str], part: str) -> dict[str, dict[str, Tensor]]:
    """Of those of `names` that the part has: name -> quantity -> (records, layers)."""
    there = [name for name in names if name in dynamics.names(part)]
    return {name: {quantity: dynamics.of(quantity, name, part) for quantity in QUANTITIES} for name in there}
