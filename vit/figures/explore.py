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
    if registers < 0 or not 0 <= decoder_prefix <= prefix:
        raise PageError(
            f"{registers} registers, and {decoder_prefix} prefix tokens in the decoder, of {prefix} in the encoder"
        )
    _check(moments, grid_size, prefix, decoder_prefix)
    stream = _Stream()
    first = moments[0].images
    described = [_described(stream, [moment.images[i] for moment in moments]) for i in range(len(first))]
    description = {
        "moments": [printable(moment.name) for moment in moments],
        "grid": list(grid_size),
        "classToken": class_token,
        "registers": registers,
        "encoder": {"layers": _numbers(first[0].weights), "heads": _heads(first[0].weights), "prefix": prefix},
        "decoder": {"layers": _numbers(first[0].decoder), "heads": _heads(first[0].decoder), "prefix": decoder_prefix}
        if first[0].decoder
        else None,
        "colours": _colours(),
        "images": described,
    }
    page = _assembled(title, facts, description, stream.packed())
    size = len(page.encode())
    if size > limit:
        raise PageError(_too_large(moments, size, limit))
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


def _check(moments: Sequence[Moment], grid_size: tuple[int, int], prefix: int, decoder_prefix: int) -> None:
    if min(grid_size) < 1:
        raise PageError(f"a grid of {grid_size[0]} x {grid_size[1]} has no patches")
    if not moments or not moments[0].images:
        raise PageError("a page needs at least one image")
    patches = grid_size[0] * grid_size[1]
    first = moments[0].images
    for m, moment in enumerate(moments):
        if len(moment.images) != len(first):
            raise PageError(f"checkpoint {m} has {len(moment.images)} images and checkpoint 0 has {len(first)}")
        for i, image in enumerate(moment.images):
            where = f"image {i}" + (f" of checkpoint {m}" if len(moments) > 1 else "")
            _check_pixels(image.image, f"{where}: the image")
            if image.filled is not None:
                _check_pixels(image.filled, f"{where}: the reconstruction")
                if image.filled.shape != image.image.shape:
                    raise PageError(f"{where}: its reconstruction has another size than itself")
            if image.hidden is not None and (
                image.hidden.shape != grid_size or image.hidden.dtype != torch.bool or bool(image.hidden.all())
            ):
                raise PageError(f"{where}: hidden is bool {grid_size}, with a visible patch in it")
            visible = patches if image.hidden is None else patches - int(image.hidden.sum())
            if not image.weights:
                raise PageError(f"{where}: it has no weights")
            for part, layers, expected, tokens in (
                ("encoder", image.weights, first[0].weights, prefix + visible),
                ("decoder", image.decoder, first[0].decoder, decoder_prefix + patches),
            ):
                if layers.keys() != expected.keys():
                    raise PageError(f"{where}: its {part} layers are not those of the first image")
                for layer, weights in layers.items():
                    shape = (_heads(expected), tokens, tokens)
                    _check_weights(weights, shape, f"{where}, {part} layer {layer}")
            if not _same(image, first[i]):
                raise PageError(f"{where}: its name, pixels or hidden patches are not those of checkpoint 0")


def _check_pixels(image: Tensor, what: str) -> None:
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] not in (1, 3) or image.numel() == 0:
        raise PageError(f"{what} is uint8 (1 or 3, H, W), got {image.dtype} {tuple(image.shape)}")


def _check_weights(weights: Tensor, shape: tuple[int, int, int], what: str) -> None:
    if tuple(weights.shape) != shape or not weights.is_floating_point():
        raise PageError(f"{what}: weights are floating point {shape}, got {weights.dtype} {tuple(weights.shape)}")
    weights = weights.detach()
    if not bool(weights.isfinite().all()):
        raise PageError(f"{what}: a weight is not finite")
    if bool((weights < 0).any()) or float((weights.double().sum(-1) - 1).abs().max()) > SLACK:
        raise PageError(f"{what}: weights are shares from 0 that sum to 1 in each row")


def _same(one: ExploredImage, other: ExploredImage) -> bool:
    if one is other:
        return True
    if one.name != other.name or not torch.equal(one.image, other.image):
        return False
    if (one.filled is None) != (other.filled is None) or (one.hidden is None) != (other.hidden is None):
        return False
    return one.hidden is None or other.hidden is None or torch.equal(one.hidden, other.hidden)


def _heads(layers: Mapping[int, Tensor]) -> int:
    return min((len(weights) for weights in layers.values()), default=0)


def _numbers(layers: Mapping[int, Tensor]) -> list[int]:
    return sorted(int(layer) for layer in layers)


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
        return _packed(b"".join(self._parts))


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


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


def _too_large(moments: Sequence[Moment], size: int, limit: int) -> str:
    """What to leave out, by what each layer of each image in each moment costs."""
    first = moments[0].images[0]
    parts = [("encoder", layer) for layer in sorted(first.weights)] + [("decoder", n) for n in sorted(first.decoder)]
    cost = np.array(
        [
            [
                [len(_packed(_codes({layer: _layers(image, part)[layer]}))) for part, layer in parts]
                for image in moment.images
            ]
            for moment in moments
        ],
        dtype=float,
    )  # (moments, images, layers)
    cost *= 0.95  # one stream packs better than its pieces do: without one, a little less is gone than it weighs
    over = size - limit
    ways = []
    encoder = len(first.weights)
    if count := _fewest(cost.sum((0, 1))[: encoder - 1], over):
        gone = [layer for _, layer in parts[:count]]
        ways.append(f"layer{'s' * (count > 1)} {_span(gone)}")
    if first.decoder and cost.sum((0, 1))[encoder:].sum() >= over:
        ways.append("the decoder")
    if count := _fewest(cost.sum((0, 2))[:0:-1], over):
        ways.append(f"the last {count} of {cost.shape[1]} images")
    if count := _fewest(cost.sum((1, 2))[:-1], over):
        ways.append(f"the first {count} of {cost.shape[0]} checkpoints")
    if not ways:
        fits = max(int(limit // (size / cost.size)), 1)
        ways.append(
            f"all but {fits} of the {cost.size} maps ({len(parts)} layers, {cost.shape[1]} images, "
            f"{cost.shape[0]} checkpoint{'s' * (len(moments) > 1)})"
        )
    return f"the page would be {_megabytes(size)}, above {_megabytes(limit)}; leave out {', or '.join(ways)}"


def _layers(image: ExploredImage, part: str) -> Mapping[int, Tensor]:
    return image.weights if part == "encoder" else image.decoder


def _fewest(costs: np.ndarray, over: float) -> int:
    """How many of the first costs sum to `over`; 0 if all of them do not."""
    enough = np.flatnonzero(costs.cumsum() >= over)
    return int(enough[0]) + 1 if len(enough) else 0


def _span(numbers: Sequence[int]) -> str:
    whole = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]} to {numbers[-1]}" if whole else ", ".join(map(str, numbers))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size < 10_000_000 else f"{size / 1e6:.1f} MB"
