"""How much of a token is its own patch, its position, its context? Patches at all places of all images, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.config import ModelConfig
from vit.data.draws import make_generator
from vit.data.images import evenly_spaced
from vit.data.scenes import CLASS_NAMES, PART_NAMES, SCENES_OF_CLASS
from vit.encoder import VisionTransformer
from vit.figures.images import pasted_figure
from vit.figures.measures import Panel, layers_figure, shares_figure
from vit.figures.style import Figure
from vit.interpret.pasting import paste, pasted_tokens
from vit.interpret.stream import residual_stream
from vit.interpret.variance import variance_shares
from vit.patches import patchify
from vit.studies.arms import difference
from vit.studies.finding import Cell, Finding, Seeds, StudyError, Table, seeds
from vit.studies.kinds import BATCH, CLEAR, alike, apart, drawn_scenes, require_parts
from vit.studies.laboratory import Laboratory, Learned
from vit.studies.plan import Plan

PATCHES, PLACES, IMAGES = 16, 9, 16  # each with each: 2,304 images
TERMS: dict[str, list[tuple[str, ...]]] = {  # of the variance: patches are at places of images
    "its own patch": [("patch",)],
    "its position": [("place",)],
    "patch with position": [("patch", "place")],
    "its image, at all positions alike": [("image",)],
    "its image, at its position": [("place", "image")],
    "patch with image": [("patch", "image"), ("patch", "place", "image")],
}
CONTEXT = slice(3, None)  # of TERMS, those that the image has a part in
MODELS = ("trained", "random weights")
WHEEL, BALL = "wheel", "ball"  # a ball is drawn by the wheel's code, see vit.data.scenes.LOOK_ALIKES
HOME, STREET, ELSEWHERE = "home", "another street", ("meadow", "sea", "air")
OTHERS = (STREET, *ELSEWHERE)
SAME, FOREIGN = slice(0, 1), slice(1, None)  # of OTHERS
CASES = 200  # wheels that are pasted elsewhere, at most
AXIS = "after so many blocks (0: the embedding)"


@dataclass(frozen=True)
class Cases:
    """Wheels in street images, and where else they are put: n of them.

    Attributes:
        scenes: uint8 (n, C, H, W) each: the wheel's own image, another street, a meadow, a sea, the air.
        givers: for a wheel and for a ball, the images that it is cut out of, and its place there, int64 (n,).
        places: int64 (n,), where it is put: the wheel's own place.
    """

    scenes: dict[str, Tensor]
    givers: dict[str, tuple[Tensor, Tensor]]
    places: Tensor

    def pasted(self, learned: Learned, kind: str, scene: str) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments of `paste`: the images of a scene, the patches of a kind, and the places."""
        images, places = self.givers[kind]
        cut = patchify(learned.prepare(images), learned.model.encoder.patch_embed.patch_size)
        return learned.prepare(self.scenes[scene]), cut[torch.arange(len(cut)), places], self.places

    def distances(self, learned: Learned, encoder: VisionTransformer) -> Tensor:
        """How far a token moves from the wheel's own image into another scene.

        That is 1 - cosine of the same patch's tokens at the same place, beyond what is typical of that place.

        Returns:
            (kinds, other scenes, S, n).
        """
        images = torch.cat(list(self.scenes.values()))
        sums = [residual_stream(encoder, learned.prepare(part)).sum(1) for part in images.split(BATCH)]
        typical = (torch.stack(sums).sum(0) / len(images))[:, self.places]  # (S, n, D)
        found = []
        for kind in self.givers:
            at = {scene: pasted_tokens(encoder, *self.pasted(learned, kind, scene)) - typical for scene in self.scenes}
            found.append(torch.stack([_distance(at[HOME], at[scene]) for scene in OTHERS]))
        return torch.stack(found).cpu()


def _distance(one: Tensor, other: Tensor) -> Tensor:
    return 1 - F.cosine_similarity(one, other, dim=-1)


