"""Does what occurs together become similar?

A small masked autoencoder learns a drawn world, in which we set what occurs together. Images have
4 x 4 patches: sky above, things and ground below. Cones come with road, flowers with grass, boats
with water. Wheels come with road "always", in "half" of the cases or "never", else with grass. A
ball comes with water, or takes the wheel's place: it stands wherever a wheel could. In "one scene"
all patches below show one thing and one ground; in "pairs" each column of two patches is a draw of
its own. "Shuffled": each patch comes from another image. Pixels of all kinds are orthogonal and
equally long, so looks do not decide what becomes similar.

*Columns.* "embedding": cosine of the wheel's embedding with those of road, ball and grass, about
the mean of the eight kinds below; by chance it is -0.14. "alone": the same after layer 0, for each
kind shown alone, all other patches masked. "reconstructed": how much road and grass is in the
reconstruction of the patch in the column of a wheel shown alone; 1 is that kind and nothing else.
"score": q · k / √d of the wheel alone with the road, less that with the grass, in layers 0 and 1.
"loss": mean squared error over masked patches of 512 new images.

*Initialisation.* The embedding begins with std 0.01, which training soon outweighs, so that vectors
show the world. "Embedding Xavier": it begins as the other linear maps do, with std 0.16.

*Limits.* A tiny drawn world and a tiny model. The recipe was chosen on seeds 0 to 2, so that "one
scene, always, ball in its place" came out clearly; other seeds and other worlds were not used for
it. The settings of train.py and --images do not matter here.
"""

# python -m studies world --run.threads 1
# 18 trainings of 800 steps for each of 5 seeds: five minutes on one thread.

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.experiment import Experiment
from studies.figures import SERIES, bare, colours_of
from studies.tables import Results, Seeds, Table, seeds
from vit.config import changed
from vit.data.draws import seeded_weights
from vit.figures.style import COLOURS as INKS
from vit.figures.style import Figure, styled, titled_figure
from vit.machine import choose_compute

# --- the world ------------------------------------------------------------------------------------

