"""`vit attention`: a checkpoint and images in, pictures of what attention looks at out, with their numbers beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints import Origin, load_trained
from vit.encoder import VisionTransformer, eval_mode
from vit.errors import one_line
from vit.evaluate.reconstruction import reconstruct
from vit.interpret.capture import AttentionMaps, GridMaps, Query, to_grid
from vit.interpret.geometry import Geometry
from vit.interpret.layers import AttentionError
from vit.interpret.measures import attention_distance, relevance, rollout_step, top_mass_mask
from vit.interpret.statistics import attention_statistics
from vit.interpret.viewing import (
    CPU,
    Subject,
    kept_patches,
    mask_noise,
    moments_of,
    nearest_to_middle,
    subject_of,
    write_numbers,
)
from vit.masking import Mask, mask_from_noise


@dataclass(frozen=True)
class Look:
    """What is asked of `vit attention`.

    Attributes:
        out: folder for the pictures.
        layer: number, negative from the last; None for all.
        head: "all", "mean" or a number.
        query: "auto", "cls", "mean", "register N" or (row, column).
        method: "weights", "rollout", "relevance" or "distance".
        mask: share of the patches to hide; None for none.
        seed: of the mask.
        label: relevance for this class, a number or a name; None for the predicted one.
        discard: of rollout: share of each layer's weights that is left out.
        keep: also show the patches that hold this share of the attention.
        film: also draw the first image over the snapshots of the run.
        scale, overlay, dark: see `vit.figures.attention_figure`.
        format: of the pictures: "png", "svg" or "pdf".
    """

    out: Path
    layer: int | None = -1
    head: str | int = "all"
    query: str | tuple[int, int] = "auto"
    method: str = "weights"
    mask: float | None = None
    seed: int = 0
    label: str | None = None
    discard: float = 0.0
    keep: float | None = None
    film: bool = False
    scale: str = "shared"
    overlay: bool = False
    dark: bool = False
    format: str = "png"


@dataclass(frozen=True)
class Picture:
    """One picture, and the numbers in it.

    Attributes:
        name: of its file, without the ending.
        figure: a figure, or the frames of a film.
        numbers: arrays by name.
    """

    name: str
    figure: Any
    numbers: dict[str, Any]


def attention(
    checkpoint: str, files: Sequence[str], data: str | None, root: str, count: int, asked: dict[str, Any], look: Look
) -> int:
    """Draw what a model's attention looks at, and write the numbers beside each picture.

    Args:
        checkpoint: as for `load_model`.
        files: images; or
        data: the name of a data set, see `viewing.pictures_of_data`, with its `root`, and how many images: `count`.
        asked: keyword arguments of `load_model`.
        look: what to draw.

    Returns:
        the exit code.

    Raises:
        AttentionError: there is no such layer, head, token, class or snapshot, or the model cannot show what is asked.
            Nothing is written then.
    """
    from vit.figures import save_figure, save_film

    moments = moments_of(checkpoint) if look.film else []
    subject = subject_of(checkpoint, files, data, root, count, asked)
    draw = {"weights": draw_weights, "rollout": draw_rollout, "relevance": draw_relevance, "distance": draw_distances}
    pictures = draw[look.method](subject, look)
    if look.film:
        pictures.append(draw_film(subject, moments, asked, look))
    for picture in pictures:  # only now that nothing can be wrong with any of them
        film = isinstance(picture.figure, list)
        path = look.out / f"{picture.name}.{'gif' if film else look.format}"
        (save_film if film else save_figure)(picture.figure, path)
        write_numbers(look.out / f"{picture.name}.npz", picture.numbers)
        print(f"{'film' if film else 'picture'}: {one_line(str(path))}, numbers beside it in {picture.name}.npz")
    return 0


# --- the pictures -------------------------------------------------------------------------------------------------------


def draw_weights(subject: Subject, look: Look) -> list[Picture]:
    """Attention weights: heads of a layer, or all layers; of a masked model, what the decoder looks at too."""
    mask, hidden = (None, None) if look.mask is None else hide(subject, look, decodes=True)
    query = subject.query("auto" if hidden and isinstance(look.query, tuple) else look.query, mask)
    grid, panels = _panels(subject.encoder, subject.inputs, look, query, subject.geometry, mask)
    depth = len(subject.encoder.blocks)
    what = "layer by layer" if look.layer is None else f"layer {_number(look.layer, depth)} of 0 to {depth - 1}"
    how = f" · {_hidden(mask)}, absent here" if mask is not None else ""
    name = "layers" if look.layer is None else "attention"
    pictures = [_maps(subject, look, name, grid, panels, f"Where {_asker(query)} looks, {what}", how, query, mask)]
    if look.keep is not None:
        pictures.append(_strongest(subject, look, grid, panels, query, mask))
    if mask is not None and hidden is not None:
        pictures.append(_masked(subject, look, mask, hidden))
    return pictures


def draw_rollout(subject: Subject, look: Look) -> list[Picture]:
    """How much of each patch has come to the query through the layers up to one, or up to each."""
    mask = None if look.mask is None else hide(subject, look, decodes=False)[0]
    query = subject.query(look.query, mask)
    depth, prefix = len(subject.encoder.blocks), subject.geometry.num_prefix_tokens
    last = depth - 1 if look.layer is None else _number(look.layer, depth)
    grids: list[GridMaps] = []
    rolled: Tensor | None = None

    def follow(layer: int, weights: Tensor) -> None:  # layer by layer, so that no more than one is kept
        nonlocal rolled
        rolled = rollout_step(rolled, weights, "mean", look.discard, prefix)
        if look.layer is None or layer == last:
            grids.append(to_grid(rolled[:, None], subject.geometry, query, None, mask))

    if not 0 <= look.discard < 1:
        raise AttentionError(f"--discard: {look.discard} cannot be used; a share from 0 to below 1")
    with eval_mode(subject.encoder), torch.no_grad(), AttentionMaps(subject.encoder, range(last + 1), consume=follow):
        subject.encoder(subject.inputs, mask)
    panels = [f"through layer {layer}" for layer in (range(depth) if look.layer is None else [last])]
    how = " · attention rollout: half of each layer's mixing is the token itself"
    how += f", the weakest {look.discard:.0%} of the weights left out" if look.discard else ""
    title = f"What has come to {_asker(query)}"
    return [_maps(subject, look, "rollout", _beside(grids), panels, title, how, query, mask, what="the rollout")]


def draw_relevance(subject: Subject, look: Look) -> list[Picture]:
    """What a class, or the filling in of a hidden patch, rests on: attention weighted by its gradient."""
    encoder, geometry = subject.encoder, subject.geometry
    mask, patches, labels = None, None, subject.pictures.names
    mark = "the patch that asks"
    if look.mask is not None:
        mask, patches = hide(subject, look, decodes=True)
        if patches is None:
            raise AttentionError("relevance under a mask is about what a decoder fills in, and this model has none")
        score, run = _filling_in(subject, mask, patches)
        title, mark = "What filling in the outlined hidden patch rests on", "the hidden patch that is filled in"
    elif encoder.config.num_classes:
        score, run, classes = _logit_of(subject, look)
        labels = [f"{name} · {said}" for name, said in zip(labels, classes, strict=True)]
        title = f"What the {'predicted class' if look.label is None else f'class {look.label}'} rests on"
    else:
        raise AttentionError(
            "relevance is about a result, and this model has no head; of one with a decoder, --mask asks what filling in a "
            "hidden patch rests on"
        )
    found = relevance(encoder, subject.inputs, score, run)
    found = found - torch.eye(found.shape[-1])  # without what each token is to itself from the start
    if mask is None and encoder.config.global_pool == "token":
        rows = found[:, 0]
    else:  # a mean over the tokens that the result is computed from: those of patches, or all for a decoder
        rows = found[:, 0 if mask is not None else geometry.num_prefix_tokens :].mean(1)  # (B, N)
    whole = rows / rows.sum(-1, keepdim=True).clamp(min=1e-12)
    grid = to_grid(whole[:, None, None].expand(-1, 1, whole.shape[-1], -1), geometry, "mean", None, mask)
    how = " · gradient-weighted attention through all layers (Chefer et al. 2021), as shares of the whole"
    return [
        _maps(subject, look, "relevance", grid, ["relevance"], title, how, patches, mask, labels, "relevance", mark)
    ]


def _filling_in(
    subject: Subject, mask: Mask, patches: list[tuple[int, int]]
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """How right the reconstruction is at one hidden patch of each image (minus its squared error), and how to run for it."""
    model = subject.model
    assert model.decoder is not None
    numbers = torch.tensor([subject.geometry.token(p) for p in patches]) - subject.geometry.num_prefix_tokens
    targets, every = model.targets(subject.inputs), torch.arange(len(numbers))
    return lambda predicted: -(predicted - targets).square().mean(-1)[every, numbers], lambda x: model(x, mask)


def _logit_of(subject: Subject, look: Look) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], list[str]]:
    """The logit of a class, how the model is run for it, and for each image the class with its probability."""
    encoder, origin = subject.encoder, subject.origin
    wanted = _class(look.label, origin, encoder.config.num_classes)
    with eval_mode(encoder), torch.no_grad():
        chances = encoder.forward_head(encoder(subject.inputs)).softmax(-1)
    chosen = chances.argmax(-1) if wanted is None else torch.full((len(chances),), wanted)
    names = [f"{_class_name(origin, c)} {chances[i, c]:.0%}" for i, c in enumerate(chosen.tolist())]
    return lambda logits: logits.gather(1, chosen[:, None])[:, 0], lambda x: encoder.forward_head(encoder(x)), names


def draw_distances(subject: Subject, look: Look) -> list[Picture]:
    """How far and how evenly each head looks, by depth, over all images."""
    from vit.figures import distance_figure

    found = attention_statistics(subject.encoder, subject.batches(), _layers(look))
    geometry = subject.geometry
    even = torch.full((1, 1, geometry.num_tokens, geometry.num_tokens), 1 / geometry.num_tokens)
    height, width = subject.origin.image_size
    images = f"{found.images:,} image{'' if found.images == 1 else 's'}"
    figure = distance_figure(
        found.distance, found.entropy, "How far each head looks, and how evenly",
        f"{subject.caption} · means over {images} and all patches that ask; attention on prefix tokens has no distance and is "
        "left out of it",
        image_diagonal=(height**2 + width**2) ** 0.5,
        names=[str(layer) for layer in found.layers.tolist()],
        uniform_distance=float(attention_distance(even, geometry)),
        uniform_entropy=float(torch.tensor(float(geometry.num_tokens)).log2()),
        dark=look.dark,
    )  # fmt: skip
    numbers = {
        "images": found.images, "layers": found.layers, "distance_pixels": found.distance,
        "distance_spread_pixels": found.distance_spread, "entropy_bits": found.entropy, "prefix_mass": found.prefix_mass,
    }  # fmt: skip
    return [Picture("distance", figure, numbers)]


def draw_film(subject: Subject, moments: list[tuple[str, Path]], asked: dict[str, Any], look: Look) -> Picture:
    """The first image's map over the snapshots of a run, as a GIF."""
    from vit.figures import film_frames

    query = subject.query(look.query)
    found: list[GridMaps] = []
    panels: list[str] = []
    for _, place in moments:
        encoder = load_trained(place, **asked).encoder
        grid, panels = _panels(encoder, subject.inputs[:1], look, query, subject.geometry, None)
        found.append(grid)
    maps, masses = (torch.cat(parts) for parts in zip(*found, strict=True))
    where = "all layers" if look.layer is None else f"layer {_number(look.layer, len(subject.encoder.blocks))}"
    names = [name for name, _ in moments]
    frames = film_frames(
        subject.images[0], maps, names, panels, subject.pictures.names[0],
        f"Where {_asker(query)} looks while the model learns, {where}", subject.caption, masses=masses,
        query=query if isinstance(query, tuple) else None, scale=look.scale, overlay=look.overlay, dark=look.dark,
    )  # fmt: skip
    numbers = {"moments": names, "maps": maps, "prefix_mass": masses, "panels": panels, "image": subject.pixels[0]}
    return Picture("film", frames, numbers)


