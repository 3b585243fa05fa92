"""Are patches that occur together more similar? Their cosines against the company they keep, with looks held constant.

The study compares means of kinds of patches, beyond what is typical of their places: the parts of Scenes, or clusters of
patches of other data. Two kinds may be near because they look alike or lie at the same places; so the cosine of their pixels,
the nearness of their colours and contrasts, and the cosine of their places are held constant, as far as linear fits can. Then
the rank correlation says how surely nearness follows how often two kinds meet; p, how often permuting the kinds gives as much;
and the gain, how much nearer two kinds are per standard deviation of how often they meet. Company counts if the gain of trained
models exceeds, by more than twice the spread over the seeds and 0.05, the gains of random weights and of training on images
whose patches each come from another image (shuffled across images), which never showed two kinds together. Patches shown alone
have no neighbours to mix in. Balls and buoys are drawn by the wheel's code but never come with a road: if company were learned,
roads would end nearer to wheels than to them. The same is asked of attention: q(wheel) . k(road) against q(wheel) . k(grass),
the logits of the kinds' mean queries and keys, beyond what is typical of their places, of different images, mean over heads.
Above 0, a wheel asks for it more than by chance; a difference of 0.7 is twice the attention.

*Limits.* A patch alone is less than the quarter of an image that training showed. No control learned looks without company as
finely as the trained models learn both; a third saw patches of one image at shuffled places (shuffled within images). The
company that parts of Scenes keep is stricter than the world's, and parts shown alone are cut out; clusters of other data are
not, and what they show is unknown.
"""

# python -m studies tyres-and-roads
# Eighteen models, two hours on one thread, twelve minutes more to measure them. Expect: wheels
# come no nearer to roads (a cosine of 0.76, then 0.66), balls move away (0.70, then -0.15); on
# CIFAR-10, co-occurrence counts.

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from studies.analysis.correlation import association
from studies.experiment import Experiment
from studies.figures import arms_figure, relations_figure
from studies.kinds import (
    ALONE,
    TOGETHER,
    WHOLE,
    Kinds,
    clusters_of_patches,
    parts_of_scenes,
    require_parts,
)
from studies.tables import Results, Seeds, Table, seeds
from vit.config import Config
from vit.figures.measures import Panel, layers_figure
from vit.figures.style import Figure

SHUFFLED = ("shuffled across images", "shuffled within images")
ROAD, GRASS = "road", "grass"
WHEEL, BALL, BUOY = (
    "wheel",
    "ball",
    "buoy",
)  # the latter two are drawn by the wheel's code: vit.scenes.LOOK_ALIKES
AXIS = "blocks passed (0: the static embedding)"
CORRELATION, P, GAIN = range(3)  # of an `Association`


@dataclass(frozen=True)
class Company:
    """The measurements of K kinds of patches, at S stages from the static embedding to the last block."""

    kinds: Kinds
    looks: dict[str, Tensor]  # (K, K) by view: how alike their pixels are
    cosines: dict[tuple[str, str], Tensor]  # (seeds, S, K, K) by arm and view
    follows: dict[
        tuple[str, str, str], Tensor
    ]  # (seeds, S, 3) by company, arm, view: the `Association` with cosines
    asked: dict[
        tuple[str, str], Tensor
    ]  # (seeds, layers, K, K) by arm and view: the logits, query by key

    def between(self, relation: Tensor, one: str, other: str) -> Tensor:
        """Return the relation (..., K, K) of two kinds: (...)."""
        return relation[..., self.kinds.names.index(one), self.kinds.names.index(other)]


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    scenes, config = experiment.on_scenes, experiment.config
    known = []
    if scenes == config or not experiment.leaves_out("models of Scenes"):
        require_parts(experiment, (WHEEL, BALL, BUOY, ROAD, GRASS))
        known.append((scenes, parts_of_scenes(scenes.model, experiment.data(scenes))))
    if scenes != config:
        known.append(
            (config, clusters_of_patches(config.model, experiment.data(), experiment.study.images))
        )
    found = [measure(experiment, settings, kinds) for settings, kinds in known]
    tables = [company_table(one, met) for one in found for met in one.kinds.met]
    pictures = {"gain": gain_figure(found)}
    if known[0][0] == scenes:
        tables = [asking_table(found[0]), wheel_table(found[0]), *tables]
        first = {"asking": asking_figure(found[0]), "wheel": wheel_figure(found[0])}
        pictures = first | pictures | {"parts": parts_figure(found[0])}
    return Results(tables, pictures)


