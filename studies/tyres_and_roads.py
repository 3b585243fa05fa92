"""Are patches that occur together more similar, or those that keep the same company? Cosines of
kinds of patches, against how often they occur together, and how alike their company is.

A kind is a part of Scenes, or a cluster of patches of other images: the mean of its tokens, less
the mean of their positions. Its cosines are about the mean of all kinds: 0 is average. Single
cosines hang on which kinds there are; differences do less: so read *road minus grass*.

Two kinds are *together* as far as they are in one image more often than by chance. Their *company*
is the same as far as the other kinds that they are together with are. Two kinds may be similar
because they look alike or lie at the same places. So the cosine of their pixels, as they are and
whitened, the nearness of their colours and contrasts, and the cosine of their positions are held
constant, as far as linear fits can. The *gain* is how much the cosine of two kinds rises per
standard deviation; *joint*, in one fit by both measures; r is the partial correlation. Gains are
in units of the cosine and grow with its spread, r does not: compare both. Values are means over
draws of the clusters; of a single model, the range of the draws stands beside them.

What was learned from company must be more than in models that are trained as long on images whose
patches each come from another image (shuffled across images), and so never saw two kinds together.
Patches shown alone cannot attend to others: they show what the model knows of a kind itself.

Balls and buoys are drawn by the wheel's code but never come with a road. Red balls are another
question: in half of the images, the wheel's pixels are those of a red ball, which looks unlike a
wheel, never is with one, and has its company. Beside it, red balls in place of the balls in
meadows. The scores compare q(wheel) . k(road) with q(wheel) . k(grass): of the kinds' mean queries
and keys, less the means of their positions, of different images, mean over heads. Above 0, the
score is higher than by chance; a difference of 0.7 is twice the attention.

*Limits.* What linear fits to appearance miss counts as gain. A patch alone is less than the quarter
of an image that training showed. The shuffled models never learn to reconstruct, and their kinds
differ in fewer directions: no control is perfect. Parts of Scenes occur together more strictly than
things in the world, and parts shown alone are cut out; clusters of other data are not, and what
they show is unknown.
"""

# python -m studies tyres-and-roads
# 33 models, 40 minutes on one thread, eleven minutes more to measure them.
# Expect: shown alone, wheels are no nearer to roads than balls are (road less grass 1.21 and 1.27);
# on CIFAR-10, more gain than in the shuffled models after 158 steps (0.09 and 0.02), less after
# 1,264 (0.05 and 0.19).

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from studies.analysis.correlation import association
from studies.experiment import NARROW, USUAL, XAVIER, Experiment, Trained
from studies.figures import Panel, layers_figure
from studies.kinds import (
    ALONE,
    RED_BALL,
    WHOLE,
    Kinds,
    clusters_of_patches,
    dimensions,
    group_cosines,
    group_means,
    group_scores,
    parts_of_scenes,
    require_parts,
    with_red_balls,
)
from studies.tables import Draws, Results, Seeds, Table, seeds
from vit.config import Config, changed
from vit.data import content_hash
from vit.data.sources import SCENES_SEED
from vit.encoder import VisionTransformer
from vit.errors import plural
from vit.figures.style import Figure
from vit.scenes import draw_scenes, scene_indices

ACROSS = "shuffled across images"
LENGTHS = (0.25, 0.5, 1.0, 2.0)
"""Of the trainings, as parts of the settings' epochs: what is learned, and when."""
DRAWS = 5
"""Of the clusters of patches."""
ROAD, GRASS = "road", "grass"
WHEEL = "wheel"
# Drawn by the wheel's code: see vit.scenes
BALL = "ball"
BUOY = "buoy"
AXIS = "layers passed (0: the static embedding)"
Models = Mapping[str, Sequence[tuple[Trained, VisionTransformer]]]
"""By the name of a row, for each seed: what prepares images, and the encoder to look into."""
MEASURES = {
    "gain, together": 3,
    "gain, same company": 3,
    "joint gain, together": 3,
    "joint gain, same company": 3,
    "r, together": 2,
    "r, same company": 2,
    "spread of the cosines": 2,
    "dimensions of the kinds": 1,
}
"""How cosines of kinds go with being together and with the same company, and the digits of each."""
STATIC = "static embedding"
Orders = Mapping[tuple[str, str], Tensor]
"""By model, and view or `STATIC`: the `MEASURES`, (seeds, draws, measures)."""


