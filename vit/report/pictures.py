"""The pictures that a run ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vit.data.augment import to_float
from vit.encoder import eval_mode
from vit.figures import (
    Curve,
    attention_figure,
    curves_figure,
    dynamics_figure,
    save_figure,
)
from vit.figures.style import Figure
from vit.interpret import AttentionMaps, Dynamics, read_dynamics
from vit.interpret.dynamics import QUANTITIES
from vit.report.development import who_asks
from vit.runs import RunFiles, flat_settings, read_metrics
from vit.training.objectives import objective_class
from vit.training.run import Run

LOOKED_AT = 6  # test images in attention.png
OF_A_LAYER = ("W_Q", "W_K", "W_V", "W_O", "fc1", "fc2")  # columns of dynamics.png


def draw_pictures(run: Run, files: RunFiles, measured: dict[str, Any]) -> None:
    """Draw the objective's figures, attention, curves, and dynamics where they were recorded, into a run's folder."""
    for stem, figure in run.objective.figures(run, measured).items():
        save_figure(figure, files.path / f"{stem}.png")
    draw_attention(run, files)
    draw_curves(run, files, measured)
    if files.dynamics.exists():
        draw_dynamics(run, files)


def draw_attention(run: Run, folder: RunFiles) -> None:
    """attention.png: where the last layer looks in some test images, head by head."""
    config, test, encoder = run.config, run.data.test, run.result.encoder
    some = test.subset(test.showcase(LOOKED_AT))
    images = to_float(some.images, config.model.image_size_2d)
    with eval_mode(encoder), torch.no_grad(), AttentionMaps(encoder, layers=[-1]) as attention:
        encoder(run.normalize(images).to(run.compute.device))
    asks = who_asks(encoder)
    maps, prefix_mass = (part.float().cpu() for part in attention.to_grid(query=asks.query))
    heads = maps.shape[1]
    # The mean stands first: it is what the heads amount to.
    maps, prefix_mass = (torch.cat([part.mean(dim=1, keepdim=True), part], dim=1) for part in (maps, prefix_mass))
    title = f"Where {asks.who}{' (outlined)' if asks.patch else ''} {asks.looks}"
    last = len(encoder.blocks) - 1
    figure = attention_figure(
        images, maps, ["mean of heads", *(f"head {head}" for head in range(heads))], some.label_names,
        title, f"{run.caption} · layer {last} of 0 to {last}, whole images",
        masses=prefix_mass, query=asks.patch,
    )  # fmt: skip
    save_figure(figure, folder.attention)


def draw_curves(run: Run, files: RunFiles, measured: Mapping[str, Any]) -> None:
    """curves.png: how the run went, from metrics.jsonl and what was measured in the end."""
    curves = curves_of(flat_settings(run.config.to_dict()), run.data.tested_on, measured)
    about = f"{run.caption} · seed {run.config.train.seed}"
    save_figure(curves_figure(read_metrics(files.metrics), curves, "How the run went", about), files.curves)


def curves_of(settings: dict[str, Any], tested_on: str, measured: Mapping[str, Any]) -> list[Curve]:
    """The curves of a run beside learning rate and gradient norm.

    Args:
        settings: by "section.key".
        tested_on: what `measured` was measured on, `Dataset.tested_on`.
        measured: of the objective, or summary.json; empty for a run that is not finished.
    """
    end = f"{tested_on.replace('training ', '')} at the end"
    return objective_class(settings["train.objective"]).curves(settings, end, measured)


def draw_dynamics(run: Run, folder: RunFiles) -> None:
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
