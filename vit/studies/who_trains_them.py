"""One loss, one backward pass: does it reach every matrix, how far does each move, and which could as well stand still?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vit.evaluate.reconstruction import fixed_mask, score_reconstruction
from vit.figures.measures import Panel, arms_figure, layers_figure
from vit.figures.style import Figure
from vit.interpret.gradients import drift, masked_gradients, sizes, weights_by_name
from vit.studies.arms import (
    AS_IT_IS,
    MLP_FROZEN,
    POSITIONS_LEARNED,
    W_E_FROZEN,
    W_K_FROZEN,
    W_O_FROZEN,
    W_Q_FROZEN,
    W_V_FROZEN,
    difference,
    extremes,
    learn_arm,
)
from vit.studies.finding import Cell, Finding, Seeds, Table, brief, seeds
from vit.studies.laboratory import Laboratory, Learned
from vit.studies.plan import Plan, require_matrices

FROZEN = (W_E_FROZEN, W_Q_FROZEN, W_K_FROZEN, W_V_FROZEN, W_O_FROZEN, MLP_FROZEN)
MOMENTS = ("at the start", "halfway", "at the end")
ASKING, GIVING = ("W_Q", "W_K"), ("W_V", "W_O")
BY_LAYER = (*ASKING, *GIVING, "MLP")
MATRICES = ("W_E", "positions", *BY_LAYER)
BIASES = ("b_Q", "b_K", "b_V")
MOST_IMAGES = 256  # that a gradient is taken of: as many as a batch or two of the training
ROUNDING = 100  # times the gradient of the keys' bias, which is rounding alone: what is below may be rounding too


class Pull(NamedTuple):
    """What a loss does to the matrices of a model, by name; sizes are the root mean square of their numbers.

    Attributes:
        gradient, weight: sizes (seeds, moments, layers), at `MOMENTS` of the training.
        moved: (seeds, layers), how far from the start, by the size there.
    """

    gradient: dict[str, Tensor]
    weight: dict[str, Tensor]
    moved: dict[str, Tensor]

    @property
    def relative(self) -> dict[str, Tensor]:
        """The gradients of matrices by the size of their weights: (seeds, moments, layers)."""
        return {name: self.gradient[name] / self.weight[name] for name in MATRICES}


def study(laboratory: Laboratory, plan: Plan) -> Finding:
    """See the module."""
    require_matrices(plan, "who-trains-them", biases=True)
    models = {arm.label: learn_arm(laboratory, plan, arm) for arm in (AS_IT_IS, POSITIONS_LEARNED, *FROZEN)}
    data = laboratory.data(plan.training)
    images = min(plan.images, MOST_IMAGES, len(data.test))
    pull = pull_of(models[AS_IT_IS.label], images)
    placed = pull_of(models.pop(POSITIONS_LEARNED.label), images)  # the others' positions are fixed
    for mine, theirs in zip(pull, placed, strict=True):
        mine["positions"] = theirs["positions"]
    losses = {label: seeds([loss_of(one) for one in learned]) for label, learned in models.items()}
    whole = losses[AS_IT_IS.label]
    lost = {arm.label: difference(losses[arm.label], whole) for arm in FROZEN}

    rows: list[tuple[Cell, ...]] = [(label, loss, lost.get(label, "")) for label, loss in losses.items()]
    columns = ("arm", "loss over hidden patches", "more than where all learn")
    frozen = Table(f"One of them frozen at its random start: {len(data.test):,} test images", columns, rows)
    at_start, at_end = (
        seeds((_mean(pull.relative, ASKING)[:, at] / _mean(pull.relative, GIVING)[:, at]).tolist()) for at in (0, -1)
    )
    ways = [seeds(_mean(pull.moved, names).tolist(), share=True) for names in (ASKING, GIVING)]
    said = answer(*faintest(pull.gradient), at_start, at_end, ways, whole, lost)
    limits = (
        "What rounding alone makes of zero is read off the bias of the keys, whose gradient is zero: what it adds to the"
        " logits of a query, softmax takes away. Gradients are the encoder's, at three moments and of one set of images;"
        " within a training they change from batch to batch. How far a matrix moves says little of its gradient's strength."
        " W_Q and W_K alone are not determined either: turned against"
        " each other, they give the same logits. What is frozen is frozen in encoder and decoder, and its neighbours learn to"
        " make up for it."
    )
    panel = Panel("loss over hidden patches", [loss.values for loss in losses.values()])
    title, about = "What is lost when one of them stands still", "a dot a seed, a bar at their mean; grey: all learn"
    figures = {
        "gradients": gradients_figure(pull, data.name),
        "frozen": arms_figure(list(losses), [panel], title, f"{data.name} · {about}"),
    }
    captions = {
        "gradients": "How hard the masked loss pulls at each matrix, layer by layer, and how far it has moved it",
        "frozen": "The loss with one matrix frozen at its random start",
    }
    return Finding(said, limits, [*gradient_tables(pull, images), frozen], figures, captions)


def answer(
    weakest: str,
    missed: str,
    at_start: Seeds,
    at_end: Seeds,
    ways: Sequence[Seeds],
    whole: Seeds,
    lost: Mapping[str, Seeds],
) -> str:
    """What came out, in words that follow the figures.

    Args:
        weakest, missed: of `faintest`.
        at_start, at_end: the gradients of W_Q and W_K relative to their size, in times of those of W_V and W_O.
        ways: how far W_Q and W_K, and W_V and W_O, have moved, relative to their size.
        whole: the loss where all learn.
        lost: by how much the loss of each arm is above that.
    """
    reached = (
        f"all of them but {missed}, in one backward pass: the weakest"
        if missed
        else "all of them, in one backward pass: even the weakest"
    )
    costs = extremes({label: brief(found, 3) for label, found in lost.items()}, -1, f" on a loss of {brief(whole, 3)}")
    return (
        f"One loss trains {reached} gradient, on {weakest} times as strong, number by number, as what rounding makes of zero."
        f" Relative to their size, W_Q and W_K have gradients {brief(at_start)} times as strong as those of W_V and W_O at the"
        f" start, {brief(at_end)} times at the end; they move by {brief(ways[0])} of it, W_V and W_O by {brief(ways[1])}: AdamW"
        f" divides each number's gradient by its usual size. Where one stands still at its random start, {costs}."
    )


def gradient_tables(pull: Pull, images: int) -> list[Table]:
    """Gradients and movements of the matrices, and of the biases, which begin at zero and so have no size to go by."""
    gradients = [f"gradient {moment}" for moment in MOMENTS]
    matrices: list[tuple[Cell, ...]] = [
        (name, *map(_layers, pull.relative[name].unbind(1)), _layers(pull.moved[name])) for name in MATRICES
    ]
    biases: list[tuple[Cell, ...]] = [
        (name, *map(_layers, pull.gradient[name].unbind(1)), _layers(pull.weight[name][:, -1])) for name in BIASES
    ]
    by_size = f"By the size of the matrix, mean over layers; loss of {images} test images"
    plain = "Biases of queries, keys and values: root mean square of a number, mean over layers"
    return [
        Table(by_size, ("matrix", *gradients, "moved"), matrices),
        Table(plain, ("bias", *gradients, "size at the end"), biases),
    ]


def gradients_figure(pull: Pull, data: str) -> Figure:
    """The gradient of each matrix at `MOMENTS`, by its size, and how far it has moved."""
    shown = {
        f"gradient {moment}": {name: of[:, at] for name, of in pull.relative.items()}
        for at, moment in enumerate(MOMENTS)
    }
    shown["how far it has moved"] = pull.moved
    panels = [
        Panel(
            title, {name: of[name].numpy() for name in BY_LAYER}, "of the matrix's size",
            {name: float(of[name].mean()) for name in ("W_E", "positions")}, log=True,
        )
        for title, of in shown.items()
    ]  # fmt: skip
    about = f"{data} · line: mean over seeds, band: their range; positions: of models that learn them"
    return layers_figure(panels, "One loss pulls at every matrix", about)


def pull_of(models: list[Learned], images: int) -> Pull:
    """What the masked loss of test images does to the matrices of models, one a seed, and what their training did.

    Args:
        models: of one arm.
        images: how many, under the fixed test mask.
    """
    found: list[tuple[dict[str, Tensor], ...]] = []
    for one in models:
        inputs, settings = one.prepare(one.sample(images)), one.config.mask
        grid = one.model.encoder.patch_embed.grid_size
        mask = fixed_mask(settings.kind, 0, len(inputs), grid, settings.ratio).to(inputs.device)
        moments = (one.initial, one.halfway, one.model)
        gradients = [masked_gradients(model, inputs, mask) for model in moments]
        weights = [weights_by_name(model.encoder) for model in moments]
        by_name = [
            {name: torch.stack([sizes(moment[name]) for moment in of]).cpu() for name in of[0]}
            for of in (gradients, weights)
        ]
        moved = {name: drift(weights[0][name], weights[-1][name]).cpu() for name in MATRICES}
        found.append((*by_name, moved))
    return Pull(*({name: torch.stack([one[name] for one in of]) for name in of[0]} for of in zip(*found, strict=True)))


def faintest(gradient: dict[str, Tensor]) -> tuple[str, str]:
    """The matrix with the weakest gradient, in words, and those whose gradient may be nothing but rounding.

    Args:
        gradient: as in `Pull`; that of "b_K" is what rounding makes of zero.
    """
    rounding = gradient["b_K"].max()
    times = {name: float(gradient[name].min() / rounding) for name in MATRICES}
    name = min(times, key=times.__getitem__)
    missed = [name for name in MATRICES if times[name] < ROUNDING]
    return f"{name}, is some {float(f'{times[name]:.1g}'):,.0f}", " and ".join(missed)


def loss_of(learned: Learned) -> float:
    """Of the trained model, over the hidden patches of all test images."""
    kind, ratio = learned.config.mask.kind, learned.config.mask.ratio
    images, compute = learned.data.test.images, learned.compute
    return score_reconstruction(learned.model, images, learned.prepare, kind, ratio, compute).model


def _layers(values: Tensor) -> Seeds:
    """(seeds, layers), their mean over layers."""
    return seeds(values.mean(1).tolist())


def _mean(of: dict[str, Tensor], names: tuple[str, ...]) -> Tensor:
    """(seeds, ..., layers) of some matrices, their mean over these and over layers: (seeds, ...)."""
    return torch.stack([of[name].mean(-1) for name in names]).mean(0)
