"""One loss, one backward pass: does it reach every matrix, how far does each move, and which could
as well stand still?

The first table gives the gradient of the masked loss in each matrix of the encoder, before and
after training, and how far the matrix has moved, all relative to the size of the matrix. W_Q and
W_K choose what a token attends to, W_V and W_O what it takes along: the second table compares these
two pairs. AdamW divides each parameter's gradient by its running magnitude, so that even a weak
gradient moves a matrix. The bias of the keys shows the size of rounding alone: its gradient is
zero, because softmax cancels what it adds to the scores of a query. The last table gives the price
of freezing one matrix at its random initialisation; a difference is named if it exceeds twice its
spread over the seeds, which with three of them is p = 0.07.

*Limits.* Gradients are the encoder's, on one set of images; in training they change from batch to
batch. Positions are those of models that learn them, as the others' are fixed. How far a matrix
moves says little about the strength of its gradient. Nor are W_Q and W_K determined alone:
transformed in opposite ways, they give the same scores. What is frozen is frozen in encoder and
decoder, and its neighbours learn to compensate.
"""

# python -m studies who-trains-them
# Eight models per seed, two hours and ten minutes on one thread; half are shared with
# fixed-or-learned: with the same --out they are trained once. Expect: one loss reaches every
# matrix, W_Q and W_K a quarter as strongly as W_V and W_O.

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor

from studies.experiment import USUAL, Experiment, Trained
from studies.figures import Panel, arms_figure
from studies.tables import Results, Seeds, Table, seeds
from vit.figures.style import Figure
from vit.isolation import eval_mode
from vit.mae import MaskedAutoencoder
from vit.masking import Mask
from vit.training.dynamics import matrices_of

FROZEN = ("W_E frozen", "W_Q frozen", "W_K frozen", "W_V frozen", "W_O frozen", "MLP frozen")
MOMENTS = ("at the start", "at the end")
BY_LAYER = ("W_Q", "W_K", "W_V", "W_O", "MLP")
MATRICES = ("W_E", "positions", *BY_LAYER)
BIASES = ("b_Q", "b_K", "b_V")
MOST_IMAGES = 256  # for a gradient: a batch or two of the training


class Gradients(NamedTuple):
    """What a loss does to the matrices and biases of models, by name; sizes are root mean
    squares."""

    # Sizes, (seeds, moments, layers)
    gradient: dict[str, Tensor]
    weight: dict[str, Tensor]
    # Of matrices, relative to the size at the start, (seeds, layers)
    moved: dict[str, Tensor]

    @property
    def relative(self) -> dict[str, Tensor]:
        """The gradients of matrices, relative to the size of their weights: (seeds, moments,
        layers)."""
        return {name: self.gradient[name] / self.weight[name] for name in MATRICES}


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    # The gradients; positions are those of models that learn them
    models = {arm: experiment.models(arm) for arm in (USUAL, *FROZEN)}
    data = experiment.data()
    images = min(experiment.study.images, MOST_IMAGES, len(data.test))
    measured = measure_gradients(models[USUAL], images)
    of_positions = measure_gradients(experiment.models("positions learned"), images)
    for measures, by_name_of_positions in zip(measured, of_positions, strict=True):
        measures["positions"] = by_name_of_positions["positions"]

    # The price of freezing
    losses = {}
    rows: list[tuple[str | Seeds, ...]] = []
    for arm, trained in models.items():
        losses[arm] = seeds([model.reconstruction()["loss"] for model in trained])
        more: str | Seeds = ""
        if arm != USUAL:
            more = losses[arm] - losses[USUAL]
        rows.append((arm, losses[arm], more))
    frozen = Table(
        f"One matrix frozen at its random initialisation: {len(data.test):,} test images",
        ("variant", "loss over masked patches", "more than where all learn"),
        rows,
    )

    # The figures
    baseline = models[USUAL][0].reconstruction()["mean_of_visible_patches"]
    panel = Panel(
        "loss over masked patches",
        [loss.values for loss in losses.values()],
        lines={"baseline: mean of the visible patches": baseline},
    )
    title = "The loss with one matrix frozen at its random initialisation"
    pictures = {
        "gradients": gradients_figure(measured, data.name),
        "frozen": arms_figure(list(losses), [panel], title, data.name),
    }
    return Results([*gradient_tables(measured, images), frozen], pictures)


def measure_gradients(models: list[Trained], images: int) -> Gradients:
    """Measure what the masked loss of test images does to models, and what their training did."""
    # Weights and gradients before and after training, by name: (moments, 2, layers, n) each
    measured = []
    for trained in models:
        ((inputs, mask),) = trained.masked(trained.inputs(images), images)
        start = weights_and_gradients(trained.initial, inputs, mask)
        end = weights_and_gradients(trained.model, inputs, mask)
        measured.append({name: torch.stack([start[name], end[name]]) for name in start})

    # Their sizes
    weight = {}
    gradient = {}
    moved = {}
    for name in measured[0]:
        values = torch.stack([by_name[name] for by_name in measured])
        weights, gradients = values.unbind(2)  # (seeds, moments, layers, n) each
        weight[name] = size(weights)
        gradient[name] = size(gradients)
        moved[name] = size(weights[:, 1] - weights[:, 0]) / weight[name][:, 0]
    return Gradients(gradient, weight, moved)


