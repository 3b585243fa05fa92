"""An interactive page: one HTML file that opens from disk and shows where every patch looks.

Weights are stored as 8-bit codes, `round(255 sqrt(w))`: half of a typical map lies below 1 / 255,
which linear codes would make zero. Row sums survive without being stored: the reader adds one shift
to all nonzero codes of a row, so that their squares sum to 255^2 again (see `weights_of`, which the
page repeats).

The file holds style and script (allowed by their hashes; nothing else is), a description in JSON,
and one gzip stream in base64 with all codes and pixels.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from vit.errors import UserError
from vit.figures.document import render_page
from vit.figures.scale import PALETTE
from vit.figures.style import printable

SCALE = 255
"""The code of a weight of 1."""
DARK_PALETTE = matplotlib.colormaps["magma"](np.arange(256), bytes=True)[:, :3]
"""The colours of maps where the reader's system is dark, from low to high: uint8 (256, 3)."""


@dataclass(frozen=True)
class ExploredImage:
    """An image and what a model's attention does on it.

    Attributes:
        name: any text.
        image: uint8 (C, H, W), C 1 or 3, as the model takes it.
        weights: encoder layer -> (h, N, N), rows sum to 1; N = prefix + visible patches, the
            visible ones in grid order.
        hidden: bool (rows, columns), True for masked patches; None if the model saw all.
        decoder: decoder layer -> (h, M, M), M = decoder prefix + all patches in grid order; empty
            without a decoder.
        filled: uint8 (C, H, W), the image as the model reconstructs it.
        photo: a JPEG of the same crop with more pixels than the model takes, for display; may be
            empty.
    """

    name: str
    image: Tensor
    weights: Mapping[int, Tensor]
    hidden: Tensor | None = None
    decoder: Mapping[int, Tensor] = field(default_factory=dict)
    filled: Tensor | None = None
    photo: bytes = b""


@dataclass(frozen=True)
class Moment:
    """One state of a model: a checkpoint.

    Attributes:
        name: e.g. "epoch 3"; may be empty if there is only one.
        images: the same in every moment, in the same order; weights and `filled` may differ.
    """

    name: str
    images: Sequence[ExploredImage]


def explore_page(
    moments: Sequence[Moment],
    *,
    grid_size: tuple[int, int],
    class_token: bool,
    registers: int,
    decoder_prefix: int = 0,
    title: str,
    facts: Sequence[tuple[str, str]],
    limit: int = 10_000_000,
) -> str:
    """Return a self-contained page for exploring attention: HTML, to be written as UTF-8.

    Equal input gives equal text.

    Args:
        moments: the states of the model, in the order of training; a slider goes through them.
        grid_size: (rows, columns) of patches.
        class_token: whether the first token is one.
        registers: how many follow it; both come before the patches.
        decoder_prefix: how many of these tokens the decoder has.
        title: the heading.
        facts: (what, text) pairs, such as ("model", "ViT-Tiny, patch 4").
        limit: of the page, in bytes.
    """
    # One stream of codes and pixels, and a description of what is where in it
    prefix = int(class_token) + registers
    first = moments[0].images
    stream = bytearray()
    images = []
    for number, name in enumerate(distinct([image.name for image in first])):
        states = [moment.images[number] for moment in moments]
        images.append(_described(stream, name, states))
    description = {
        "moments": [printable(moment.name) for moment in moments],
        "grid": list(grid_size),
        "classToken": class_token,
        "registers": registers,
        "encoder": _described_layers(first[0].weights, prefix),
        "decoder": _described_layers(first[0].decoder, decoder_prefix),
        "start": opening(moments[-1].images, prefix, grid_size),
        # 256 times rrggbb for each theme
        "colours": {"light": PALETTE.tobytes().hex(), "dark": DARK_PALETTE.tobytes().hex()},
        "images": images,
    }

    # ASCII, so line separators are escaped; so are the signs that could end a script element
    description_json = json.dumps(description, separators=(",", ":"))
    for sign in "<>&":
        description_json = description_json.replace(sign, f"\\u{ord(sign):04x}")

    # mtime 0: a page does not tell when it was made, and equal input gives equal bytes
    data = base64.b64encode(gzip.compress(stream, 9, mtime=0)).decode()
    template = Path(__file__).with_name("explore.html")
    page = render_page(
        template, title=title, facts=facts, description=Markup(description_json), data=data
    )

    size = len(page.encode())
    if size > limit:
        raise UserError(
            f"the page would be {size / 1e6:.2f} MB, above {limit / 1e6:.2f} MB; leave out some of"
            f" its {len(first[0].weights) + len(first[0].decoder)} layers, {len(first)} images or"
            f" {len(moments)} checkpoints"
        )
    return page


def _described_layers(layers: Mapping[int, Tensor], prefix: int) -> dict[str, Any] | None:
    """Describe the layers of an encoder or a decoder; None without any."""
    if not layers:
        return None
    # All layers have as many heads
    heads = len(next(iter(layers.values())))
    return {"layers": sorted(layers), "heads": heads, "prefix": prefix}


