"""Are patches that occur together more similar? Cosines of kinds of patches, against how often two
kinds occur together.

A kind is a part of Scenes, or a cluster of patches of other data: the mean of its tokens, less the
mean of their positions. Its cosines are about the mean of all kinds: 0 is average. Two kinds may be
similar because they look alike or lie at the same places. So the cosine of their pixels, as they
are and whitened, the nearness of their colours and contrasts, and the cosine of their positions are
held constant, as far as linear fits can. The correlation is the rank correlation of the cosine with
how often two kinds occur together; p, how often permuting the kinds gives as much; and the gain,
how much the cosine rises per standard deviation of how often they occur together. That counts as
learned if the gain of trained models exceeds, by more than twice the spread over the seeds and
0.05, the gains of random weights and of training on images whose patches each come from another
image (shuffled across images), which never showed two kinds together. Patches shown alone cannot
attend to others. Balls and buoys are drawn by the wheel's code but never come with a road: if
tokens of parts that occur together became similar, wheels would end nearer to roads than balls,
also alone. The scores compare q(wheel) . k(road) with q(wheel) . k(grass): of the kinds' mean
queries and keys, less the means of their positions, of different images, mean over heads. Above 0,
the score is higher than by chance; a difference of 0.7 is twice the attention.

*Limits.* What linear fits to appearance miss counts as gain. A patch alone is less than the quarter
of an image that training showed. No control learned what patches look like as finely, without
seeing them together; a third one saw patches of one image at shuffled positions (shuffled within
images). Parts of Scenes occur together more strictly than things in the world, and parts shown
alone are cut out; clusters of other data are not, and what they show is unknown.
"""

# python -m studies tyres-and-roads
# Eighteen models, half an hour to two hours on one thread, eleven minutes more to measure them.
# Expect: wheels come no nearer to roads (a cosine of 0.76, then 0.66), balls move away (0.70, then
# -0.15); on CIFAR-10, patches that occur together come a little closer, but so they do in models
# that never saw them together.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from studies.analysis.correlation import association
from studies.experiment import NARROW, XAVIER, Experiment
from studies.figures import Panel, arms_figure, layers_figure, relations_figure
from studies.kinds import (
    ALONE,
    TOGETHER,
    WHOLE,
    Kinds,
    clusters_of_patches,
    parts_of_scenes,
    require_parts,
    with_red_balls,
)
from studies.tables import Results, Seeds, Table, seeds
from vit.config import Config, changed
from vit.data import content_hash
from vit.data.sources import SCENES_SEED
from vit.figures.style import Figure
from vit.scenes import draw_scenes, scene_indices

SHUFFLED = ("shuffled across images", "shuffled within images")
ROAD, GRASS = "road", "grass"
WHEEL = "wheel"
# Drawn by the wheel's code: see vit.scenes
BALL = "ball"
BUOY = "buoy"
AXIS = "layers passed (0: the static embedding)"
# Places in an `Association`
CORRELATION, P, GAIN = range(3)


