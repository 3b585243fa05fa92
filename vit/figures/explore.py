"""Attention to point at: one HTML file that opens from disk and shows where every patch looks.

The weights travel as 8-bit codes, `round(255 sqrt(w))`: half of a typical map lies below 1 / 255, which linear codes would
make zero. A row's sum is kept without being stored: in reading, one shift is added to all codes of the row that are not
zero, so that their squares sum to 255^2 again (see `weights_of`). The page does the same.

The file holds its parts as they are served: style and script (allowed by their hashes, and nothing else is), a description
in JSON, and one gzip stream in base64 with all codes and pixels.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from vit.errors import UserError
from vit.figures.document import render_page
from vit.figures.style import COLOURS, printable

SCALE = 255  # the code of a weight of 1
SLACK = 0.01  # how far a row's sum may be from 1: weights in bfloat16 are not exact


class PageError(UserError):
    """A page cannot be made of this: the tensors do not fit each other, or it would be too large."""


@dataclass(frozen=True)
class ExploredImage:
    """An image and what a model's attention does on it.

    Attributes:
        name: what it is called; any text.
        image: uint8 (C, H, W), C 1 or 3, as the model takes it.
        weights: encoder layer -> (h, N, N), rows sum to 1; N = prefix + visible patches, the visible ones in grid order.
        hidden: bool (rows, columns), True where the model did not see; None where it saw everything.
        decoder: decoder layer -> (h, M, M), M = decoder prefix + all patches in grid order; empty without a decoder.
        filled: uint8 (C, H, W), the image as the model fills it in.
    """

    name: str
    image: Tensor
    weights: Mapping[int, Tensor]
    hidden: Tensor | None = None
    decoder: Mapping[int, Tensor] = field(default_factory=dict)
    filled: Tensor | None = None


@dataclass(frozen=True)
class Moment:
    """One state of a model: a checkpoint.

    Attributes:
        name: such as "epoch 3"; may be empty where there is one only.
        images: the same ones, in the same order, in every moment; weights and `filled` may differ.
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
    """A self-contained page to explore attention with; equal input gives equal text.

    Args:
        moments: the states of the model, in the order of training; a slider goes through them.
        grid_size: (rows, columns) of patches.
        class_token: whether the first token is one.
        registers: how many follow it. Both stand before the patches.
        decoder_prefix: how many of them the decoder has.
        title: the heading.
        facts: (what, text) pairs, such as ("model", "ViT-Tiny, patch 4").
        limit: bytes that the page may have.

    Returns:
        HTML, to be written as UTF-8.

    Raises:
        PageError: there is no image, tensors do not fit each other, weights are not finite or no shares; or the page would
            be larger than `limit`, and then it says what to leave out.
    """
    prefix = int(class_token) + registers
    if min(grid_size) < 1 or registers < 0 or not 0 <= decoder_prefix <= prefix:
        raise PageError(
            f"a grid of {grid_size}, {registers} registers, {decoder_prefix} of {prefix} prefix tokens in the decoder"
        )
    if not moments or not moments[0].images:
        raise PageError("a page needs at least one image")
    first = moments[0].images
    for number, moment in enumerate(moments):
        if len(moment.images) != len(first):
            raise PageError(f"checkpoint {number} has {len(moment.images)} images and checkpoint 0 has {len(first)}")
        for place, image in enumerate(moment.images):
            if wrong := _wrong(image, first[place], first[0], grid_size, prefix, decoder_prefix):
                raise PageError(f"image {place} of checkpoint {number}: {wrong}")
    stream = _Stream()
    parts = [(first[0].weights, prefix), (first[0].decoder, decoder_prefix)]
    encoder, decoder = (
        {"layers": sorted(layers), "heads": len(next(iter(layers.values()))), "prefix": count} if layers else None
        for layers, count in parts
    )
    description = {
        "moments": [printable(moment.name) for moment in moments],
        "grid": list(grid_size),
        "classToken": class_token,
        "registers": registers,
        "encoder": encoder,
        "decoder": decoder,
        "colours": _colours(),
        "images": [_described(stream, [moment.images[i] for moment in moments]) for i in range(len(first))],
    }
    data = stream.packed()
    page = _assembled(title, facts, description, data)
    if (size := len(page.encode())) > limit:
        over = (size - limit) / len(data)
        less = f"leave out {over:.1%} or more" if over < 1 else "it cannot be so small; leave out most"
        raise PageError(
            f"the page would be {size / 1e6:.2f} MB, above {limit / 1e6:.2f} MB; {less} of its"
            f" {len(first[0].weights) + len(first[0].decoder)} layers, {len(first)} images or {len(moments)} checkpoints"
        )
    return page


def codes_of(weights: Tensor) -> Tensor:
    """Weights from 0 to 1, (..., N), rows sum to 1 -> uint8 codes (..., N): the nearest to 255 sqrt(w)."""
    exact = weights.detach().to("cpu", torch.float64)
    return (exact / exact.sum(-1, keepdim=True)).sqrt().mul(SCALE).round().to(torch.uint8)