def _maps(
    subject: Subject,
    look: Look,
    name: str,
    grid: GridMaps,
    panels: list[str],
    title: str,
    how: str,
    query: Any,
    mask: Mask | None,
    labels: list[str] | None = None,
    what: str = "attention",
    mark: str = "the patch that asks",
) -> Picture:
    """A picture of maps and its numbers."""
    from vit.figures import attention_figure

    figure = attention_figure(
        subject.images, grid.maps, panels, labels or subject.pictures.names, title, subject.caption + how,
        masses=grid.prefix_mass, query=None if isinstance(query, str) else query, scale=look.scale, overlay=look.overlay,
        dark=look.dark, what=what, mark=mark,
    )  # fmt: skip
    numbers: dict[str, Any] = {
        "images": subject.pixels, "names": subject.pictures.names, "labels": labels or subject.pictures.names,
        "panels": panels, "maps": grid.maps, "prefix_mass": grid.prefix_mass, "title": title,
        "caption": subject.caption + how,
    }  # fmt: skip
    return Picture(name, figure, numbers | _shown_hidden(subject, mask))


def _strongest(
    subject: Subject, look: Look, grid: GridMaps, panels: list[str], query: Any, mask: Mask | None
) -> Picture:
    from vit.figures import strongest_figure

    assert look.keep is not None
    kept = top_mass_mask(grid.maps, look.keep)
    figure = strongest_figure(
        subject.images, grid.maps, kept, panels, subject.pictures.names,
        f"The fewest patches with {look.keep:.0%} of the attention of {_asker(query)}", subject.caption,
        share=look.keep, masses=grid.prefix_mass, query=None if isinstance(query, str) else query, dark=look.dark,
    )  # fmt: skip
    numbers = {"kept": kept, "maps": grid.maps, "panels": panels, "images": subject.pixels}
    return Picture("strongest", figure, numbers | _shown_hidden(subject, mask))


