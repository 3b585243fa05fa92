"""How much of a token is its own patch, its position, its context? Patches at all places of all
images, layer by layer.

Patches are pasted at places of images, in all combinations, and the variance of their tokens is
split exactly. The share of the patch, the position or the image alone is the variance of the mean
over all else. "Token-specific context" is what the image adds to a token beyond the mean of that
image at all places and for all patches. Shares sum to 100%. The last column does not depend on how
large these are beside each other: of all that the image adds, its mean and token-specific context,
the part that all tokens get alike. Means and ranges are over draws of patches, places and images;
random weights are drawn anew for each. Models of other objectives are as large, and see the same
images for as many epochs (with the contrastive loss, in two views). The last table follows one
patch of Scenes, a wheel: how far its token moves (1 - cosine, beyond what is typical of the place)
from its own image into another street, and into scenes where no wheel belongs, compared with a
ball, which is drawn by the same code and belongs elsewhere. 0 is no move; 1 means nothing in
common.

*Limits.* The shares hold for the residual stream as it is: later layers need not read a direction
that varies much. Shares of a total do not say how large the total is. A pasted patch is often one
that would not occur there.
"""

# python -m studies static-and-contextual --checkpoint vit-tiny-p4-cifar10 --data cifar10
# Five minutes on one thread. Expect: of all that the image adds, all tokens get 28% alike (26 to
# 31); with random weights 95 to 99%.
# Without --checkpoint it trains twelve small models, in two hours.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from studies.experiment import Experiment, Trained, trained_and_random, untrained
from studies.figures import Panel, layers_figure, pasted_figure
from studies.kinds import BATCH, CLEAR, drawn_scenes, require_parts, residual_stream
from studies.tables import Draws, Results, Seeds, Table, seeds
from vit.config import ModelConfig, changed
from vit.data.draws import make_generator
from vit.encoder import VisionTransformer
from vit.errors import RunError
from vit.figures.style import Figure
from vit.inputs import evenly_spaced
from vit.mae import MaskedAutoencoder
from vit.patches import patchify, unpatchify
from vit.scenes import CLASS_NAMES, PART_NAMES, SCENES_OF_CLASS

PATCHES, PLACES, IMAGES = 16, 9, 16  # in all combinations: 2,304 images
DRAWS = 5  # of patches, places and images, and of random weights
MEAN, CONTEXT = "mean of the image", "token-specific context"  # all that the image adds
TERMS: dict[str, list[tuple[str, ...]]] = {  # of the variance of patches at places of images
    "its own patch": [("patch",)],
    "its position": [("place",)],
    CONTEXT: [
        ("place", "image"),
        ("patch", "image"),
        ("patch", "place", "image"),
    ],
    MEAN: [("image",)],
    "patch with position": [("patch", "place")],
}
ADDED, ALIKE = "all that the image adds", "given to all tokens alike"
OBJECTIVES: dict[str, dict[str, Any]] = {
    "labels": {"train.objective": "classify"},
    "reconstruction and a contrastive loss": {"augment.views": 2, "reconstruct.contrast": 0.1},
}
"""Objectives to compare with reconstruction: their settings."""
WHEEL, BALL = "wheel", "ball"  # a ball is drawn by the wheel's code, see vit.scenes
HOME, STREET, ELSEWHERE = "home", "another street", ("meadow", "sea", "air")
OTHERS = (STREET, *ELSEWHERE)
GROUPS = {scene: slice(i, i + 1) for i, scene in enumerate(OTHERS)} | {
    "meadow, sea or air": slice(1, None)
}
"""Slices of OTHERS."""
CASES = 200  # most wheels to paste elsewhere


class Design(NamedTuple):
    """Patches, each to be put at each of the places in each of the contexts."""

    # (n, P)
    patches: Tensor
    # (m,)
    places: Tensor
    # (k, C, H, W)
    contexts: Tensor

    @property
    def description(self) -> str:
        """The counts in words."""
        patches, places, contexts = map(len, self)
        return f"{patches} patches, each at {places} places of {contexts} images"


