"""`vit attention`: a checkpoint and images in, pictures of what attention looks at out, with their numbers beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints import Origin, load_trained
from vit.checkpoints.formats.outgoing import encoder_of
from vit.encoder import eval_mode
from vit.errors import one_line
from vit.evaluate.reconstruction import reconstruct
from vit.interpret.capture import AttentionMaps, GridMaps, lay_out
from vit.interpret.geometry import Geometry
from vit.interpret.layers import AttentionError
from vit.interpret.measures import attention_distance, attention_rollout, relevance, strongest
from vit.interpret.statistics import attention_statistics
from vit.interpret.viewing import (
    CPU,
    Subject,
    kept_patches,
    mask_noise,
    middle,
    moments_of,
    require_folder,
    subject_of,
    write_numbers,
)
from vit.mae import MaskedAutoencoder
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
    """
    require_folder(look.out)
    subject = subject_of(checkpoint, files, data, root, count, asked)
    if look.film:  # before anything is computed
        moments_of(checkpoint)
    if look.method == "distance":
        draw_distances(subject, look)
    elif look.method == "relevance":
        draw_relevance(subject, look)
    elif look.method == "rollout":
        draw_rollout(subject, look)
    else:
        draw_weights(subject, look)
    if look.film:
        draw_film(subject, moments_of(checkpoint), asked, look)
    return 0


# --- the pictures -------------------------------------------------------------------------------------------------------


def draw_weights(subject: Subject, look: Look) -> None:
    """Attention weights: heads of a layer, or all layers; of a masked model, what the decoder looks at too."""
    mask, hidden_query = None, None
    if look.mask is not None:
        mask, hidden_query = hide(subject, look)
    query = subject.query("auto" if hidden_query else look.query)
    with eval_mode(subject.model), torch.no_grad(), AttentionMaps(subject.encoder, _layers(look)) as maps:
        subject.encoder(subject.inputs, mask)
    grid, panels = _panels(maps, look, query, subject.geometry, mask)
    what = f"layer {maps.layers[0]} of 0 to {len(maps.names) - 1}" if look.layer is not None else "layer by layer"
    how = f" · {mask.mask[0].sum():.0f} of {mask.mask.shape[1]} patches hidden, absent here" if mask is not None else ""
    title = f"Where {_asker(query)} looks, {what}"
    _draw(subject, look, "attention" if look.layer is not None else "layers", grid, panels, title, how, query, mask)
    if look.keep is not None:
        _draw_strongest(subject, look, grid, panels, query)
    if mask is not None and hidden_query is not None:
        _draw_masked(subject, look, mask, hidden_query)


def draw_rollout(subject: Subject, look: Look) -> None:
    """How much of each patch has come to the query through the layers up to one, or up to each."""
    mask = hide(subject, look, visible=True)[0] if look.mask is not None else None
    query = subject.query(look.query)
    with eval_mode(subject.model), torch.no_grad(), AttentionMaps(subject.encoder) as maps:
        subject.encoder(subject.inputs, mask)
    last = _number(look.layer, len(maps.names)) if look.layer is not None else None
    through = range(len(maps.names)) if last is None else [last]
    prefix = subject.geometry.num_prefix_tokens
    weights = [maps.weights[layer] for layer in range(len(maps.names))]
    rolled = [attention_rollout(weights[: layer + 1], "mean", look.discard, prefix) for layer in through]
    grid = lay_out(torch.stack(rolled, dim=1), subject.geometry, query, None, mask)
    panels = [f"through layer {layer}" for layer in through]
    how = " · attention rollout: half of each layer's mixing is the token itself"
    how += f", the weakest {look.discard:.0%} of the weights left out" if look.discard else ""
    title = f"What has come to {_asker(query)}"
    _draw(subject, look, "rollout", grid, panels, title, how, query, mask, what="the rollout")


