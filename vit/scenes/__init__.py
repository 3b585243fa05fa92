"""Drawn images of ten classes, made without a download, with the part of every pixel.

An image is a pure function of (seed, index): every random number is a hash of (seed, index, name of
the draw), and only integers and correctly rounded float operations are used, so any batch on any
machine gives the same image.

Which parts occur together is known, so a study can measure whether
attention and embeddings learn it: a wheel always comes with a road, a hull with water, a leg with
grass. A part shared by several classes looks the same in all of them. Look-alikes are the controls:
the ball in the grass and the buoy in the water are drawn by the wheel's own code, in its colours
and sizes, but never in an image with a wheel or a road.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vit.progress import track
from vit.scenes import objects, scenery
from vit.scenes.drawing import SAMPLES, SIZE, Array, Canvas, Dice
from vit.scenes.scenery import Ground

# --- the parts of Scenes ------------------------------------------------------------------------

Painter = Callable[[Canvas, Ground], None]

# what paints each kind of scene
_SCENES: dict[str, Callable[[Canvas], Ground]] = {
    "air": scenery.air_scene,
    "street": scenery.street_scene,
    "meadow": scenery.meadow_scene,
    "sea": scenery.sea_scene,
    "pond": scenery.pond_scene,
}

# the recipes of each class, a scene and what paints the object; it uses all equally often
_RECIPES: dict[str, tuple[tuple[str, Painter], ...]] = {
    "airplane": (("air", objects.airplane),),
    "automobile": (("street", objects.automobile),),
    "bird": (("air", objects.flying_bird), ("meadow", objects.standing_bird)),
    "cat": (
        ("meadow", partial(objects.standing, "cat")),
        ("meadow", partial(objects.sitting, "cat")),
    ),
    "deer": (("meadow", partial(objects.standing, "deer")),),
    "dog": (
        ("meadow", partial(objects.standing, "dog")),
        ("meadow", partial(objects.sitting, "dog")),
    ),
    "frog": (("pond", objects.frog), ("meadow", objects.frog)),
    "horse": (("meadow", partial(objects.standing, "horse")),),
    "ship": (("sea", objects.ship),),
    "truck": (("street", objects.truck),),
}


SCENES_OF_CLASS = {name: dict(recipes).keys() for name, recipes in _RECIPES.items()}
"""The kinds of scene of each class."""

CLASS_NAMES = tuple(_RECIPES)

# a part's position is its number in the part maps; those of the scenes, then those of the objects
PART_NAMES = (
    "sky", "cloud", "sun", "hill", "grass", "crown", "trunk", "road", "marking", "flower", "ball",
    "water", "buoy", "leaf",
    "fuselage", "wing", "fin", "engine", "window", "body", "wheel", "lamp", "plumage", "feather",
    "beak", "claw", "eye", "torso", "head", "ear", "leg", "tail", "antler", "skin", "mane", "hull",
    "sail", "mast", "cabin", "funnel", "cargo",
)  # fmt: skip

# --- from a painted canvas to an image ----------------------------------------------------------

# images painted at once, so that their samples stay in the CPU's cache
_CHUNK = 128

# of the images of each split
_FIRST_INDEX = {"train": 0, "test": 1 << 40}

# how lightness varies within a part: fine grain, horizontal streaks, soft blotches
_TEXTURE = {
    "sky": (0.0, 0.01, 0.02),
    "cloud": (0.01, 0.02, 0.07),
    "hill": (0.05, 0.02, 0.08),
    "grass": (0.13, 0.04, 0.16),
    "road": (0.06, 0.02, 0.07),
    "marking": (0.08, 0.0, 0.1),
    "water": (0.02, 0.15, 0.06),
    "leaf": (0.05, 0.0, 0.1),
    "crown": (0.2, 0.0, 0.14),
    "trunk": (0.12, 0.0, 0.1),
    "torso": (0.05, 0.0, 0.08),
    "head": (0.03, 0.0, 0.05),
    "tail": (0.08, 0.0, 0.0),
    "mane": (0.12, 0.0, 0.0),
    "plumage": (0.04, 0.03, 0.05),
    "feather": (0.05, 0.06, 0.0),
    "skin": (0.05, 0.0, 0.1),
    "hull": (0.02, 0.02, 0.03),
    "sail": (0.01, 0.0, 0.05),
}
_PLAIN = (0.02, 0.0, 0.03)
_PART_TEXTURE = np.array([_TEXTURE.get(part, _PLAIN) for part in PART_NAMES], np.float32)


def _stretch(lattice: Array) -> Array:
    """Interpolate the last axis linearly: k + 1 values become 4 k."""
    step = np.array([1, 3, 5, 7], np.float32) / 8
    fine = lattice[..., :-1, None] * (1 - step) + lattice[..., 1:, None] * step
    return fine.reshape(*lattice.shape[:-1], -1)


def _mean_colours(canvas: Canvas) -> Array:
    """Return the mean colour of each pixel's samples: float32 (n, 3, 32, 32)."""
    # Red, green and blue share one sum: nine samples of 0..255 fill 12 of the 16 bits each has
    of_paints = np.broadcast_arrays(*(colour for _, colour in canvas.paints))
    colours = np.clip(np.stack(of_paints, axis=1), 0, 255).astype(np.int64)  # (n, paints, 3)
    packed = colours[..., 0] | colours[..., 1] << 16 | colours[..., 2] << 32  # (n, paints)

    # One image at a time, whose samples stay in the CPU's cache
    sums = np.stack(
        [
            palette.take(top).reshape(SIZE, SAMPLES, SIZE, SAMPLES).sum(1).sum(2)
            for palette, top in zip(packed, canvas.top, strict=True)
        ]
    )
    channels = [(sums >> shift & 0xFFFF).astype(np.float32) for shift in (0, 16, 32)]
    return np.stack(channels, axis=1) / SAMPLES**2


