"""`vit explore`: a page for exploring a model's attention."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.atomic import make_folder, write_npz, write_text
from vit.cli.attention import load_with_images
from vit.cli.options import load
from vit.commandline import PAGE, output_file, require_free
from vit.errors import RunError, UserError, one_line, plural
from vit.figures.explore import ExploredImage, Moment, explore_page
from vit.interpret import AttentionMaps, in_grid_order
from vit.look.subject import ModelWithImages, model_caption, photo_of
from vit.progress import track
from vit.runs import RunFiles

ADVICE = "lower --layers or --count, leave out the decoder (--part encoder) or --snapshots"


def run(options: Namespace) -> int:
    """Write the page, and the numbers beside it."""
    # Files that cannot be written are refused before anything is loaded
    out = output_file(options.out, PAGE, overwrite=options.overwrite)
    numbers = out.with_suffix(".npz")
    if options.numbers:
        require_free([numbers], options.overwrite, "--numbers")
    # A run that still trains has snapshots, and no final weights yet: the last is the model
    files = RunFiles(Path(options.checkpoint))
    snapshots: dict[str, Path] = {}
    last = None
    if options.snapshots:
        snapshots = files.saved_snapshots()
        if not snapshots:
            advice = "a run with --run.snapshots 8 keeps its weights along the way"
            raise RunError(f"{options.checkpoint} holds no snapshots; {advice}")
        if not files.model.is_file():
            *_, last = snapshots.values()

    subject = load_with_images(options, last)
    if options.mask is not None:
        subject = subject.with_mask(options.mask, options.seed)
    arrays: dict[str, Any] = {"images": subject.pixels, "names": subject.names}
    if subject.mask is not None:
        arrays["hidden"] = subject.masked

    # A moment for each snapshot, loaded one after the other; the model alone has no name
    moments = []
    if not snapshots:
        moments.append(explore(subject, "", options.layers, arrays))
    else:
        arrays["moments"] = list(snapshots)
    for name, path in track(snapshots.items(), "explore", unit=" snapshots"):
        model = load(options, path)
        suffix = f"_moment{len(moments)}"
        snapshot = replace(subject, model=model)
        moments.append(explore(snapshot, name, options.layers, arrays, suffix))

    page = page_of(options, subject, moments)
    make_folder(out.parent)
    write_text(out, page)
    print(f"page: {one_line(str(out))}, {len(page.encode()):,} bytes")
    if options.numbers:
        write_npz(numbers, arrays)
    return 0


def explore(
    subject: ModelWithImages,
    name: str,
    layers: Sequence[int] | None,
    arrays: dict[str, Any],
    suffix: str = "",
) -> Moment:
    """Return a model's attention on its images, and under a mask its reconstructions.

    Args:
        subject: the model and the images.
        name: of the moment.
        layers: of the encoder, negative from the last; None for all.
        arrays: get the numbers too: layer0, ..., decoder0, ..., filled.
        suffix: of their names.
    """
    # The encoder's weights, of its visible patches in grid order
    model: Any = subject.model
    mask = subject.mask
    prefix = subject.geometry.num_prefix_tokens
    with torch.no_grad(), AttentionMaps(model.encoder, layers) as maps:
        model.encoder(subject.inputs, mask)
    encoder = {}
    for number, weights in maps.weights.items():
        encoder[number] = in_grid_order(weights, mask, prefix)
        arrays[f"layer{number}{suffix}"] = encoder[number]

    # The decoder's weights, of all patches, and what it fills in, as bytes like the images
    decoder: dict[int, Tensor] = {}
    filled: Any = [None] * len(subject.names)
    if mask is not None and model.decoder is not None:
        with torch.no_grad(), AttentionMaps(model.decoder) as maps:
            model(subject.inputs, mask)
        decoder = maps.weights
        arrays |= {f"decoder{number}{suffix}": weights for number, weights in decoder.items()}
        arrays[f"filled{suffix}"] = subject.fill_in().filled
        filled = (arrays[f"filled{suffix}"] * 255).round().to(torch.uint8)

    # A photo is shown as it is, where there is a file with more pixels than the input
    images = []
    for i, image in enumerate(subject.pixels):
        path = subject.collection.path(i)
        images.append(
            ExploredImage(
                subject.names[i],
                image,
                weights={number: weights[i] for number, weights in encoder.items()},
                hidden=None if mask is None else subject.masked[i],
                decoder={number: weights[i] for number, weights in decoder.items()},
                filled=filled[i],
                photo=photo_of(path, model.origin) if path is not None else b"",
            )
        )
    return Moment(name, images)


def page_of(options: Namespace, subject: ModelWithImages, moments: Sequence[Moment]) -> str:
    """Return the page, with the facts about the model at its head."""
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