KINDS = ("sky", "road", "grass", "water", "cone", "flower", "boat", "wheel", "ball")
"""Of patches. Cone, flower and boat come with the ground three places before them."""
SKY = KINDS.index("sky")
ROAD = KINDS.index("road")
GRASS = KINDS.index("grass")
WATER = KINDS.index("water")
CONE = KINDS.index("cone")
WHEEL = KINDS.index("wheel")
BALL = KINDS.index("ball")
SIDE = 4
"""Patches along a side of an image, and pixels along a side of a patch."""
PATCHES = SIDE * SIDE
PIXELS = 3 * SIDE * SIDE
"""Of a patch: three colours, from row to row."""
BELOW = range(PATCHES // 2, PATCHES)
"""The patches of things and ground; those above them are sky."""
NOISE = 0.5
"""Standard deviation of the noise of a pixel; the pixels of a kind have mean square 1."""

COLOURS = {
    "s": (0.55, 0.8, 1.0),
    "w": (1.0, 1.0, 1.0),
    "a": (0.35, 0.35, 0.38),
    "y": (1.0, 0.9, 0.3),
    "g": (0.2, 0.6, 0.15),
    "l": (0.45, 0.8, 0.3),
    "b": (0.1, 0.3, 0.75),
    "c": (0.3, 0.6, 0.9),
    "o": (1.0, 0.5, 0.05),
    "p": (1.0, 0.4, 0.75),
    "n": (0.5, 0.3, 0.1),
    "k": (0.05, 0.05, 0.05),
    "r": (0.9, 0.1, 0.1),
}
DRAWINGS = {
    "sky": "ssss swws wwss ssss",
    "road": "aaaa yyaa aaaa aaaa",
    "grass": "gglg lggg gglg glgl",
    "water": "bbbb cbbc bccb bbbb",
    "cone": "aooa awwa oooo oaao",
    "flower": "gppg pyyp gppg ggng",
    "boat": "bwbb bwwb nnnn bnnb",
    "wheel": "kkkk kwwk kwwk kkkk",
    "ball": "wrrw rrww wwrr wrrw",
}
"""Rows of pixels, each a letter of `COLOURS`."""


def kind_pixels() -> Tensor:
    """Return the pixels of each kind, float32 (K, PIXELS), orthogonal, with mean square 1.

    They are the orthogonal vectors nearest to the drawings: no two kinds look more alike than
    others, and a wheel still looks like a wheel.
    """
    drawn = []
    for kind in KINDS:
        drawn.append([COLOURS[letter] for letter in DRAWINGS[kind].replace(" ", "")])
    drawings = torch.tensor(drawn, dtype=torch.float64).flatten(1)
    drawings = F.normalize(drawings - drawings.mean(), dim=1)
    # The orthogonal factor of the polar decomposition
    left, _, right = torch.linalg.svd(drawings, full_matrices=False)
    return (left @ right * math.sqrt(PIXELS)).float()


@dataclass(frozen=True)
class World:
    """What occurs together.

    Attributes:
        company: share of the wheels that come with road; the others come with grass.
        substitutes: whether a ball takes the place of every other wheel; else balls come with
            water.
        one_scene: whether all patches below show one thing and one ground. Else each column of two
            patches is a draw of its own: a thing and its ground come with each other, and share
            no other company.
        shuffled: whether each patch comes from another image: nothing occurs together.
    """

    company: float = 1.0
    substitutes: bool = False
    one_scene: bool = True
    shuffled: bool = False

    def draw(self, count: int, dice: torch.Generator) -> Tensor:
        """Return the kinds in images, places in `KINDS`: int64 (count, PATCHES)."""
        if self.shuffled:
            ordered = replace(self, shuffled=False).draw(count * PATCHES, dice)
            return ordered.view(count, PATCHES, PATCHES).diagonal(dim1=1, dim2=2)

        # A thing and its ground, for the image or for each column
        draws = 1 if self.one_scene else SIDE
        thing = torch.randint(CONE, BALL + 1, (count, draws), generator=dice)
        on_road = torch.rand(count, draws, generator=dice) < self.company
        of_wheels = torch.where(on_road, ROAD, GRASS)
        of_balls = of_wheels if self.substitutes else torch.full_like(thing, WATER)
        ground = thing - (CONE - ROAD)
        ground = torch.where(thing == WHEEL, of_wheels, ground)
        ground = torch.where(thing == BALL, of_balls, ground)

        # Two rows of patches, each a thing or its ground
        thing = thing.expand(count, SIDE)[:, None]
        ground = ground.expand(count, SIDE)[:, None]
        if self.substitutes:
            coin = torch.randint(WHEEL, BALL + 1, (count, 2, SIDE), generator=dice)
            thing = torch.where(thing >= WHEEL, coin, thing)
        is_thing = torch.rand(count, 2, SIDE, generator=dice) < 0.5
        if not self.one_scene:
            is_thing[:, 1] = ~is_thing[:, 0]
        below = torch.where(is_thing, thing, ground).flatten(1)
        return torch.cat([torch.full((count, len(BELOW)), SKY), below], 1)


# --- the model ------------------------------------------------------------------------------------

WIDTH = 32
HIDDEN = 64
DEPTH = 2


class Block(nn.Module):
    """A layer: attention of one head, then an MLP, each of the normalised tokens and added to
    them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.fc1 = nn.Linear(WIDTH, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, WIDTH)

    def queries_keys_values(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Return q, k and v, each of the shape of the tokens, (..., n, WIDTH)."""
        return self.qkv(self.norm1(tokens)).chunk(3, -1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the tokens after the layer: (B, n, WIDTH)."""
        q, k, v = self.queries_keys_values(tokens)
        weights = (q @ k.mT / math.sqrt(WIDTH)).softmax(-1)
        tokens = tokens + self.proj(weights @ v)
        return tokens + self.fc2(F.relu(self.fc1(self.norm2(tokens))))


class Model(nn.Module):
    """A masked autoencoder without a decoder: mask tokens take the places of masked patches.

    Args:
        wide: whether the embedding starts as the other maps do (Xavier-uniform, std 0.16). Else
            with std 0.01, which training soon outweighs.
    """

    def __init__(self, wide: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(PIXELS, WIDTH)
        self.mask = nn.Parameter(torch.empty(WIDTH))
        self.pos = nn.Parameter(torch.empty(PATCHES, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, PIXELS)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.mask, std=0.02)
        nn.init.normal_(self.pos, std=0.1)
        if not wide:
            nn.init.normal_(self.embed.weight, std=0.01)

    def stages(self, pixels: Tensor, masked: Tensor) -> list[Tensor]:
        """Return the tokens before the first and after each layer, (B, PATCHES, WIDTH) each.

        Args:
            pixels: (B, PATCHES, PIXELS).
            masked: which patches the model does not see, bool (B, PATCHES).
        """
        tokens = torch.where(masked[..., None], self.mask, self.embed(pixels)) + self.pos
        stages = [tokens]
        for block in self.blocks:
            stages.append(block(stages[-1]))
        return stages

    def forward(self, pixels: Tensor, masked: Tensor) -> Tensor:
        """Return the reconstructed pixels of all patches: (B, PATCHES, PIXELS)."""
        return self.head(self.norm(self.stages(pixels, masked)[-1]))


def loss(model: Model, pixels: Tensor, masked: Tensor) -> Tensor:
    """Return the mean squared error over masked patches: ()."""
    return (model(pixels, masked) - pixels).square().mean(-1)[masked].mean()


# --- training -------------------------------------------------------------------------------------

BATCH = 16
RATE = 3e-3
BETAS = (0.9, 0.99)
DECAY = 0.05
WARMUP = 50
"""Steps in which the learning rate rises to `RATE`."""
MASKED = (0.3, 0.95)
"""Share of masked patches, of each image uniform in between: a patch nearly alone is nothing
new."""


def draw_batch(world: World, count: int, dice: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images with noise (count, PATCHES, PIXELS), and masks, bool (count, PATCHES)."""
    kinds = world.draw(count, dice)
    noise = torch.randn(*kinds.shape, PIXELS, generator=dice)
    least, most = MASKED
    share = least + (most - least) * torch.rand(count, 1, generator=dice)
    masked = torch.rand(kinds.shape, generator=dice) < share
    return kind_pixels()[kinds] + NOISE * noise, masked


class Training:
    """A model that learns from random weights, in a world that each step names.

    Args:
        seed: of the initial weights and of the images.
        wide: see `Model`.
    """

    def __init__(self, seed: int, wide: bool = False) -> None:
        with seeded_weights(seed):
            self.model = Model(wide)
        self.dice = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=RATE, betas=BETAS, weight_decay=DECAY
        )
        self.warmup = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / WARMUP)
        )

    def step(self, world: World) -> float:
        """Take a step on new images of a world, and return their loss."""
        batch_loss = loss(self.model, *draw_batch(world, BATCH, self.dice))
        self.optimizer.zero_grad()
        batch_loss.backward()
        self.optimizer.step()
        self.warmup.step()
        return batch_loss.item()


