"""Are patches that occur together more similar? Their cosines against the company they keep, with looks held constant."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vit.config import Config
from vit.figures.measures import Panel, layers_figure, relations_figure
from vit.figures.style import Figure
from vit.interpret.association import association
from vit.studies.arms import difference
from vit.studies.finding import Cell, Finding, Seeds, Table, seeds
from vit.studies.kinds import (
    ALONE,
    MARGIN,
    TOGETHER,
    WHOLE,
    Kinds,
    alike,
    apart,
    clusters_of_patches,
    parts_of_scenes,
    require_parts,
)
from vit.studies.laboratory import Laboratory
from vit.studies.plan import Plan

SHUFFLED = {"shuffled across images": "across", "shuffled within images": "within"}
ARMS = ("trained", "random weights", *SHUFFLED)
IGNORANT = ("random weights", "shuffled across images")  # saw nothing that occurs together
ROAD, GRASS = "road", "grass"
WHEEL, BALL, BUOY = "wheel", "ball", "buoy"  # the latter two are drawn by the wheel's code: vit.data.scenes.LOOK_ALIKES
AXIS = "after so many blocks (0: the static embedding)"
YES, UNSURE, AS_UNTRAINED, UNCLEAR, NO = (
    "nearer than looks and places explain, and than in models that never saw them together",
    "nearer than looks and places explain, but not clearly more so than in models that never saw them together",
    "nearer than looks and places explain, but no more so than in models that never saw them together",
    "not clearly nearer than looks and places explain",
    "no nearer than looks and places explain",
)
IN_SHORT = {
    YES: "nearer",
    UNSURE: "not clearly nearer than in models that never saw them together",
    AS_UNTRAINED: "no nearer than in models that never saw them together",
    UNCLEAR: "not clearly nearer",
    NO: "no nearer",
}


@dataclass(frozen=True)
class Company:
    """What was measured of K kinds of patches.

    Attributes:
        kinds: what they are.
        looks: how alike their pixels are, by view: (K, K).
        cosines: of their tokens, by arm and view: (seeds, S, K, K), S from the static embedding to the last block.
        follows: by company, arm and view, the `Association` of cosine and company, looks and places given: (seeds, S, 3).
    """

    kinds: Kinds
    looks: dict[str, Tensor]
    cosines: dict[tuple[str, str], Tensor]
    follows: dict[tuple[str, str, str], Tensor]

    def follow(self, arm: str, view: str, stage: int, met: str = TOGETHER) -> tuple[Seeds, float, Seeds]:
        """The `Association` at a stage, 0 the static embedding, -1 the last block: correlation, largest p, gain."""
        correlation, p, gain = self.follows[met, arm, view][:, stage].T.tolist()
        return seeds(correlation, digits=2), max(p), seeds(gain, digits=2)

    def cosine(self, one: str, other: str, arm: str, view: str, stage: int) -> Seeds:
        """The cosine of two kinds at a stage."""
        names = self.kinds.names
        return seeds(self.cosines[arm, view][:, stage, names.index(one), names.index(other)].tolist(), digits=2)

    def verdict(self, view: str, stage: int) -> str:
        """Whether what occurs together is nearer than by chance, and nearer than in models that saw nothing so."""
        (correlation, p, gain), *controls = (self.follow(arm, view, stage) for arm in ("trained", *IGNORANT))
        if correlation.mean <= 0 or p >= 0.05:
            return NO if _no_more(gain) else UNCLEAR
        above = [difference(gain, control[2]) for control in controls]
        if all(one.mean > 0 and apart(one) for one in above):
            return YES
        return AS_UNTRAINED if any(_no_more(one) for one in above) else UNSURE


def _no_more(gain: Seeds) -> bool:
    """Whether a gain of a cosine is shown to be none, or a loss: with twice its spread, it stays below MARGIN."""
    return gain.mean + 2 * (gain.spread or 0) < MARGIN


def study(laboratory: Laboratory, plan: Plan) -> Finding:
    """See the module.

    Raises:
        StudyError: patches are too large, or images too few, for kinds of patches to be measured.
    """
    require_parts("tyres-and-roads", plan.on_scenes.model, (WHEEL, BALL, BUOY, ROAD, GRASS))
    known = [(plan.on_scenes, parts_of_scenes(plan.on_scenes.model, laboratory.data(plan.on_scenes)))]
    if plan.on_scenes != plan.training:
        clusters = clusters_of_patches(plan.training.model, laboratory.data(plan.training), plan.images)
        known.append((plan.training, clusters))
    found = [measure(laboratory, config, plan.seeds, kinds) for config, kinds in known]
    limits = (
        f"Compared are means of kinds of patches ({', '.join(f'{len(one.kinds.names)} of {one.kinds.data}' for one in found)}),"
        " beyond what is typical of their places. Held constant are the cosine of their pixels, the nearness of their colours"
        " and contrasts, and of their places, as far as linear fits can; p comes of permuting the kinds. A patch alone is"
        " less than the quarter of an image that training showed. No control learned of looks without company as finely as the"
        " trained models learn of both: one saw images whose patches each come from another image, at their place (shuffled"
        " across images), one saw nothing (random weights); a third saw patches of one image at shuffled places (shuffled"
        " within images). No nearer is said where p is 0.05 or more and the gain with twice its spread stays below 0.05. The"
        " company that parts of Scenes keep is stricter than the world's, and they are cut out where they are shown alone;"
        " clusters of other data are not, and what they show is not known."
    )
    pictures = {
        "wheel": wheel_figure(found[0]),
        "gain": company_figure(found, 2, "cosine gained", f"How much nearer are patches that are often {TOGETHER}?"),
        "company": company_figure(
            found, 0, "rank correlation", f"How closely does nearness follow how often patches are {TOGETHER}?"
        ),
        "parts": parts_figure(found[0]),
    }
    captions = {
        "wheel": "How near wheels, and what is drawn like a wheel but never comes with a road, are to roads, layer by layer",
        "gain": "How much nearer two kinds of patches are that are in one image more often by one standard deviation",
        "company": "How far the cosine of two kinds of patches follows how often they are in one image, layer by layer",
        "parts": "The parts of Scenes: how often they meet, how alike they look, and how near their tokens are",
    }
    tables = [wheel_table(found[0]), *(company_table(one, met) for one in found for met in one.kinds.met)]
    return Finding(answer(found), limits, tables, pictures, captions)


def measure(laboratory: Laboratory, config: Config, numbers: tuple[int, ...], kinds: Kinds) -> Company:
    """Train all arms, and measure how near the tokens of kinds of patches are, and whether that follows their company.

    Args:
        laboratory, config: of the trainings.
        numbers: their seeds.
        kinds: of patches of its data.
    """
    trained = [laboratory.learn(config, seed) for seed in numbers]
    arms = dict(zip(ARMS, ([one.model for one in trained], [one.initial for one in trained]), strict=False))
    for name, shuffle in SHUFFLED.items():
        shuffled = replace(config, augment=replace(config.augment, shuffle=shuffle))  # type: ignore[arg-type]
        arms[name] = [laboratory.learn(shuffled, seed, name).model for seed in numbers]
    first = trained[0]
    looks = {view: kinds.looks(first, view) for view in kinds.views}
    cosines = {
        (arm, view): torch.stack([kinds.cosines(first, model.encoder, view) for model in models])
        for arm, models in arms.items()
        for view in kinds.views
    }
    follows = {
        (name, arm, view): torch.tensor([[association(stage, met, looks[view]) for stage in model] for model in models])
        for name, met in kinds.met.items()
        for (arm, view), models in cosines.items()
    }
    return Company(kinds, {view: likeness[0] for view, likeness in looks.items()}, cosines, follows)


def answer(found: list[Company]) -> str:
    """What came out, in words that follow the figures; of the plan's own data first."""
    return (
        f"{' '.join(map(_company, reversed(found)))} Balls and buoys are drawn like wheels but never come with a road: in whole"
        f" images, roads end {_roads(found[0], WHOLE)}; with each patch shown alone, {_roads(found[0], ALONE)}."
    )


