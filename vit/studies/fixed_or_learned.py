"""What is lost when a part of the model does not learn, or is not there: test loss, neighbours and probe at equal budget."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from vit.evaluate.features import pixel_features
from vit.evaluate.knn import knn_accuracy
from vit.evaluate.reconstruction import fixed_mask, mean_visible
from vit.figures.measures import Panel, arms_figure
from vit.mae import masked_patch_loss
from vit.studies.arms import (
    AS_IT_IS,
    ENCODER_WITHOUT_POSITIONS,
    IDENTITY,
    NO_POSITIONS,
    POSITIONS_LEARNED,
    QUERIES_AND_KEYS_FROZEN,
    THREE_FROZEN,
    UNIFORM,
    W_E_FROZEN,
    W_V_FROZEN,
    compared,
    difference,
    extremes,
    learn_arm,
    measures_of,
    numbers_that_learn,
    require_labels,
    stands_out,
)
from vit.studies.finding import Cell, Finding, Seeds, Table, brief, seeds
from vit.studies.laboratory import Laboratory, Learned
from vit.studies.plan import Plan, require_matrices

ARMS = (
    AS_IT_IS,
    W_E_FROZEN,
    POSITIONS_LEARNED,
    ENCODER_WITHOUT_POSITIONS,
    NO_POSITIONS,
    QUERIES_AND_KEYS_FROZEN,
    W_V_FROZEN,
    THREE_FROZEN,
    IDENTITY,
    UNIFORM,
)


def study(laboratory: Laboratory, plan: Plan) -> Finding:
    """See the module."""
    require_matrices(plan, "fixed-or-learned")
    data = require_labels(laboratory, plan, "fixed-or-learned")
    models = {arm.label: learn_arm(laboratory, plan, arm) for arm in ARMS}
    scores = {label: measures_of([one.scores for one in learned]) for label, learned in models.items()}
    untrained = measures_of([one.init_scores for one in models[AS_IT_IS.label]])
    guess, test = loss_of_mean(models[AS_IT_IS.label][0]), data.test
    bank, queries = (pixel_features(part.images) for part in (data.train, test))
    pixels = knn_accuracy(bank, data.train.labels, queries, test.labels)

    rows: list[tuple[Cell, ...]] = [
        (label, f"{numbers_that_learn(learned[0]):,}", *scores[label].values()) for label, learned in models.items()
    ]
    rows += [
        ("all, before training", "", *untrained.values()),
        ("no model: mean of the visible patches, raw pixels", "", seeds([guess]), seeds([pixels], share=True), ""),
    ]
    columns = (
        "arm",
        "numbers that learn",
        "loss over hidden patches",
        "20 nearest neighbours",
        "linear probe",
    )
    budget = f"{plan.training.train.epochs} epochs on {len(data.train):,} images, measured on {len(test):,} test images"
    whole = scores[AS_IT_IS.label]
    losses, probes = (
        {arm.label: difference(scores[arm.label][key], whole[key]) for arm in ARMS[1:]} for key in ("loss", "linear")
    )
    said = answer(whole["loss"], losses, whole["linear"], untrained["linear"], probes)
    limits = (
        "What is frozen is frozen in encoder and decoder alike; but positions are the encoder's, and the decoder always has"
        " the fixed ones, except where there are none at all. A frozen matrix is a random one, not an absent one: the layers"
        " around it learn to use it. Q = K = V = X keeps W_O and the learned scale of the norm before it. The budget is short,"
        " and its learning rate was chosen for models that learn as a whole."
    )
    about = f"{data.name}, {budget} · a dot a seed, a bar at their mean; grey: all learn"
    values = {key: [found[key].values for found in scores.values()] for key in whole}
    start = {key: found.mean for key, found in untrained.items()}
    panels = [
        Panel("loss over hidden patches", values["loss"], lines={"mean of the visible": guess}),
        Panel(
            "20 nearest neighbours", values["neighbours"],
            lines={"before training": start["neighbours"], "raw pixels": pixels}, share=True,
        ),
        Panel("linear probe", values["linear"], lines={"before training": start["linear"]}, share=True),
    ]  # fmt: skip
    figure = arms_figure(
        [arm.label for arm in ARMS], panels, "What is lost when a part does not learn, or is not there", about
    )
    caption = "Loss, neighbours and probe of models in which one part does not learn, or is not there"
    table = Table(budget, columns, rows)
    return Finding(said, limits, [table], {"arms": figure}, {"arms": caption})


@torch.no_grad()
def loss_of_mean(learned: Learned) -> float:
    """Over the hidden patches of all test images, where each is said to be the mean of the visible ones; no model runs."""
    config, images, total = learned.config, learned.data.test.images, 0.0
    for start in range(0, len(images), 256):  # as many at a time as when the model is scored: the masks depend on it
        inputs = learned.prepare(images[start : start + 256])
        mask = fixed_mask(config.mask.kind, start, len(inputs), config.model.grid_size, config.mask.ratio)
        mask, targets = mask.to(inputs.device), learned.model.targets(inputs)
        total += float(masked_patch_loss(mean_visible(targets, mask), targets, mask.mask)) * len(inputs)
    return total / len(images)


def answer(
    loss: Seeds, losses: Mapping[str, Seeds], probe: Seeds, untrained: Seeds, probes: Mapping[str, Seeds]
) -> str:
    """What came out, in words that follow the figures.

    Args:
        loss, probe: where all learn.
        losses, probes: by how much those of each arm are above that; probes in points.
        untrained: the probe before any training.
    """
    losses, probes = ({label: brief(of, n) for label, of in by.items()} for by, n in ((losses, 3), (probes, 1)))
    costs = extremes(losses, -1, f" on a loss of {brief(loss, 3)}")
    gains = {label: found for label, found in losses.items() if found.mean < 0 and stands_out(found)}
    gain = ""
    if gains:
        label = min(gains, key=lambda label: gains[label].mean)
        gain = f" With {label}, the loss is even {compared(gains[label], 'lower', 'higher')}."
    return (
        f"{costs[0].upper()}{costs[1:]}.{gain} For a linear probe of the features, right in {brief(probe)}"
        f" ({brief(untrained)} before any training), {extremes(probes, 1, ' points')}."
    )