def measure(experiment: Experiment, config: Config, kinds: Kinds) -> Company:
    """Train all arms, and measure how near the tokens of kinds of patches are, and whether that follows their company."""
    trained = experiment.models(config=config)
    arms = {
        "trained": [one.model for one in trained],
        "random weights": [one.initial for one in trained],
    }
    for arm in SHUFFLED:
        shuffled = experiment.models(arm, config)
        if shuffled:
            arms[arm] = [one.model for one in shuffled]

    # Cosines and logits of the kinds, for each arm and view
    looks = {view: kinds.looks(trained[0], view) for view in kinds.views}
    cosines: dict[tuple[str, str], Tensor] = {}
    asked: dict[tuple[str, str], Tensor] = {}
    for arm, models in arms.items():
        encoders = [model.encoder for model in models]
        for view in kinds.views:
            cosines[arm, view] = torch.stack(
                [kinds.cosines(trained[0], encoder, view) for encoder in encoders]
            )
            asked[arm, view] = torch.stack(
                [kinds.logits(trained[0], encoder, view) for encoder in encoders]
            )

    # Whether cosines follow company, stage by stage
    follows: dict[tuple[str, str, str], Tensor] = {}
    for name, met in kinds.met.items():
        for (arm, view), of_seeds in cosines.items():
            associations = []
            for stages in of_seeds:
                associations.append([association(stage, met, looks[view]) for stage in stages])
            follows[name, arm, view] = torch.tensor(associations)
    pixels = {view: likeness[0] for view, likeness in looks.items()}
    return Company(kinds, pixels, cosines, follows, asked)


def company_table(found: Company, met: str) -> Table:
    """Return how much cosines follow company, by arm and view."""
    stages = {"static": 0, "first block": 1, "last block": -1}

    def cells(of: Tensor, which: int) -> list[Seeds]:
        return [seeds(of[:, stage, which], digits=2) for stage in stages.values()]

    rows = []
    for arm, view in found.cosines:
        of = found.follows[met, arm, view]
        rows.append(
            (
                arm,
                view,
                *cells(of, CORRELATION),
                f"{float(of[:, -1, P].max()):.3f}",
                *cells(of, GAIN),
            )
        )
    correlations, gains = (
        [f"{measure}, {stage}" for stage in stages] for measure in ("correlation", "gain")
    )
    return Table(
        f"{found.kinds.data}, {len(found.kinds.names)} kinds: rank correlation of the cosine of two kinds of patches with how"
        f" often they are {met}, and by how much the cosine rises with one standard deviation of that; looks and places held"
        " constant",
        ("model", "patches", *correlations, "largest p, last block", *gains),
        rows,
    )


def wheel_table(scenes: Company) -> Table:
    """Return the cosines of wheels and their lookalikes with roads."""
    pairs = (
        (WHEEL, ROAD),
        (BALL, ROAD),
        (BUOY, ROAD),
        (WHEEL, GRASS),
        (BALL, GRASS),
        (WHEEL, BALL),
    )
    rows: list[tuple[str | Seeds, ...]] = [
        ("pixels", view, *(f"{scenes.between(likeness, *pair):.2f}" for pair in pairs))
        for view, likeness in scenes.looks.items()
    ]
    for (arm, view), cosines in scenes.cosines.items():
        for name, stage in {"static embedding": 0, "last block": -1}.items():
            cells = (seeds(scenes.between(cosines[:, stage], *pair), digits=2) for pair in pairs)
            rows.append((f"{name}, {arm}", view, *cells))
    title = "Scenes: cosines of wheels, and of what is drawn by the wheel's code and never comes with a road"
    return Table(
        title, ("tokens", "patches", *(f"{one} and {other}" for one, other in pairs)), rows
    )