@dataclass(frozen=True)
class Measured:
    """The parts of Scenes in models, at S stages from static embedding to last layer.

    Attributes:
        kinds: of patches, K of them.
        pixels: by view, (K, K): the cosine of their pixels.
        cosines: by model and view, (seeds, S, K, K): of their tokens.
        scores: by model and view, (seeds, layers, K, K), query by key.
        orders: of the kinds, a single draw.
    """

    kinds: Kinds
    pixels: dict[str, Tensor]
    cosines: dict[tuple[str, str], Tensor]
    scores: dict[tuple[str, str], Tensor]
    orders: Orders

    def between(self, relation: Tensor, row: str, column: str) -> Tensor:
        """Return the relation (..., K, K) of two kinds: (...)."""
        return relation[..., self.kinds.names.index(row), self.kinds.names.index(column)]


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    # Scenes, whose parts are known, and the images of the settings, if they are others
    scenes = experiment.on_scenes
    config = experiment.config
    tables = []
    pictures = {}
    if scenes == config or not experiment.leaves_out("models of Scenes"):
        require_parts(experiment, (WHEEL, BALL, BUOY, ROAD, GRASS))
        models = models_of(experiment, scenes)
        parts = measure(models, parts_of_scenes(scenes.model, experiment.data(scenes)))
        tables += [
            wheel_table(parts),
            scores_table(parts),
            orders_table("Scenes", parts.orders),
        ]
        pictures = {"asking": scores_figure(parts), "wheel": wheel_figure(parts)}
        if not experiment.leaves_out(RED_BALL):
            tables.append(red_ball_table(experiment, models))
    if scenes != config:
        data = experiment.data()
        draws = []
        for draw in range(DRAWS):
            images = experiment.study.images
            draws.append(clusters_of_patches(config.model, data, images, draw))
        models = models_by_steps(experiment)
        found = orders(models, draws)
        tables.append(orders_table(data.name, found))
        if experiment.checkpoint is None:
            tables.append(learned_table(data.name, found))
            pictures["steps"] = steps_figure(data.name, found)
    return Results(tables, pictures)


# --- models ----------------------------------------------------------------


def models_of(experiment: Experiment, config: Config) -> Models:
    """Return the usual models, and those with random weights of both kinds."""
    trained = experiment.models(config=config)
    return {
        "trained": [(model, model.model.encoder) for model in trained],
        XAVIER: [(model, model.initial.encoder) for model in trained],
        NARROW: [(model, model.narrow.encoder) for model in trained],
    }


def models_by_steps(experiment: Experiment) -> Models:
    """Return models with random weights, and those after several numbers of steps, each in a
    training of its own: "trained, 632 steps"; beside them, those of shuffled patches."""
    config = experiment.config
    models = dict(models_of(experiment, config))
    if experiment.leaves_out("other numbers of steps"):
        return models
    del models["trained"]
    steps_per_epoch = config.steps_per_epoch(len(experiment.data().train))
    for length in LENGTHS:
        epochs = round(length * config.train.epochs)
        if epochs > 0:
            shorter = changed(config, {"train.epochs": epochs})
            for name, arm in (("trained", USUAL), (ACROSS, ACROSS)):
                trained = experiment.models(arm, shorter)
                row = f"{name}, {epochs * steps_per_epoch} steps"
                models[row] = [(model, model.model.encoder) for model in trained]
    return models


