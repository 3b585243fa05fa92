"""Skies, streets, meadows, seas and ponds, and their foreground.

Lengths are in pixels of a 32 x 32 image; y points down.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vit.scenes.drawing import CENTRES, Array, Canvas, Frame, Mask, blend, rgb

# one mood per column: clear, deep blue, haze, overcast, gold, dusk, blue hour
ZENITH = "4c86ce 2c68be 92aec8 9298a0 6e96cd 5c5a96 324274"
HORIZON = "b0d4ec 8cbee6 d6e0e6 c8ccd0 fad6a0 f6a676 9690b4"
LIGHT = "ffffff ffffff f6faff d8dee8 fff4d4 f0d0be b4bce2"
_GRASS = "5c8e3a 749c42 4a7a3c 8e964a a89a5c 648450"
_LEAVES = "3a6830 2c5434 547832 967432 a6582e 466e4a"
_WATER = "30608c 3e7a8e 466878 284c76 568296"
_ROAD = "68686c 54545a 7e7a76 8c8888"
BARK = "604630 544236 765c42"
_FLOWERS = "f0ece2 ecc840 d65a6e 966ec8"
_MARKING = "e2e0d6 e2be50"
_TYRE = "222226 2c2a2c"
_HUB = "96989e bebec0 707076"


class Ground(NamedTuple):
    """What the object stands on.

    Attributes:
        part: name of the part.
        colour: (n, 3).
        level: (n, 1), the height of the object's feet, wheels or waterline; in the air, of its
            middle.
    """

    part: str
    colour: Array
    level: Array


def mood(canvas: Canvas, palette: str) -> Array:
    """Return a mood's colour from `ZENITH`, `HORIZON` or `LIGHT`: (n, 3).

    An image has the same mood in all three.
    """
    colours = rgb(palette)
    return colours[canvas.choice("mood", len(colours))] + 8 * canvas.noise("mood hue", 3)


# --- shared by the scenes ------------------------------------------------------------------


def _backdrop(canvas: Canvas, horizon: Array, clouds: int, hills: float) -> None:
    """Paint a sky with sun, clouds and hills.

    Args:
        canvas: to be painted on.
        horizon: (n, 1).
        clouds: most clouds in an image.
        hills: probability of hills.
    """
    zenith = mood(canvas, ZENITH)
    low = mood(canvas, HORIZON)
    light = mood(canvas, LIGHT)

    # the sky, in twelve bands from the zenith's colour to the horizon's
    canvas.below(-1.0).paint("sky", low)
    for k in range(12):
        band = canvas.below(horizon * (k / 12), horizon * (1 / 12))
        band.paint("sky", blend(zenith, low, k / 11))

    # the sun, in one image of seven
    sun_x = canvas.uniform("sun x", 2, 30)
    sun_y = canvas.uniform("sun y", 1, 9)
    sun = Frame(canvas, sun_x, sun_y, canvas.uniform("sun size", 1.4, 2.6))
    circle = sun.ellipse(0, 0, 1, 1).where(canvas.chance("sun", 0.15))
    circle.paint("sun", blend(light, 255, 0.5))

    # clouds of three puffs, each a little darker than the one before
    for k in range(clouds):
        cloud_x = canvas.uniform(f"cloud {k} x", -2, 34)
        cloud_y = canvas.uniform(f"cloud {k} y", 1, horizon)
        cloud = Frame(canvas, cloud_x, cloud_y, canvas.uniform(f"cloud {k} width", 0.6, 1.5))
        puffs = cloud.ellipse(0, 0, 5, 1.5)
        puffs |= cloud.ellipse(-1.6, -1, 2.2, 1.6)
        puffs |= cloud.ellipse(1.8, -0.8, 2, 1.3)
        white = blend(light, low, 0.3) * (0.96 - 0.05 * k)
        puffs.where(canvas.chance(f"cloud {k}", 0.6)).paint("cloud", white)

    # two hills, in haze
    haze = blend(canvas.colour("hill", _LEAVES), low, canvas.uniform("haze", 0.3, 0.7))
    for k, shade in enumerate((1.06, 0.94)):
        hill = Frame(canvas, canvas.uniform(f"hill {k} x", -4, 36), horizon + 1)
        width = canvas.uniform(f"hill {k} width", 10, 26)
        height = canvas.uniform(f"hill {k} height", 2, 6)
        ridge = hill.ellipse(0, 0, width, height)
        ridge.where(canvas.chance("hills", hills)).paint("hill", haze * shade)


def _trees(canvas: Canvas, base: Array) -> None:
    """Paint up to two trees that stand at the height `base` (n, 1)."""
    for k in range(2):
        present = canvas.chance(f"tree {k}", 0.45)
        fir = canvas.chance(f"fir {k}", 0.4)
        x = canvas.uniform(f"tree {k} x", -1, 33)
        tree = Frame(canvas, x, base + k, canvas.uniform(f"tree {k} size", 0.6, 1.5))

        trunk = tree.limb((0, 0.5), (0, -5), 0.75, 0.55).where(present)
        trunk.paint("trunk", canvas.colour(f"bark {k}", BARK))

        # a round crown with a light spot, or a fir's two triangles
        green = canvas.colour(f"leaves {k}", _LEAVES)
        crown = tree.ellipse(0, -7, 3.6, 3.4)
        crown |= tree.ellipse(-2, -5.4, 2.2, 1.9)
        crown |= tree.ellipse(2, -5.6, 2.2, 2)
        crown.where(present & ~fir).paint("crown", green)
        spot = tree.ellipse(-1.2, -8, 1.9, 1.8)
        spot.where(present & ~fir).paint("crown", green * 1.25)
        spruce = tree.polygon((-3.4, -2.4), (0, -8), (3.4, -2.4))
        spruce |= tree.polygon((-2.5, -5.6), (0, -11), (2.5, -5.6))
        spruce.where(present & fir).paint("crown", green * 0.9)


def disc(frame: Frame, u: float, part: str, present: Mask | bool = True) -> None:
    """Paint a wheel, or a look-alike: a dark ring around a light hub, standing at v = 0.

    Args:
        frame: of the object.
        u: of its middle.
        part: name of the part.
        present: (n, 1), the images that have one.
    """
    canvas = frame.canvas
    radius = canvas.uniform("disc", 2.1, 2.6)
    tyre = frame.ellipse(u, -radius, radius, radius).where(present)
    hub = frame.ellipse(u, -radius, radius * 0.45, radius * 0.45).where(present)
    tyre.paint(part, canvas.colour("tyre", _TYRE))
    hub.paint(part, canvas.colour("hub", _HUB))


# --- the scenes: each paints what lies behind the object, and returns its ground -----------------


def air_scene(canvas: Canvas) -> Ground:
    """Paint a sky."""
    # above 32 the horizon lies in the image, with hills; else there is only sky
    horizon = canvas.uniform("horizon", 26, 40)
    _backdrop(canvas, horizon, clouds=4, hills=0.8)
    return Ground("sky", mood(canvas, ZENITH), canvas.uniform("level", 11, 21))


def street_scene(canvas: Canvas) -> Ground:
    """Paint a road before a strip of grass with trees."""
    horizon = canvas.uniform("horizon", 5, 12)
    _backdrop(canvas, horizon, clouds=2, hills=0.6)
    canvas.below(horizon).paint("grass", canvas.colour("grass", _GRASS))
    kerb = canvas.uniform("kerb", 12.5, 17)
    _trees(canvas, kerb - 2)
    asphalt = canvas.colour("road", _ROAD)
    canvas.below(kerb).paint("road", asphalt)

    # a dashed line in front of the object
    level = canvas.uniform("level", kerb + 8, 28)
    line = Frame(canvas, 0, level + canvas.uniform("lane", 1.8, 3))
    stripe = line.box(-1, 0, 33, canvas.uniform("stripe", 0.7, 1.2))
    dashes = canvas.zigzag(9, canvas.uniform("dash")) < canvas.uniform("gap", 0.45, 1.1)[:, None]
    stripe.paint("marking", canvas.colour("marking", _MARKING), only=dashes)
    return Ground("road", asphalt, level)


def meadow_scene(canvas: Canvas) -> Ground:
    """Paint grass with trees and flowers, sometimes seen from above."""
    above = canvas.chance("from above", 0.2)
    horizon = np.where(above, np.float32(-3), canvas.uniform("horizon", 4, 17))
    _backdrop(canvas, horizon, clouds=2, hills=0.6)
    green = canvas.colour("grass", _GRASS)
    canvas.below(horizon).paint("grass", green)
    _trees(canvas, np.maximum(horizon, 6) + canvas.uniform("tree base", 1, 3))

    # in some images four flowers, in others none
    for k in range(4):
        x = canvas.uniform(f"flower {k} x", 0, 32)
        flower = Frame(canvas, x, canvas.uniform(f"flower {k} y", 18, 32))
        bloom = flower.ellipse(0, 0, 0.8, 0.8).where(canvas.chance("flowers", 0.35))
        bloom.paint("flower", canvas.colour("flower", _FLOWERS))
    return Ground("grass", green, canvas.uniform("level", 24, 29))


def sea_scene(canvas: Canvas) -> Ground:
    """Paint a sea that mirrors some of the sky."""
    horizon = canvas.uniform("horizon", 8, 17)
    _backdrop(canvas, horizon, clouds=3, hills=0.4)
    reflection = canvas.uniform("reflection", 0.05, 0.35)
    water = blend(canvas.colour("water", _WATER), mood(canvas, HORIZON), reflection)
    canvas.below(horizon).paint("water", water)
    return Ground("water", water, canvas.uniform("level", np.maximum(horizon + 3, 18), 25))


def pond_scene(canvas: Canvas) -> Ground:
    """Paint a pond behind which there are grass and trees, with a leaf that floats on it."""
    horizon = canvas.uniform("horizon", -4, 7)
    _backdrop(canvas, horizon, clouds=1, hills=0.5)
    canvas.below(horizon).paint("grass", canvas.colour("grass", _GRASS))
    bank = canvas.uniform("bank", 7, 15)
    _trees(canvas, bank - 1)
    weed = canvas.colour("weed", _LEAVES)
    water = blend(canvas.colour("water", _WATER), weed, canvas.uniform("weedy", 0, 0.5))
    canvas.below(bank).paint("water", water)

    # the leaf, which is the object's ground
    level = canvas.uniform("level", 23, 28)
    leaf = Frame(canvas, 16, level, canvas.uniform("pad", 1, 1.4))
    green = canvas.colour("pad", _LEAVES)
    leaf.ellipse(0, 0, 13, 3).paint("leaf", green)
    leaf.ellipse(0, -0.4, 12, 2.4).paint("leaf", green * 1.2)
    return Ground("leaf", green, level)


# --- before the object ---------------------------------------------------------------------------


def foreground(canvas: Canvas, ground: Ground) -> None:
    """Paint the foreground, over a part of the object: waves, grass, a ball or a buoy."""
    rows = CENTRES[..., None]  # (1, samples, 1)

    # always waves, with foam along their upper edge
    if ground.part == "water":
        wave = canvas.zigzag(canvas.uniform("wave", 4, 9), canvas.uniform("phase")) * 0.9
        surface = ground.level[:, None] + wave  # (n, 1, samples)
        band = canvas.below(ground.level)
        crest = (rows > surface) & (rows < surface + 2.5)
        band.paint("water", ground.colour, only=crest)
        foam = (rows > surface) & (rows < surface + 0.6)
        band.paint("water", blend(ground.colour, 235, 0.4), only=foam)

    # in a third of the meadows, blades of grass
    if ground.part == "grass":
        height = ground.level - canvas.uniform("tall", -0.5, 1.5) + canvas.uniform("blades", 0, 2)
        blades = canvas.zigzag(2.8) * canvas.uniform("blade", 0.5, 2)[:, None]
        tips = height[:, None] - blades  # (n, 1, samples)
        low = canvas.below(ground.level - 4).where(canvas.chance("hidden", 0.35))
        low.paint("grass", ground.colour * 0.96, only=rows > tips)

    # sometimes a look-alike of a wheel, at one side, but never in a street
    if ground.part in ("grass", "leaf", "water"):
        at_left = canvas.chance("disc left", 0.5)
        x = np.where(at_left, canvas.uniform("disc x", 1, 6), canvas.uniform("disc x", 26, 31))
        if ground.part == "grass":
            part = "ball"
            y = canvas.uniform("disc y", 28, 32)
        else:
            part = "buoy"
            y = canvas.uniform("disc y", 30.5, 33)
        frame = Frame(canvas, x, y, canvas.uniform("disc size", 0.85, 1.2))
        disc(frame, 0, part, canvas.chance("disc there", 0.3))
