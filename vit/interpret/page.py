"""`vit explore`: a page to look around in a model's attention with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.atomic import write_text
from vit.checkpoints import load_trained
from vit.encoder import eval_mode
from vit.errors import one_line
from vit.evaluate.reconstruction import reconstruct
from vit.interpret.capture import AttentionMaps
from vit.interpret.viewing import (
    CPU,
    Subject,
    about,
    in_grid_order,
    kept_patches,
    mask_noise,
    moments_of,
    subject_of,
    write_numbers,
)
from vit.mae import Model
from vit.masking import Mask, mask_from_noise

MOST_CODES = 100_000_000  # ten times what the largest page holds, however well they pack
WAYS = "--layers and --count choose, --part encoder leaves a decoder out, without --snapshots there is one checkpoint"


def explore(
    checkpoint: str,
    files: Sequence[str],
    data: str | None,
    root: str,
    count: int,
    asked: dict[str, Any],
    out: Path,
    layers: Sequence[int] | None = None,
    mask_ratio: float | None = None,
    seed: int = 0,
    snapshots: bool = False,
    numbers: bool = False,
) -> int:
    """Write a page to look around in a model's attention with.

    Args:
        checkpoint, files, data, root, count, asked: as for `attention`.
        out: ends in .html.
        layers: numbers of the encoder's layers, negative from the last; None for all.
        mask_ratio: share of the patches to hide; the decoder and its reconstruction are shown too where there is one.
        seed: of the mask.
        snapshots: a slider over the snapshots of the run.
        numbers: write the weights beside the page, as .npz.

    Returns:
        the exit code.

    Raises:
        AttentionError: as `attention`.
        PageError: the page would be too large.
    """
    from vit.figures import Moment, PageError, explore_page

    subject = subject_of(checkpoint, files, data, root, count, asked)
    places = moments_of(checkpoint) if snapshots else [("", None)]
    tokens = subject.geometry.num_tokens - round((mask_ratio or 0) * subject.geometry.num_tokens)
    encoder = subject.encoder.config
    shown_layers = len(set(layers)) if layers is not None else encoder.depth
    codes = len(places) * len(subject.pictures) * shown_layers * encoder.num_heads * tokens**2
    if codes > MOST_CODES:  # before anything is computed that could not be shown
        raise PageError(f"the page would hold {codes:,} weights, far too many for one; {WAYS}")
    mask = None
    if mask_ratio is not None:
        mask = mask_from_noise(mask_noise(subject, seed), kept_patches(subject, mask_ratio))
    moments: list[Moment] = []
    weights: dict[str, Tensor] = {}
    for number, (name, place) in enumerate(places):
        model = subject.model if place is None else load_trained(place, **asked)
        images, found = _explored(subject, model, layers, mask)
        moments.append(Moment(name, images))
        weights |= {f"{key}_moment{number}" if snapshots else key: value for key, value in found.items()}
    geometry = subject.geometry
    facts = [
        ("model", about(subject.model)),
        ("images", subject.pictures.data),
        ("tokens", f"{geometry.grid_size[0]} x {geometry.grid_size[1]} patches, "
                   + ("a class token" if geometry.class_token else "no class token")
                   + (f", {encoder.registers} registers" if encoder.registers else "")),
    ]  # fmt: skip
    if mask is not None:
        facts.append(
            ("mask", f"{mask.mask[0].sum():.0f} of {mask.mask.shape[1]} patches hidden at random, seed {seed}")
        )
    try:
        page = explore_page(
            moments, grid_size=geometry.grid_size, class_token=geometry.class_token, registers=encoder.registers,
            decoder_prefix=geometry.num_prefix_tokens, title="Where attention looks", facts=facts,
        )  # fmt: skip
    except PageError as error:
        raise PageError(f"{error} ({WAYS})") from error
    write_text(out, page)
    print(f"page: {one_line(str(out))}, {len(page.encode()):,} bytes")
    if numbers:
        write_numbers(out.with_suffix(".npz"), {"images": subject.pixels, "names": subject.pictures.names} | weights)
    return 0


def _explored(
    subject: Subject, model: Model, layers: Sequence[int] | None, mask: Mask | None
) -> tuple[list[Any], dict[str, Tensor]]:
    """What the page shows of each image, and all weights by name: layer0, ..., decoder0, ..."""
    from vit.figures import ExploredImage

    encoder = model.encoder
    prefix = subject.geometry.num_prefix_tokens
    with eval_mode(model), torch.no_grad(), AttentionMaps(encoder, layers) as maps:
        encoder(subject.inputs, mask)
    weights = maps.weights if mask is None else {
        layer: in_grid_order(found, mask.ids_keep, prefix) for layer, found in maps.weights.items()
    }  # fmt: skip
    decoder: dict[int, Tensor] = {}
    filled = hidden = None
    if mask is not None:
        hidden = mask.mask.unflatten(1, subject.geometry.grid_size).bool()
        if model.decoder is not None:
            with eval_mode(model), torch.no_grad(), AttentionMaps(model.decoder) as inner:
                model(subject.inputs, mask)
            decoder = inner.weights
            result = reconstruct(model, subject.pixels, subject.origin.normalize, mask, CPU)
            filled = (result.filled * 255).round().to(torch.uint8)
    images = [
        ExploredImage(
            name, subject.pixels[i], {layer: found[i] for layer, found in weights.items()},
            None if hidden is None else hidden[i], {layer: found[i] for layer, found in decoder.items()},
            None if filled is None else filled[i],
        )
        for i, name in enumerate(subject.pictures.names)
    ]  # fmt: skip
    named = {f"layer{layer}": found for layer, found in weights.items()}
    return images, named | {f"decoder{layer}": found for layer, found in decoder.items()}