def draw_relevance(subject: Subject, look: Look) -> None:
    """What a class, or the error at a hidden patch, rests on: attention weighted by its gradient."""
    mask, query, token = None, None, "mean"
    if look.mask is not None:
        mask, query = hide(subject, look)
        if query is None:
            raise AttentionError("relevance under a mask is about the error of a decoder, and this model has none")
        score, run = _error_at(subject, mask, query)
        name, names = "the error at the outlined hidden patch", subject.pictures.names
    elif subject.encoder.arguments["num_classes"]:
        score, run, names = _logit_of(subject, look)
        name = "the predicted class" if look.label is None else f"the class {look.label}"
        token = "cls" if subject.encoder.arguments["global_pool"] == "token" else "mean"
    else:
        raise AttentionError(
            "relevance is about a result, and this model has no head; of one with a decoder, --mask asks for the error of "
            "a hidden patch"
        )
    found = relevance(subject.encoder, subject.inputs, score, run)
    found = found - torch.eye(found.shape[-1])  # without what each token is to itself from the start
    grid = lay_out(found[:, None], subject.geometry, token, None, mask)
    total = (grid.maps.nan_to_num().flatten(2).sum(-1) + grid.prefix_mass).clamp(min=1e-12)
    shares = GridMaps(grid.maps / total[..., None, None], grid.prefix_mass / total)
    how = " · gradient-weighted attention through all layers (Chefer et al. 2021), as shares of the whole"
    title, mark = f"What {name} rests on", "the hidden patch whose error it is"
    _draw(subject, look, "relevance", shares, ["relevance"], title, how, query, mask, names, "relevance", mark)


def _error_at(
    subject: Subject, mask: Mask, patches: list[tuple[int, int]]
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """The squared error of the reconstruction at one hidden patch of each image, and how the model is run for it."""
    model = subject.model
    assert isinstance(model, MaskedAutoencoder)
    numbers = torch.tensor([subject.geometry.token(p) for p in patches]) - subject.geometry.num_prefix_tokens
    targets, every = model.targets(subject.inputs), torch.arange(len(numbers))
    return lambda predicted: (predicted - targets).square().mean(-1)[every, numbers], lambda x: model(x, mask)


def _logit_of(subject: Subject, look: Look) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], list[str]]:
    """The logit of a class, how the model is run for it, and for each image the class with its probability."""
    encoder, origin = subject.encoder, subject.origin
    wanted = _class(look.label, origin, encoder.arguments["num_classes"])
    with eval_mode(encoder), torch.no_grad():
        chances = encoder.forward_head(encoder(subject.inputs)).softmax(-1)
    chosen = chances.argmax(-1) if wanted is None else torch.full((len(chances),), wanted)
    names = [f"{_class_name(origin, c)} {chances[i, c]:.0%}" for i, c in enumerate(chosen.tolist())]
    return lambda logits: logits.gather(1, chosen[:, None])[:, 0], lambda x: encoder.forward_head(encoder(x)), names


def draw_distances(subject: Subject, look: Look) -> None:
    """How far and how evenly each head looks, by depth, over all images."""
    from vit.figures import distance_figure

    found = attention_statistics(subject.encoder, subject.batches(), _layers(look))
    geometry = subject.geometry
    tokens = geometry.num_prefix_tokens + geometry.grid_size[0] * geometry.grid_size[1]
    even = torch.full((1, 1, tokens, tokens), 1 / tokens)
    height, width = subject.origin.image_size
    figure = distance_figure(
        found.distance, found.entropy, "How far each head looks, and how evenly",
        f"{subject.caption} · means over {found.images:,} images and all patches that ask; attention on prefix tokens has no "
        "distance and is left out of it",
        image_diagonal=(height**2 + width**2) ** 0.5,
        names=[str(layer) for layer in found.layers.tolist()],
        uniform_distance=float(attention_distance(even, geometry)),
        uniform_entropy=float(torch.tensor(float(tokens)).log2()),
        dark=look.dark,
    )  # fmt: skip
    _write(look, "distance", figure, {
        "images": found.images, "layers": found.layers, "distance_pixels": found.distance,
        "distance_spread_pixels": found.distance_spread, "entropy_bits": found.entropy, "prefix_mass": found.prefix_mass,
    })  # fmt: skip