def codes_of(weights: Tensor) -> Tensor:
    """Weights (..., N), rows sum to 1 -> uint8 codes (..., N): the nearest to 255 sqrt(w)."""
    # Normalised anew, in float64: sums of weights in bfloat16 are off by up to 0.01
    exact = weights.detach().cpu().double()
    return (exact / exact.sum(-1, keepdim=True)).sqrt().mul(SCALE).round().to(torch.uint8)


def weights_of(codes: Tensor) -> Tensor:
    """Codes (..., N) -> float64 weights (..., N) whose rows sum to 1, as the page reads them.

    A zero stays zero; all nonzero codes c of a row get one shift t, the root of sum((c + t)^2) =
    255^2. Rounding moved each code by at most 1/2, and t is a mean of these moves, so no code is
    off by more than 1 (and by less if rounding went one way, as in a uniform row, which comes back
    exact).
    """
    exact = codes.to(torch.float64)
    # One shift for all nonzero codes of a row: the root of a quadratic equation
    nonzero = exact > 0
    count = nonzero.sum(-1, keepdim=True)
    total = exact.sum(-1, keepdim=True)
    squares = (exact**2).sum(-1, keepdim=True)
    shift = ((total**2 - count * (squares - SCALE**2)).sqrt() - total) / count
    return torch.where(nonzero, ((exact + shift) / SCALE) ** 2, 0.0)


def opening(images: Sequence[ExploredImage], prefix: int, grid: tuple[int, int]) -> tuple[int, int]:
    """Return the head that the page opens on, as (index of the layer, head).

    It is the head with the lowest entropy of patch-to-patch attention (mean over patches and
    images) among those that give at least half of their attention to patches, at most half of that
    to the query patch and its eight neighbours, and of which two images share at most half (if
    there are several, and none is masked). If no head qualifies, it is the mean of the last layer's
    heads, (last, -1).
    """
    # Patches in the same or the next row and column are neighbours
    number = torch.arange(math.prod(grid))
    row = number // grid[1]
    column = number % grid[1]
    near = ((row[:, None] - row).abs() <= 1) & ((column[:, None] - column).abs() <= 1)
    unmasked = len(images) > 1 and all(image.hidden is None for image in images)

    # Without a head that qualifies, the mean of the last layer
    lowest = math.inf
    chosen = (len(images[0].weights) - 1, -1)
    for place, layer in enumerate(sorted(images[0].weights)):
        # Per head, means over images: attention on patches, on neighbours, and its entropy
        shares = []
        measured = []
        for image in images:
            visible = torch.ones_like(near[0])
            if image.hidden is not None:
                visible = ~image.hidden.flatten()
            weights = image.weights[layer][:, prefix:, prefix:].detach().cpu().double()  # (h, L, L)
            share = weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)
            shares.append(share)
            parts = (weights, share * near[visible][:, visible], torch.special.entr(share))
            measured.append(torch.stack([part.sum(-1).mean(-1) for part in parts]))  # (3, h)
        on_patches, on_neighbours, entropy = torch.stack(measured).mean(0)

        # A head that looks at something in particular, of its own choice, in each image
        qualifies = (on_patches >= 0.5) & (on_neighbours <= 0.5)
        if unmasked:
            overlaps = [torch.minimum(a, b).sum(-1).mean(-1) for a, b in pairwise(shares)]
            qualifies &= torch.stack(overlaps).mean(0) <= 0.5
        best = entropy.where(qualifies, math.inf).min(0)
        if float(best.values) < lowest:
            lowest = float(best.values)
            chosen = (place, int(best.indices))
    return chosen


def distinct(names: Sequence[str]) -> list[str]:
    """Return names that tell images apart: equal ones are followed by the image's number."""
    counts = Counter(names)
    numbered = []
    for number, name in enumerate(names):
        if counts[name] > 1:
            name = f"{name}, image {number}".removeprefix(", ")
        numbered.append(name)
    return numbered


def _described(stream: bytearray, name: str, states: Sequence[ExploredImage]) -> dict[str, Any]:
    """Describe one image in all moments, and add its bytes to the stream.

    Numbers are offsets in the stream.
    """

    def add(part: bytes) -> int:
        start = len(stream)
        stream.extend(part)
        return start

    image = states[0]
    channels, height, width = image.image.shape
    hidden = None
    if image.hidden is not None:
        hidden = "".join(str(int(cell)) for cell in image.hidden.flatten())
    # The codes of the encoder in all moments; the decoder's and reconstructions, if there are any
    return {
        "name": printable(name),
        "channels": channels,
        "height": height,
        "width": width,
        "pixels": add(_pixels(image.image)),
        "photo": [add(image.photo), len(image.photo)] if image.photo else None,
        "hidden": hidden,
        "encoder": [add(_codes(state.weights)) for state in states],
        "decoder": [add(_codes(state.decoder)) for state in states if state.decoder] or None,
        "filled": [add(_pixels(state.filled)) for state in states if state.filled is not None]
        or None,
    }


def _pixels(image: Tensor) -> bytes:
    # Channels last, as the page's canvas takes them
    return image.detach().cpu().permute(1, 2, 0).contiguous().numpy().tobytes()


def _codes(layers: Mapping[int, Tensor]) -> bytes:
    return b"".join(
        codes_of(layers[layer]).contiguous().numpy().tobytes() for layer in sorted(layers)
    )