# --- what is measured -----------------------------------------------------------------------------

COMPARED = {"road": ROAD, "ball": BALL, "grass": GRASS}
"""What the wheel is compared with."""
CHANCE = -1 / (len(KINDS) - 2)
"""The mean of the cosines of a kind with the seven others below, about the mean of the eight, if
all are equally long."""


def wheel_cosines(vectors: Tensor) -> Tensor:
    """Return the cosines of the wheel with each kind (K,) about the mean of the kinds below.

    Args:
        vectors: of each kind, (K, D); sky does not count.
    """
    unit = F.normalize(vectors - vectors[ROAD:].mean(0), dim=-1)
    return unit @ unit[WHEEL]


@torch.no_grad()
def measure(model: Model) -> dict[str, float]:
    """Measure a model; the docstring of the module says what by which name."""
    found: dict[str, float] = {}
    pixels = kind_pixels()

    # Each kind alone in each place below, all else masked: (kinds, places, patches)
    shape = (len(KINDS), len(BELOW), PATCHES)
    alone = torch.zeros(*shape, PIXELS)
    masked = torch.ones(shape, dtype=torch.bool)
    case = torch.arange(len(BELOW))
    place = torch.tensor(BELOW)
    alone[:, case, place] = pixels[:, None]
    masked[:, case, place] = False
    stages = []
    for tokens in model.stages(alone.flatten(0, 1), masked.flatten(0, 1)):
        stages.append(tokens.view(*shape, WIDTH))

    # Cosines. What the last layer makes of a patch that is shown enters no loss, so nothing
    # trains it: the first one is measured.
    vectors = {
        "embedding": pixels @ model.embed.weight.T,
        "alone": stages[1][:, case, place].mean(1),
    }
    for view, of_kinds in vectors.items():
        cosines = wheel_cosines(of_kinds)
        for name, kind in COMPARED.items():
            found[f"{view}: {name}"] = cosines[kind].item()

    # The reconstruction above or below the wheel, in its column
    beside = (place - BELOW.start + SIDE) % len(BELOW) + BELOW.start
    reconstructed = model.head(model.norm(stages[-1][WHEEL, case, beside])).mean(0)
    for name in ("road", "grass"):
        amount = reconstructed @ pixels[COMPARED[name]] / PIXELS
        found[f"reconstructed: {name}"] = amount.item()

    # Scores, the mean over all pairs of places
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        q, k, _ = block.queries_keys_values(stages[layer][:, case, place])
        scores = k.mean(1) @ q[WHEEL].mean(0) / math.sqrt(WIDTH)
        found[f"score, layer {layer}"] = (scores[ROAD] - scores[GRASS]).item()
    return found