def weights_of(codes: Tensor) -> Tensor:
    """Codes (..., N) -> float64 weights (..., N) whose rows sum to 1, as the page reads them.

    A zero stays zero; to all other codes c of a row one shift t is added, the root of sum((c + t)^2) = 255^2. Rounding moved
    each code by at most 1/2, and t is a mean of these moves, so no code is off by more than 1 (and by less than that
    where rounding went one way, as in an even row, which comes back exact).
    """
    exact = codes.to(torch.float64)
    seen = exact > 0
    count, total, squares = seen.sum(-1, keepdim=True), exact.sum(-1, keepdim=True), (exact**2).sum(-1, keepdim=True)
    shift = ((total**2 - count * (squares - SCALE**2)).sqrt() - total) / count
    return torch.where(seen, ((exact + shift) / SCALE) ** 2, 0.0)


def _wrong(
    image: ExploredImage,
    before: ExploredImage,
    first: ExploredImage,
    grid_size: tuple[int, int],
    prefix: int,
    decoder_prefix: int,
) -> str:
    """What is wrong with an image: with its tensors, beside itself in the first checkpoint, beside the first image; or ""."""
    for pixels in (image.image, image.filled):
        if pixels is not None and (
            pixels.dtype != torch.uint8 or pixels.ndim != 3 or len(pixels) not in (1, 3) or not pixels.numel()
        ):
            return f"pixels are uint8 (1 or 3, H, W), got {pixels.dtype} {tuple(pixels.shape)}"
    if image.filled is not None and image.filled.shape != image.image.shape:
        return "its reconstruction has another size than itself"
    hidden = torch.zeros(grid_size, dtype=torch.bool) if image.hidden is None else image.hidden
    if hidden.shape != grid_size or hidden.dtype != torch.bool or bool(hidden.all()):
        return f"hidden is bool {grid_size}, with a visible patch in it"
    if (
        not image.weights
        or image.weights.keys() != first.weights.keys()
        or image.decoder.keys() != first.decoder.keys()
    ):
        return "it has no weights, or of other layers than the first image"
    for layers, expected, tokens in (
        (image.weights, first.weights, prefix + int((~hidden).sum())),
        (image.decoder, first.decoder, decoder_prefix + hidden.numel()),
    ):
        for layer, weights in layers.items():
            shape = (len(next(iter(expected.values()))), tokens, tokens)
            if tuple(weights.shape) != shape or not weights.is_floating_point():
                return f"layer {layer}: weights are floating point {shape}, got {weights.dtype} {tuple(weights.shape)}"
            off = (weights.detach().double().sum(-1) - 1).abs().max()
            if not bool(off <= SLACK) or bool((weights < 0).any()):  # nan is not below anything
                return f"layer {layer}: weights are shares from 0 that sum to 1 in each row"
    tensors = ((image.image, before.image), (image.filled, before.filled), (image.hidden, before.hidden))
    same = image.name == before.name and all((one is None) == (other is None) for one, other in tensors)
    for one, other in (tensors[0], tensors[2]):
        same = same and (one is other or (one is not None and other is not None and torch.equal(one, other)))
    return "" if same else "its name, pixels or hidden patches are not those of checkpoint 0"


class _Stream:
    """Bytes one after another; what is there already is not written again."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0
        self._known: dict[bytes, int] = {}

    def add(self, part: bytes) -> int:
        """Where `part` begins."""
        digest = hashlib.sha256(part).digest()
        if digest not in self._known:
            self._known[digest] = self._length
            self._parts.append(part)
            self._length += len(part)
        return self._known[digest]

    def packed(self) -> str:
        # mtime 0: a page does not tell when it was made, and the same one twice is the same to the byte.
        return base64.b64encode(gzip.compress(b"".join(self._parts), 9, mtime=0)).decode()


def _described(stream: _Stream, states: Sequence[ExploredImage]) -> dict[str, Any]:
    """What the page is told of one image in all moments; numbers are places in the stream, one a moment."""
    image = states[0]
    channels, height, width = image.image.shape
    return {
        "name": printable(image.name),
        "channels": channels,
        "height": height,
        "width": width,
        "pixels": stream.add(_pixels(image.image)),
        "hidden": None if image.hidden is None else "".join(str(int(cell)) for cell in image.hidden.flatten()),
        "encoder": [stream.add(_codes(state.weights)) for state in states],
        "decoder": [stream.add(_codes(state.decoder)) for state in states] if image.decoder else None,
        "filled": [stream.add(_pixels(state.filled)) for state in states if state.filled is not None] or None,
    }


def _pixels(image: Tensor) -> bytes:
    return image.detach().cpu().permute(1, 2, 0).contiguous().numpy().tobytes()


def _codes(layers: Mapping[int, Tensor]) -> bytes:
    return b"".join(codes_of(layers[layer]).contiguous().numpy().tobytes() for layer in sorted(layers))


def _colours() -> str:
    """The colour map as 256 times rrggbb."""
    table = matplotlib.colormaps[COLOURS](np.arange(256), bytes=True)[:, :3]
    return table.astype(np.uint8).tobytes().hex()


def _assembled(title: str, facts: Sequence[tuple[str, str]], description: Mapping[str, Any], data: str) -> str:
    described = json.dumps(description, separators=(",", ":"))  # ASCII, so line separators are escaped too
    for sign in "<>&":  # within a script element only these could end it
        described = described.replace(sign, f"\\u{ord(sign):04x}")
    template = Path(__file__).with_name("explore.html")
    return render_page(template, title=title, facts=facts, description=Markup(described), data=data)