def _masked(subject: Subject, look: Look, mask: Mask, patches: list[tuple[int, int]]) -> Picture:
    """Masked input, reconstruction, and the decoder's attention from a hidden patch."""
    from vit.figures import masked_figure

    model = subject.model
    assert model.decoder is not None
    grids, panels = [], []

    def keep(layer: int, weights: Tensor) -> None:
        grid = to_grid(weights, subject.geometry, patches)
        if isinstance(look.head, int):
            _require_head(look.head, weights.shape[1], layer, "the decoder's layer")
        grids.append(_head(grid, look.head))
        panels.append(f"layer {layer}, {f'head {look.head}' if isinstance(look.head, int) else 'mean'}")

    with eval_mode(model), torch.no_grad(), AttentionMaps(model.decoder, consume=keep):
        model(subject.inputs, mask)
    grid = _beside(grids)
    filled = reconstruct(model, subject.pixels, subject.origin.normalize, mask, CPU)
    how = f" · {_hidden(mask)}, seed {look.seed}"
    if filled.from_normalized:
        how += " · the model predicts normalised patches; brightness and contrast are estimated from visible patches around"
    shown = _shown_hidden(subject, mask)
    figure = masked_figure(
        subject.images, shown["hidden"], filled.filled, grid.maps, patches, panels, subject.pictures.names,
        "Filling in: where the decoder looks from the outlined hidden patch", subject.caption + how,
        masses=grid.prefix_mass, scale=look.scale, dark=look.dark,
    )  # fmt: skip
    numbers = {
        "images": subject.pixels, "filled": filled.filled, "patch": patches, "maps": grid.maps,
        "prefix_mass": grid.prefix_mass, "panels": panels, "names": subject.pictures.names,
    }  # fmt: skip
    return Picture("masked", figure, numbers | shown)


