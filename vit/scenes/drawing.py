"""How Scenes are drawn: random numbers that depend only on (seed, index), a canvas, shapes on it.

All functions work on n images at once: a number that differs between images is an array (n, 1), a
colour (n, 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
Mask = NDArray[np.bool_]
Number = float | Array
"""One for all images, or (n, 1)."""
Point = tuple[Number, Number]

SIZE = 32
"""Pixels per side of an image."""
SAMPLES = 3
"""Samples per side of a pixel: nine soften the edges, and an odd number has one in the middle."""

# samples per side of an image, and the distance between two
_SIDE = SIZE * SAMPLES
_STEP = np.float32(1 / SAMPLES)
CENTRES = ((np.arange(_SIDE, dtype=np.float32) + 0.5) * _STEP)[None]
"""Of the samples of a row or a column, in pixels: (1, samples)."""
# row k has 255 in its first k columns
_UP_TO = np.tri(_SIDE + 1, _SIDE, -1, np.uint8) * 255

INFINITY: Array = np.array(np.inf, np.float32)


# --- random numbers ------------------------------------------------------------------------------

_GOLDEN = 0x9E3779B97F4A7C15


def _splitmix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the output function of SplitMix64: 64 well-mixed bits for every 64-bit state."""
    state = (state ^ (state >> np.uint64(30))) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> np.uint64(27))) * 0x94D049BB133111EB
    return state ^ (state >> np.uint64(31))