def with_red_balls_for(experiment: Experiment, part: str) -> Config:
    """Return the settings of Scenes whose training images have red balls in place of a part;
    the experiment has these images from now on."""
    scenes = experiment.on_scenes
    config = changed(scenes, {"data.name": f"Scenes, red balls for {part}s"})
    if config.data not in experiment.used:
        data = experiment.data(scenes)
        drawn = data.train
        pixels = draw_scenes(scene_indices(len(drawn), "train"), SCENES_SEED)[2]
        images, _ = with_red_balls(drawn.images[:], pixels, part)
        train = replace(drawn, images=images, content_hash=content_hash(images, drawn.labels))
        experiment.used[config.data] = replace(data, name=config.data.name, train=train)
    return config


# --- together, or in the same company? ----------------------------------------------------------


def orders(models: Models, draws: Sequence[Kinds]) -> Orders:
    """Measure how similar tokens of kinds are, and how that goes with the orders of co-occurrence:
    for several draws of kinds of the same images."""
    measured = {}
    for view in (ALONE, WHOLE):
        (trained, _), *_ = next(iter(models.values()))
        appearances = [kinds.appearance(trained, view) for kinds in draws]
        for name, of_seeds in models.items():
            found = []
            for model in of_seeds:
                tokens = draws[0].ends(*model, view)
                for kinds, appearance in zip(draws, appearances, strict=True):
                    means = group_means([tokens], kinds.labels, len(kinds.names))
                    found.append(orders_of(kinds, means, appearance))
            values = torch.stack(found).unflatten(0, (len(of_seeds), len(draws)))
            measured[name, view] = values[:, :, -1]
            if view == ALONE:
                measured[name, STATIC] = values[:, :, 0]
    return measured


def orders_of(kinds: Kinds, means: Tensor, appearance: Sequence[Tensor]) -> Tensor:
    """Return the `MEASURES` of kinds whose tokens have these means (S, 2, K, D): (S, measures)."""
    sizes = dimensions(means).mean(1)
    rows = []
    for cosines, size in zip(group_cosines(means), sizes, strict=True):
        found = association(cosines, list(kinds.together.values()), appearance)
        last = torch.stack([found.spread, size])
        rows.append(torch.cat([found.gains, found.joint, found.correlations, last]))
    return torch.stack(rows)


def orders_table(name: str, found: Orders) -> Table:
    """Return the `MEASURES` by model and view; of a single seed with the range of the draws."""
    rows: list[tuple[str | Seeds, ...]] = []
    for (model, view), values in found.items():
        cells = []
        for of_measure, digits in zip(values.permute(2, 0, 1), MEASURES.values(), strict=True):
            cell = seeds(of_measure, digits=digits)
            if len(of_measure) == 1 and of_measure.shape[1] > 1:
                cell = Draws(tuple(of_measure[0].tolist()), digits=digits)
            cells.append(cell)
        rows.append((model, view, *cells))
    draws = plural(next(iter(found.values())).shape[1], "draw")
    title = (
        f"{name}: how the cosines of kinds of patches, after the last layer, go with being together"
        f" in an image and with the same company; appearance and position held constant; mean of"
        f" {draws} of the kinds"
    )
    return Table(title, ("model", "patches", *MEASURES), rows)


def learned_table(name: str, found: Orders) -> Table:
    """Return how much more the trained have than the shuffled, seed by seed."""
    rows = []
    for (model, view), values in found.items():
        if "trained" in model and view != STATIC:
            shuffled = found[model.replace("trained", ACROSS), view]
            cells = []
            for place, digits in enumerate(list(MEASURES.values())[:6]):
                one, other = seeds(values[..., place]), seeds(shuffled[..., place])
                cells.append(replace(one - other, digits=digits))
            rows.append((model.removeprefix("trained, "), view, *cells))
    title = f"{name}: trained less shuffled across images, seed by seed"
    return Table(title, ("steps", "patches", *list(MEASURES)[:6]), rows)