@dataclass(frozen=True)
class Measured:
    """The measurements of K kinds of patches, at S stages from static embedding to last layer.

    Attributes:
        kinds: of patches.
        pixels: by view, (K, K): the cosine of their pixels.
        cosines: by arm and view, (seeds, S, K, K): of their tokens.
        associations: by sort of co-occurrence, arm and view, (seeds, S, 3): the `Association` with
            the cosines.
        logits: by arm and view, (seeds, layers, K, K), query by key.
    """

    kinds: Kinds
    pixels: dict[str, Tensor]
    cosines: dict[tuple[str, str], Tensor]
    associations: dict[tuple[str, str, str], Tensor]
    logits: dict[tuple[str, str], Tensor]

    def between(self, relation: Tensor, row: str, column: str) -> Tensor:
        """Return the relation (..., K, K) of two kinds: (...)."""
        return relation[..., self.kinds.names.index(row), self.kinds.names.index(column)]


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    # Scenes, whose parts are known, and the images of the settings, if they are others
    scenes = experiment.on_scenes
    config = experiment.config
    kinds_of_settings = []
    if scenes == config or not experiment.leaves_out("models of Scenes"):
        require_parts(experiment, (WHEEL, BALL, BUOY, ROAD, GRASS))
        parts = parts_of_scenes(scenes.model, experiment.data(scenes))
        kinds_of_settings.append((scenes, parts))
    if scenes != config:
        images = experiment.study.images
        clusters = clusters_of_patches(config.model, experiment.data(), images)
        kinds_of_settings.append((config, clusters))

    # Measure each
    measured = []
    for settings, kinds in kinds_of_settings:
        measured.append(measure(experiment, settings, kinds))

    # Tables and figures; those of wheels are of Scenes alone
    tables = []
    for kinds_measured in measured:
        for where in kinds_measured.kinds.together:
            tables.append(together_table(kinds_measured, where))
    pictures = {"gain": gain_figure(measured)}
    if kinds_of_settings[0][0] == scenes:
        of_scenes = measured[0]
        tables = [logits_table(of_scenes), wheel_table(of_scenes), *tables]
        pictures = {
            "asking": logits_figure(of_scenes),
            "wheel": wheel_figure(of_scenes, [("trained", WHOLE), ("trained", ALONE)]),
            "random": wheel_figure(of_scenes, [(XAVIER, WHOLE), (NARROW, WHOLE)]),
            **pictures,
            "parts": parts_figure(of_scenes),
        }
    return Results(tables, pictures)


def measure(experiment: Experiment, config: Config, kinds: Kinds) -> Measured:
    """Train all arms, and measure how similar tokens of kinds are, and how that goes with occurring
    together."""
    trained = experiment.models(config=config)
    arms = {
        "trained": [model.model for model in trained],
        XAVIER: [model.initial for model in trained],
        NARROW: [model.narrow for model in trained],
    }
    for arm in SHUFFLED:
        shuffled = experiment.models(arm, config)
        if shuffled:
            arms[arm] = [model.model for model in shuffled]

    # Cosines and scores of the kinds, for each arm and view
    appearance = {view: kinds.appearance(trained[0], view) for view in kinds.views}
    cosines: dict[tuple[str, str], Tensor] = {}
    logits: dict[tuple[str, str], Tensor] = {}
    for arm, models in arms.items():
        for view in kinds.views:
            cosines_of_seeds = []
            logits_of_seeds = []
            for model in models:
                cosines_of_seeds.append(kinds.cosines(trained[0], model.encoder, view))
                logits_of_seeds.append(kinds.logits(trained[0], model.encoder, view))
            cosines[arm, view] = torch.stack(cosines_of_seeds)
            logits[arm, view] = torch.stack(logits_of_seeds)

    # How cosines go with occurring together, stage by stage
    associations: dict[tuple[str, str, str], Tensor] = {}
    for where, often in kinds.together.items():
        for (arm, view), of_seeds in cosines.items():
            rows = []
            for stages in of_seeds:
                rows.append([association(stage, often, appearance[view]) for stage in stages])
            associations[where, arm, view] = torch.tensor(rows)
    pixels = {view: similarities[0] for view, similarities in appearance.items()}
    return Measured(kinds, pixels, cosines, associations, logits)


def with_red_balls_for(experiment: Experiment, part: str) -> Config:
    """Return the settings of Scenes whose training images have red balls in the place of a part;
    the experiment has these images from now on."""
    scenes = experiment.on_scenes
    config = changed(scenes, {"data.name": f"Scenes, red balls for {part}s"})
    if config.data not in experiment.used:
        data = experiment.data(scenes)
        drawn = data.train
        pixels = draw_scenes(scene_indices(len(drawn), "train"), SCENES_SEED)[2]
        images, _ = with_red_balls(drawn.images, pixels, part)
        train = replace(drawn, images=images, content_hash=content_hash(images, drawn.labels))
        experiment.used[config.data] = replace(data, name=config.data.name, train=train)
    return config


