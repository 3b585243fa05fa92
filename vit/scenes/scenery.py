"""Skies, streets, meadows, seas and ponds, and their foreground."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vit.scenes.drawing import Array, Canvas, Dice, Frame, Mask, blend, rgb

# one mood per column: clear, deep blue, haze, overcast, gold, dusk, blue hour
ZENITH = rgb("4c86ce 2c68be 92aec8 9298a0 6e96cd 5c5a96 324274")
HORIZON = rgb("b0d4ec 8cbee6 d6e0e6 c8ccd0 fad6a0 f6a676 9690b4")
LIGHT = rgb("ffffff ffffff f6faff d8dee8 fff4d4 f0d0be b4bce2")
_GRASS = rgb("5c8e3a 749c42 4a7a3c 8e964a a89a5c 648450")
_LEAVES = rgb("3a6830 2c5434 547832 967432 a6582e 466e4a")
_WATER = rgb("30608c 3e7a8e 466878 284c76 568296")
_ROAD = rgb("68686c 54545a 7e7a76 8c8888")
BARK = rgb("604630 544236 765c42")
_FLOWERS = rgb("f0ece2 ecc840 d65a6e 966ec8")
_MARKING = rgb("e2e0d6 e2be50")
_TYRE = rgb("222226 2c2a2c")
_HUB = rgb("96989e bebec0 707076")


class Ground(NamedTuple):
    """What the object stands on, and `level` (n, 1), the height of its feet, wheels or waterline; in the air, its middle."""

    part: str
    colour: Array
    level: Array


def mood(dice: Dice, of: Array) -> Array:
    """Choose a mood's colour from `ZENITH`, `HORIZON` or `LIGHT`, the same mood for all three: (n, 3)."""
    return of[dice.choice("mood", len(of))] + 8 * dice.noise("mood hue", 3)


def _backdrop(canvas: Canvas, dice: Dice, horizon: Array, clouds: int, hills: float) -> None:
    zenith, low, light = mood(dice, ZENITH), mood(dice, HORIZON), mood(dice, LIGHT)
    canvas.paint(canvas.below(-1.0), "sky", low)
    for k in range(12):
        canvas.paint(
            canvas.below(horizon * (k / 12), horizon * (1 / 12)), "sky", blend(zenith, low, k / 11)
        )
    sun = Frame(
        canvas,
        dice.uniform("sun x", 2, 30),
        dice.uniform("sun y", 1, 9),
        dice.uniform("sun size", 1.4, 2.6),
    )
    canvas.paint(
        sun.ellipse(0, 0, 1, 1).where(dice.chance("sun", 0.15)),
        "sun",
        blend(light, np.float32(255), 0.5),
    )
    for k in range(clouds):
        width = dice.uniform(f"cloud {k} width", 0.6, 1.5)
        cloud = Frame(
            canvas,
            dice.uniform(f"cloud {k} x", -2, 34),
            dice.uniform(f"cloud {k} y", 1, horizon),
            width,
        )
        puffs = (
            cloud.ellipse(0, 0, 5, 1.5)
            | cloud.ellipse(-1.6, -1, 2.2, 1.6)
            | cloud.ellipse(1.8, -0.8, 2, 1.3)
        )
        canvas.paint(
            puffs.where(dice.chance(f"cloud {k}", 0.6)),
            "cloud",
            blend(light, low, 0.3) * (0.96 - 0.05 * k),
        )
    haze = blend(dice.colour("hill", _LEAVES), low, dice.uniform("haze", 0.3, 0.7))
    for k, shade in enumerate((1.06, 0.94)):
        hill = Frame(canvas, dice.uniform(f"hill {k} x", -4, 36), horizon + 1)
        ridge = hill.ellipse(
            0, 0, dice.uniform(f"hill {k} width", 10, 26), dice.uniform(f"hill {k} height", 2, 6)
        )
        canvas.paint(ridge.where(dice.chance("hills", hills)), "hill", haze * shade)