def size(vectors: Tensor) -> Tensor:
    """Return root mean squares: (..., n) -> (...)."""
    return vectors.square().mean(-1).sqrt()


def weights_and_gradients(
    model: MaskedAutoencoder, images: Tensor, mask: Mask
) -> dict[str, Tensor]:
    """Return an encoder's weights and the gradients of the masked loss, also where they are frozen.

    Returns:
        Of matrices and biases by name, (2, layers, n) each: weights and gradients, flat. "MLP"
        joins both matrices; fixed positions are left out.
    """
    model = deepcopy(model).requires_grad_(True)
    with eval_mode(model), torch.enable_grad():
        loss, _ = model.loss(images, mask)
        loss.backward()

    # The biases of queries, keys and values are thirds of one vector
    biases: list[tuple[str, Tensor, Tensor]] = []
    for layer in range(len(model.encoder.blocks)):
        fused = model.encoder.get_parameter(f"blocks.{layer}.attn.qkv.bias")
        assert fused.grad is not None
        biases += zip(BIASES, fused.detach().chunk(3), fused.grad.chunk(3), strict=True)

    # All layers of a name together
    layers: dict[str, list[Tensor]] = defaultdict(list)
    for name, weights, gradient in (*matrices_of(model), *biases):
        values = torch.stack([weights, gradient])
        layers[name.removeprefix("encoder.")].append(values.flatten(1).cpu())
    by_name = {name: torch.stack(parts, 1) for name, parts in layers.items()}
    by_name["MLP"] = torch.cat([by_name["fc1"], by_name["fc2"]], -1)
    if "pos_embed" in by_name:
        by_name["positions"] = by_name["pos_embed"]
    return {name: by_name[name] for name in (*MATRICES, *BIASES) if name in by_name}


def gradient_tables(measured: Gradients, images: int) -> list[Table]:
    """Return gradients and movements of the matrices, of two pairs of them, and of the biases."""
    gradients = [f"gradient {moment}" for moment in MOMENTS]

    # Matrix by matrix, beside the rounding that the gradient of b_K consists of
    rounding = measured.gradient["b_K"].max()
    matrix_rows = []
    for name in MATRICES:
        at_moments = [seeds(values) for values in measured.relative[name].unbind(1)]
        above_rounding = f"{float(measured.gradient[name].min() / rounding):,.0f}"
        matrix_rows.append((name, *at_moments, seeds(measured.moved[name]), above_rounding))

    # What a token attends to, against what it takes along
    choosing = ("W_Q", "W_K")
    taking = ("W_V", "W_O")
    ratio = mean_over(measured.relative, choosing) / mean_over(measured.relative, taking)
    pair_row = [seeds(values) for values in ratio.unbind(1)]  # from (seeds, moments)
    for names in (choosing, taking):
        pair_row.append(seeds(mean_over(measured.moved, names), share=True))

    # The biases, which begin at zero
    bias_rows = []
    for name in BIASES:
        at_moments = [seeds(values) for values in measured.gradient[name].unbind(1)]
        bias_rows.append((name, *at_moments, seeds(measured.weight[name][:, -1])))

    return [
        Table(
            f"Relative to the size of the matrix, mean over layers; loss of {images} test images",
            ("matrix", *gradients, "moved", "weakest layer's gradient / rounding's"),
            matrix_rows,
        ),
        Table(
            "W_Q and W_K against W_V and W_O: ratio of their gradients, and how far each pair has"
            " moved",
            (*gradients, "W_Q and W_K moved", "W_V and W_O moved"),
            [pair_row],
        ),
        Table(
            "Biases of queries, keys and values: root mean square of a number, mean over layers",
            ("bias", *gradients, "size at the end"),
            bias_rows,
        ),
    ]


def mean_over(measure: dict[str, Tensor], names: tuple[str, ...]) -> Tensor:
    """Return the mean over layers and some matrices: (seeds, ..., layers) each -> (seeds, ...)."""
    return torch.stack([measure[name].mean(-1) for name in names]).mean(0)


def gradients_figure(measured: Gradients, data: str) -> Figure:
    """Draw the gradient of each matrix at the start and at the end, and how far it has moved."""
    measures = {}
    for index, moment in enumerate(MOMENTS):
        gradients = {name: values[:, index] for name, values in measured.relative.items()}
        measures[f"gradient {moment}"] = gradients
    measures["how far it has moved"] = measured.moved

    panels = []
    for title, by_name in measures.items():
        values = [by_name[name].flatten(1).mean(1).tolist() for name in MATRICES]
        panels.append(Panel(title, values, "of the matrix's size", log=True))
    caption = f"{data} · mean over layers; positions: of models that learn them"
    return arms_figure(
        MATRICES, panels, "The gradient of each matrix, and how far it has moved", caption
    )