def asking_table(scenes: Company) -> Table:
    """Return what wheels and balls ask of roads and of grass, and by how much more of roads."""
    places = {"first layer": slice(1), "last layer": slice(-1, None), "all layers": slice(None)}
    rows = []
    for (arm, view), logits in scenes.asked.items():
        for name, layers in places.items():
            asked = [
                [scenes.between(logits[:, layers], query, key) for key in (ROAD, GRASS)]
                for query in (WHEEL, BALL)
            ]
            cells = (of for road, grass in asked for of in (road, grass, road - grass))
            rows.append((f"{name}, {arm}", view, *(seeds(of, digits=2) for of in cells)))
    keys = (f"k({ROAD})", f"k({GRASS})", "difference")
    title = "Scenes: what a patch asks of another, q . k / sqrt(d), mean over heads, beyond what is typical of their places"
    columns = (
        "queries and keys",
        "patches",
        *(f"q({query}), {key}" for query in (WHEEL, BALL) for key in keys),
    )
    return Table(title, columns, rows)


def gain_figure(found: list[Company]) -> Figure:
    """Draw how much nearer company makes two kinds after the last block, arm by arm."""
    measured = {
        f"{one.kinds.data}, {view}": {
            arm: of[:, -1, GAIN].tolist()
            for (met, arm, shown), of in one.follows.items()
            if (met, shown) == (TOGETHER, view)
        }
        for one in found
        for view in one.kinds.views
    }
    gains = [gain for arms in measured.values() for of in arms.values() for gain in of]
    low, high = min(gains), max(gains)
    limits = (min(low, 0.0) - 0.1 * (high - low), high + 0.1 * (high - low))
    panels = [
        Panel(title, list(arms.values()), "cosine gained", limits=limits)
        for title, arms in measured.items()
    ]
    about = "after the last block, with one standard deviation more of being in one image; looks and places held constant"
    names = list(next(iter(measured.values())))
    return arms_figure(
        names, panels, f"How much nearer are patches that are often {TOGETHER}?", about
    )


def wheel_figure(scenes: Company) -> Figure:
    """Draw how near wheels and their lookalikes are to roads, from layer to layer."""
    panels = [
        Panel(
            f"{arm}, {view}",
            {
                kind: scenes.between(scenes.cosines[arm, view], kind, ROAD).numpy()
                for kind in (WHEEL, BALL, BUOY)
            },
            "cosine with roads",
            limits=(-1, 1),
        )
        for arm, view in (("trained", WHOLE), ("random weights", WHOLE), ("trained", ALONE))
    ]
    about = "Scenes · balls and buoys are drawn like wheels, but never come with a road · line: mean over seeds, band: range"
    return layers_figure(
        panels, "Do wheels come nearer to roads than what looks like a wheel?", about, axis=AXIS
    )


def asking_figure(scenes: Company) -> Figure:
    """Draw what wheels and balls ask of roads and of grass, from layer to layer."""
    shown = ((WHEEL, "trained"), (BALL, "trained"), (WHEEL, "random weights"))
    asked = {
        (kind, arm): {
            key: scenes.between(scenes.asked[arm, WHOLE], kind, key).numpy()
            for key in (ROAD, GRASS)
        }
        for kind, arm in shown
    }
    ends = [
        end
        for series in asked.values()
        for values in series.values()
        for end in (values.min(), values.max())
    ]
    room = 0.08 * (max(ends) - min(ends))
    panels = [
        Panel(
            f"what a {kind} asks for, {arm}",
            {f"for {key}": values for key, values in series.items()},
            "logit, beyond its place",
            limits=(min(ends) - room, max(ends) + room),
        )
        for (kind, arm), series in asked.items()
    ]
    about = "Scenes · line: mean over seeds, band: range"
    return layers_figure(panels, "Does a wheel ask for roads?", about)


def parts_figure(scenes: Company) -> Figure:
    """Draw all parts of Scenes against each other."""
    deep = scenes.cosines["trained", WHOLE][:, -1].mean(0).numpy()
    relations = [
        Panel(
            f"how often they are {TOGETHER}",
            scenes.kinds.met[TOGETHER].numpy(),
            "bits more than by chance",
        ),
        Panel("their tokens after the last block", deep, "cosine", limits=(-1, 1)),
    ]
    about = "Scenes, trained models, whole images, mean over seeds · outlined: wheel and road, ball and road"
    marked = [(WHEEL, ROAD), (BALL, ROAD)]
    return relations_figure(
        scenes.kinds.names,
        relations,
        "Parts that meet, and how near their tokens end",
        about,
        marked,
    )