# --- the study ------------------------------------------------------------------------------------

STEPS = 800
EVERY = 50
"""Steps from one measurement to the next."""
QUICK_STEPS = 200
TESTED = 512
"""New images, over which the loss is taken."""


@dataclass(frozen=True)
class Arm:
    """A training: its world, the one that follows after half of the steps, its initialisation."""

    world: World
    then: World | None = None
    wide: bool = False


SCENES = {
    "always, ball in its place": Arm(World(1.0, substitutes=True)),
    "half, ball in its place": Arm(World(0.5, substitutes=True)),
    "never, ball in its place": Arm(World(0.0, substitutes=True)),
    "shuffled, ball in its place": Arm(World(1.0, substitutes=True, shuffled=True)),
    "always": Arm(World(1.0)),
    "half": Arm(World(0.5)),
    "never": Arm(World(0.0)),
    "shuffled": Arm(World(1.0, shuffled=True)),
}
PAIRS = {
    name: Arm(replace(arm.world, one_scene=False))
    for name, arm in SCENES.items()
    if not arm.world.shuffled
}
OTHERS = {
    "embedding Xavier, always, ball in its place": Arm(World(1.0, substitutes=True), wide=True),
    "embedding Xavier, never, ball in its place": Arm(World(0.0, substitutes=True), wide=True),
    "always, then never, ball in its place": Arm(
        World(1.0, substitutes=True), then=World(0.0, substitutes=True)
    ),
    "always, then never": Arm(World(1.0), then=World(0.0)),
}
GROUPS = {"One scene": SCENES, "Pairs": PAIRS, "One scene, other trainings": OTHERS}
"""A table each."""
Curves = Mapping[str, Tensor]
"""Each measure at all moments, (seeds, moments)."""


def learn(arm: Arm, of_seeds: Sequence[int], steps: int) -> Curves:
    """Train a model for each seed, and measure it every `EVERY` steps from the first on."""
    runs: dict[str, list[float]] = {}
    for seed in of_seeds:
        training = Training(seed, arm.wide)
        world = arm.world
        for step in range(steps + 1):
            if arm.then is not None and step == steps // 2 + 1:
                world = arm.then
            if step > 0:
                training.step(world)
            if step % EVERY == 0:
                found = measure(training.model)
                batch = draw_batch(world, TESTED, torch.Generator().manual_seed(0))
                with torch.no_grad():
                    found["loss"] = loss(training.model, *batch).item()
                for name, value in found.items():
                    runs.setdefault(name, []).append(value)
    return {name: torch.tensor(values).view(len(of_seeds), -1) for name, values in runs.items()}


DRAWN = {
    "One scene: wheels always with road": ("One scene", "always, ball in its place"),
    "Pairs: wheels always with road": ("Pairs", "always, ball in its place"),
    "Shuffled: nothing occurs together": ("One scene", "shuffled, ball in its place"),
    "One scene: always, then never": (
        "One scene, other trainings",
        "always, then never, ball in its place",
    ),
}
"""The trainings in the figure, which are all that a quick look takes: its titles, and where they
are."""