class Design(NamedTuple):
    """Patches (n, P), each of which is put at each of the places (m,) in each of the contexts, images (k, C, H, W)."""

    patches: Tensor
    places: Tensor
    contexts: Tensor

    @property
    def description(self) -> str:
        """How many there are of each, in words."""
        patches, places, contexts = map(len, self)
        return f"{patches} patches, each at {places} places of {contexts} images"


def study(laboratory: Laboratory, plan: Plan) -> Finding:
    """See the module.

    Raises:
        StudyError: patches are too large, or images too few, for patches to be put into other images.
    """
    require_parts("static-and-contextual", plan.on_scenes.model, (WHEEL, BALL))
    count = len(laboratory.data(plan.training).test)
    if count < PATCHES + 2:
        raise StudyError(
            f"static-and-contextual: {count} test images are too few; patches of {PATCHES} are put into others, so take"
            f" {PATCHES + 2} at least"
        )
    learned = [laboratory.learn(plan.training, seed) for seed in plan.seeds]
    drawn = [laboratory.learn(plan.on_scenes, seed) for seed in plan.seeds]
    cases = street_wheels(plan.on_scenes.model, min(plan.images, CASES))
    designs = [design_of(one) for one in learned]
    shares, moved = {}, {}
    for name in MODELS:
        shares[name] = torch.stack(  # (seeds, S, terms)
            [token_shares(_encoder(one, name), design) for one, design in zip(learned, designs, strict=True)]
        )
        moved[name] = torch.stack([cases.distances(one, _encoder(one, name)) for one in drawn])  # (seeds, 2, 4, S, n)
    limits = (
        f"The shares are those of {designs[0].description} of {learned[0].data.name}, of the"
        " residual stream as it is: another choice of images gives other ones, and a direction that varies much need not be"
        " one that later layers read. A patch that is pasted is often one that would not be there. Distances are of"
        f" {len(cases.places)} wheels on {drawn[0].data.name}; 1 would be that of tokens with nothing in common."
    )
    pictures = {
        "shares": figure_of_shares(shares, designs[0], learned[0].data.name),
        "wheel": moved_figure(moved),
        "pasted": example_figure(cases, drawn[0], moved["trained"][0]),
    }
    captions = {
        "shares": "What the tokens of a layer differ by: their own patch, their position, their context",
        "wheel": "How far the token of a wheel, and of a ball in its place, moves when what lies around it changes",
        "pasted": "One wheel and one ball, pasted at the same place of the same images, and how far their tokens move",
    }
    tables = [shares_table(shares), moved_table(moved)]
    return Finding(answer(shares, moved, learned[0].data.name), limits, tables, pictures, captions)


def _encoder(learned: Learned, name: str) -> VisionTransformer:
    return (learned.model if name == "trained" else learned.initial).encoder


def design_of(learned: Learned) -> Design:
    """`PATCHES`, `PLACES` and `IMAGES` of a model's test images, or as many as there are: the same for all models."""
    embed = learned.model.encoder.patch_embed
    inputs = learned.prepare(learned.sample(PATCHES + IMAGES))
    givers = torch.linspace(0, len(inputs) - 1, PATCHES).round().long()  # spread like the others over all classes
    contexts = inputs[~torch.isin(torch.arange(len(inputs)), givers)]
    generator = make_generator(0, "design")  # the same for all models
    patches = patchify(inputs[givers], embed.patch_size)  # (n, L, P)
    patches = patches[
        torch.arange(len(patches)), torch.randint(embed.num_patches, (len(patches),), generator=generator)
    ]
    return Design(patches, torch.randperm(embed.num_patches, generator=generator)[:PLACES], contexts)


def token_shares(encoder: VisionTransformer, design: Design) -> Tensor:
    """What the tokens of a design differ by, before the first block and after each: (S, terms), which sum to one."""
    levels = tuple(map(len, design))
    patch, place, context = torch.cartesian_prod(*map(torch.arange, levels)).T
    tokens = pasted_tokens(encoder, design.contexts[context], design.patches[patch], design.places[place])
    shares = [variance_shares(values, ("patch", "place", "image")) for values in tokens.unflatten(1, levels)]
    return torch.tensor([[sum(share[term] for term in terms) for terms in TERMS.values()] for share in shares])