def steps_figure(name: str, found: Orders) -> Figure:
    """Draw the gains of patches alone after several numbers of steps."""
    panels = {}
    for place, measure in enumerate(list(MEASURES)[:2]):
        by_steps: dict[str, dict[str, np.ndarray]] = {"trained": {}, ACROSS: {}}
        for (model, view), values in found.items():
            arm, _, steps = model.partition(", ")
            if view == ALONE and arm in by_steps:
                by_steps[arm][steps.removesuffix(" steps")] = values[..., place].mean(1).numpy()
        places = list(by_steps[ACROSS])
        panels[measure] = {
            arm: np.stack(list(of_arm.values()), axis=1) for arm, of_arm in by_steps.items()
        }
    for row in (XAVIER, NARROW):
        for place, series in enumerate(panels.values()):
            gains = found[row, ALONE][..., place].mean(1).numpy()  # (seeds,)
            series[row] = np.repeat(gains[:, None], len(places), axis=1)
    title = "Are patches more similar for their company? It depends on the number of steps"
    caption = f"{name}, patches alone, last layer · line: mean over seeds, band: range"
    scaled = on_one_scale(panels, "gain in cosine")
    return layers_figure(scaled, title, caption, places, "steps of training")


# --- wheels, balls, roads and grass ----------------------------------------------------------


def measure(models: Models, kinds: Kinds) -> Measured:
    """Measure kinds of patches, by model and view."""
    (trained, _), *_ = next(iter(models.values()))
    pixels = {}
    cosines = {}
    scores = {}
    orders: dict[tuple[str, str], Tensor] = {}
    for view in kinds.views:
        appearance = kinds.appearance(trained, view)
        pixels[view] = appearance[0]
        for name, of_seeds in models.items():
            cosines_of_seeds = []
            scores_of_seeds = []
            orders_of_seeds = []
            for model, encoder in of_seeds:
                means, of_attention = kinds.means(model, encoder, view)
                cosines_of_seeds.append(group_cosines(means))
                scores_of_seeds.append(group_scores(of_attention, encoder.config.num_heads))
                orders_of_seeds.append(orders_of(kinds, means[[0, -1]], appearance))
            cosines[name, view] = torch.stack(cosines_of_seeds)
            scores[name, view] = torch.stack(scores_of_seeds)
            ends = torch.stack(orders_of_seeds)[:, None]  # (seeds, 1, 2, measures)
            orders[name, view] = ends[:, :, -1]
            if view == ALONE:
                orders[name, STATIC] = ends[:, :, 0]
    return Measured(kinds, pixels, cosines, scores, orders)


def cosines_table(title: str, measured: Measured, pairs: Sequence[tuple[str, ...]]) -> Table:
    """Return cosines of kinds: of two, or of one with a second less that with a third."""

    def cells(relation: Tensor) -> list[Seeds]:
        """Return those of a relation (seeds, K, K)."""
        found = []
        for kind, other, *less in pairs:
            values = measured.between(relation, kind, other)
            for third in less:
                values = values - measured.between(relation, kind, third)
            found.append(seeds(values, digits=2))
        return found

    rows: list[tuple[str | Seeds, ...]] = []
    for view, similarity in measured.pixels.items():
        rows.append(("pixels", view, *cells(similarity[None])))
    for (model, view), cosines in measured.cosines.items():
        for name, stage in {STATIC: 0, "last layer": -1}.items():
            rows.append((f"{name}, {model}", view, *cells(cosines[:, stage])))
    columns = ["tokens", "patches"]
    for kind, other, *less in pairs:
        columns.append(f"{kind}: {' less '.join([other, *less])}")
    return Table(title, columns, rows)


def wheel_table(parts: Measured) -> Table:
    """Return the cosines of wheels, and of what looks like a wheel, with roads and grass."""
    title = (
        "Scenes: cosines of wheels, and of what is drawn by the wheel's code and never comes with a"
        " road"
    )
    pairs: list[tuple[str, ...]] = []
    for kind in (WHEEL, BALL):
        pairs += [(kind, ROAD), (kind, GRASS), (kind, ROAD, GRASS)]
    return cosines_table(title, parts, [*pairs, (BUOY, ROAD), (WHEEL, BALL)])


