"""One image's maps over the saved moments of a run, as a film."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from PIL import Image
from torch import Tensor

from vit.atomic import replacing
from vit.figures.attention import Patch, checked, draw_bars, draw_block, keys_of, notes_of, scales_of
from vit.figures.layout import MARGIN, laid_out
from vit.figures.mosaic import Sheet, headings, pictures_of
from vit.figures.scale import PALETTE as SCALE_COLOURS
from vit.figures.scale import in_multiples_of_even
from vit.figures.style import DPI, fitted, theme_of

ROOF = 34  # dots for the moment and the mark of progress
COLOURS_OF_GIF = 256
EXACT_COLOURS = 64  # of these, the ones that cover most and are not changed
LAST = 3  # times as long as the others the last frame stands


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
    unit: str | None = None,
    overlay: bool = False,
    dark: bool = False,
) -> list[Figure]:
    """A figure for each moment of a run: the image, its maps then, and how far the run had come.

    Size, place and scale are the same in all frames, so that only what the model does moves.

    Args:
        image: (C, H, W) from 0 to 1, C 1 or 3.
        maps: (F, P, rows, columns), as in `attention_figure`, for F moments.
        moments: F names: "epoch 3 of 40".
        panels: P names.
        label: of the image.
        masses: (F, P).
        query: (row, column) of the patch that asks.
        scale: "shared" by all frames, or "log".
        title, subtitle, unit, overlay, dark: as in `attention_figure`.

    Raises:
        ValueError: shapes, counts or the scale do not fit.
    """
    if len(moments) != len(maps):
        raise ValueError(f"{len(moments)} moments for {len(maps)} maps")
    if scale == "row":
        raise ValueError("the frames of a film share one scale: 'shared' or 'log'")
    theme = theme_of(dark)
    images = image[None].expand(len(maps), *image.shape)
    drawn = checked(images, maps, panels, [label] * len(maps), masses, query)
    values = drawn.values if unit else in_multiples_of_even(drawn.values)
    scales = scales_of(values, scale)
    layout = laid_out(1, 1, len(panels), drawn.grid, (image.shape[-2], image.shape[-1]), roof=ROOF)
    picture = pictures_of(image[None], layout)[0]
    names, size, _ = headings(panels, drawn.shares, layout.width)
    notes = notes_of(values, scales, scale, unit, drawn.masses is not None, overlay)
    notes[0] = notes[0].replace("for all maps", "for all maps and frames")
    frames = []
    for frame, moment in enumerate(moments):
        sheet = Sheet(layout, True, notes, keys_of(values, drawn.queries), title, subtitle, theme)
        asks = drawn.queries[frame] if drawn.queries else None
        draw_block(sheet, 0, picture, label, values[frame], names[frame], size, scales[frame], asks, overlay)
        draw_bars(sheet, scales[:1], scale, unit, overlay)
        _draw_progress(sheet, moment, frame, len(moments))
        frames.append(sheet.figure)
    return frames


def _draw_progress(sheet: Sheet, moment: str, frame: int, frames: int) -> None:
    theme, y = sheet.theme, 14
    left, right = sheet.layout.right - int(1.6 * DPI), sheet.layout.right - 6
    room = (left - MARGIN - 24) / DPI * 72
    sheet.text(MARGIN, y + 6, fitted(moment, room, 10, "bold"), 10, theme.ink, weight="bold", va="baseline")
    places = np.linspace(left, right, frames) if frames > 1 else np.array([right])
    sheet.axes.plot([left, right], [y, y], color=theme.quiet, alpha=0.35, linewidth=1.5, solid_capstyle="round")
    sheet.axes.plot([left, places[frame]], [y, y], color=theme.line, linewidth=1.5, solid_capstyle="round")
    if frames <= 24:
        for place in places[frame + 1 :]:
            sheet.axes.add_patch(Circle((place, y), 3, facecolor=theme.paper, edgecolor=theme.quiet, linewidth=0.8))
        for place in places[:frame]:
            sheet.axes.add_patch(Circle((place, y), 3, facecolor=theme.line, linewidth=0))
    sheet.axes.add_patch(Circle((places[frame], y), 5.5, facecolor=theme.line, linewidth=0, zorder=5))


def save_film(frames: Sequence[Figure | np.ndarray], path: Path, seconds: float = 0.6) -> None:
    """Write frames as a GIF that loops, whole or not at all; equal frames give equal files.

    All frames share one palette of 256 colours, so that a colour means the same in each. The last one stands three times as
    long. Frames that are equal to the one before become one frame that stands longer.

    Args:
        frames: figures, or uint8 (H, W, 3), all of one size.
        path: ends in .gif.
        seconds: that a frame stands, from 0.02; in steps of 0.01.

    Raises:
        ValueError: there are no frames, they differ in size, the path is no GIF, or the time is too short.
    """
    if path.suffix.lower() != ".gif":
        raise ValueError(f"a film is a .gif, not {path.name!r}")
    if not (math.isfinite(seconds) and 0.02 <= seconds <= 600):
        raise ValueError(f"a frame stands from 0.02 to 600 seconds, got {seconds}")
    pictures = [rendered(frame) if isinstance(frame, Figure) else frame for frame in frames]
    if not pictures or any(picture.shape != pictures[0].shape for picture in pictures):
        raise ValueError("a film needs frames, all of one size")
    indexed, palette = _indexed(pictures)
    each = round(seconds * 100) * 10  # milliseconds; a GIF counts hundredths of a second
    durations = [each] * (len(indexed) - 1) + [each * LAST]
    with replacing(path) as temporary:
        indexed[0].save(
            temporary, format="GIF", save_all=True, append_images=indexed[1:], duration=durations, loop=0, optimize=False,
            palette=palette,  # without it, each frame would bring a copy
        )  # fmt: skip


def rendered(figure: Figure) -> np.ndarray:
    """A figure's pixels at its own resolution: uint8 (H, W, 3)."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _indexed(pictures: Sequence[np.ndarray]) -> tuple[list[Image.Image], bytes]:
    """The pictures in one palette, and this. Each colour becomes the nearest; Pillow's own search is only roughly right."""
    counts: dict[int, int] = {}
    packed = [picture.astype(np.uint32) @ np.array([65536, 256, 1], dtype=np.uint32) for picture in pictures]
    for one in packed:
        for colour, count in zip(*(part.tolist() for part in np.unique(one, return_counts=True)), strict=True):
            counts[colour] = counts.get(colour, 0) + count
    codes = np.array(sorted(counts), dtype=np.uint32)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=-1).astype(np.uint8)
    palette = _palette(colours, np.array([counts[code] for code in codes.tolist()]))
    nearest = [
        ((part[:, None].astype(np.int32) - palette.astype(np.int32)) ** 2).sum(-1).argmin(1)
        for part in np.array_split(colours, len(colours) // 4096 + 1)
    ]
    index = np.concatenate(nearest).astype(np.uint8)
    result = []
    for one in packed:
        image = Image.fromarray(index[np.searchsorted(codes, one)], "L")
        image.putpalette(palette.tobytes())  # makes it one of palette indices
        result.append(image)
    return result, palette.tobytes()


def _palette(colours: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Colours (n, 3), uint8, and how often each occurs -> (up to 256, 3): themselves if they are few enough, else near ones.

    Those that cover most stay exact (paper, ink, outlines), and every second one of the scale, or the bar would go in steps.
    The others share what is left, each with the logarithm of its area as weight.
    """
    if len(colours) <= COLOURS_OF_GIF:
        return colours
    of_scale = (colours[:, None] == SCALE_COLOURS[::2]).all(-1).any(1)
    rank = np.argsort(np.argsort(-counts, kind="stable"))
    fixed = (rank < EXACT_COLOURS) | of_scale
    exact, rest = np.flatnonzero(fixed), np.flatnonzero(~fixed)
    left = COLOURS_OF_GIF - len(exact)
    weighted = colours[rest].repeat(np.log2(counts[rest] + 1).round().astype(int), 0)
    found = Image.fromarray(weighted[None], "RGB").quantize(left, Image.Quantize.MEDIANCUT, kmeans=1).getpalette() or []
    return np.concatenate([colours[exact], np.array(found, dtype=np.uint8).reshape(-1, 3)[:left]])