# --- parts --------------------------------------------------------------------------------------------------------------


def hide(subject: Subject, look: Look, decodes: bool) -> tuple[Mask, list[tuple[int, int]] | None]:
    """A random mask, and in each image the hidden patch that is asked about.

    A patch that was asked for by row and column is hidden in every image where a decoder is asked, else visible in every
    image: an encoder knows visible patches alone.

    Args:
        decodes: whether the decoder is asked, where there is one.

    Returns:
        the mask, and a hidden patch for each image: the one asked for, or the one nearest to the middle; None where no
        decoder is asked.
    """
    assert look.mask is not None
    noise, geometry = mask_noise(subject, look.seed), subject.geometry
    decodes = decodes and subject.model.decoder is not None
    asked = look.query if isinstance(look.query, tuple) else None
    if asked is not None:
        noise[:, geometry.token(asked) - geometry.num_prefix_tokens] = 2.0 if decodes else -1.0
    mask = mask_from_noise(noise, kept_patches(subject, look.mask))
    if not decodes:
        return mask, None
    return mask, [asked] * len(noise) if asked is not None else nearest_to_middle(geometry.grid_size, mask.mask > 0)


def _hidden(mask: Mask) -> str:
    return f"{mask.mask[0].sum():.0f} of {mask.mask.shape[1]} patches hidden"