def _trees(canvas: Canvas, dice: Dice, base: Array) -> None:
    for k in range(2):
        here, fir = dice.chance(f"tree {k}", 0.45), dice.chance(f"fir {k}", 0.4)
        tree = Frame(
            canvas,
            dice.uniform(f"tree {k} x", -1, 33),
            base + k,
            dice.uniform(f"tree {k} size", 0.6, 1.5),
        )
        green = dice.colour(f"leaves {k}", _LEAVES)
        canvas.paint(
            tree.limb((0, 0.5), (0, -5), 0.75, 0.55).where(here),
            "trunk",
            dice.colour(f"bark {k}", BARK),
        )
        crown = (
            tree.ellipse(0, -7, 3.6, 3.4)
            | tree.ellipse(-2, -5.4, 2.2, 1.9)
            | tree.ellipse(2, -5.6, 2.2, 2)
        )
        canvas.paint(crown.where(here & ~fir), "crown", green)
        canvas.paint(tree.ellipse(-1.2, -8, 1.9, 1.8).where(here & ~fir), "crown", green * 1.25)
        spruce = tree.polygon((-3.4, -2.4), (0, -8), (3.4, -2.4)) | tree.polygon(
            (-2.5, -5.6), (0, -11), (2.5, -5.6)
        )
        canvas.paint(spruce.where(here & fir), "crown", green * 0.9)


def disc(
    canvas: Canvas, dice: Dice, frame: Frame, u: float, part: str, here: Mask | bool = True
) -> None:
    """Paint a wheel, or a look-alike: a dark ring around a light hub, standing at v = 0."""
    radius = dice.uniform("disc", 2.1, 2.6)
    tyre, hub = (
        frame.ellipse(u, -radius, radius * share, radius * share).where(here)
        for share in (1.0, 0.45)
    )
    canvas.paint(tyre, part, dice.colour("tyre", _TYRE))
    canvas.paint(hub, part, dice.colour("hub", _HUB))


def air_scene(canvas: Canvas, dice: Dice) -> Ground:
    horizon = dice.uniform("horizon", 26, 40)  # below 32 there are hills, else only sky
    _backdrop(canvas, dice, horizon, clouds=4, hills=0.8)
    return Ground("sky", mood(dice, ZENITH), dice.uniform("level", 11, 21))


def street_scene(canvas: Canvas, dice: Dice) -> Ground:
    horizon, kerb, asphalt = (
        dice.uniform("horizon", 5, 12),
        dice.uniform("kerb", 12.5, 17),
        dice.colour("road", _ROAD),
    )
    _backdrop(canvas, dice, horizon, clouds=2, hills=0.6)
    canvas.paint(canvas.below(horizon), "grass", dice.colour("grass", _GRASS))
    _trees(canvas, dice, kerb - 2)
    canvas.paint(canvas.below(kerb), "road", asphalt)
    level = dice.uniform("level", kerb + 8, 28)
    lane = Frame(canvas, 0, level + dice.uniform("lane", 1.8, 3)).box(
        -1, 0, 33, dice.uniform("stripe", 0.7, 1.2)
    )
    dashes = canvas.zigzag(9, dice.uniform("dash")) < dice.uniform("gap", 0.45, 1.1)[:, None]
    canvas.paint(lane, "marking", dice.colour("marking", _MARKING), only=dashes)
    return Ground("road", asphalt, level)