@styled
def curves_figure(curves: Mapping[str, Mapping[str, Curves]]) -> Figure:
    """Draw how similar to others the wheel's embedding is from step to step, for all in `DRAWN`,
    and two images of each world.

    Args:
        curves: by table and name.
    """
    subtitle = (
        "a ball takes the wheel's place · cosine of embeddings · line: mean over seeds, band: their"
        " range · grey line: chance"
    )
    figure = titled_figure(5, 5.8, "What becomes similar to the wheel", subtitle)
    grid = figure.subplots(len(DRAWN), 2, width_ratios=(0.3, 1))
    for (title, (group, name)), (shown, axes) in zip(DRAWN.items(), grid, strict=True):
        arm = GROUPS[group][name]
        bare(shown)
        shown.imshow(examples(arm))

        for (other, colour), (line, _) in zip(
            zip(COMPARED, colours_of([*COMPARED]), strict=True), SERIES, strict=False
        ):
            values = curves[group][name][f"embedding: {other}"]
            steps = EVERY * torch.arange(values.shape[1])
            axes.plot(steps, values.mean(0), color=colour, linestyle=line, label=other)
            look: dict[str, Any] = {"color": colour, "alpha": 0.16, "linewidth": 0}
            axes.fill_between(steps, values.amin(0), values.amax(0), **look)
        axes.axhline(CHANCE, color=INKS.quiet, linewidth=0.8)
        if arm.then is not None:
            axes.axvline(steps[-1] / 2, color=INKS.quiet, linewidth=0.8, linestyle=":")
        axes.set_title(title)
        axes.set(ylim=(-1.05, 1.05), yticks=(-1, 0, 1))
        axes.tick_params(labelbottom=False)
    axes.tick_params(labelbottom=True)
    axes.set_xlabel("step")
    names = grid[0, 1].get_legend_handles_labels()
    figure.legend(*names, title="the wheel with", loc="outside lower center", ncols=len(COMPARED))
    return figure


def examples(arm: Arm) -> Tensor:
    """Return two images of an arm's world that have a wheel, or of both its worlds, one above
    the other: (H, W, 3) from 0 to 1."""
    tiles = []
    for number, world in enumerate((arm.world, arm.then or arm.world)):
        kinds = world.draw(100, torch.Generator().manual_seed(number))
        shown = kinds[(kinds == WHEEL).sum(1) > 1][0]
        patches = 0.5 + 0.25 * kind_pixels()[shown].view(SIDE, SIDE, SIDE, SIDE, 3)
        picture = patches.transpose(1, 2).reshape(SIDE * SIDE, SIDE * SIDE, 3).clamp(0, 1)
        tiles.append(F.pad(picture, (0, 0, 0, 0, 0, 2), value=1.0))
    return torch.cat(tiles)


def cells(curves: Curves, step: int) -> list[Seeds]:
    """Return each measure at a step."""
    return [seeds(values[:, step // EVERY], digits=2) for values in curves.values()]


def by_seed(
    curves: Mapping[str, Mapping[str, Curves]], of_seeds: Sequence[int], steps: int
) -> Table:
    """Return what the seeds differ in, at the last step."""
    measures = ("embedding: road", "embedding: ball", "embedding: grass", "score, layer 0")
    rows = []
    for title, of_arms in curves.items():
        for name, of_arm in of_arms.items():
            row = [title, name]
            for measure_name in measures:
                last = of_arm[measure_name][:, -1].tolist()
                row.append(", ".join(f"{value:.2f}" for value in last))
            rows.append(row)
    named = ", ".join(str(seed) for seed in of_seeds)
    return Table(f"Seed by seed ({named}), after {steps} steps", ("", "world", *measures), rows)


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    # So small a model is fastest on the CPU
    experiment.config = changed(experiment.config, {"run.device": "cpu"})
    choose_compute(experiment.config.run, "fp32")
    steps = STEPS
    groups: dict[str, dict[str, Arm]] = GROUPS
    if experiment.study.quick:
        steps = QUICK_STEPS
        groups = {}
        for title, name in DRAWN.values():
            groups.setdefault(title, {})[name] = GROUPS[title][name]

    # All trainings
    curves: dict[str, dict[str, Curves]] = {}
    for title, arms in groups.items():
        curves[title] = {}
        for name, arm in arms.items():
            experiment.tell(f"training: {title.lower()}, {name}")
            since = time.perf_counter()
            curves[title][name] = learn(arm, experiment.study.seeds, steps)
            seconds = time.perf_counter() - since
            experiment.seconds[experiment.folder / title / name] = seconds
            experiment.waited += seconds

    # The tables: the random weights that the first training of each began with, then every one
    tables = []
    for title, of_arms in curves.items():
        rows: list[tuple[str | int | Seeds, ...]] = []
        for name, of_arm in of_arms.items():
            if not rows:
                start = "Xavier" if groups[title][name].wide else "std 0.01"
                rows.append((f"random weights (embedding {start})", 0, *cells(of_arm, 0)))
            for step in (steps // 4, steps // 2, steps):
                rows.append((name, step, *cells(of_arm, step)))
        tables.append(Table(title, ("world", "steps", *of_arm), rows))
    tables.append(by_seed(curves, experiment.study.seeds, steps))
    return Results(tables, {"curves": curves_figure(curves)})
