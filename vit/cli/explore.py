"""`vit explore`: a page for exploring a model's attention."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.atomic import write_npz, write_text
from vit.cli.attention import load_with_images, snapshots_of
from vit.cli.options import (
    PAGE,
    ReadsCheckpoint,
    ShownImages,
    WritesFiles,
    output_file,
    read_options,
    require_free,
)
from vit.errors import UserError, one_line
from vit.load_options import LoadOptions
from vit.progress import track

if TYPE_CHECKING:
    from torch import Tensor

    from vit.checkpoints import Origin
    from vit.figures import ExploredImage
    from vit.look.shown import ModelWithImages

PHOTO = 512  # pixels of a photograph's longer side: all that a screen shows
MAX_WEIGHTS = 100_000_000  # ten times what the largest page holds, however well they compress
WAYS = "lower --layers or --count, leave out the decoder (--part encoder) or --snapshots"


@dataclass(frozen=True)
class ExploreOptions(ReadsCheckpoint, WritesFiles):
    """Write one page for exploring a model's attention; it opens from disk, without a server or a network."""

    out: Path
    """page to write, .html"""
    layers: list[int] | None = None
    """only these, e.g. 0,5,-1; -1 is the last (default: all)"""
    snapshots: bool = False
    """a slider over a run's snapshots"""
    numbers: bool = False
    """write the weights beside the page, as .npz"""


OPTIONS = (ExploreOptions, ShownImages, LoadOptions)


def run(argv: Sequence[str]) -> int:
    """Write the page."""
    options, shown, load = read_options("vit explore", argv, *OPTIONS)
    out = output_file(options.out, PAGE, overwrite=options.overwrite)
    require_free(
        [out.with_suffix(".npz")] if options.numbers else [], options.overwrite, "--numbers"
    )
    snapshots = snapshots_of(options.checkpoint) if options.snapshots else {}
    subject = load_with_images(options.checkpoint, shown, load, snapshots)

    from vit.checkpoints import load_trained
    from vit.figures import Moment, explore_page
    from vit.look.shown import model_caption

    # A page that is far too large is refused before anything is computed
    geometry, config = subject.geometry, subject.model.encoder.config
    tokens = geometry.num_tokens - round((shown.mask or 0) * geometry.num_tokens)
    layers = config.depth if options.layers is None else len(set(options.layers))
    count = max(len(snapshots), 1) * len(subject.names) * layers * config.num_heads * tokens**2
    if count > MAX_WEIGHTS:
        raise UserError(f"the page would hold {count:,} weights, too many for one page; {WAYS}")

    # Weights and reconstructions of the model, or of each snapshot
    if shown.mask is not None:
        subject = subject.with_mask(shown.mask, shown.seed)
    moments, arrays = [], {"images": subject.pixels, "names": subject.names}
    arrays |= {"hidden": subject.hidden} if subject.mask is not None else {}
    arrays |= {"moments": list(snapshots)} if snapshots else {}
    for number, name in enumerate(track(snapshots or [""], "explore", unit=" snapshots")):
        model = load_trained(snapshots[name], load) if snapshots else subject.model
        images, found = explored(replace(subject, model=model), options.layers)
        moments.append(Moment(name, images))
        arrays |= {
            f"{key}_moment{number}" if snapshots else key: value for key, value in found.items()
        }

    # The page, and the arrays beside it
    patches = " x ".join(map(str, geometry.grid_size))
    prefix = f"{'a' if geometry.class_token else 'no'} class token"
    prefix += f", {config.registers} registers" if config.registers else ""
    facts = [
        ("model", model_caption(subject.model)),
        ("images", subject.data),
        ("tokens", f"{patches} patches, {prefix}"),
    ]
    if subject.mask is not None:
        facts.append(("mask", f"{subject.mask_caption} at random, seed {shown.seed}"))
    try:
        page = explore_page(
            moments,
            grid_size=geometry.grid_size,
            class_token=geometry.class_token,
            registers=config.registers,
            decoder_prefix=geometry.num_prefix_tokens,
            title="Where attention looks",
            facts=facts,
        )
    except UserError as error:
        raise UserError(f"{error} ({WAYS})") from error
    write_text(out, page)
    print(f"page: {one_line(str(out))}, {len(page.encode()):,} bytes")
    if options.numbers:
        write_npz(out.with_suffix(".npz"), arrays)
    return 0


def photo_of(path: str | Path, origin: Origin) -> bytes:
    """Return the crop of an image file that the model takes, as a JPEG of up to 512 pixels a side; empty if it has no more
    pixels than the model's input."""
    from PIL import Image

    from vit.inputs import decode, size_of

    width, height = size_of(str(path)) or (0, 0)
    rows, columns = origin.image_size
    share = origin.prepared.crop_share
    more = min(PHOTO / max(rows, columns), share * width / columns, share * height / rows)
    size = (round(more * rows), round(more * columns))
    if more <= 1 or isinstance(content := decode(str(path), size, origin.prepared), str):
        return b""
    channels = [
        Image.frombytes("L", size[::-1], content[at * len(content) // 3 :][: len(content) // 3])
        for at in range(3)
    ]
    file = io.BytesIO()
    Image.merge("RGB", channels).save(file, format="jpeg", quality=85)
    return file.getvalue()


def explored(
    subject: ModelWithImages, layers: Sequence[int] | None
) -> tuple[list[ExploredImage], dict[str, Tensor]]:
    """Return what the page shows of each image, and arrays by name: layer0, ..., decoder0, ..., filled."""
    import torch

    from vit.figures import ExploredImage
    from vit.interpret import AttentionMaps, in_grid_order

    # The encoder's weights, of its visible patches
    model, mask, prefix = subject.model, subject.mask, subject.geometry.num_prefix_tokens
    with torch.no_grad(), AttentionMaps(model.encoder, layers) as maps:
        model.encoder(subject.inputs, mask)
    encoder = {n: in_grid_order(weights, mask, prefix) for n, weights in maps.weights.items()}
    arrays = {f"layer{n}": weights for n, weights in encoder.items()}

    # The decoder's, and what it fills in
    decoder: dict[int, Tensor] = {}
    filled: Any = [None] * len(subject.names)
    if mask is not None and model.decoder is not None:
        with torch.no_grad(), AttentionMaps(model.decoder) as maps:
            model(subject.inputs, mask)
        decoder = maps.weights
        arrays |= {f"decoder{n}": weights for n, weights in decoder.items()}
        from vit.look.filled import fill_in

        arrays["filled"] = fill_in(subject).filled
        filled = (arrays["filled"] * 255).round().to(torch.uint8)

    photos = [photo_of(path, model.origin) for path in subject.paths] or [b""] * len(subject.names)
    images = [
        ExploredImage(
            name,
            subject.pixels[i],
            {n: weights[i] for n, weights in encoder.items()},
            None if mask is None else subject.hidden[i],
            {n: weights[i] for n, weights in decoder.items()},
            filled[i],
            photos[i],
        )
        for i, name in enumerate(subject.names)
    ]
    return images, arrays