def _develop(canvas: Canvas) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Turn a painted canvas into images: averaged samples with texture, light and noise.

    Returns:
        Images (n, 3, 32, 32) and part maps (n, 32, 32).
    """
    # A pixel has the part of its middle sample
    centre = slice(SAMPLES // 2, None, SAMPLES)
    numbers = np.array([PART_NAMES.index(part) for part, _ in canvas.paints], np.uint8)
    parts = numbers[canvas.top[:, centre, centre]]

    # Texture, by part
    texture = _PART_TEXTURE[parts]  # (n, 32, 32, 3)
    lattice = canvas.noise("blotches", SIZE // 4 + 1, SIZE // 4 + 1)
    blotches = _stretch(_stretch(lattice).swapaxes(1, 2))
    light: Array = texture[..., 0] * canvas.noise("grain", SIZE, SIZE) + texture[..., 2] * blotches
    light += texture[..., 1] * _stretch(canvas.noise("streaks", SIZE, SIZE // 4 + 1))

    # Light from a side and from above: -1 at the left or upper border, 1 at the opposite one
    across = (np.arange(SIZE, dtype=np.float32) * 2 + 1) / SIZE - 1
    light += (canvas.uniform("side light", -0.14, 0.14) * across)[:, None, :]
    light += (canvas.uniform("top light", -0.12, 0.06) * across)[:, :, None]

    # The camera's exposure and noise
    tint = scenery.mood(canvas, scenery.LIGHT) / 255
    exposure = canvas.uniform("exposure", 0.82, 1.14) * tint  # (n, 3)
    noise = canvas.noise("noise", 3, SIZE, SIZE) * canvas.uniform("film", 2, 10)[..., None, None]
    picture = _mean_colours(canvas) * (light + 1)[:, None] * exposure[:, :, None, None] + noise
    return (np.clip(picture, 0, 255) + 0.5).astype(np.uint8), parts


def _draw(
    seed: int, indices: NDArray[np.int64], scene: str, paint_object: Painter
) -> tuple[NDArray, NDArray]:
    """Draw images and part maps that all show the same object in the same kind of scene."""
    canvas = Canvas(seed, indices)
    # rows that an ellipse misses, and level edges, divide by 0
    with np.errstate(divide="ignore", invalid="ignore"):
        ground = _SCENES[scene](canvas)
        paint_object(canvas, ground)
        scenery.foreground(canvas, ground)
    return _develop(canvas)


def draw_scenes(indices: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw images `indices` of the endless series `seed`; image k is the same in any batch.

    Starting at any multiple of ten, ten successive images show each class once, in varying order.

    Args:
        indices: int64 (n,), each 0 or more.
        seed: 0 to 2**64 - 1.

    Returns:
        images: uint8 (n, 3, 32, 32), RGB.
        labels: int64 (n,), indices into `CLASS_NAMES`.
        parts: uint8 (n, 32, 32), an index into `PART_NAMES` for every pixel: the part at the
            pixel's centre.
    """
    # The class of each image: a k + b modulo 10, with a of 1, 3, 7 or 9, permutes 0..9
    index = indices.cpu().numpy()
    order = Dice(seed, index // 10).choice("order", 40)
    labels = (np.array([1, 3, 7, 9])[order % 4] * (index % 10) + order // 4) % 10
    turn = Dice(seed, index).choice("recipe", 2)

    # The images of each recipe, in chunks
    jobs = []
    for label, recipes in enumerate(_RECIPES.values()):
        for k, (scene, paint_object) in enumerate(recipes):
            rows = np.flatnonzero((labels == label) & (turn % len(recipes) == k))
            for start in range(0, len(rows), _CHUNK):
                jobs.append((rows[start : start + _CHUNK], scene, paint_object))

    # Draw the chunks in threads: NumPy releases Python's lock while it computes
    images = np.empty((len(index), 3, SIZE, SIZE), np.uint8)
    parts = np.empty((len(index), SIZE, SIZE), np.uint8)

    def draw(job: tuple[NDArray[np.int64], str, Painter]) -> None:
        rows, scene, paint_object = job
        images[rows], parts[rows] = _draw(seed, index[rows], scene, paint_object)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(track(pool.map(draw, jobs), "drawing Scenes", len(jobs)))
    return torch.from_numpy(images), torch.from_numpy(labels), torch.from_numpy(parts)


def scene_indices(count: int, split: Literal["train", "test"]) -> Tensor:
    """Return the indices int64 (count,) of a split's first `count` images.

    Training and test images never share one.
    """
    return _FIRST_INDEX[split] + torch.arange(count)