def draw_film(subject: Subject, moments: list[tuple[str, Path]], asked: dict[str, Any], look: Look) -> None:
    """The first image's map over the snapshots of a run, as a GIF."""
    from vit.figures import film_frames, save_film

    query = subject.query(look.query)
    found: list[GridMaps] = []
    panels: list[str] = []
    for _, place in moments:
        encoder = encoder_of(load_trained(place, **asked))
        with torch.no_grad(), AttentionMaps(encoder, _layers(look)) as maps:
            encoder(subject.inputs[:1])
        grid, panels = _panels(maps, look, query, subject.geometry, None)
        found.append(grid)
    maps_, masses = (torch.cat(parts) for parts in zip(*found, strict=True))
    where = "all layers" if look.layer is None else f"layer {_number(look.layer, len(subject.encoder.blocks))}"
    frames = film_frames(
        subject.images[0], maps_, [name for name, _ in moments], panels, subject.pictures.names[0],
        f"Where {_asker(query)} looks while the model learns, {where}", subject.caption, masses=masses,
        query=query if isinstance(query, tuple) else None, scale=look.scale, overlay=look.overlay, dark=look.dark,
    )  # fmt: skip
    path = look.out / "film.gif"
    save_film(frames, path)
    print(f"film: {path}")
    write_numbers(look.out / "film.npz", {
        "moments": [name for name, _ in moments], "maps": maps_, "prefix_mass": masses, "panels": panels,
        "image": subject.pixels[0],
    })  # fmt: skip


def _draw(
    subject: Subject,
    look: Look,
    name: str,
    grid: GridMaps,
    panels: list[str],
    title: str,
    how: str,
    query: Any,
    mask: Mask | None,
    names: list[str] | None = None,
    what: str = "attention",
    mark: str = "the patch that asks",
) -> None:
    """A picture of maps and its numbers."""
    from vit.figures import attention_figure

    figure = attention_figure(
        subject.images, grid.maps, panels, names or subject.pictures.names, title, subject.caption + how,
        masses=grid.prefix_mass, query=None if isinstance(query, str) else query, scale=look.scale, overlay=look.overlay,
        dark=look.dark, what=what, mark=mark,
    )  # fmt: skip
    numbers: dict[str, Any] = {
        "images": subject.pixels, "names": names or subject.pictures.names, "panels": panels, "maps": grid.maps,
        "prefix_mass": grid.prefix_mass, "title": title, "caption": subject.caption + how,
    }  # fmt: skip
    if mask is not None:
        numbers["hidden"] = mask.mask.unflatten(1, subject.geometry.grid_size).bool()
    _write(look, name, figure, numbers)


def _draw_strongest(subject: Subject, look: Look, grid: GridMaps, panels: list[str], query: Any) -> None:
    from vit.figures import strongest_figure

    assert look.keep is not None
    kept = strongest(grid.maps, look.keep)
    figure = strongest_figure(
        subject.images, grid.maps, kept, panels, subject.pictures.names,
        f"The fewest patches with {look.keep:.0%} of the attention of {_asker(query)}", subject.caption,
        share=look.keep, masses=grid.prefix_mass, query=query if isinstance(query, tuple) else None, dark=look.dark,
    )  # fmt: skip
    _write(look, "strongest", figure, {"kept": kept, "maps": grid.maps, "panels": panels, "images": subject.pixels})


def _draw_masked(subject: Subject, look: Look, mask: Mask, patches: list[tuple[int, int]]) -> None:
    """Masked input, reconstruction, and the decoder's attention from a hidden patch."""
    from vit.figures import masked_figure

    model = subject.model
    assert isinstance(model, MaskedAutoencoder)
    with eval_mode(model), torch.no_grad(), AttentionMaps(model.decoder) as maps:
        model(subject.inputs, mask)
    filled = reconstruct(model, subject.pixels, subject.origin.normalize, mask, CPU)
    tokens = torch.tensor([subject.geometry.token(patch) for patch in patches])
    every = torch.arange(len(tokens))
    panels, rows = [], []
    for layer in maps.layers:
        heads = maps.weights[layer][every, :, tokens]  # (B, h, N)
        if isinstance(look.head, int):
            _require_head(look.head, heads.shape[1], layer, "the decoder's layer")
            rows.append(heads[:, look.head])
            panels.append(f"layer {layer}, head {look.head}")
        else:
            rows.append(heads.mean(1))
            panels.append(f"layer {layer}, mean")
    row = torch.stack(rows, dim=1)  # (B, layers, N)
    prefix = subject.geometry.num_prefix_tokens
    grid = GridMaps(row[..., prefix:].unflatten(-1, subject.geometry.grid_size), row[..., :prefix].sum(-1))
    hidden = mask.mask.unflatten(1, subject.geometry.grid_size).bool()
    how = f" · {mask.mask[0].sum():.0f} of {mask.mask.shape[1]} patches hidden, seed {look.seed}"
    if filled.from_normalized:
        how += " · the model predicts normalised patches; brightness and contrast are estimated from visible patches around"
    figure = masked_figure(
        subject.images, hidden, filled.filled, grid.maps, patches, panels, subject.pictures.names,
        "Filling in: where the decoder looks from the outlined hidden patch", subject.caption + how,
        masses=grid.prefix_mass, scale=look.scale, dark=look.dark,
    )  # fmt: skip
    _write(look, "masked", figure, {
        "images": subject.pixels, "filled": filled.filled, "hidden": hidden, "patch": patches, "maps": grid.maps,
        "prefix_mass": grid.prefix_mass, "panels": panels, "names": subject.pictures.names,
    })  # fmt: skip