def together_table(measured: Measured, where: str) -> Table:
    """Return how cosines go with occurring together, in one image or side by side, by arm and
    view."""
    stages = {"static": 0, "first layer": 1, "last layer": -1}
    rows = []
    for arm, view in measured.cosines:
        associations = measured.associations[where, arm, view]  # (seeds, S, 3)
        correlations = []
        gains = []
        for stage in stages.values():
            correlations.append(seeds(associations[:, stage, CORRELATION], digits=2))
            gains.append(seeds(associations[:, stage, GAIN], digits=2))
        largest_p = f"{float(associations[:, -1, P].max()):.3f}"
        rows.append((arm, view, *correlations, largest_p, *gains))
    title = (
        f"{measured.kinds.data}, {len(measured.kinds.names)} kinds: rank correlation of the cosine"
        f" of two kinds of patches with how often they are {where}, and by how much the cosine"
        " rises with one standard deviation of that; appearance and position held constant"
    )
    columns = (
        "model",
        "patches",
        *(f"correlation, {stage}" for stage in stages),
        "largest p, last layer",
        *(f"gain, {stage}" for stage in stages),
    )
    return Table(title, columns, rows)


def wheel_table(scenes: Measured) -> Table:
    """Return the cosines of wheels, and of what looks like a wheel, with roads."""
    pairs = (
        (WHEEL, ROAD),
        (BALL, ROAD),
        (BUOY, ROAD),
        (WHEEL, GRASS),
        (BALL, GRASS),
        (WHEEL, BALL),
    )

    # By pixels
    rows: list[tuple[str | Seeds, ...]] = []
    for view, similarity in scenes.pixels.items():
        rows.append(
            ("pixels", view, *(f"{scenes.between(similarity, *pair):.2f}" for pair in pairs))
        )

    # By tokens
    for (arm, view), cosines in scenes.cosines.items():
        for name, stage in {"static embedding": 0, "last layer": -1}.items():
            cells = []
            for pair in pairs:
                cells.append(seeds(scenes.between(cosines[:, stage], *pair), digits=2))
            rows.append((f"{name}, {arm}", view, *cells))
    title = (
        "Scenes: cosines of wheels, and of what is drawn by the wheel's code and never comes with a"
        " road"
    )
    columns = ("tokens", "patches", *(f"{first} and {second}" for first, second in pairs))
    return Table(title, columns, rows)


def logits_table(scenes: Measured) -> Table:
    """Return the scores of wheels and balls for roads and for grass, and the difference."""
    layers = {"first layer": slice(1), "last layer": slice(-1, None), "all layers": slice(None)}
    rows = []
    for (arm, view), logits in scenes.logits.items():
        for name, chosen in layers.items():
            cells = []
            for query in (WHEEL, BALL):
                road = scenes.between(logits[:, chosen], query, ROAD)
                grass = scenes.between(logits[:, chosen], query, GRASS)
                cells.append(seeds(road, digits=2))
                cells.append(seeds(grass, digits=2))
                cells.append(seeds(road - grass, digits=2))
            rows.append((f"{name}, {arm}", view, *cells))

    columns = ["queries and keys", "patches"]
    for query in (WHEEL, BALL):
        for key in (f"k({ROAD})", f"k({GRASS})", "difference"):
            columns.append(f"q({query}), {key}")
    title = (
        "Scenes: score of the mean query of one kind and the mean key of another, q . k / sqrt(d),"
        " mean over heads, each minus the mean of its position"
    )
    return Table(title, columns, rows)


