"""`vit explore`: a page for exploring a model's attention."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vit.atomic import make_folder, write_npz, write_text
from vit.cli.options import load, load_with_images
from vit.commandline import PAGE, output_file, require_free
from vit.errors import RunError, one_line, plural
from vit.figures.explore import Moment, explore_page
from vit.interpret import AttentionMaps, in_grid_order
from vit.look.subject import ModelWithImages, model_caption, photo_of
from vit.progress import track
from vit.runs import RunFiles


def run(options: Namespace) -> None:
    """Write the page, and the numbers beside it."""
    # Files that cannot be written are refused before anything is loaded
    out = output_file(options.out, PAGE, overwrite=options.overwrite)
    numbers = out.with_suffix(".npz")
    if options.numbers:
        require_free([numbers], options.overwrite, "--numbers")
    snapshots: dict[str, Path] = {}
    if options.snapshots:
        files = RunFiles(Path(options.checkpoint))
        snapshots = files.saved_snapshots()
        if not snapshots:
            advice = "a run with --run.snapshots 8 keeps some"
            raise RunError(f"{options.checkpoint} has no snapshots; {advice}")
        # A run that still trains has no final weights yet: the last snapshot is the model
        if not files.model.is_file():
            *_, options.checkpoint = snapshots.values()

    subject = ModelWithImages(*load_with_images(options, options.count))
    if options.mask is not None:
        subject = subject.with_mask(options.mask, options.seed)
    # A moment for each snapshot, loaded one after the other; the model alone has no name
    moments = []
    if not snapshots:
        moments.append(explore(subject, "", options.layers))
    for name, path in track(snapshots.items(), "explore", unit=" snapshots"):
        snapshot = replace(subject, model=load(options, path))
        moments.append(explore(snapshot, name, options.layers))

    page = page_of(options, subject, moments)
    make_folder(out.parent)
    write_text(out, page)
    print(f"page: {one_line(str(out))}, {len(page.encode()):,} bytes")
    if options.numbers:
        write_npz(numbers, arrays_of(subject, moments))


@torch.no_grad()
def explore(subject: ModelWithImages, name: str, layers: Sequence[int] | None) -> Moment:
    """Return a model's attention on its images, and under a mask its reconstructions.

    Args:
        subject: the model and the images.
        name: of the moment.
        layers: of the encoder, negative from the last; None for all.
    """
    # The encoder's attention weights, for its visible patches in grid order
    model: Any = subject.model
    mask = subject.mask
    with AttentionMaps(model.encoder, layers) as maps:
        model.encoder(subject.inputs, mask)
    encoder = {
        number: in_grid_order(weights, mask, subject.geometry.num_prefix_tokens)
        for number, weights in maps.weights.items()
    }

    # The decoder's attention weights, for all patches, and its reconstruction
    if mask is None or model.decoder is None:
        return Moment(name, encoder)
    with AttentionMaps(model.decoder) as maps:
        model(subject.inputs, mask)
    return Moment(name, encoder, maps.weights, subject.fill_in())


def arrays_of(subject: ModelWithImages, moments: Sequence[Moment]) -> dict[str, Any]:
    """Return the numbers of the page: images, layer0, ..., decoder0, ..., filled."""
    arrays: dict[str, Any] = {"images": subject.pixels, "names": subject.names}
    if subject.mask is not None:
        arrays["hidden"] = subject.masked
    if moments[0].name:
        arrays["moments"] = [moment.name for moment in moments]
    for number, moment in enumerate(moments):
        # A model alone has no name, and its arrays no number
        suffix = f"_moment{number}" if moment.name else ""
        for layer, weights in moment.weights.items():
            arrays[f"layer{layer}{suffix}"] = weights
        for layer, weights in moment.decoder.items():
            arrays[f"decoder{layer}{suffix}"] = weights
        if moment.filled is not None:
            arrays[f"filled{suffix}"] = moment.filled
    return arrays


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
    hidden = None
    if subject.mask is not None:
        facts.append(("mask", f"{subject.mask_caption} at random, seed {options.seed}"))
        hidden = subject.masked

    # A photo is shown as it is, where there is a file with more pixels than the input
    photos = []
    images = subject.collection.images
    if not isinstance(images, torch.Tensor):
        photos = [photo_of(path, subject.model.origin) for path in images]
    return explore_page(
        moments,
        subject.names,
        subject.pixels,
        hidden=hidden,
        photos=photos,
        grid_size=geometry.grid_size,
        class_token=geometry.class_token,
        prefix=geometry.num_prefix_tokens,
        facts=facts,
    )
