"""Attention maps over images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from vit.figures.style import COLOURS, INK, QUIET, bare, plain, titled_figure


def attention_figure(
    images: Tensor,
    maps: Tensor,
    prefix_mass: Tensor,
    labels: Sequence[str],
    title: str,
    subtitle: str,
    query: tuple[int, int] | None = None,
) -> Figure:
    """Image by image: where the query looks, on average over the heads and head by head.

    Args:
        images: (B, C, H, W) from 0 to 1.
        maps: (B, h, rows, columns), attention weights.
        prefix_mass: (B, h), what the query gives to tokens that have no place in the picture.
        labels: B names; may be empty strings.
        title: says what it is.
        subtitle: model, data, layer, query.
        query: (row, column) of the patch that asks, outlined; None for the class token.
    """
    batch, heads = maps.shape[:2]
    rows, columns = maps.shape[2:]
    shown = 2 + min(heads, 8)  # the image, the mean, the heads
    cell, gap, head = 1.05, 0.07, 0.24  # inches
    height = cell * images.shape[-2] / images.shape[-1]
    left, right = 0.15, 0.95
    figure, free = titled_figure(left + shown * (cell + gap) + right, batch * (height + head) + 0.2, title, subtitle)
    width_in, height_in = figure.get_figwidth(), figure.get_figheight()
    roof, foot = free - head / height_in, (free * height_in - batch * (height + head)) / height_in
    grid = figure.add_gridspec(
        batch, shown, left=left / width_in, right=(left + shown * (cell + gap) - gap) / width_in, top=roof, bottom=foot,
        wspace=gap / cell, hspace=head / height,
    )  # fmt: skip
    # In multiples of what even attention would give each patch: 1 means "no preference". One scale for all, so that a
    # strong head looks strong beside a weak one.
    strength = maps * rows * columns
    top = float(np.quantile(strength.numpy(), 0.995))
    for i in range(batch):
        panels = [strength[i].mean(0), *strength[i, : shown - 2]]
        masses = [prefix_mass[i].mean().item(), *prefix_mass[i].tolist()]
        picture = figure.add_subplot(grid[i, 0])
        picture.imshow(images[i].permute(1, 2, 0).numpy(), interpolation="nearest")
        bare(picture)
        picture.set_title(plain(labels[i])[:18], fontsize=8, color=INK, pad=3)
        if query is not None:
            _outline(picture, query, images.shape[-2] / rows, images.shape[-1] / columns, "white")
        for panel, (values, mass) in enumerate(zip(panels, masses, strict=False)):
            axes = figure.add_subplot(grid[i, 1 + panel])
            drawn = axes.imshow(values.numpy(), cmap=COLOURS, vmin=0, vmax=top, interpolation="nearest", aspect="auto")
            bare(axes)
            name = "mean of heads" if panel == 0 else f"head {panel - 1}"
            axes.set_title(f"{name}  ·  {1 - mass:.0%}", fontsize=7, color=INK if i == 0 else QUIET, pad=3)
            if query is not None:
                _outline(axes, query, 1, 1, "cyan")
    bar_axes = figure.add_axes((1 - (right - 0.15) / width_in, foot, 0.13 / width_in, roof - foot))
    bar = figure.colorbar(drawn, cax=bar_axes, extend="max")
    bar.set_label("attention, in multiples of even", fontsize=8, color=QUIET)
    bar.ax.tick_params(labelsize=7, colors=QUIET)
    bar.outline.set_visible(False)
    return figure


def _outline(axes: object, patch: tuple[int, int], height: float, width: float, colour: str) -> None:
    corner = (patch[1] * width - 0.5, patch[0] * height - 0.5)
    axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=colour, linewidth=1.2))  # type: ignore[attr-defined]