def _shown_hidden(subject: Subject, mask: Mask | None) -> dict[str, Tensor]:
    """Which patches were hidden: bool (B, rows, columns), where any were."""
    return {} if mask is None else {"hidden": mask.mask.unflatten(1, subject.geometry.grid_size).bool()}


def _layers(look: Look) -> list[int] | None:
    return None if look.layer is None else [look.layer]


def _number(layer: int, count: int) -> int:
    """A layer's number from 0; negative ones count from the last."""
    if not -count <= layer < count:
        raise AttentionError(f"there is no attention layer {layer}: this model has {count}, from 0 to {count - 1}")
    return layer % count


def _require_head(head: int, heads: int, layer: int, where: str = "layer") -> None:
    if not 0 <= head < heads:
        raise AttentionError(f"there is no head {head} in {where} {layer}: it has {heads}, from 0 to {heads - 1}")


def _panels(
    encoder: VisionTransformer, inputs: Tensor, look: Look, query: Query, geometry: Geometry, mask: Mask | None
) -> tuple[GridMaps, list[str]]:
    """The maps of the heads of a layer, or of all layers, side by side: (B, P, rows, columns), and what each is called."""
    by_layer: dict[int, GridMaps] = {}

    def keep(layer: int, weights: Tensor) -> None:  # only what is shown of them
        by_layer[layer] = to_grid(weights, geometry, query, None, mask)

    with eval_mode(encoder), torch.no_grad(), AttentionMaps(encoder, _layers(look), consume=keep):
        encoder(inputs, mask)
    for layer, grid in by_layer.items():
        if isinstance(look.head, int):
            _require_head(look.head, grid.maps.shape[1], layer)
    if look.layer is None:
        return _beside([_head(grid, look.head) for grid in by_layer.values()]), [f"layer {layer}" for layer in by_layer]
    ((layer, grid),) = by_layer.items()
    if look.head != "all":
        return _head(grid, look.head), ["mean of heads" if look.head == "mean" else f"head {look.head}"]
    heads = range(grid.maps.shape[1])
    panels = ["mean of heads", *(f"head {head}" for head in heads)]
    return _beside([_head(grid, "mean"), *(_head(grid, head) for head in heads)]), panels


def _beside(grids: list[GridMaps]) -> GridMaps:
    """Several (B, h, rows, columns) as one, head after head."""
    return GridMaps(*(torch.cat(parts, dim=1) for parts in zip(*grids, strict=True)))


def _head(grid: GridMaps, head: str | int) -> GridMaps:
    """One head, or the mean of all: (B, 1, rows, columns)."""
    if isinstance(head, int):
        return GridMaps(grid.maps[:, head : head + 1], grid.prefix_mass[:, head : head + 1])
    return GridMaps(grid.maps.mean(1, keepdim=True), grid.prefix_mass.mean(1, keepdim=True))


def _asker(query: Query) -> str:
    """Who asks, in a title."""
    if isinstance(query, list):
        return "the outlined patch"
    if isinstance(query, tuple):
        return f"the patch in row {query[0]}, column {query[1]}"
    return {"cls": "the class token", "mean": "the average patch"}.get(query, f"the {query}")


def _class_name(origin: Origin, number: int) -> str:
    return origin.class_names[number] if origin.class_names else f"class {number}"


def _class(label: str | None, origin: Origin, classes: int) -> int | None:
    """The number of a class by its number or name; None for the predicted one."""
    if label is None:
        return None
    if label in origin.class_names:
        return origin.class_names.index(label)
    if label.isdecimal() and len(label) < 9 and int(label) < classes:
        return int(label)
    some = ", ".join(origin.class_names[:5])
    raise AttentionError(
        f"there is no class {label[:40]!r}: this model has {classes}, from 0" + (f", such as {some}" if some else "")
    )