# --- parts --------------------------------------------------------------------------------------------------------------


def hide(subject: Subject, look: Look, visible: bool = False) -> tuple[Mask, list[tuple[int, int]] | None]:
    """A random mask, and in each image the hidden patch that is asked about.

    A patch that was asked for by row and column is hidden in every image, or visible in every image where that is needed.

    Args:
        visible: whether the encoder is asked, which knows visible patches alone.

    Returns:
        the mask, and a hidden patch for each image: the one asked for, or the one nearest to the middle; None where there is
        no decoder that could be asked.
    """
    assert look.mask is not None
    noise, geometry = mask_noise(subject, look.seed), subject.geometry
    decodes = isinstance(subject.model, MaskedAutoencoder) and not visible
    asked = look.query if isinstance(look.query, tuple) else None
    if asked is not None:
        noise[:, geometry.token(asked) - geometry.num_prefix_tokens] = 2.0 if decodes else -1.0
    mask = mask_from_noise(noise, kept_patches(subject, look.mask))
    if not decodes:
        return mask, None
    if asked is not None:
        return mask, [asked] * len(noise)
    columns = geometry.grid_size[1]
    centre = middle(geometry.grid_size)
    places = [(number // columns, number % columns) for number in range(noise.shape[1])]
    apart = torch.tensor([(row - centre[0]) ** 2 + (column - centre[1]) ** 2 for row, column in places])
    nearest = (apart + 1e6 * (1 - mask.mask)).argmin(1).tolist()
    return mask, [places[number] for number in nearest]


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
    maps: AttentionMaps, look: Look, query: str | tuple[int, int], geometry: Geometry, mask: Mask | None
) -> tuple[GridMaps, list[str]]:
    """The maps of the heads of a layer, or of all layers, side by side: (B, P, rows, columns), and what each is called."""
    by_layer = {layer: lay_out(maps.weights[layer], geometry, query, None, mask) for layer in maps.layers}
    for layer, grid in by_layer.items():
        if isinstance(look.head, int):
            _require_head(look.head, grid.maps.shape[1], layer)
    if look.layer is None:
        parts = [_head(grid, look.head) for grid in by_layer.values()]
        panels = [f"layer {layer}" for layer in by_layer]
    else:
        ((layer, grid),) = by_layer.items()
        heads = range(grid.maps.shape[1])
        parts = (
            [_head(grid, look.head)] if look.head != "all" else [_head(grid, "mean"), *(_head(grid, h) for h in heads)]
        )
        mean = "mean of heads"
        panels = {"all": [mean, *(f"head {h}" for h in heads)], "mean": [mean]}.get(
            str(look.head), [f"head {look.head}"]
        )
    return GridMaps(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True))), panels


def _head(grid: GridMaps, head: str | int) -> GridMaps:
    """One head, or the mean of all: (B, 1, rows, columns)."""
    if isinstance(head, int):
        return GridMaps(grid.maps[:, head : head + 1], grid.prefix_mass[:, head : head + 1])
    return GridMaps(grid.maps.mean(1, keepdim=True), grid.prefix_mass.mean(1, keepdim=True))


def _asker(query: str | tuple[int, int]) -> str:
    """Who asks, in a title."""
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
    if label.isdecimal() and int(label) < classes:
        return int(label)
    some = ", ".join(origin.class_names[:5])
    raise AttentionError(
        f"there is no class {label!r}: this model has {classes}, from 0" + (f", such as {some}" if some else "")
    )


def _write(look: Look, name: str, figure: Any, numbers: dict[str, Any]) -> None:
    from vit.figures import save_figure

    path = look.out / f"{name}.{look.format}"
    save_figure(figure, path)
    write_numbers(look.out / f"{name}.npz", numbers)
    print(f"picture: {one_line(str(path))}, numbers beside it in {name}.npz")
