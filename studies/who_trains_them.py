"""One loss, one backward pass: does it reach every matrix, how far does each move, and which could as well stand still?

The first table gives the gradient of the masked loss in each matrix of the encoder, before and after training, and how far the
matrix has moved, all relative to the size of the matrix. W_Q and W_K choose where a token looks, W_V and W_O what it takes
along: the second table compares these two pairs. AdamW divides each number's gradient by its usual size, so that even a weak
gradient moves a matrix. The bias of the keys shows the size of rounding alone: its gradient is zero, because softmax cancels
what it adds to the logits of a query. The last table gives the price of freezing one matrix at its random start; a difference
counts if it exceeds twice its spread over the seeds.

*Limits.* Gradients are the encoder's, on one set of images; in training they change from batch to batch. Positions are those of
models that learn them, as the others' are fixed. How far a matrix moves says little about the strength of its gradient. Nor are
W_Q and W_K determined alone: transformed in opposite ways, they give the same logits. What is frozen is frozen in encoder and
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
from studies.figures import arms_figure
from studies.tables import Results, Table, seeds
from vit.encoder import eval_mode
from vit.figures.measures import Panel
from vit.figures.style import Figure
from vit.mae import MaskedAutoencoder
from vit.masking import Mask
from vit.training.dynamics import Matrix, matrices_of

FROZEN = ("W_E frozen", "W_Q frozen", "W_K frozen", "W_V frozen", "W_O frozen", "MLP frozen")
MOMENTS = ("at the start", "at the end")
BY_LAYER = ("W_Q", "W_K", "W_V", "W_O", "MLP")
MATRICES = ("W_E", "positions", *BY_LAYER)
BIASES = ("b_Q", "b_K", "b_V")
MOST_IMAGES = 256  # for a gradient: a batch or two of the training


class Pull(NamedTuple):
    """What a loss does to the matrices and biases of models, by name; sizes are root mean squares."""

    gradient: dict[str, Tensor]  # sizes (seeds, moments, layers)
    weight: dict[str, Tensor]  # likewise
    moved: dict[str, Tensor]  # (seeds, layers) of matrices, relative to the size at the start

    @property
    def relative(self) -> dict[str, Tensor]:
        """The gradients of matrices, relative to the size of their weights: (seeds, moments, layers)."""
        return {name: self.gradient[name] / self.weight[name] for name in MATRICES}


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    models = {arm: experiment.models(arm) for arm in (USUAL, *FROZEN)}
    data = experiment.data()
    images = min(experiment.study.images, MOST_IMAGES, len(data.test))
    pull = pull_of(models[USUAL], images)
    for mine, learned in zip(
        pull, pull_of(experiment.models("positions learned"), images), strict=True
    ):
        mine["positions"] = learned["positions"]

    losses = {
        arm: seeds([one.reconstruction()["loss"] for one in trained])
        for arm, trained in models.items()
    }
    whole = losses[USUAL]
    frozen = Table(
        f"One of them frozen at its random start: {len(data.test):,} test images",
        ("arm", "loss over hidden patches", "more than where all learn"),
        [(arm, loss, "" if loss is whole else loss - whole) for arm, loss in losses.items()],
    )
    panel = Panel("loss over hidden patches", [loss.values for loss in losses.values()])
    pictures = {
        "gradients": gradients_figure(pull, data.name),
        "frozen": arms_figure(
            list(losses), [panel], "What is lost when one of them stands still", data.name
        ),
    }
    return Results([*gradient_tables(pull, images), frozen], pictures)


def pull_of(models: list[Trained], images: int) -> Pull:
    """Measure what the masked loss of test images does to models, and what their training did."""
    found = []
    for one in models:
        ((inputs, mask),) = one.masked(one.inputs(images), images)
        start, end = (
            weights_and_gradients(model, inputs, mask) for model in (one.initial, one.model)
        )
        found.append({name: torch.stack([start[name], end[name]]) for name in start})
    values = {
        name: torch.stack([one[name] for one in found]) for name in found[0]
    }  # (seeds, moments, 2, layers, n)
    weight, gradient = ({name: size(of[:, :, at]) for name, of in values.items()} for at in (0, 1))
    moved = {
        name: size(of[:, 1, 0] - of[:, 0, 0]) / weight[name][:, 0] for name, of in values.items()
    }
    return Pull(gradient, weight, moved)


def size(vectors: Tensor) -> Tensor:
    """Return root mean squares: (..., n) -> (...)."""
    return vectors.square().mean(-1).sqrt()


def weights_and_gradients(
    model: MaskedAutoencoder, images: Tensor, mask: Mask
) -> dict[str, Tensor]:
    """Return an encoder's matrices and biases by name with the gradients of the masked loss, also where they are frozen.

    Returns:
        (2, layers, n) each: weights and gradients, flat. "MLP" joins both matrices; fixed positions are left out.
    """
    model = deepcopy(model).requires_grad_(True)
    with eval_mode(model), torch.enable_grad():
        model.loss(images, mask)[0].backward()
    fused = [
        model.encoder.get_parameter(f"blocks.{layer}.attn.qkv.bias")
        for layer in range(len(model.encoder.blocks))
    ]
    biases = [Matrix(name, bias, third) for bias in fused for third, name in enumerate(BIASES)]
    found: dict[str, list[Tensor]] = defaultdict(list)
    for matrix in (*matrices_of(model), *biases):
        name = matrix.name.removeprefix("encoder.")
        found[name].append(torch.stack([matrix.weights, matrix.gradient]).flatten(1).cpu())
    by_name = {name: torch.stack(layers, 1) for name, layers in found.items()}
    by_name["MLP"] = torch.cat([by_name["fc1"], by_name["fc2"]], -1)
    if "pos_embed" in by_name:
        by_name["positions"] = by_name["pos_embed"]
    return {name: by_name[name] for name in (*MATRICES, *BIASES) if name in by_name}


def gradient_tables(pull: Pull, images: int) -> list[Table]:
    """Return gradients and movements of the matrices, of pairs of them, and of the biases, which begin at zero."""
    gradients = [f"gradient {moment}" for moment in MOMENTS]
    rounding = pull.gradient["b_K"].max()
    matrices = [
        (
            name,
            *map(seeds, pull.relative[name].unbind(1)),
            seeds(pull.moved[name]),
            f"{float(pull.gradient[name].min() / rounding):,.0f}",
        )
        for name in MATRICES
    ]

    def mean(of: dict[str, Tensor], names: tuple[str, ...]) -> Tensor:
        return torch.stack([of[name].mean(-1) for name in names]).mean(0)  # (seeds, ...)

    asking, giving = ("W_Q", "W_K"), ("W_V", "W_O")
    ratio = mean(pull.relative, asking) / mean(pull.relative, giving)  # (seeds, moments)
    moved = [seeds(mean(pull.moved, names), share=True) for names in (asking, giving)]
    biases = [
        (name, *map(seeds, pull.gradient[name].unbind(1)), seeds(pull.weight[name][:, -1]))
        for name in BIASES
    ]
    return [
        Table(
            f"By the size of the matrix, mean over layers; loss of {images} test images",
            ("matrix", *gradients, "moved", "weakest layer's gradient / rounding's"),
            matrices,
        ),
        Table(
            "W_Q and W_K against W_V and W_O: ratio of their gradients, and how far each pair has moved",
            (*gradients, "W_Q and W_K moved", "W_V and W_O moved"),
            [(*map(seeds, ratio.unbind(1)), *moved)],
        ),
        Table(
            "Biases of queries, keys and values: root mean square of a number, mean over layers",
            ("bias", *gradients, "size at the end"),
            biases,
        ),
    ]


def gradients_figure(pull: Pull, data: str) -> Figure:
    """Draw the gradient of each matrix at the start and at the end, and how far it has moved."""
    shown = {
        f"gradient {MOMENTS[at]}": {name: of[:, at] for name, of in pull.relative.items()}
        for at in (0, -1)
    }
    shown["how far it has moved"] = pull.moved
    panels = [
        Panel(
            title,
            [of[name].flatten(1).mean(1).tolist() for name in MATRICES],
            "of the matrix's size",
            log=True,
        )
        for title, of in shown.items()
    ]
    about = f"{data} · mean over layers; positions: of models that learn them"
    return arms_figure(MATRICES, panels, "One loss pulls at every matrix", about)