@dataclass(frozen=True)
class Cases:
    """n wheels in street images, and where else to put them and as many balls.

    Attributes:
        scenes: uint8 (n, C, H, W) each: the wheel's own image, another street, meadow, sea, air.
        givers: of wheels and balls: the images and places that they are cut out of.
        places: (n,), where they are put: the wheel's own place.
    """

    scenes: dict[str, Tensor]
    givers: dict[str, tuple[Tensor, Tensor]]
    places: Tensor

    def pasted(self, trained: Trained, kind: str, scene: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return the arguments of `paste`: the images of a scene, the patches of a kind, the
        places."""
        images, places = self.givers[kind]
        cut = patchify(trained.prepare(images), trained.model.encoder.patch_embed.patch_size)
        return trained.prepare(self.scenes[scene]), cut[torch.arange(len(cut)), places], self.places

    def distances(self, trained: Trained, encoder: VisionTransformer) -> Tensor:
        """Return how far a patch's tokens move from the wheel's own image into another scene.

        Returns:
            1 - cosine: (kinds, other scenes, S, n).
        """
        # What is typical of the places, which all scenes share
        images = torch.cat(list(self.scenes.values()))
        sums = []
        for part in images.split(BATCH):
            sums.append(residual_stream(encoder, trained.prepare(part)).sum(1))
        typical = (torch.stack(sums).sum(0) / len(images))[:, self.places]  # (S, n, D)

        # The tokens beyond it, in each scene: (S, n, D)
        distances = []
        for kind in self.givers:
            tokens = {}
            for scene in self.scenes:
                pasted = pasted_tokens(encoder, *self.pasted(trained, kind, scene))
                tokens[scene] = pasted - typical
            moved = []
            for scene in OTHERS:
                moved.append(1 - F.cosine_similarity(tokens[HOME], tokens[scene], dim=-1))
            distances.append(torch.stack(moved))
        return torch.stack(distances).cpu()


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    scenes = experiment.on_scenes
    require_parts(experiment, (WHEEL, BALL))
    count = len(experiment.data().test)
    if count < PATCHES + 2:
        reason = f"patches of {PATCHES} are put into others"
        advice = f"so take {PATCHES + 2} at least"
        raise RunError(f"{count} test images are too few; {reason}, {advice}")

    # Measure all models with patches in other images, those of Scenes with wheels and balls
    models = experiment.models()
    drawn = experiment.models(config=scenes)
    cases = street_wheels(scenes.model, min(experiment.study.images, CASES))
    # (seeds, draws, S, terms) and (seeds, kinds, other scenes, S, n)
    shares = shares_of_draws(models)
    moved = trained_and_random(
        drawn, lambda trained, model: cases.distances(trained, model.encoder)
    )

    # What tokens differ by
    design = design_of(models[0], 0).description
    data = models[0].data.name
    rows: list[tuple[str | int | Draws, ...]] = []
    for name, values in shares.items():
        for stage in range(values.shape[2]):
            rows.append((name, stage, *cells_of(values[:, :, stage])))
    columns = (*TERMS, ALIKE)
    title = f"What tokens differ by: shares of the variance of {design} of {data}"
    tables = [Table(title, ("model", "layers passed", *columns), rows)]

    # The same for other objectives, after the last layer
    if not experiment.leaves_out("other objectives"):
        rows = [("reconstruction", *cells_of(shares["trained"][:, :, -1]))]
        for name, changes in OBJECTIVES.items():
            if name == "labels" and not models[0].data.has_classes:
                continue
            others = experiment.models(config=changed(experiment.config, changes))
            rows.append(
                (name, *cells_of(shares_of_draws(others, random=False)["trained"][:, :, -1]))
            )
        title = "Reconstruction and other objectives, the rest alike: shares after the last layer"
        tables.append(Table(title, ("objective", *columns), rows))

    # How far wheels and balls move
    moved_rows: list[tuple[str | Seeds, ...]] = []
    for name, values in moved.items():
        stages = (1, values.shape[3] // 2, -1)
        for kind, patch in enumerate((WHEEL, BALL)):
            for scene, members in GROUPS.items():
                cells = [seeds(values[:, kind, members, stage], digits=2) for stage in stages]
                moved_rows.append((name, patch, scene, *cells))
    title = (
        "Scenes: how far the token of a patch moves from a wheel's own street image into another"
        f" scene, 1 - cosine; mean of {len(cases.places)} wheels"
    )
    columns = ("model", "patch", "scene", "first layer", "middle layer", "last layer")
    tables.append(Table(title, columns, moved_rows))
    pictures = {
        "shares": shares_of_tokens(shares, f"{data} · {design}"),
        "pasted": example_figure(cases, drawn[0], moved["trained"][0]),
    }
    return Results(tables, pictures)


def design_of(trained: Trained, draw: int) -> Design:
    """Draw `PATCHES`, `PLACES` and `IMAGES` of test images, or as many as there are: the same for
    all models."""
    embed = trained.model.encoder.patch_embed
    generator = make_generator(0, "design", draw)

    # Images to cut patches out of, and others to put them into
    images = trained.data.test.images
    chosen = torch.randperm(len(images), generator=generator)[: PATCHES + IMAGES]
    inputs = trained.prepare(images[chosen])
    givers = inputs[:PATCHES]
    contexts = inputs[PATCHES:]
    cut = torch.randint(embed.num_patches, (PATCHES,), generator=generator)
    places = torch.randperm(embed.num_patches, generator=generator)[:PLACES]
    patches = patchify(givers, embed.patch_size)[torch.arange(PATCHES), cut]  # (n, P)
    return Design(patches, places, contexts)


def shares_of_draws(models: Sequence[Trained], random: bool = True) -> dict[str, Tensor]:
    """Return the shares of each of `DRAWS` designs, trained and with random weights drawn anew for
    each: (seeds, draws, S, terms) by model."""
    of_draws: dict[str, list[Tensor]] = {}
    for draw in range(DRAWS):

        def measure(trained: Trained, model: MaskedAutoencoder, draw: int = draw) -> Tensor:
            return token_shares(model.encoder, design_of(trained, draw))

        if random:
            begun_anew = [with_other_start(trained, draw) for trained in models]
            measured = trained_and_random(begun_anew, measure)
        else:
            measured = {"trained": torch.stack([measure(each, each.model) for each in models])}
        for name, values in measured.items():
            of_draws.setdefault(name, []).append(values)
    return {name: torch.stack(values, 1) for name, values in of_draws.items()}


def with_other_start(trained: Trained, draw: int) -> Trained:
    """Return a model whose random weights are drawn with another seed; of draw 0 with its own."""
    config = changed(trained.config, {"train.seed": trained.config.train.seed + 100 * draw})
    initial = untrained(trained.model, config.train.seed)
    initial = cast(MaskedAutoencoder, initial).to(trained.compute.device).eval()
    return replace(trained, config=config, initial=initial)


def cells_of(shares: Tensor) -> list[str | Draws]:
    """Return the cells of a row: the mean and range of shares (seeds, draws, terms), then of the
    part that all tokens get alike."""
    cells: list[str | Draws] = []
    for values in shares.flatten(0, 1).T:
        cells.append(Draws(tuple(values.tolist()), share=True))
    part = alike(shares)
    # Before the first layer the image adds nothing
    cells.append("" if part.isnan().any() else Draws(tuple(part.flatten().tolist()), share=True))
    return cells


def alike(shares: Tensor) -> Tensor:
    """Return, of all that the image adds, the part that all tokens get alike; nan if that is 0.

    Shares (..., terms) are in the order of `TERMS`.
    """
    mean = shares[..., list(TERMS).index(MEAN)]
    added = mean + shares[..., list(TERMS).index(CONTEXT)]
    return torch.where(added > 1e-6, mean / added, torch.nan)


def token_shares(encoder: VisionTransformer, design: Design) -> Tensor:
    """Return the shares of a design's token variance, before the first layer and after each.

    Returns:
        (S, terms), in the order of `TERMS`, which sum to one.
    """
    # The tokens of all combinations: (S, n m k, D)
    levels = (len(design.patches), len(design.places), len(design.contexts))
    patch, place, context = torch.cartesian_prod(*(torch.arange(count) for count in levels)).T
    images = design.contexts[context]
    tokens = pasted_tokens(encoder, images, design.patches[patch], design.places[place])

    # Stage by stage
    rows = []
    for values in tokens.unflatten(1, levels):
        shares = variance_shares(values, ("patch", "place", "image"))
        row = []
        for terms in TERMS.values():
            row.append(sum(shares[term] for term in terms))
        rows.append(row)
    return torch.tensor(rows)


def street_wheels(model: ModelConfig, count: int) -> Cases:
    """Choose up to `count` wheels of Scenes that nearly fill a patch, as many balls, and images to
    put them into."""
    # Wheels and balls: rows of image and patch
    images, labels, _, clear = drawn_scenes("test", model, CLEAR)
    wheels = (clear == PART_NAMES.index(WHEEL)).nonzero()
    balls = (clear == PART_NAMES.index(BALL)).nonzero()
    wheels = wheels[evenly_spaced(len(wheels), count)]
    balls = balls[torch.arange(len(wheels)) % len(balls)]

    # Images of each scene: those of the classes that occur only there
    indices = {}
    for scene in ("street", *ELSEWHERE):
        classes = []
        for label, name in enumerate(CLASS_NAMES):
            if SCENES_OF_CLASS[name] == {scene}:
                classes.append(label)
        indices[scene] = torch.isin(labels, torch.tensor(classes)).nonzero()[:, 0]

    # The wheel's own street, the next one, and the other scenes in turn
    own, places = wheels.T
    streets = indices["street"]
    next_street = streets[(torch.searchsorted(streets, own.contiguous()) + 1) % len(streets)]
    scenes = {HOME: images[own], STREET: images[next_street]}
    for scene in ELSEWHERE:
        in_turn = torch.arange(len(wheels)) % len(indices[scene])
        scenes[scene] = images[indices[scene][in_turn]]
    givers = {WHEEL: (images[own], places), BALL: (images[balls[:, 0]], balls[:, 1])}
    return Cases(scenes, givers, places)


def paste(inputs: Tensor, patches: Tensor, places: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Return images (B, C, H, W) with one patch each replaced by `patches` (B, P), at `places` (B,)
    in row order."""
    (height, width), (p, q) = inputs.shape[-2:], patch_size
    cut = patchify(inputs, patch_size).clone()  # (B, L, P)
    cut[torch.arange(len(cut)), places] = patches
    return unpatchify(cut, patch_size, (height // p, width // q))


def pasted_tokens(
    encoder: VisionTransformer, inputs: Tensor, patches: Tensor, places: Tensor
) -> Tensor:
    """Return the tokens (S, B, D) of patches pasted into images; arguments as in `paste`,
    normalised."""
    patch_size = encoder.patch_embed.patch_size
    tokens = []
    for part in torch.arange(len(inputs)).split(BATCH):
        images = paste(inputs[part], patches[part], places[part], patch_size)
        stream = residual_stream(encoder, images)  # (S, B, L, D)
        tokens.append(stream[:, torch.arange(len(part)), places[part]])
    return torch.cat(tokens, dim=1)


def variance_shares(values: Tensor, factors: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    """Split the variance of vectors (levels of the first factor, of the second, ..., D) into
    shares, which sum to one.

    A full factorial design (Fisher 1925): ("patch",) is the variance of the mean over all else;
    ("patch", "place") is what the two do together beyond the sum of what each does.
    """
    # Not every device has float64
    values = values.cpu().double()

    # Each term is a mean beyond the sum of all terms of fewer factors
    axes = range(len(factors))
    terms: dict[tuple[int, ...], Tensor] = {(): values.mean(tuple(axes), keepdim=True)}
    for size in range(1, len(factors) + 1):
        for chosen in combinations(axes, size):
            averaged = tuple(axis for axis in axes if axis not in chosen)
            mean = values.mean(averaged, keepdim=True) if averaged else values
            smaller = [term for others, term in terms.items() if set(others) < set(chosen)]
            terms[chosen] = mean - torch.stack([term.expand_as(mean) for term in smaller]).sum(0)

    # Their squares, each as often as it occurs, as shares of the total
    total = (values - terms.pop(())).square().sum().clamp(min=torch.finfo(values.dtype).tiny)
    combinations_in_all = values[..., 0].numel()
    shares = {}
    for chosen, term in terms.items():
        names = tuple(factors[axis] for axis in chosen)
        repeats = combinations_in_all / term[..., 0].numel()
        shares[names] = float(term.square().sum() * repeats / total)
    return shares


# --- figures ----------------------------------------------------------------


def shares_of_tokens(shares: dict[str, Tensor], caption: str) -> Figure:
    """Draw what tokens differ by, from layer to layer: shares (seeds, draws, S, terms) by model."""
    panels: dict[str, dict[str, Any]] = {
        "its own patch": {},
        "its position": {},
        ADDED: {},
        f"of this, {ALIKE}": {},
    }
    for name, values in shares.items():
        of_all = values.flatten(0, 1)  # (seeds x draws, S, terms)
        parts = dict(zip(TERMS, of_all.movedim(-1, 0), strict=True))
        added = parts[MEAN] + parts[CONTEXT]
        drawn = (parts["its own patch"], parts["its position"], added, alike(of_all))
        for panel, of_model in zip(panels.values(), drawn, strict=True):
            panel[name] = of_model.numpy()
    return layers_figure(
        [Panel(title, lines, share=True, limits=(0, 1.03)) for title, lines in panels.items()],
        "What makes tokens differ",
        f"{caption}: shares of their tokens' variance · line: mean over draws; band: their range",
        axis="layers passed",
    )


def example_figure(cases: Cases, trained: Trained, moved: Tensor) -> Figure:
    """Draw a wheel and a ball at the same place of the same images: the case of median movement."""
    embed = trained.model.encoder.patch_embed
    number = int(moved[0, :, -1].mean(0).argsort()[len(cases.places) // 2])
    place = divmod(int(cases.places[number]), embed.grid_size[1])
    rows = []
    notes = []
    for kind, patch in enumerate((WHEEL, BALL)):
        images = []
        for scene in cases.scenes:
            pasted = paste(*cases.pasted(trained, patch, scene), embed.patch_size)
            images.append(pasted[number])
        rows.append(trained.normalize.invert(torch.stack(images)).clamp(0, 1).cpu())
        distances = moved[kind, :, -1, number].tolist()
        notes.append(["", *(f"moves by {distance:.2f}" for distance in distances)])
    caption = (
        f"{trained.data.name}, a trained model · 1 - cosine of the token after the last layer with"
        " that in the first image"
    )
    return pasted_figure(
        rows,
        place,
        embed.grid_size,
        [f"a {patch}" for patch in (WHEEL, BALL)],
        ["the wheel's street", *OTHERS],
        notes,
        "The same patch in other surroundings",
        caption,
    )