def red_ball_table(experiment: Experiment, models: Models) -> Table:
    """Return the cosines of red balls, in place of wheels and elsewhere."""
    compared = {name: models[name] for name in ("trained", XAVIER, NARROW)}
    for part in (WHEEL, BALL):
        trained = experiment.models(config=with_red_balls_for(experiment, part))
        name = f"trained, red balls for {part}s"
        compared[name] = [(model, model.model.encoder) for model in trained]
    scenes = experiment.on_scenes
    kinds = parts_of_scenes(scenes.model, experiment.data(scenes), WHEEL)
    title = (
        "Scenes with red balls in place of half of the wheels: cosines in models that trained"
        " on such, on the usual ones, or on red balls in place of half of the balls in meadows"
    )
    pairs = [(RED_BALL, WHEEL), (RED_BALL, ROAD), (RED_BALL, GRASS), (RED_BALL, ROAD, GRASS)]
    return cosines_table(title, measure(compared, kinds), [*pairs, (WHEEL, ROAD, GRASS)])


def scores_table(parts: Measured) -> Table:
    """Return the scores of wheels and balls for roads and for grass, and the difference."""
    layers = {"first layer": slice(1), "last layer": slice(-1, None), "all layers": slice(None)}
    rows = []
    for (model, view), of_model in parts.scores.items():
        for name, chosen in layers.items():
            cells = []
            for query in (WHEEL, BALL):
                road = parts.between(of_model[:, chosen], query, ROAD)
                grass = parts.between(of_model[:, chosen], query, GRASS)
                cells.append(seeds(road, digits=2))
                cells.append(seeds(grass, digits=2))
                cells.append(seeds(road - grass, digits=2))
            rows.append((f"{name}, {model}", view, *cells))

    columns = ["queries and keys", "patches"]
    for query in (WHEEL, BALL):
        for key in (f"k({ROAD})", f"k({GRASS})", "difference"):
            columns.append(f"q({query}), {key}")
    title = (
        "Scenes: score of the mean query of one kind and the mean key of another, q · k / sqrt(d),"
        " mean over heads, each minus the mean of its position"
    )
    return Table(title, columns, rows)


def on_one_scale(series: Mapping[str, Mapping[str, np.ndarray]], unit: str) -> list[Panel]:
    """Return panels of series (seeds, layers) by title, which share the scale that fits all."""
    ends: list[float] = []
    for lines in series.values():
        for values in lines.values():
            ends += [values.min(), values.max()]
    margin = 0.08 * (max(ends) - min(ends))
    limits = (min(ends) - margin, max(ends) + margin)
    return [Panel(title, lines, unit, limits=limits) for title, lines in series.items()]


def wheel_figure(parts: Measured) -> Figure:
    """Draw how similar wheels, and what looks like a wheel, are to roads, layer by layer."""
    series = {}
    for view in parts.kinds.views:
        cosines = parts.cosines["trained", view]
        lines = {kind: parts.between(cosines, kind, ROAD).numpy() for kind in (WHEEL, BALL, BUOY)}
        series[f"patches {view}"] = lines
    caption = "Scenes, trained · balls and buoys never come with a road · band: range of the seeds"
    title = "Do wheels come nearer to roads than what looks like a wheel?"
    panels = on_one_scale(series, "cosine with roads")
    return layers_figure(panels, title, caption, axis=AXIS)


def scores_figure(parts: Measured) -> Figure:
    """Draw the scores of wheels and balls for roads and for grass, from layer to layer."""
    series = {}
    for kind, model in (
        (WHEEL, "trained"),
        (BALL, "trained"),
        (WHEEL, XAVIER),
        (WHEEL, NARROW),
    ):
        of_model = parts.scores[model, WHOLE]
        lines = {f"for {key}": parts.between(of_model, kind, key).numpy() for key in (ROAD, GRASS)}
        series[f"query of a {kind}, {model}"] = lines
    caption = "Scenes, whole images · line: mean over seeds, band: range"
    title = "Do the queries of wheels prefer the keys of roads?"
    panels = on_one_scale(series, "score, minus its position's")
    return layers_figure(panels, title, caption)