def _company(found: Company) -> str:
    """A sentence on one data set."""
    whole, alone, static = (
        (found.verdict(view, stage), found.follow("trained", view, stage)[2])
        for view, stage in ((WHOLE, -1), (ALONE, -1), (ALONE, 0))
    )
    return (
        f"On {found.kinds.data}, two kinds of patches that are often in one image are, after the last block, {whole[0]}: their"
        f" cosine rises by {whole[1]} with each standard deviation of how often they meet; shown alone, with no neighbours to"
        f" mix in, they are {IN_SHORT[alone[0]]} ({alone[1]}), in the static embedding {IN_SHORT[static[0]]} ({static[1]})."
    )


def _roads(scenes: Company, view: str) -> str:
    """Which of wheels and balls roads are nearer to after the last block; in whole images, with what to hold that against."""

    def near(arm: str, stage: int = -1) -> list[Seeds]:
        return [scenes.cosine(kind, ROAD, arm, view, stage) for kind in (WHEEL, BALL, BUOY)]

    wheels, balls, buoys = near("trained")
    ahead = difference(wheels, balls)
    if alike(ahead):
        judged = "as near to wheels as to balls"
    elif not apart(ahead):
        judged = "not clearly nearer to wheels or to balls"
    elif ahead.mean > 0:
        judged = "nearer to wheels than to balls"
    else:
        judged = "nearer to balls than to wheels"
    one = ", of one seed" if ahead.spread is None else ""
    if view != WHOLE:
        return f"{judged} (cosines of {wheels} and {balls}{one})"
    begun, untrained = ("{}, {} and {}".format(*found) for found in (near("trained", 0), near("random weights")))
    return (
        f"{judged} (cosines of {wheels} and {balls}, with buoys {buoys}; in the static embedding {begun}, with random weights"
        f" {untrained}{one})"
    )


