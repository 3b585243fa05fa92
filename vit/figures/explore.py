"""An interactive page of attention maps: one HTML file that opens from disk.

Weights are stored as 8-bit codes, `round(255 sqrt(w))`: half of a typical map lies below 1 / 255,
which linear codes would make zero. Row sums survive without being stored: the reader adds one shift
to all nonzero codes of a row, so that their squares sum to 255^2 again. Rounding moved each code by
at most 1/2, and the shift is a mean of these moves, so no code is off by more than 1.

The file holds style and script (allowed by their hashes; nothing else is), a description in JSON,
and one gzip stream in base64 with all codes and pixels.
"""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from jinja2.utils import htmlsafe_json_dumps
from torch import Tensor

from vit.errors import UserError, printable
from vit.figures.document import render_page
from vit.figures.scale import PALETTE

SCALE = 255
"""The code of a weight of 1."""
DARK_PALETTE = matplotlib.colormaps["magma"](np.arange(256), bytes=True)[:, :3]
"""The colours of maps where the reader's system is dark, from low to high: uint8 (256, 3)."""


@dataclass(frozen=True)
class Moment:
    """The attention of a model on B images, at one checkpoint.

    Attributes:
        name: e.g. "epoch 3"; may be empty if there is only one.
        weights: encoder layer, ascending -> (B, h, N, N), rows sum to 1; N = prefix + visible
            patches, the visible ones in grid order.
        decoder: decoder layer, ascending -> (B, h, M, M), M = decoder prefix + all patches in grid
            order; empty without a decoder.
        filled: (B, C, H, W) from 0 to 1, the images as the model reconstructs them.
    """

    name: str
    weights: Mapping[int, Tensor]
    decoder: Mapping[int, Tensor] = field(default_factory=dict)
    filled: Tensor | None = None


def explore_page(
    moments: Sequence[Moment],
    names: Sequence[str],
    images: Tensor,
    *,
    hidden: Tensor | None,
    photos: Sequence[bytes] = (),
    grid_size: tuple[int, int],
    class_token: bool,
    prefix: int,
    facts: Sequence[tuple[str, str]],
    limit: int = 10_000_000,
) -> str:
    """Return a self-contained page for exploring attention: HTML, to be written as UTF-8.

    Equal input gives equal text.

    Args:
        moments: the checkpoints of the model, in the order of training, for a slider.
        names: of the images, any text.
        images: uint8 (B, C, H, W), C 1 or 3, as the model takes them.
        hidden: bool (B, rows, columns), True for masked patches, equally many in each image; None
            if the model saw all.
        photos: JPEGs of the same crops with more pixels than the model takes, for display; some or
            all may be missing or empty.
        grid_size: (rows, columns) of patches.
        class_token: whether the first token is one.
        prefix: how many tokens come before the patches, in the decoder too: class token and
            registers.
        facts: (what, text) pairs, such as ("model", "ViT-Tiny, patch 4").
        limit: of the page, in bytes.
    """
    stream = bytearray()

    def add(part: bytes) -> int:
        """Add codes or pixels to the stream, and return where they begin."""
        start = len(stream)
        stream.extend(part)
        return start

    # The codes of the encoder in all moments; the decoder's and reconstructions, if there are any
    channels, height, width = images.shape[1:]
    described = []
    for i, (name, photo) in enumerate(zip_longest(distinct(names), photos)):
        cells = None
        if hidden is not None:
            cells = "".join(str(int(cell)) for cell in hidden[i].flatten())
        decoders = [moment.decoder for moment in moments if moment.decoder]
        filled = [moment.filled[i] for moment in moments if moment.filled is not None]
        described.append(
            {
                "name": printable(name),
                "channels": channels,
                "height": height,
                "width": width,
                "pixels": add(_pixels(images[i])),
                "photo": [add(photo), len(photo)] if photo else None,
                "hidden": cells,
                "encoder": [add(_codes(moment.weights, i)) for moment in moments],
                "decoder": [add(_codes(layers, i)) for layers in decoders] or None,
                "filled": [add(_pixels(image.mul(255).round().byte())) for image in filled] or None,
            }
        )

    # What is where in the stream, in ASCII, so that line separators are escaped; so are the signs
    # that could end a script element
    last = moments[-1]
    description = {
        "moments": [printable(moment.name) for moment in moments],
        "grid": grid_size,
        "classToken": class_token,
        "encoder": _described_layers(last.weights, prefix),
        "decoder": _described_layers(last.decoder, prefix),
        "start": opening(last.weights, prefix, grid_size, hidden),
        # 256 times rrggbb for each theme
        "colours": {"light": PALETTE.tobytes().hex(), "dark": DARK_PALETTE.tobytes().hex()},
        "images": described,
    }
    as_json = htmlsafe_json_dumps(description, separators=(",", ":"))

    # mtime 0: a page does not tell when it was made, and equal input gives equal bytes
    data = base64.b64encode(gzip.compress(stream, 9, mtime=0)).decode()
    template = Path(__file__).with_name("explore.html")
    page = render_page(template, facts=facts, description=as_json, data=data)

    size = len(page.encode())
    if size > limit:
        raise UserError(
            f"the page would have {size / 1e6:.2f} MB, above {limit / 1e6:.2f} MB; leave out some"
            f" of its {len(last.weights) + len(last.decoder)} layers (--layers, --part encoder),"
            f" {len(names)} images (--count) or {len(moments)} checkpoints (--snapshots)"
        )
    return page


