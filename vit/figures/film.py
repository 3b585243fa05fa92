"""One image's maps over the saved moments of a run, as a film."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from vit.atomic import replacing
from vit.figures.attention import ImageMaps, Patch
from vit.figures.scale import PALETTE
from vit.figures.sheet import Sheet
from vit.figures.style import COLOURS, fitted, style

MARKED = 24  # most frames for which the progress line has a point each


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
) -> list[Figure]:
    """Draw a figure for each of F moments of a run: the image, its maps at that moment, and the run's progress.

    Size, place and scale are the same in all frames, so that only the attention moves.

    Args:
        image: (C, H, W) from 0 to 1, C 1 or 3.
        maps: (F, P, rows, columns).
        moments: F names: "epoch 3 of 40".
        label: of the image.
        masses: (F, P).
        scale: "shared" by all frames, or "log".
        panels, query, overlay: as in `attention_figure`.

    Raises:
        ValueError: shapes, counts or the scale do not fit.
    """
    drawn = ImageMaps(
        maps, maps, panels, [label] * len(moments), masses, query, scale, overlay=overlay
    )
    notes = drawn.notes()
    notes[0] = notes[0].replace("for all maps", "for all maps and frames")
    frames = []
    with style():
        for frame, moment in enumerate(moments):
            sheet = drawn.sheet(
                1, image[None], title, subtitle, roof=34, keys=drawn.keys(), notes=notes
            )
            drawn.draw(sheet, 0, sheet.pixels(image[None])[0], frame)
            sheet.bars(drawn.scales[:1], None, False, overlay)
            _draw_progress(sheet, moment, frame, len(moments))
            frames.append(sheet.figure)
    return frames


def _draw_progress(sheet: Sheet, moment: str, frame: int, frames: int) -> None:
    """Draw the moment's name on the left, and a line for the run with a point at the moment."""
    done, rest = COLOURS.series[1], COLOURS.quiet
    sheet.over(0, fitted(moment, sheet.inside - 150, 10, "bold"), 10)
    axes = sheet.place(sheet.right - 240, 10, 240, 20)
    axes.set(xlim=(-0.05 * frames, frames - 1 + 0.05 * frames), ylim=(-1, 1))
    marks = "o" if frames <= MARKED else ""
    axes.plot(
        range(frames),
        [0] * frames,
        color=rest,
        alpha=0.5,
        linewidth=1.2,
        marker=marks,
        markersize=2.6,
    )
    axes.plot(
        range(frame + 1), [0] * (frame + 1), color=done, linewidth=1.5, marker=marks, markersize=3
    )
    axes.plot([frame], [0], color=done, marker="o", markersize=6)


def save_film(frames: Sequence[Figure | np.ndarray], path: Path, seconds: float = 0.6) -> None:
    """Write frames, figures or uint8 (H, W, 3), all of one size, as a looping GIF, whole or not at all.

    Equal frames give equal files. All share one palette of 256 colours, so that a colour means the same in each. The last frame
    lasts three times `seconds`; consecutive equal frames become one.
    """
    pictures = [rendered(frame) if isinstance(frame, Figure) else frame for frame in frames]
    indexed = _indexed(np.stack(pictures))
    each = round(seconds * 100) * 10  # milliseconds; a GIF counts hundredths of a second
    durations = [each] * (len(indexed) - 1) + [each * 3]
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
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _indexed(pictures: np.ndarray) -> list[Image.Image]:
    """Return frames uint8 (F, H, W, 3) in one palette, each colour as the nearest; Pillow's own search is approximate.

    A colour counts by the root of its area; those of the maps get a quarter of that total besides.
    """
    packed = pictures.astype(np.uint32) @ np.array([65536, 256, 1], dtype=np.uint32)
    codes, index, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=-1).astype(np.uint8)
    palette = colours
    if len(colours) > 256:
        weighted = colours.repeat(np.sqrt(counts).round().astype(int), 0)
        weighted = np.concatenate([weighted, PALETTE.repeat(len(weighted) // 1024 + 1, 0)])
        found = Image.fromarray(weighted[None]).quantize(256, kmeans=1).getpalette() or []
        palette = np.array(found, dtype=np.uint8).reshape(-1, 3)
    nearest = [
        ((part[:, None].astype(int) - palette) ** 2).sum(-1).argmin(1)
        for part in np.array_split(colours, len(colours) // 4096 + 1)
    ]
    frames = []
    for frame in np.concatenate(nearest).astype(np.uint8)[index].reshape(packed.shape):
        frames.append(Image.fromarray(frame))
        frames[-1].putpalette(palette.tobytes())
    return frames