def street_wheels(model: ModelConfig, count: int) -> Cases:
    """Up to `count` wheels of Scenes that nearly fill a patch, and as many balls, and images to put them into."""
    images, labels, _, clear = drawn_scenes("test", model, CLEAR)
    wheels, balls = ((clear == PART_NAMES.index(kind)).nonzero() for kind in (WHEEL, BALL))  # rows: image, patch
    wheels = wheels[evenly_spaced(len(wheels), count)]
    balls = balls[torch.arange(len(wheels)) % len(balls)]
    shows = {}
    for scene in ("street", *ELSEWHERE):
        of = [label for label, name in enumerate(CLASS_NAMES) if SCENES_OF_CLASS[name] == (scene,)]
        shows[scene] = torch.isin(labels, torch.tensor(of)).nonzero()[:, 0]  # the images of classes that are only there
    own, places = wheels.T
    other = shows["street"][(torch.searchsorted(shows["street"], own.contiguous()) + 1) % len(shows["street"])]
    scenes = {HOME: images[own], STREET: images[other]}
    scenes |= {scene: images[shows[scene][torch.arange(len(wheels)) % len(shows[scene])]] for scene in ELSEWHERE}
    return Cases(scenes, {WHEEL: (images[own], places), BALL: (images[balls[:, 0]], balls[:, 1])}, places)


def answer(shares: dict[str, Tensor], moved: dict[str, Tensor], data: str) -> str:
    """What came out, in words that follow the figures."""
    first, last = ([_share(shares["trained"], stage, term) for term in range(len(TERMS))] for stage in (0, -1))
    context = {name: seeds(shares[name][:, -1, CONTEXT].sum(1).tolist(), share=True) for name in MODELS}
    near, far = ([_distance_of(moved["trained"], kind, others, -1) for kind in (0, 1)] for others in (SAME, FOREIGN))
    wheel, ball = (difference(there, here) for here, there in zip(near, far, strict=True))
    ahead = difference(wheel, ball)
    if alike(wheel):
        judged = "what kind of scene lies around the wheel hardly matters"
    elif not apart(wheel):
        judged = "whether it matters what kind of scene lies around the wheel is not clear"
    elif wheel.mean < 0:
        judged = "the foreign scenes move the wheel less than another street does"
    elif alike(ahead):
        judged = "the foreign scenes move both alike, whether the patch belongs there or not"
    elif not apart(ahead):
        judged = "the foreign scenes move the wheel not clearly more or less than the ball"
    else:
        judged = f"the foreign scenes move the wheel {'more' if ahead.mean > 0 else 'less'} than the ball"
    one = " (of one seed)" if wheel.spread is None else ""
    untrained = [_distance_of(moved["random weights"], 0, others, -1) for others in (SAME, FOREIGN)]
    return (
        f"Before the first block, tokens of {data} differ by their own patch ({first[0]} of the variance) and their position"
        f" ({first[1]}) alone; after the last block by their own patch ({last[0]}), their position ({last[1]}), what these two"
        f" make together ({last[2]}), and the image around them ({context['trained']}; with random weights"
        f" {context['random weights']}). In models of Scenes, the same wheel patch at the same place moves by {near[0]}"
        f" (1 - cosine) into another street and by {far[0]} into a meadow, a sea or the air (with random weights {untrained[0]}"
        f" and {untrained[1]}); a ball in the wheel's place moves by {near[1]} and {far[1]}: {judged}{one}."
    )


def _share(shares: Tensor, stage: int, term: int) -> Seeds:
    return seeds(shares[:, stage, term].tolist(), share=True, digits=1)


def _distance_of(moved: Tensor, kind: int, others: slice, stage: int) -> Seeds:
    return seeds(moved[:, kind, others, stage].mean((1, 2)).tolist(), digits=2)