def _described_layers(layers: Mapping[int, Tensor], prefix: int) -> dict[str, Any] | None:
    """Describe the layers of an encoder or a decoder; None without any."""
    if not layers:
        return None
    # All layers have as many heads
    heads = next(iter(layers.values())).shape[1]
    return {"layers": list(layers), "heads": heads, "prefix": prefix}


def codes_of(weights: Tensor) -> Tensor:
    """Weights (..., N), rows sum to 1 -> uint8 codes (..., N): the nearest to 255 sqrt(w)."""
    # Normalised anew, in float64: sums of weights in bfloat16 are off by up to 0.01
    exact = weights.cpu().double()
    return (exact / exact.sum(-1, keepdim=True)).sqrt().mul(SCALE).round().to(torch.uint8)


def opening(
    weights: Mapping[int, Tensor], prefix: int, grid: tuple[int, int], hidden: Tensor | None = None
) -> tuple[int, int]:
    """Return the head that the page opens on, as (index of the layer, head).

    It is the head with the lowest entropy of patch-to-patch attention (mean over patches and
    images) among those that give at least half of their attention to patches, at most half of that
    to the query patch and its eight neighbours, and of which two images share at most half (if
    there are several, and none is masked). If no head qualifies, it is the mean of the last layer's
    heads, (last, -1).
    """
    # Patches in the same or the next row and column are neighbours
    rows, columns = grid
    places = torch.cartesian_prod(torch.arange(float(rows)), torch.arange(float(columns)))  # (L, 2)
    near = torch.cdist(places, places, p=math.inf) <= 1
    if hidden is not None:
        visible = [near[cells][:, cells] for cells in ~hidden.flatten(1)]
        near = torch.stack(visible)[:, None]  # (B, 1, visible, visible)

    # Without a head that qualifies, the mean of the last layer
    lowest = math.inf
    chosen = (len(weights) - 1, -1)
    for place, of_layer in enumerate(weights.values()):
        on_patches = of_layer[:, :, prefix:, prefix:].cpu().double()
        share = on_patches / on_patches.sum(-1, keepdim=True).clamp(min=1e-12)

        # Heads that attend to few patches, and to other ones in each image
        qualifies = (_mean(on_patches) >= 0.5) & (_mean(share * near) <= 0.5)
        if hidden is None and len(share) > 1:
            qualifies &= _mean(torch.minimum(share[1:], share[:-1])) <= 0.5
        best = _mean(torch.special.entr(share)).where(qualifies, math.inf).min(0)
        if float(best.values) < lowest:
            lowest = float(best.values)
            chosen = (place, int(best.indices))
    return chosen


def _mean(parts: Tensor) -> Tensor:
    """Return the sum over keys, as a mean over images and queries, of each head: (h,)."""
    return parts.sum(-1).mean((0, 2))


def distinct(names: Sequence[str]) -> list[str]:
    """Return names that tell images apart: equal ones are followed by the image's number."""
    return [
        f"{name}, image {number}".removeprefix(", ") if names.count(name) > 1 else name
        for number, name in enumerate(names)
    ]


def _pixels(image: Tensor) -> bytes:
    # Channels last, as the page's canvas takes them
    return image.permute(1, 2, 0).numpy().tobytes()


def _codes(layers: Mapping[int, Tensor], image: int) -> bytes:
    codes = [codes_of(weights[image]) for weights in layers.values()]
    return torch.stack(codes).numpy().tobytes()
