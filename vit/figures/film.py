"""One image's maps over the saved moments of a run, as a film."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from vit.atomic import replacing
from vit.errors import UserError
from vit.figures.attention import ImageMaps, Patch
from vit.figures.mosaic import Layout, Mosaic, with_size
from vit.figures.scale import AROUND_UNIFORM
from vit.figures.style import COLOURS, style, warn_of_boxes

MARKED = 24
"""Most frames for which the progress line has a point each."""


def film_frames(
    image: Tensor,
    maps: Tensor,
    moments: Sequence[str],
    panels: Sequence[str],
    label: str,
    title: str,
    subtitle: str,
    *,
    masses: Tensor | None = None,
    query: Patch | None = None,
    scale: str = "shared",
    overlay: bool = False,
    plain: bool = False,
    width: float | None = None,
) -> list[Figure]:
    """Draw a figure for each of F moments of a run: the image, its maps, and the run's progress.

    Size, place and scale are the same in all frames, so that only the attention moves.

    Args:
        image: (C, H, W) from 0 to 1, C 1 or 3.
        maps: (F, P, rows, columns).
        moments: F names: "epoch 3 of 40".
        label: of the image.
        panels: P names: "mean of heads", "head 0".
        title, subtitle: the heading of every frame.
        masses: (F, P), the share on tokens without a place in the image.
        query: (row, column) of the query patch, outlined.
        scale: "shared" by all frames, or "log".
        overlay: lay the maps over the image.
        plain: leave out title, legend and notes.
        width: of the frames in inches; None for what the pictures need.

    Raises:
        UserError: shapes, counts or the scale do not fit.
    """
    if scale == "row":
        raise UserError("scale is shared or log, got 'row': all frames have one scale")
    image_maps = ImageMaps(
        maps, maps, panels, [label] * len(moments), masses, query, scale, overlay=overlay
    )
    # One layout, and one scale in the notes, for all frames
    image_size = (image.shape[-2], image.shape[-1])
    layout = image_maps.layout(1, blocks=1, image_size=image_size, roof=0.28, width=width)
    notes = [note.replace("all maps", "all maps and frames") for note in image_maps.notes()]
    frames = []
    with style():
        for frame, moment in enumerate(moments):
            mosaic = Mosaic(layout, image_maps.grid)
            picture = mosaic.tiles(image[None])[0]
            image_maps.draw(mosaic, 0, picture, frame)
            mosaic.over(0, moment, size=10)
            bars = image_maps.bars(each=False)
            if plain:
                figure = mosaic.figure("", "", bars=bars)
            else:
                heading = with_size(title, image)
                figure = mosaic.figure(
                    heading, subtitle, keys=image_maps.keys(), notes=notes, bars=bars
                )
            # The run's progress, in the roof above the pictures
            _draw_progress(figure.axes[0], layout, frame, len(moments))
            frames.append(figure)
    warn_of_boxes(frames[0])
    return frames


def _draw_progress(axes: Axes, layout: Layout, frame: int, frames: int) -> None:
    """Draw a line for the run at the upper right, with a point at the moment of this frame."""
    # A point for each moment, unless there are too many
    points = np.linspace(layout.right - layout.dots(1.6), layout.right - layout.dots(0.06), frames)
    height = np.full(frames, layout.roof / 2)
    marks = "o" if frames <= MARKED else ""
    done = slice(frame + 1)
    colour = COLOURS.series[1]
    quiet: dict[str, Any] = {
        "color": COLOURS.quiet,
        "alpha": 0.5,
        "linewidth": 1.2,
        "markersize": 2.6,
    }
    axes.plot(points, height, marker=marks, **quiet)
    axes.plot(points[done], height[done], color=colour, linewidth=1.5, marker=marks, markersize=3)
    axes.plot(points[frame], height[frame], color=colour, marker="o", markersize=6)


def save_film(frames: Sequence[Figure | np.ndarray], path: Path, seconds: float = 0.6) -> None:
    """Write frames, all of one size, as a looping GIF, whole or not at all.

    Equal frames give equal files. All share one palette of 256 colours, so that a colour means the
    same in each. The last frame lasts three times `seconds`; consecutive equal frames become one.

    Args:
        frames: figures, or uint8 (H, W, 3).
    """
    # All pixels first: the palette is that of all frames
    pictures = []
    for frame in frames:
        pictures.append(rendered(frame) if isinstance(frame, Figure) else frame)
    indexed = _indexed(np.stack(pictures))

    # A GIF counts hundredths of a second, Pillow milliseconds
    duration = round(seconds * 100) * 10
    durations = [duration] * (len(indexed) - 1) + [duration * 3]
    with replacing(path) as temporary:
        indexed[0].save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=indexed[1:],
            duration=durations,
            loop=0,
            optimize=False,
        )


def rendered(figure: Figure) -> np.ndarray:
    """Return a figure's pixels at its own resolution: uint8 (H, W, 3)."""
    canvas = FigureCanvasAgg(figure)
    with style():
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _indexed(pictures: np.ndarray) -> list[Image.Image]:
    """Return frames uint8 (F, H, W, 3) in one palette, each colour as the nearest in it."""
    # Count the colours of all frames
    packed = pictures.astype(np.uint32) @ np.array([65536, 256, 1], dtype=np.uint32)
    codes, index, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=-1).astype(np.uint8)

    # A colour counts by the root of its area; those of the maps get a quarter of that total besides
    palette = colours
    if len(colours) > 256:
        weighted = colours.repeat(np.sqrt(counts).round().astype(int), 0)
        of_maps = AROUND_UNIFORM(np.arange(256), bytes=True)[:, :3]
        weighted = np.concatenate([weighted, of_maps.repeat(len(weighted) // 1024 + 1, 0)])
        quantized = Image.fromarray(weighted[None]).quantize(256, kmeans=1)
        palette = np.array(quantized.getpalette(), dtype=np.uint8).reshape(-1, 3)

    # The nearest of the palette for each colour, in parts that fit memory; Pillow's is approximate
    nearest = []
    for part in np.array_split(colours, len(colours) // 4096 + 1):
        distances = ((part[:, None].astype(int) - palette) ** 2).sum(-1)
        nearest.append(distances.argmin(1).astype(np.uint8))
    frames = []
    for frame in np.concatenate(nearest)[index].reshape(packed.shape):
        image = Image.fromarray(frame)
        image.putpalette(palette.tobytes())
        frames.append(image)
    return frames
