"""An interactive page: one HTML file that opens from disk and shows where every patch looks.

Weights are stored as 8-bit codes, `round(255 sqrt(w))`: half of a typical map lies below 1 / 255, which linear codes would
make zero. Row sums survive without being stored: the reader adds one shift to all nonzero codes of a row, so that their
squares sum to 255^2 again (see `weights_of`, which the page repeats).

The file holds style and script (allowed by their hashes; nothing else is), a description in JSON, and one gzip stream in
base64 with all codes and pixels.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
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

SCALE = 255  # the code of a weight of 1
DARK_PALETTE = matplotlib.colormaps["magma"](np.arange(256), bytes=True)[:, :3]
"""The colours of maps where the reader's system is dark, from low to high: uint8 (256, 3)."""
SLACK = 0.01  # how far a row's sum may be from 1: weights in bfloat16 are not exact


@dataclass(frozen=True)
class ExploredImage:
    """An image and what a model's attention does on it.

    Attributes:
        name: any text.
        image: uint8 (C, H, W), C 1 or 3, as the model takes it.
        weights: encoder layer -> (h, N, N), rows sum to 1; N = prefix + visible patches, the visible ones in grid order.
        hidden: bool (rows, columns), True for patches hidden from the model; None if it saw all.
        decoder: decoder layer -> (h, M, M), M = decoder prefix + all patches in grid order; empty without a decoder.
        filled: uint8 (C, H, W), the image as the model fills it in.
        photo: a JPEG of the same crop with more pixels than the model takes, for display; may be empty.
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
    """Return a self-contained page for exploring attention, HTML to be written as UTF-8; equal input gives equal text.

    Args:
        moments: the states of the model, in the order of training; a slider goes through them.
        grid_size: (rows, columns) of patches.
        class_token: whether the first token is one.
        registers: how many follow it; both come before the patches.
        decoder_prefix: how many of these tokens the decoder has.
        title: the heading.
        facts: (what, text) pairs, such as ("model", "ViT-Tiny, patch 4").
        limit: of the page, in bytes.

    Raises:
        UserError: weights are not shares or are of other tokens; or the page would exceed `limit`, and the message says what
            to leave out.
    """
    prefix = int(class_token) + registers
    for image in (image for moment in moments for image in moment.images):
        visible = math.prod(grid_size) if image.hidden is None else int((~image.hidden).sum())
        _check_shares(image.name, image.weights, prefix + visible)
        _check_shares(image.name, image.decoder, decoder_prefix + math.prod(grid_size))

    # One stream of codes and pixels, and a description of what is where in it
    first = moments[0].images
    stream = bytearray()
    encoder, decoder = (
        {"layers": sorted(layers), "heads": len(next(iter(layers.values()))), "prefix": count}
        if layers
        else None
        for layers, count in ((first[0].weights, prefix), (first[0].decoder, decoder_prefix))
    )
    description = {
        "moments": [printable(moment.name) for moment in moments],
        "grid": list(grid_size),
        "classToken": class_token,
        "registers": registers,
        "encoder": encoder,
        "decoder": decoder,
        "start": opening(moments[-1].images, prefix, grid_size),
        "colours": {
            "light": PALETTE.tobytes().hex(),
            "dark": DARK_PALETTE.tobytes().hex(),
        },  # 256 times rrggbb each
        "images": [
            _described(stream, [moment.images[i] for moment in moments]) for i in range(len(first))
        ],
    }
    described = json.dumps(
        description, separators=(",", ":")
    )  # ASCII, so line separators are escaped too
    for sign in "<>&":  # only these could end a script element
        described = described.replace(sign, f"\\u{ord(sign):04x}")
    # mtime 0: a page does not tell when it was made, and equal input gives equal bytes
    data = base64.b64encode(gzip.compress(stream, 9, mtime=0)).decode()
    template = Path(__file__).with_name("explore.html")
    page = render_page(template, title=title, facts=facts, description=Markup(described), data=data)

    if (size := len(page.encode())) > limit:
        over = (size - limit) / len(data)
        less = (
            f"leave out {over:.1%} or more" if over < 1 else "it cannot be so small; leave out most"
        )
        raise UserError(
            f"the page would be {size / 1e6:.2f} MB, above {limit / 1e6:.2f} MB; {less} of its"
            f" {len(first[0].weights) + len(first[0].decoder)} layers, {len(first)} images or {len(moments)} checkpoints"
        )
    return page


def codes_of(weights: Tensor) -> Tensor:
    """Weights (..., N), rows sum to 1 -> uint8 codes (..., N): the nearest to 255 sqrt(w)."""
    exact = weights.detach().to("cpu", torch.float64)
    return (exact / exact.sum(-1, keepdim=True)).sqrt().mul(SCALE).round().to(torch.uint8)


def weights_of(codes: Tensor) -> Tensor:
    """Codes (..., N) -> float64 weights (..., N) whose rows sum to 1, as the page reads them.

    A zero stays zero; all other codes c of a row get one shift t, the root of sum((c + t)^2) = 255^2. Rounding moved each code
    by at most 1/2, and t is a mean of these moves, so no code is off by more than 1 (and by less if rounding went one way, as
    in an even row, which comes back exact).
    """
    exact = codes.to(torch.float64)
    seen = exact > 0
    count, total, squares = (
        seen.sum(-1, keepdim=True),
        exact.sum(-1, keepdim=True),
        (exact**2).sum(-1, keepdim=True),
    )
    shift = ((total**2 - count * (squares - SCALE**2)).sqrt() - total) / count
    return torch.where(seen, ((exact + shift) / SCALE) ** 2, 0.0)


def opening(images: Sequence[ExploredImage], prefix: int, grid: tuple[int, int]) -> tuple[int, int]:
    """Return the head that the page opens on, as (index of the layer, head): one that looks at something in particular.

    It is the head with the lowest entropy of patch-to-patch attention (mean over patches and images) among those that give at
    least half of their attention to patches, at most half of that to the query patch and its eight neighbours, and of which
    two images share at most half (if there are several, and none is masked). If no head qualifies, it is the mean of the last
    layer's heads, (last, -1).
    """
    row, column = (
        axis.flatten() for axis in torch.meshgrid(*map(torch.arange, grid), indexing="ij")
    )
    near = ((row[:, None] - row).abs() <= 1) & ((column[:, None] - column).abs() <= 1)  # (L, L)
    nears = [
        near if image.hidden is None else near[~image.hidden.flatten()][:, ~image.hidden.flatten()]
        for image in images
    ]
    whole = len(images) > 1 and all(image.hidden is None for image in images)
    best, chosen = math.inf, (len(images[0].weights) - 1, -1)
    for place, layer in enumerate(sorted(images[0].weights)):
        maps = [
            image.weights[layer][:, prefix:, prefix:].detach().double().cpu() for image in images
        ]  # (h, L, L) each
        on_patches = torch.stack([one.sum(-1).mean(-1) for one in maps]).mean(0)  # (h,)
        maps = [one / one.sum(-1, keepdim=True).clamp(min=1e-12) for one in maps]
        around = torch.stack(
            [(one * close).sum(-1).mean(-1) for one, close in zip(maps, nears, strict=True)]
        ).mean(0)
        entropy = torch.stack(
            [-(one * one.clamp(min=1e-12).log2()).sum(-1).mean(-1) for one in maps]
        ).mean(0)
        alike = torch.zeros_like(around)
        if whole:
            alike = torch.stack(
                [torch.minimum(a, b).sum(-1).mean(-1) for a, b in pairwise(maps)]
            ).mean(0)
        shows = (on_patches >= 0.5) & (around <= 0.5) & (alike <= 0.5)
        for head in shows.nonzero().flatten().tolist():
            if float(entropy[head]) < best:
                best, chosen = float(entropy[head]), (place, head)
    return chosen


def _check_shares(name: str, layers: Mapping[int, Tensor], tokens: int) -> None:
    """Raise UserError if weights are not (h, tokens, tokens), or their rows do not sum to 1."""
    for layer, weights in layers.items():
        off = (weights.detach().double().sum(-1) - 1).abs().max()
        if weights.shape[1:] != (tokens, tokens) or not bool(
            off <= SLACK
        ):  # nan is not below anything
            raise UserError(
                f"{name!r}, layer {layer}: weights are (h, {tokens}, {tokens}) and sum to 1 in each row,"
                f" got {tuple(weights.shape)} and rows off by up to {off:g}"
            )


def _described(stream: bytearray, states: Sequence[ExploredImage]) -> dict[str, Any]:
    """Describe one image in all moments; numbers are offsets in the stream, to which its bytes are added."""

    def add(part: bytes) -> int:
        start = len(stream)
        stream.extend(part)
        return start

    image = states[0]
    channels, height, width = image.image.shape
    return {
        "name": printable(image.name),
        "channels": channels,
        "height": height,
        "width": width,
        "pixels": add(_pixels(image.image)),
        "photo": [add(image.photo), len(image.photo)] if image.photo else None,
        "hidden": None
        if image.hidden is None
        else "".join(str(int(cell)) for cell in image.hidden.flatten()),
        "encoder": [add(_codes(state.weights)) for state in states],
        "decoder": [add(_codes(state.decoder)) for state in states] if image.decoder else None,
        "filled": [add(_pixels(state.filled)) for state in states if state.filled is not None]
        or None,
    }


def _pixels(image: Tensor) -> bytes:
    return image.detach().cpu().permute(1, 2, 0).contiguous().numpy().tobytes()


def _codes(layers: Mapping[int, Tensor]) -> bytes:
    return b"".join(
        codes_of(layers[layer]).contiguous().numpy().tobytes() for layer in sorted(layers)
    )