def company_table(found: Company, met: str) -> Table:
    """How far cosines follow company, by arm and view."""
    stages = {"static": 0, "first block": 1, "last block": -1}
    rows: list[tuple[Cell, ...]] = []
    for arm, view in found.cosines:
        correlations, ps, gains = zip(*(found.follow(arm, view, stage, met) for stage in stages.values()), strict=True)
        rows.append((arm, view, *correlations, f"{ps[-1]:.3f}", *gains))
    title = f"{found.kinds.data}: rank correlation of the cosine of two kinds of patches with how often they are {met}, and by"
    title = f"{title} how much the cosine rises with one standard deviation of that; looks and places held constant"
    names = [[f"{measure}, {stage}" for stage in stages] for measure in ("correlation", "gain")]
    return Table(title, ("model", "patches", *names[0], "largest p, last block", *names[1]), rows)


def wheel_table(scenes: Company) -> Table:
    """Wheels and their doubles against roads."""
    pairs = ((WHEEL, ROAD), (BALL, ROAD), (BUOY, ROAD), (WHEEL, GRASS), (BALL, GRASS), (WHEEL, BALL))
    names = scenes.kinds.names
    rows: list[tuple[Cell, ...]] = [
        ("pixels", view, *(f"{likeness[names.index(one), names.index(other)]:.2f}" for one, other in pairs))
        for view, likeness in scenes.looks.items()
    ]
    for arm, view in scenes.cosines:
        stages = {"static embedding": 0, "last block": -1}
        for stage, number in stages.items():
            cells = (scenes.cosine(one, other, arm, view, number) for one, other in pairs)
            rows.append((f"{stage}, {arm}", view, *cells))
    title = "Scenes: cosines of wheels, and of what is drawn by the wheel's code and never comes with a road"
    return Table(title, ("tokens", "patches", *(f"{one} and {other}" for one, other in pairs)), rows)


def company_figure(found: list[Company], number: int, unit: str, title: str) -> Figure:
    """How far cosines follow being in one image, from layer to layer.

    Args:
        found: a row each.
        number: which of the measures of `Association`.
        unit: of the vertical axis.
        title: of all.
    """
    measured = [
        (f"{one.kinds.data}, {view}", {arm: one.follows[TOGETHER, arm, view][:, :, number].numpy() for arm in ARMS})
        for one in found
        for view in one.kinds.views
    ]
    ends = [end for _, series in measured for values in series.values() for end in (values.min(), values.max())]
    low, high = min(ends), max(ends)
    limits = (low - 0.05 * (high - low), high + 0.05 * (high - low))
    panels = [Panel(title, series, unit, {"none": 0.0}, limits=limits) for title, series in measured]
    about = "the cosine of two kinds of patches against how much more often than by chance they are in one image"
    about = f"{about}, looks and places held constant · line: mean over seeds, band: their range"
    return layers_figure(panels, title, about, axis=AXIS)


def wheel_figure(scenes: Company) -> Figure:
    """How near wheels and their doubles are to roads, from layer to layer."""
    names, road = scenes.kinds.names, scenes.kinds.names.index(ROAD)
    panels = [
        Panel(
            f"{arm}, {view}",
            {kind: scenes.cosines[arm, view][:, :, names.index(kind), road].numpy() for kind in (WHEEL, BALL, BUOY)},
            "cosine with roads",
            limits=(-1, 1),
        )
        for arm, view in (("trained", WHOLE), ("random weights", WHOLE), ("trained", ALONE))
    ]
    about = "Scenes · balls and buoys are drawn like wheels, but never come with a road · line: mean over seeds, band: range"
    return layers_figure(panels, "Do wheels come nearer to roads than what looks like a wheel?", about, axis=AXIS)


def parts_figure(scenes: Company) -> Figure:
    """All parts of Scenes against each other."""
    deep = {view: scenes.cosines["trained", view][:, -1].mean(0).numpy() for view in (WHOLE, ALONE)}
    relations = [
        Panel(f"how often they are {TOGETHER}", scenes.kinds.met[TOGETHER].numpy(), "bits more than by chance"),
        Panel("how alike they look", scenes.looks[ALONE].numpy(), "cosine of mean patches", limits=(-1, 1)),
        Panel("their tokens in the last block, in whole images", deep[WHOLE], "cosine", limits=(-1, 1)),
        Panel("their tokens in the last block, each patch alone", deep[ALONE], "cosine", limits=(-1, 1)),
    ]
    about = "Scenes, trained models, mean over seeds · outlined: wheel and road, ball and road"
    marked = [(WHEEL, ROAD), (BALL, ROAD)]
    return relations_figure(scenes.kinds.names, relations, "Parts that meet, parts that look alike", about, marked)