def meadow_scene(canvas: Canvas, dice: Dice) -> Ground:
    horizon = np.where(
        dice.chance("from above", 0.2), np.float32(-3), dice.uniform("horizon", 4, 17)
    )
    green = dice.colour("grass", _GRASS)
    _backdrop(canvas, dice, horizon, clouds=2, hills=0.6)
    canvas.paint(canvas.below(horizon), "grass", green)
    _trees(canvas, dice, np.maximum(horizon, 6) + dice.uniform("tree base", 1, 3))
    for k in range(4):
        flower = Frame(
            canvas, dice.uniform(f"flower {k} x", 0, 32), dice.uniform(f"flower {k} y", 18, 32)
        )
        bloom = flower.ellipse(0, 0, 0.8, 0.8).where(dice.chance("flowers", 0.35))
        canvas.paint(bloom, "flower", dice.colour("flower", _FLOWERS))
    return Ground("grass", green, dice.uniform("level", 24, 29))


def sea_scene(canvas: Canvas, dice: Dice) -> Ground:
    horizon = dice.uniform("horizon", 8, 17)
    water = blend(
        dice.colour("water", _WATER), mood(dice, HORIZON), dice.uniform("reflection", 0.05, 0.35)
    )
    _backdrop(canvas, dice, horizon, clouds=3, hills=0.4)
    canvas.paint(canvas.below(horizon), "water", water)
    return Ground("water", water, dice.uniform("level", np.maximum(horizon + 3, 18), 25))


def pond_scene(canvas: Canvas, dice: Dice) -> Ground:
    horizon, bank, level = (
        dice.uniform("horizon", -4, 7),
        dice.uniform("bank", 7, 15),
        dice.uniform("level", 23, 28),
    )
    water = blend(
        dice.colour("water", _WATER), dice.colour("weed", _LEAVES), dice.uniform("weedy", 0, 0.5)
    )
    _backdrop(canvas, dice, horizon, clouds=1, hills=0.5)
    canvas.paint(canvas.below(horizon), "grass", dice.colour("grass", _GRASS))
    _trees(canvas, dice, bank - 1)
    canvas.paint(canvas.below(bank), "water", water)
    pad, green = Frame(canvas, 16, level, dice.uniform("pad", 1, 1.4)), dice.colour("pad", _LEAVES)
    canvas.paint(pad.ellipse(0, 0, 13, 3), "leaf", green)
    canvas.paint(pad.ellipse(0, -0.4, 12, 2.4), "leaf", green * 1.2)
    return Ground("leaf", green, level)


def foreground(canvas: Canvas, dice: Dice, ground: Ground) -> None:
    """Paint what hides a little of the object: always the waves, sometimes blades of grass and a ball or a buoy."""
    if ground.part == "water":
        surface = (
            ground.level[:, None]
            + canvas.zigzag(dice.uniform("wave", 4, 9), dice.uniform("phase")) * 0.9
        )
        rows, band = canvas.y[..., None], canvas.below(ground.level)
        canvas.paint(band, "water", ground.colour, only=(rows > surface) & (rows < surface + 2.5))
        foam = blend(ground.colour, np.float32(235), 0.4)
        canvas.paint(band, "water", foam, only=(rows > surface) & (rows < surface + 0.6))
    if ground.part == "grass":
        blades = ground.level - dice.uniform("tall", -0.5, 1.5) + dice.uniform("blades", 0, 2)
        blades = blades[:, None] - canvas.zigzag(2.8) * dice.uniform("blade", 0.5, 2)[:, None]
        low = canvas.below(ground.level - 4).where(dice.chance("hidden", 0.35))
        canvas.paint(low, "grass", ground.colour * 0.96, only=canvas.y[..., None] > blades)
    if ground.part in ("grass", "leaf", "water"):
        x = np.where(
            dice.chance("disc left", 0.5),
            dice.uniform("disc x", 1, 6),
            dice.uniform("disc x", 26, 31),
        )
        y = (
            dice.uniform("disc y", 28, 32)
            if ground.part == "grass"
            else dice.uniform("disc y", 30.5, 33)
        )
        spot, here = (
            Frame(canvas, x, y, dice.uniform("disc size", 0.85, 1.2)),
            dice.chance("disc there", 0.3),
        )
        disc(canvas, dice, spot, 0, "ball" if ground.part == "grass" else "buoy", here)
