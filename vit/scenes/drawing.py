"""How Scenes are drawn: random numbers that depend only on (seed, index), a canvas, and shapes on it."""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
Mask = NDArray[np.bool_]
Number = float | Array  # one for all images, or (n, 1)
Point = tuple[Number, Number]

SAMPLES = (
    3  # per side of a pixel: nine samples soften the edges, and an odd number has one in the middle
)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _splitmix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the output function of SplitMix64: 64 well-mixed bits for every 64-bit state."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def rgb(codes: str) -> Array:
    """Return (k, 3) in 0..255 from k hexadecimal codes."""
    return np.array([list(bytes.fromhex(code)) for code in codes.split()], np.float32)


class Dice:
    """Random numbers for n images; the same name always gives the same numbers, and a new draw never changes another."""

    def __init__(self, seed: int, indices: NDArray[np.int64]) -> None:
        start = _splitmix(np.array([seed], np.uint64) + _GOLDEN)
        self.keys = _splitmix(start ^ (indices.astype(np.uint64) * _GOLDEN))

    def bits(self, name: str) -> NDArray[np.uint64]:
        return _splitmix(self.keys ^ np.uint64(crc32(name.encode()) << 16))  # (n,)

    def choice(self, name: str, count: int) -> NDArray[np.int64]:
        return (self.bits(name) % np.uint64(count)).astype(np.int64)  # (n,)

    def uniform(self, name: str, low: Number = 0.0, high: Number = 1.0) -> Array:
        unit = (self.bits(name) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
        return low + (high - low) * unit[:, None]  # (n, 1)

    def chance(self, name: str, probability: float) -> Mask:
        return self.uniform(name) < probability  # (n, 1)

    def noise(self, name: str, *shape: int) -> Array:
        count = int(np.prod(shape))
        state = self.bits(name)[:, None] + np.arange(1, count // 8 + 2, dtype=np.uint64) * _GOLDEN
        values = (
            _splitmix(state).astype("<u8").view(np.uint8)[:, :count]
        )  # eight numbers out of each hash
        return (values.astype(np.float32) * np.float32(2 / 255) - 1).reshape(
            -1, *shape
        )  # (n, *shape) in -1..1

    def colour(self, name: str, palette: Array, vary: float = 0.15) -> Array:
        """Return (n, 3): one of the palette's colours, lighter or darker by up to `vary`, with a slightly different hue."""
        chosen = palette[self.choice(name, len(palette))] + 9 * self.noise(name + " hue", 3)
        return chosen * self.uniform(name + " light", 1 - vary, 1 + vary)


# --- primitives: lengths are in pixels of a 32 x 32 picture, whatever the size drawn ----------------------------------


class Shape:
    """A union of convex pieces, each stored as the left and right end (n, rows) of its extent in every row.

    Two numbers per row, instead of one per sample, make 50,000 pictures a matter of seconds.
    """

    def __init__(self, *pieces: tuple[Array, Array]) -> None:
        self.pieces = pieces

    def __or__(self, other: Shape) -> Shape:
        return Shape(*self.pieces, *other.pieces)

    def __and__(self, other: Shape) -> Shape:
        return Shape(
            *((np.maximum(a, c), np.minimum(b, d)) for a, b in self.pieces for c, d in other.pieces)
        )

    def where(self, present: Mask | bool) -> Shape:
        """Return the shape, empty in images where `present` (n, 1) is false."""
        return Shape(
            *((left, np.where(present, right, np.float32(-np.inf))) for left, right in self.pieces)
        )


class Canvas:
    """n pictures, painted back to front: each paint call sets the colour and the part of what it covers."""

    def __init__(self, n: int, size: int) -> None:
        self.n, self.size, self.samples = n, size, size * SAMPLES
        self.step = np.float32(32 / self.samples)
        centres = (np.arange(self.samples, dtype=np.float32) + np.float32(0.5)) * self.step
        self.x = self.y = centres[None]  # (1, samples)
        self.up_to = np.tri(self.samples + 1, self.samples, -1, np.uint8) * np.uint8(
            255
        )  # row k covers k samples
        self.top = np.zeros(
            (n, self.samples, self.samples), np.uint8
        )  # the number of the topmost paint call
        self.colours: list[Array] = []
        self.parts: list[str] = []

    def paint(self, shape: Shape, part: str, colour: Array, only: Mask | None = None) -> None:
        """Paint a shape in a colour (n, 3); `only` restricts it to some samples, broadcast to (n, rows, columns)."""
        number = np.uint8(len(self.parts))
        for left, right in shape.pieces:
            first = np.clip(np.ceil(left / self.step - np.float32(0.5)), 0, self.samples)
            end = np.clip(np.floor(right / self.step + np.float32(0.5)), first, self.samples)
            touched = np.flatnonzero((end > first).any(axis=0))
            rows = slice(touched[0], touched[-1] + 1) if len(touched) else slice(0)
            inside = self.up_to.take(end[:, rows].astype(np.intp), axis=0)
            inside ^= self.up_to.take(first[:, rows].astype(np.intp), axis=0)
            inside &= (
                number if only is None else np.broadcast_to(only, self.top.shape)[:, rows] * number
            )
            # later paint has the higher number, so the painter's algorithm is a maximum
            np.maximum(self.top[:, rows], inside, out=self.top[:, rows])
        self.colours.append(np.broadcast_to(colour, (self.n, 3)))
        self.parts.append(part)

    def below(self, height: Number, depth: Number = np.inf) -> Shape:
        """Return the picture's whole width, from `height` down to `depth` below it."""
        left = np.where(
            (self.y > height) & (self.y <= height + depth), np.float32(-np.inf), np.float32(np.inf)
        )
        return Shape((left, np.full_like(left, np.inf)))

    def zigzag(self, period: Number, phase: Number = 0.0) -> Array:
        """Return a triangle wave over the columns, 0..1, to broadcast over rows: (n or 1, 1, columns)."""
        turns = self.x / period + phase
        return np.abs(turns - np.floor(turns) - np.float32(0.5))[..., None, :] * 2


class Frame:
    """An object's own coordinates: origin (x, y), `scale` pixels per unit, u forwards (`facing` 1 or -1), v down."""

    def __init__(
        self,
        canvas: Canvas,
        x: Number,
        y: Number,
        scale: Number = 1.0,
        facing: Number = 1.0,
        tilt: Number = 0.0,
    ) -> None:
        self.rows, self.x, self.y, self.scale, self.facing = canvas.y, x, y, scale, facing
        # tilt is the tangent of the angle: the last bit of a sine differs between machines
        cosine = scale / np.sqrt(1 + np.float32(1) * tilt * tilt)
        self.xu, self.xv, self.yu, self.yv = (
            facing * cosine,
            -facing * cosine * tilt,
            cosine * tilt,
            cosine,
        )

    def _place(self, u: Number, v: Number) -> Point:
        return self.x + self.xu * u + self.xv * v, self.y + self.yu * u + self.yv * v

    def ellipse(self, u: Number, v: Number, ru: Number, rv: Number) -> Shape:
        # (x, y) + (a, c) cos t + (b, d) sin t, solved for the two x of every row
        (x, y), a, b, c, d = (
            self._place(u, v),
            self.xu * ru,
            self.xv * rv,
            self.yu * ru,
            self.yv * rv,
        )
        height = np.sqrt(c * c + d * d)
        t = (self.rows - y) / height
        middle, half = (
            x + t * ((a * c + b * d) / height),
            np.sqrt(1 - t * t) * (np.abs(a * d - b * c) / height),
        )
        half = np.where(t * t < 1, half, np.float32(-np.inf))
        return Shape((middle - half, middle + half))

    def polygon(self, *corners: Point) -> Shape:
        """Return a convex polygon; its corners may be in either direction."""
        points = [self._place(u, v) for u, v in corners]
        left: Array = np.full(1, np.inf, np.float32)
        right = -left
        for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1], strict=True):
            crossed = (self.rows > y0) != (self.rows > y1)
            x = x0 + (self.rows - y0) * ((x1 - x0) / (y1 - y0))
            left = np.minimum(left, np.where(crossed, x, np.float32(np.inf)))
            right = np.maximum(right, np.where(crossed, x, np.float32(-np.inf)))
        return Shape((left, right))

    def box(self, u0: Number, v0: Number, u1: Number, v1: Number) -> Shape:
        return self.polygon((u0, v0), (u1, v0), (u1, v1), (u0, v1))

    def limb(self, start: Point, end: Point, width0: Number, width1: Number) -> Shape:
        """Return a straight piece that extends `width0` (at its start) to `width1` (at its end) either side of its axis."""
        du, dv = end[0] - start[0], end[1] - start[1]
        length = np.sqrt(np.float32(1) * (du * du + dv * dv))
        nu, nv = dv / length, -du / length
        near = [(start[0] + nu * width, start[1] + nv * width) for width in (width0, -width0)]
        far = [(end[0] + nu * width, end[1] + nv * width) for width in (-width1, width1)]
        return self.polygon(*near, *far)


def blend(a: Array, b: Array | np.float32, amount: Number) -> Array:
    return a + (b - a) * amount