def gain_figure(measured: list[Measured]) -> Figure:
    """Draw the gain of occurring in one image after the last layer, arm by arm."""
    # Gains of the seeds by panel and arm
    gains: dict[str, dict[str, list[float]]] = {}
    for kinds_measured in measured:
        for (where, arm, view), associations in kinds_measured.associations.items():
            if where == TOGETHER:
                panel = gains.setdefault(f"{kinds_measured.kinds.data}, {view}", {})
                panel[arm] = associations[:, -1, GAIN].tolist()

    # One scale for all panels, with a margin, and 0 on it
    every_gain: list[float] = []
    for arms in gains.values():
        for values in arms.values():
            every_gain += values
    low = min(every_gain)
    high = max(every_gain)
    margin = 0.1 * (high - low)
    limits = (min(low, 0.0) - margin, high + margin)

    panels = []
    for title, arms in gains.items():
        panels.append(Panel(title, list(arms.values()), "gain in cosine", limits=limits))
    caption = (
        "after the last layer: rise of the cosine per standard deviation of co-occurrence;"
        " appearance and position held constant"
    )
    names = list(next(iter(gains.values())))
    title = f"How much more similar are patches that are often {TOGETHER}?"
    return arms_figure(names, panels, title, caption)


def wheel_figure(scenes: Measured, shown: Sequence[tuple[str, str]]) -> Figure:
    """Draw how similar wheels, and what looks like a wheel, are to roads, layer by layer: a panel
    for each arm and view."""
    drawn = {}
    for arm, view in shown:
        cosines = scenes.cosines[arm, view]
        lines = {}
        for kind in (WHEEL, BALL, BUOY):
            lines[kind] = scenes.between(cosines, kind, ROAD).numpy()
        drawn[f"{arm}, {view}"] = lines

    # One scale for all panels: from 0, or the lowest cosine
    low = min(float(values.min()) for lines in drawn.values() for values in lines.values())
    limits = (min(low, 0.0) - 0.05, 1.0)
    panels = []
    for title, lines in drawn.items():
        panels.append(Panel(title, lines, "cosine with roads", limits=limits))
    caption = (
        "Scenes · balls and buoys are drawn like wheels, but never come with a road · line: mean"
        " over seeds, band: range"
    )
    title = "Do wheels come nearer to roads than what looks like a wheel?"
    return layers_figure(panels, title, caption, axis=AXIS)


def logits_figure(scenes: Measured) -> Figure:
    """Draw the scores of wheels and balls for roads and for grass, from layer to layer."""
    # (seeds, layers) each, and the ends of the scale that all panels share
    series: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    ends: list[float] = []
    for kind, arm in ((WHEEL, "trained"), (BALL, "trained"), (WHEEL, XAVIER)):
        lines = {}
        for key in (ROAD, GRASS):
            logits = scenes.between(scenes.logits[arm, WHOLE], kind, key).numpy()
            lines[f"for {key}"] = logits
            ends += [logits.min(), logits.max()]
        series[kind, arm] = lines
    margin = 0.08 * (max(ends) - min(ends))
    limits = (min(ends) - margin, max(ends) + margin)

    panels = []
    for (kind, arm), lines in series.items():
        title = f"query of a {kind}, {arm}"
        panels.append(Panel(title, lines, "score, minus its position's", limits=limits))
    caption = "Scenes · line: mean over seeds, band: range"
    title = "Do the queries of wheels prefer the keys of roads?"
    return layers_figure(panels, title, caption)


def parts_figure(scenes: Measured) -> Figure:
    """Draw all parts of Scenes against each other."""
    deep = scenes.cosines["trained", WHOLE][:, -1].mean(0).numpy()  # (K, K)
    often = scenes.kinds.together[TOGETHER].numpy()
    relations = [
        Panel(f"how often they are {TOGETHER}", often, "bits more than by chance"),
        Panel("their tokens after the last layer", deep, "cosine", limits=(-1, 1)),
    ]
    caption = (
        "Scenes, trained models, whole images, mean over seeds · outlined: wheel and road, ball and"
        " road"
    )
    marked = [(WHEEL, ROAD), (BALL, ROAD)]
    title = "Parts that occur together, and how similar their tokens end"
    return relations_figure(scenes.kinds.names, relations, title, caption, marked)