def shares_table(shares: dict[str, Tensor]) -> Table:
    """What tokens differ by, by model and layer."""
    rows: list[tuple[Cell, ...]] = [
        (name, stage, *(_share(measured, stage, term) for term in range(len(TERMS))))
        for name, measured in shares.items()
        for stage in range(measured.shape[1])
    ]
    title = "What tokens differ by: shares of the variance over all patches, places and images"
    return Table(title, ("model", "after so many blocks", *TERMS), rows)


def moved_table(moved: dict[str, Tensor]) -> Table:
    """How far tokens move, by model, patch and scene."""
    rows: list[tuple[Cell, ...]] = []
    for name, measured in moved.items():
        for kind, patch in enumerate((WHEEL, BALL)):
            for other, scene in enumerate(OTHERS):
                where = slice(other, other + 1)
                stages = (_distance_of(measured, kind, where, stage) for stage in (1, measured.shape[3] // 2, -1))
                rows.append((name, patch, scene, *stages))
    title = "Scenes: how far the token of a patch moves from a wheel's own street image into another scene, 1 - cosine"
    return Table(title, ("model", "patch", "scene", "first block", "middle block", "last block"), rows)


def figure_of_shares(shares: dict[str, Tensor], design: Design, data: str) -> Figure:
    """What tokens differ by, from layer to layer."""
    panels = []
    for name, measured in shares.items():
        depth = measured.shape[1] - 1
        places = ["embedding", *(f"after block {number}" for number in range(1, depth + 1))]
        rows = [dict(zip(TERMS, shares, strict=True)) for shares in measured.mean(0).tolist()]
        panels.append(Panel(name, dict(zip(places, rows, strict=True))))
    about = f"{data} · {design.description}: shares of their tokens' variance"
    return shares_figure(panels, "What is a token made of?", f"{about}, mean over seeds")


def moved_figure(moved: dict[str, Tensor]) -> Figure:
    """How far tokens move, from layer to layer."""
    top = max(float(measured.mean(4).max()) for measured in moved.values())
    panels = [
        Panel(
            name,
            {
                f"{patch}, {where}": measured[:, kind, others].mean((1, 3)).numpy()
                for kind, patch in enumerate((WHEEL, BALL))
                for where, others in (("another street", SAME), ("meadow, sea or air", FOREIGN))
            },
            "1 - cosine",
            limits=(0, 1.05 * top),
        )
        for name, measured in moved.items()
    ]
    about = (
        "Scenes · 1 - cosine of the token of a patch in the wheel's own street with that of the same patch, at the same place,"
        " in other images · line: mean over seeds, band: their range"
    )
    return layers_figure(panels, "How far does a token move when its surroundings change?", about, axis=AXIS)


def example_figure(cases: Cases, learned: Learned, moved: Tensor) -> Figure:
    """A wheel and a ball at the same place of the same images: the case whose tokens move as far as half of all do.

    Args:
        cases: to choose from.
        learned: a model.
        moved: its distances (kinds, other scenes, S, n).
    """
    embed = learned.model.encoder.patch_embed
    number = int(moved[0, :, -1].mean(0).argsort()[len(cases.places) // 2])
    place = divmod(int(cases.places[number]), embed.grid_size[1])
    rows, words = [], []
    for kind, patch in enumerate((WHEEL, BALL)):
        pasted = [paste(*cases.pasted(learned, patch, scene), embed.patch_size)[number] for scene in cases.scenes]
        rows.append(learned.normalize.invert(torch.stack(pasted)).clamp(0, 1).cpu())
        words.append(["", *(f"moves by {float(far):.2f}" for far in moved[kind, :, -1, number])])
    names = [f"a {patch}" for patch in (WHEEL, BALL)]
    columns = ["the wheel's own street", *OTHERS]
    about = f"{learned.data.name}, a trained model · 1 - cosine of the token after the last block with that in the first image"
    title = "The same patch in other surroundings"
    return pasted_figure(rows, place, embed.grid_size, names, columns, words, title, about)
