"""What is lost if a part of the model does not learn, or is missing, at equal budget?

Each row is an arm: models that differ from the first row's in one thing, from the same seeds, on
the same images in the same order; with learned or no positions, or Q = K = V = X, the seed also
gives other random weights. The loss is the mean squared error over masked patches (lower is
better); neighbours and probe are accuracies of the features (higher is better). Differences from
the first row are taken seed by seed, so that what both share cancels; one is named if it exceeds
twice its spread over the seeds, which with three of them is p = 0.07.

*Limits.* Matrices are frozen in encoder and decoder alike; but positions are the encoder's, and the
decoder always has the fixed ones, except in the arm without any. A frozen matrix is random, not
absent: the layers around it learn to use it. Q = K = V = X keeps W_O and the learned scale of the
norm before it. The budget is short, and its learning rate was chosen for models that learn as a
whole.
"""

# python -m studies fixed-or-learned
# Eleven models per seed, two hours and 40 minutes on one thread, half an hour more to measure them.
# Expect: almost nothing lost with W_E frozen (loss 0.680, 0.681), most without positions
# (0.794) and with uniform attention (0.778).

from __future__ import annotations

from studies.experiment import SCORES, USUAL, Experiment, over_seeds
from studies.figures import Panel, arms_figure
from studies.tables import Results, Seeds, Table, seeds
from vit.evaluation.features import geometry_of, knn_accuracy, pixel_features

COMPARED = (
    USUAL,
    "W_E frozen",
    "positions learned",
    "no positions in the encoder",
    "no positions at all",
    "W_Q and W_K frozen",
    "W_V frozen",
    "all three frozen",
    "Q = K = V = X",
    "uniform attention",
    "one head in each layer",
)


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    data = experiment.require_labels()

    # The arms
    models = {arm: experiment.models(arm) for arm in COMPARED}
    scores = {}
    for arm, trained in models.items():
        scores[arm] = over_seeds([model.scores for model in trained])
    usual = models[USUAL]
    usual_scores = scores[USUAL]
    untrained = over_seeds([model.initial_scores for model in usual])

    # Baselines without any model
    guess = usual[0].reconstruction()["mean_of_visible_patches"]
    bank = pixel_features(data.train.images)
    queries = pixel_features(data.test.images)
    geometry = geometry_of(len(bank), usual[0].model.encoder.config.embed_dim)
    pixels = knn_accuracy(bank, data.train.labels, queries, data.test.labels, geometry)

    # The table
    rows: list[tuple[str | Seeds, ...]] = []
    for arm, trained in models.items():
        arm_scores = scores[arm]
        lost: tuple[str | Seeds, ...] = ("", "")
        if arm != USUAL:
            more_loss = arm_scores["loss"] - usual_scores["loss"]
            more_accuracy = arm_scores["linear"] - usual_scores["linear"]
            lost = (more_loss, more_accuracy)
        numbers = f"{trained[0].numbers_that_learn():,}"
        rows.append((arm, numbers, *arm_scores.values(), *lost))
    nothing = "no model: mean of the visible patches, raw pixels"
    rows += [
        ("all, before training", "", *untrained.values(), "", ""),
        (nothing, "", seeds([guess]), seeds([pixels], share=True), "", "", ""),
    ]
    differences = ("loss: more than where all learn", "probe: points more")
    columns = ("variant", "trainable parameters", *SCORES.values(), *differences)
    budget = (
        f"{experiment.config.train.epochs} epochs on {len(data.train):,} images,"
        f" measured on {len(data.test):,} test images"
    )

    # The figure
    lines = {
        "loss": {"mean of the visible": guess},
        "knn": {"before training": untrained["knn"].mean, "raw pixels": pixels},
        "linear": {"before training": untrained["linear"].mean},
    }
    panels = []
    for key, title in SCORES.items():
        values = [arm_scores[key].values for arm_scores in scores.values()]
        better = "← better" if key == "loss" else "better →"
        panels.append(Panel(f"{title} ({better})", values, lines=lines[key], share=key != "loss"))
    title = "What is lost when a part does not learn, or is not there"
    figure = arms_figure([*models], panels, title, f"{data.name}, {budget}")
    return Results([Table(budget, columns, rows)], {"arms": figure})