class Dice:
    """Random numbers for n images.

    The same name always gives the same numbers, so a new draw never changes another.
    """

    def __init__(self, seed: int, indices: NDArray[np.int64]) -> None:
        start = _splitmix(np.array([seed], np.uint64) + _GOLDEN)
        self.keys = _splitmix(start ^ (indices.astype(np.uint64) * _GOLDEN))  # (n,)

    def bits(self, name: str) -> NDArray[np.uint64]:
        """Return 64 random bits per image: (n,)."""
        return _splitmix(self.keys ^ np.uint64(crc32(name.encode()) << 16))

    def choice(self, name: str, count: int) -> NDArray[np.int64]:
        """Return whole numbers from 0 to count - 1: (n,)."""
        return (self.bits(name) % count).astype(np.int64)

    def uniform(self, name: str, low: Number = 0.0, high: Number = 1.0) -> Array:
        """Return numbers from `low` to `high`: (n, 1)."""
        # 24 bits are all that a float32 holds
        unit = (self.bits(name) >> 40).astype(np.float32) * 2**-24
        return low + (high - low) * unit[:, None]

    def chance(self, name: str, probability: float) -> Mask:
        """Return True with a probability: (n, 1)."""
        return self.uniform(name) < probability

    def noise(self, name: str, *shape: int) -> Array:
        """Return numbers from -1 to 1: (n, *shape)."""
        # eight numbers out of each hash, one from each byte
        count = int(np.prod(shape))
        state = self.bits(name)[:, None] + np.arange(1, count // 8 + 2, dtype=np.uint64) * _GOLDEN
        values = _splitmix(state).astype("<u8").view(np.uint8)[:, :count]  # (n, count)
        return (values.astype(np.float32) * (2 / 255) - 1).reshape(-1, *shape)

    def colour(self, name: str, palette: str, vary: float = 0.15) -> Array:
        """Return (n, 3): one of the palette's colours (see `rgb`), in a slightly different hue.

        It is lighter or darker by up to `vary`.
        """
        colours = rgb(palette)
        colours = colours[self.choice(name, len(colours))] + 9 * self.noise(name + " hue", 3)
        return colours * self.uniform(name + " light", 1 - vary, 1 + vary)


# --- colours -------------------------------------------------------------------------------------


def rgb(codes: str) -> Array:
    """Return (k, 3) in 0..255 from k hexadecimal codes."""
    return np.array([list(bytes.fromhex(code)) for code in codes.split()], np.float32)


def blend(a: Array, b: Array | float, amount: Number) -> Array:
    """Interpolate: `a` where the amount is 0, `b` where it is 1."""
    return a + (b - a) * amount


# --- shapes and canvas: lengths are in pixels ----------------------------------------------------


@dataclass
class Shape:
    """A union of convex pieces, each stored as left and right end (n, rows) of its extent by row.

    Two numbers per row, instead of one per sample, draw 50,000 images in seconds. Where
    the right end lies left of the left one, the row is empty.
    """

    canvas: Canvas
    pieces: list[tuple[Array, Array]]

    def __or__(self, shape: Shape) -> Shape:
        return Shape(self.canvas, self.pieces + shape.pieces)

    def __and__(self, shape: Shape) -> Shape:
        # each piece with each, as the intersection of two convex pieces is convex
        pieces = [
            (np.maximum(left, shape_left), np.minimum(right, shape_right))
            for left, right in self.pieces
            for shape_left, shape_right in shape.pieces
        ]
        return Shape(self.canvas, pieces)

    def where(self, present: Mask | bool) -> Shape:
        """Return the shape, empty in images where `present` (n, 1) is false."""
        pieces = [(left, np.where(present, right, -INFINITY)) for left, right in self.pieces]
        return Shape(self.canvas, pieces)

    def paint(self, part: str, colour: Array, only: Mask | None = None) -> None:
        """Paint the shape over what is on the canvas.

        Args:
            part: the name of the part.
            colour: (n, 3).
            only: restricts it to some samples, broadcast to (n, rows, columns).
        """
        canvas = self.canvas
        number = np.uint8(len(canvas.paints))
        for left, right in self.pieces:
            # The samples whose centres lie between the ends, and the rows that have any
            first = np.clip(np.ceil(left / _STEP - 0.5), 0, _SIDE)
            end = np.clip(np.floor(right / _STEP + 0.5), first, _SIDE)
            touched = np.flatnonzero((end > first).any(axis=0))
            rows = slice(0)
            if len(touched):
                rows = slice(touched[0], touched[-1] + 1)

            # Samples up to `end`, but not up to `first`: 255 inside, then the number inside
            inside = _UP_TO.take(end[:, rows].astype(np.intp), axis=0)
            inside ^= _UP_TO.take(first[:, rows].astype(np.intp), axis=0)
            if only is None:
                inside &= number
            else:
                inside &= np.broadcast_to(only, canvas.top.shape)[:, rows] * number

            # Later paint has the higher number, so the painter's algorithm is a maximum
            np.maximum(canvas.top[:, rows], inside, out=canvas.top[:, rows])
        canvas.paints.append((part, colour))


class Canvas(Dice):
    """n images and their random numbers, painted back to front.

    Attributes:
        top: uint8 (n, samples, samples), the number of the topmost call of `Shape.paint` at each
            sample.
        paints: the name of the part and its colour, (n, 3) or (1, 3), for each call.
    """

    def __init__(self, seed: int, indices: NDArray[np.int64]) -> None:
        super().__init__(seed, indices)
        self.top = np.zeros((len(indices), _SIDE, _SIDE), np.uint8)
        self.paints: list[tuple[str, Array]] = []

    def below(self, height: Number, depth: Number = np.inf) -> Shape:
        """Return the image's whole width, from `height` down to `depth` below it."""
        rows = (height < CENTRES) & (height + depth >= CENTRES)
        return Shape(self, [(np.where(rows, -INFINITY, INFINITY), INFINITY)])

    def zigzag(self, period: Number, phase: Number = 0.0) -> Array:
        """Return a triangle wave over the columns, 0..1: (n or 1, 1, columns)."""
        turns = CENTRES / period + phase
        return np.abs(turns - np.floor(turns) - 0.5)[..., None, :] * 2


@dataclass
class Frame:
    """An object's own coordinates (u, v): u forwards, v down, `scale` pixels per unit.

    Attributes:
        canvas: to be painted on.
        x, y: of its origin.
        scale: pixels per unit.
        facing: 1 if forwards is to the right, -1 if to the left.
        tilt: its slope, the tangent of the angle; a positive one lowers its front. (The last bit
            of a sine differs between machines.)
    """

    canvas: Canvas
    x: Number
    y: Number
    scale: Number = 1.0
    facing: Number = 1.0
    tilt: Number = 0.0

    def __post_init__(self) -> None:
        # the matrix from (u, v) to (x, y)
        cosine = self.scale / np.sqrt(1 + np.float32(1) * self.tilt * self.tilt)
        self.xu = self.facing * cosine
        self.xv = -self.facing * cosine * self.tilt
        self.yu = cosine * self.tilt
        self.yv = cosine

    def _place(self, u: Number, v: Number) -> Point:
        """Turn (u, v) into (x, y)."""
        return self.x + self.xu * u + self.xv * v, self.y + self.yu * u + self.yv * v

    def ellipse(self, u: Number, v: Number, ru: Number, rv: Number) -> Shape:
        """Return an ellipse around (u, v), with radii along both axes of the frame."""
        # the border is (x, y) + (a, c) cos t + (b, d) sin t
        x, y = self._place(u, v)
        a = self.xu * ru
        b = self.xv * rv
        c = self.yu * ru
        d = self.yv * rv

        # solved for the two x of every row; a row that it misses is empty
        height = np.sqrt(c * c + d * d)
        t = (CENTRES - y) / height
        middle = x + t * ((a * c + b * d) / height)
        half = np.sqrt(1 - t * t) * (np.abs(a * d - b * c) / height)
        half = np.where(t * t < 1, half, -INFINITY)
        return Shape(self.canvas, [(middle - half, middle + half)])

    def polygon(self, *corners: Point) -> Shape:
        """Return a convex polygon; its corners may be in either direction."""
        points = [self._place(u, v) for u, v in corners]
        left = INFINITY
        right = -INFINITY
        # each row lies between the two edges that it crosses
        for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1], strict=True):
            crossed = (y0 < CENTRES) != (y1 < CENTRES)
            x = x0 + (CENTRES - y0) * ((x1 - x0) / (y1 - y0))
            left = np.minimum(left, np.where(crossed, x, INFINITY))
            right = np.maximum(right, np.where(crossed, x, -INFINITY))
        return Shape(self.canvas, [(left, right)])

    def box(self, u0: Number, v0: Number, u1: Number, v1: Number) -> Shape:
        """Return a rectangle with two opposite corners (u0, v0) and (u1, v1)."""
        return self.polygon((u0, v0), (u1, v0), (u1, v1), (u0, v1))

    def limb(self, start: Point, end: Point, width0: Number, width1: Number) -> Shape:
        """Return a straight piece that tapers.

        Args:
            start, end: of its axis.
            width0, width1: its extent on either side of the axis, at start and end.
        """
        # the unit vector across the axis
        du = end[0] - start[0]
        dv = end[1] - start[1]
        length = np.sqrt(np.float32(1) * (du * du + dv * dv))
        nu = dv / length
        nv = -du / length
        # each corner lies aside of an end of the axis
        around = ((start, width0), (start, -width0), (end, -width1), (end, width1))
        return self.polygon(*((u + nu * aside, v + nv * aside) for (u, v), aside in around))
