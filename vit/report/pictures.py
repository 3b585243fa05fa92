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
    reconstruction_figure,
    reliability_figure,
    save_figure,
)
from vit.interpret import AttentionMaps
from vit.mae import MaskedAutoencoder
from vit.training.run import TrainingRun
from vit.training.run_folder import RunFolder

RECONSTRUCTED = 10  # test images in reconstructions.png
LOOKED_AT = 6  # test images in attention.png


def caption(run: TrainingRun) -> str:
    """What all pictures of a run are of, for under their titles."""
    data = run.data
    return f"{data.name}, {data.tested_on} · {run.config.train.epochs} epochs on {len(data.train):,} images"


def draw_reconstructions(run: TrainingRun, folder: RunFolder) -> None:
    """reconstructions.png: test images, what the model sees of them, and how it fills in the rest."""
    config, test, model = run.config, run.data.test, cast(MaskedAutoencoder, run.result)
    some = test.subset(test.showcase(RECONSTRUCTED))
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


def draw_classes(run: TrainingRun, folder: RunFolder, logits: Tensor) -> None:
    """confusion.png and reliability.png, from the logits (N, classes) of the test images."""
    test = run.data.test
    table, found = confusion(logits, test.labels), reliability(logits, test.labels)
    about = f"{caption(run)} · accuracy {table.diagonal().sum() / table.sum():.2%}"
    save_figure(confusion_figure(table, test.class_names, "What is taken for what", about), folder.confusion)
    figure = reliability_figure(
        found.confidence, found.accuracy, found.count, found.error, "Can its confidence be believed?", about
    )
    save_figure(figure, folder.reliability)


def draw_attention(run: TrainingRun, folder: RunFolder) -> None:
    """attention.png: where the last layer looks in some test images, head by head."""
    config, test, encoder = run.config, run.data.test, encoder_of(run.result)
    some = test.subset(test.showcase(LOOKED_AT))
    images = to_float(some.images, config.model.image_size_2d)
    with eval_mode(encoder), torch.no_grad(), AttentionMaps(encoder, layers=[-1]) as attention:
        encoder(run.normalize(images).to(run.compute.device))
    rows, columns = config.model.grid_size
    centre = (rows // 2, columns // 2)
    query: str | tuple[int, int] = "cls"
    asks, verb = "the class token", "looks"
    if config.train.task == "classify" and config.model.global_pool == "avg":
        query, asks, verb = "mean", "the patches", "look, on average"  # whose mean the head reads
    elif not config.model.class_token:
        query, asks = centre, f"the patch in row {centre[0]}, column {centre[1]} (outlined)"
    maps, prefix_mass = (part.float().cpu() for part in attention.to_grid(query=query))
    heads = maps.shape[1]
    # The mean stands first: it is what the heads amount to.
    maps, prefix_mass = (torch.cat([part.mean(dim=1, keepdim=True), part], dim=1) for part in (maps, prefix_mass))
    last = len(encoder.blocks) - 1
    figure = attention_figure(
        images, maps, ["mean of heads", *(f"head {head}" for head in range(heads))], some.label_names,
        f"Where {asks} {verb}", f"{caption(run)} · layer {last} of 0 to {last}, whole images",
        masses=prefix_mass, query=centre if query == centre else None,
    )  # fmt: skip
    save_figure(figure, folder.attention)


def draw_curves(
    run: TrainingRun, folder: RunFolder, metrics: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]
) -> None:
    """curves.png: how the run went, from metrics.jsonl and what `vit.evaluate.summary` measured in the end."""
    end = "held-out images at the end" if run.data.held_out else "test images at the end"
    if run.config.train.task == "classify":
        curves = [
            Curve("cross-entropy", "loss", "held_out_loss", {end: measured["test_loss"]}),
            Curve("accuracy", "train_accuracy", "held_out_accuracy", {end: measured["test_accuracy"]}),
        ]
    else:
        baselines = measured["test_loss_of_baselines"]
        lines = {
            end: measured["test_loss"],
            "guessing the mean of the visible": baselines["mean_of_visible_patches"],
            "copying the nearest visible": baselines["nearest_visible_patch"],
        }
        key = "masked_loss" if run.config.mask.uniformity else "loss"
        curves = [Curve("loss over the hidden patches", key, "held_out_loss", lines)]
    about = f"{caption(run)} · seed {run.config.train.seed}"
    save_figure(curves_figure(metrics, curves, "How the run went", about), folder.curves)
