"""`vit explore`: a page for exploring a model's attention."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vit.atomic import make_folder, write_npz, write_text
from vit.checkpoints import load_model
from vit.cli.attention import load_with_images, snapshots_of
from vit.cli.options import load_options
from vit.cli.outputs import PAGE, output_file, require_free
from vit.errors import UserError, one_line, plural
from vit.figures import ExploredImage, Moment, explore_page
from vit.interpret import AttentionMaps, in_grid_order
from vit.look.filled import fill_in
from vit.look.photos import photo_of
from vit.look.subject import ModelWithImages, model_caption
from vit.progress import track

# Ten times what the largest page holds, however well they compress
MAX_WEIGHTS = 100_000_000
ADVICE = "lower --layers or --count, leave out the decoder (--part encoder) or --snapshots"


# Weights (B, h, N, N) by layer, of the encoder's visible patches in grid order; the decoder's, none
# if it did not run; and the reconstructions, float32 (B, C, H, W) from 0 to 1, or None
Explored = tuple[dict[int, Tensor], dict[int, Tensor], Tensor | None]


def run(options: Namespace) -> int:
    """Write the page, and the numbers beside it."""
    # Files that cannot be written are refused before anything is loaded
    out = output_file(options.out, PAGE, overwrite=options.overwrite)
    numbers = out.with_suffix(".npz")
    if options.numbers:
        require_free([numbers], options.overwrite, "--numbers")
    snapshots = snapshots_of(options.checkpoint) if options.snapshots else {}

    subject = load_with_images(options, snapshots)
    require_few_weights(options, subject, len(snapshots))
    if options.mask is not None:
        subject = subject.with_mask(options.mask, options.seed)

    # The model alone is a moment without a name
    arrays: dict[str, Any] = {"images": subject.pixels, "names": subject.names}
    if subject.mask is not None:
        arrays["hidden"] = subject.masked
    if not snapshots:
        explored = explore(subject, options.layers)
        moments = [Moment("", explored_images(subject, explored))]
        arrays |= arrays_of(explored)
    else:
        # A moment for each snapshot, loaded one after the other
        moments = []
        arrays["moments"] = list(snapshots)
        for name, path in track(snapshots.items(), "explore", unit=" snapshots"):
            model = load_model(path, strict=True, **load_options(options))
            snapshot = replace(subject, model=model)
            explored = explore(snapshot, options.layers)
            arrays |= arrays_of(explored, f"_moment{len(moments)}")
            moments.append(Moment(name, explored_images(snapshot, explored)))

    page = page_of(options, subject, moments)
    make_folder(out.parent)
    write_text(out, page)
    print(f"page: {one_line(str(out))}, {len(page.encode()):,} bytes")
    if options.numbers:
        write_npz(numbers, arrays)
    return 0


def arrays_of(explored: Explored, suffix: str = "") -> dict[str, Tensor]:
    """Return all by name: layer0, ..., decoder0, ..., filled."""
    encoder, decoder, filled = explored
    arrays = {}
    for number, weights in encoder.items():
        arrays[f"layer{number}{suffix}"] = weights
    for number, weights in decoder.items():
        arrays[f"decoder{number}{suffix}"] = weights
    if filled is not None:
        arrays[f"filled{suffix}"] = filled
    return arrays


def require_few_weights(options: Namespace, subject: ModelWithImages, snapshots: int) -> None:
    """Refuse a page that is far too large before anything is computed.

    Raises:
        UserError: with how many weights it would hold.
    """
    # Each head of each layer has a weight for each pair of visible tokens
    config = subject.model.encoder.config
    layers = config.depth
    if options.layers is not None:
        layers = len(set(options.layers))
    tokens = subject.geometry.num_tokens
    if options.mask is not None:
        tokens -= round(options.mask * tokens)
    weights_per_image = layers * config.num_heads * tokens**2
    # Under a mask, the decoder has weights between all tokens
    if options.mask is not None and subject.model.decoder is not None:
        decoder = subject.model.decoder.config
        weights_per_image += decoder.depth * decoder.num_heads * subject.geometry.num_tokens**2
    count = max(snapshots, 1) * len(subject.names) * weights_per_image
    if count > MAX_WEIGHTS:
        raise UserError(f"the page would hold {count:,} weights, too many for one page; {ADVICE}")


def explore(subject: ModelWithImages, layers: Sequence[int] | None) -> Explored:
    """Capture a model's attention on its images, and under a mask its reconstructions.

    Args:
        subject: the model and the images.
        layers: of the encoder, negative from the last; None for all.
    """
    # The encoder's weights, of its visible patches
    model: Any = subject.model
    mask = subject.mask
    prefix = subject.geometry.num_prefix_tokens
    with torch.no_grad(), AttentionMaps(model.encoder, layers) as maps:
        model.encoder(subject.inputs, mask)
    encoder = {}
    for number, weights in maps.weights.items():
        encoder[number] = in_grid_order(weights, mask, prefix)
    if mask is None or model.decoder is None:
        return encoder, {}, None

    # The decoder's weights, of all patches, and what it fills in
    with torch.no_grad(), AttentionMaps(model.decoder) as maps:
        model(subject.inputs, mask)
    return encoder, maps.weights, fill_in(subject).filled


def explored_images(subject: ModelWithImages, explored: Explored) -> list[ExploredImage]:
    """Return what the page holds of each image."""
    # Reconstructions as bytes, as the page stores pixels
    encoder, decoder, reconstructions = explored
    filled: Any = [None] * len(subject.names)
    if reconstructions is not None:
        filled = (reconstructions * 255).round().to(torch.uint8)

    # A photo is shown as it is, where there is a file with more pixels than the input
    images = []
    for i, name in enumerate(subject.names):
        photo = b""
        path = subject.collection.path(i)
        if path is not None:
            photo = photo_of(path, subject.model.origin)
        images.append(
            ExploredImage(
                name,
                image=subject.pixels[i],
                weights={number: weights[i] for number, weights in encoder.items()},
                hidden=None if subject.mask is None else subject.masked[i],
                decoder={number: weights[i] for number, weights in decoder.items()},
                filled=filled[i],
                photo=photo,
            )
        )
    return images


def page_of(options: Namespace, subject: ModelWithImages, moments: Sequence[Moment]) -> str:
    """Return the page, with the facts about the model at its head.

    Raises:
        UserError: the page would be too large; with the options that make it smaller.
    """
    # The tokens, since a reader of the page may not know the model
    geometry = subject.geometry
    registers = subject.model.encoder.config.registers
    rows, columns = geometry.grid_size
    tokens = f"{rows} x {columns} patches, "
    tokens += "a class token" if geometry.class_token else "no class token"
    if registers:
        tokens += f", {plural(registers, 'register')}"

    facts = [
        ("model", model_caption(subject.model)),
        ("images", subject.collection.title),
        ("tokens", tokens),
    ]
    if subject.mask is not None:
        facts.append(("mask", f"{subject.mask_caption} at random, seed {options.seed}"))

    # The function does not know the command's options, so advice is added here
    try:
        return explore_page(
            moments,
            grid_size=geometry.grid_size,
            class_token=geometry.class_token,
            registers=registers,
            decoder_prefix=geometry.num_prefix_tokens,
            title="Attention, patch by patch",
            facts=facts,
        )
    except UserError as error:
        raise UserError(f"{error} ({ADVICE})") from error
