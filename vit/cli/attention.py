"""`vit attention`: figures of a model's attention, each with its numbers as .npz."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from vit.atomic import make_folder, write_npz
from vit.cli.options import data_of, load_with_images
from vit.commandline import refuse_among_images, require_folder, require_free
from vit.errors import ConfigError, one_line, plural
from vit.figures import style
from vit.figures.attention import (
    attention_figure,
    masked_figure,
    patch_colours_figure,
    strongest_figure,
)
from vit.figures.measures import heads_figure
from vit.interpret import attention_distance, attention_statistics, top_mass_mask
from vit.interpret.capture import Query
from vit.interpret.geometry import usual_query
from vit.look.panels import (
    Panels,
    class_relevance,
    decoder_panels,
    feature_colours,
    head_panels,
    reconstruction_relevance,
    rollout_panels,
)
from vit.look.subject import ModelWithImages, class_names_of
from vit.weights import class_key

# A figure, and the arrays to write beside it
Picture = tuple[Any, dict[str, Any]]
Draw = Callable[[Namespace, ModelWithImages], Picture]


def run(options: Namespace) -> None:
    """Draw the figures; existing files are refused."""
    require_folder(options.out)
    data = data_of(options)
    if data is not None:
        refuse_among_images(options.out, data)
    # By default the last layer, but distance is drawn over depth; None is all
    if options.layer == "all":
        options.layer = None
    elif options.layer is None and options.method != "distance":
        options.layer = -1
    subject = ModelWithImages(*load_with_images(options, options.count))
    subject = with_mask_and_query(options, subject)

    # Attention weights give a figure of the maps, on request one of the strongest patches, and
    # under a mask one of the decoder
    drawings: dict[str, Draw] = {}
    if options.method != "weights":
        drawings[options.method] = METHODS[options.method]
    else:
        drawings["layers" if options.layer is None else "attention"] = draw_weights
        if options.keep is not None:
            drawings["strongest"] = draw_strongest
        if subject.to_fill:
            drawings["masked"] = draw_decoder

    # Existing files are refused before anything is drawn
    paths = [options.out / f"{name}.{options.format}" for name in drawings]
    files = [*paths, *(path.with_suffix(".npz") for path in paths)]
    require_free(files, options.overwrite)

    # All are drawn before any is written, so that an error leaves none
    drawn = [draw(options, subject) for draw in drawings.values()]
    make_folder(options.out)
    for path, (figure, arrays) in zip(paths, drawn, strict=True):
        style.save_figure(figure, path)
        numbers = path.with_suffix(".npz")
        write_npz(numbers, arrays)
        print(f"figure: {one_line(str(path))}, its numbers: {numbers.name}")


# --- The model, its images, mask and query -------------------------------------------------------


def with_mask_and_query(options: Namespace, subject: ModelWithImages) -> ModelWithImages:
    """Mask the images, and choose the query token and the patches to reconstruct."""
    query: Query = options.query
    patch = query if isinstance(query, tuple) else None
    if options.mask is not None:
        # The encoder has queries for visible patches only; a decoder reconstructs a masked one
        fills = subject.model.decoder is not None and options.method != "rollout"
        subject = subject.with_mask(options.mask, options.seed, patch, masked=fills)
        if fills:
            subject.to_fill = subject.middle_patches(subject.masked)
        # A named patch is the one to reconstruct, so the encoder's query is the usual one
        if fills and patch is not None:
            subject.to_fill = [patch] * len(subject.names)
            query = "auto"

    # The usual one; the middle patch may be masked, so then the visible one nearest to it
    if query == "auto":
        query = usual_query(subject.model.encoder)
        if isinstance(query, tuple) and subject.mask is not None:
            query = subject.middle_patches(~subject.masked)
    return replace(subject, query=query)


# --- The figures ---------------------------------------------------------------------------------


def picture_of(
    options: Namespace,
    subject: ModelWithImages,
    panels: Panels,
    title: str,
    notes: str = "",
    draw: Callable[..., Any] = attention_figure,
    **look: Any,
) -> Picture:
    """Draw panels beside each image by one of the functions in `figures`.

    Args:
        options: of `vit attention`.
        subject: the model and the images.
        panels: the maps.
        title: of the figure.
        notes: end of the caption.
        draw: takes images, maps, words and `look`.
        look: further arguments of `draw`.
    """
    # The seed of the mask makes a figure repeatable
    mask = ""
    if subject.mask is not None:
        mask = f"{subject.mask_caption}, seed {options.seed}"
    caption = " · ".join(filter(None, (subject.caption, mask, notes)))
    look = {"labels": subject.names} | look
    if draw is attention_figure:
        look = {"scale": options.scale, "overlay": options.overlay} | look
    figure = draw(
        subject.images,
        maps=panels.maps,
        panels=panels.names,
        title=title,
        subtitle=caption,
        masses=panels.prefix_mass,
        **look,
    )
    # The names stay as they are: people read these files with scripts of their own
    arrays = {
        "images": subject.pixels,
        "names": subject.names,
        "panels": panels.names,
        "maps": panels.maps,
        "prefix_mass": panels.prefix_mass,
        "title": title,
        "caption": caption,
    }
    for name in ("labels", "kept", "filled", "patch"):
        if name in look:
            arrays[name] = look[name]
    if subject.mask is not None:
        arrays["hidden"] = subject.masked
    return figure, arrays


def draw_weights(options: Namespace, subject: ModelWithImages) -> Picture:
    """Draw the maps of a layer's heads, or of all layers."""
    panels = head_panels(subject, options.layer, options.head)
    title = f"Attention of {subject.query_name}, {layer_name(options, subject)}"
    return picture_of(options, subject, panels, title, query=subject.query_patch)


def draw_strongest(options: Namespace, subject: ModelWithImages) -> Picture:
    """Draw the fewest patches with a fraction of each map's attention."""
    # The fraction is of each map's own attention, so a diffuse head needs more patches
    panels = head_panels(subject, options.layer, options.head)
    title = f"The fewest patches with {options.keep:.0%} of the attention of "
    title += f"{subject.query_name}, {layer_name(options, subject)}"
    return picture_of(
        options,
        subject,
        panels,
        title,
        draw=strongest_figure,
        kept=top_mass_mask(panels.maps, options.keep),
        share=options.keep,
        query=subject.query_patch,
    )


def draw_decoder(options: Namespace, subject: ModelWithImages) -> Picture:
    """Draw masked input, reconstruction, and the decoder's attention from a masked patch."""
    # A figure has room for one map per layer, so the heads are averaged
    panels = decoder_panels(subject, options.head)
    notes = f"decoder, {head_name(options)}"
    if subject.model.norm_pix_loss:
        notes += " · the model predicts normalised patches; brightness and contrast are estimated"
        notes += " from visible patches nearby"
    return picture_of(
        options,
        subject,
        panels,
        "Decoder attention from the outlined masked patch",
        notes,
        masked_figure,
        hidden=subject.masked,
        filled=subject.fill_in(),
        patch=subject.to_fill,
        scale=options.scale,
    )


def draw_rollout(options: Namespace, subject: ModelWithImages) -> Picture:
    """Draw how much of each patch reaches the query through the layers, up to one or to each."""
    panels = rollout_panels(subject, options.layer)
    title = f"Attention rollout to {subject.query_name}"
    notes = "half of each layer's mixing is the token itself"
    query = subject.query_patch
    return picture_of(options, subject, panels, title, notes, quantity="rollout", query=query)


def draw_relevance(options: Namespace, subject: ModelWithImages) -> Picture:
    """Draw what a class, or the reconstruction of a masked patch, depends on."""
    notes = "gradient-weighted attention through all layers (Chefer et al. 2021), normalised"
    if options.method == "legrad":
        if subject.mask is not None:
            raise ConfigError(
                "--method", "legrad explains the class of whole images; leave out --mask"
            )
        notes = "gradient of each layer's class score with respect to its attention (LeGrad,"
        notes += " Bousselham et al. 2025), normalised"
    if subject.to_fill:
        return picture_of(
            options,
            subject,
            reconstruction_relevance(subject),
            "Relevance for the reconstruction of the outlined masked patch",
            notes,
            quantity="relevance",
            query=subject.to_fill,
            mark="the reconstructed masked patch",
        )
    if subject.mask is not None:
        raise ConfigError(
            "relevance under a mask explains a reconstruction, and this model has no decoder"
        )

    class_names = class_names_of(subject.model)
    number = None
    title = "Relevance for the predicted class"
    if options.label is not None:
        number = class_number(options.label, class_names)
        title = f"Relevance for class {options.label}"
    panels, classes, probabilities = class_relevance(subject, number, options.method)
    labels = []
    for name, chosen, probability in zip(subject.names, classes, probabilities, strict=True):
        labels.append(f"{name} · {class_names[chosen]} {probability:.0%}")
    # A query's outline would be misread: relevance is of a result, not of a token
    return picture_of(options, subject, panels, title, notes, quantity="relevance", labels=labels)


def draw_pca(options: Namespace, subject: ModelWithImages) -> Picture:
    """Draw the features of the patches as colours: similar features, similar colours."""
    title = "Patch features as colours"
    # They are those of whole images, under a mask too
    caption = f"{subject.caption} · first three components of the last layer"
    colours = feature_colours(subject)
    figure = patch_colours_figure(subject.images, colours, subject.names, title, caption)
    arrays = {
        "images": subject.pixels,
        "names": subject.names,
        "colours": colours,
        "title": title,
        "caption": caption,
    }
    return figure, arrays


def draw_distance(options: Namespace, subject: ModelWithImages) -> Picture:
    """Draw how far and how selectively each head attends, by depth, over all images."""
    # Batch by batch: a data set may have any number of images
    layers = None if options.layer is None else [options.layer]
    statistics = attention_statistics(subject.model.encoder, subject.batches(), layers)

    # Attention that is uniform over all tokens has these values, to compare with
    tokens = subject.geometry.num_tokens
    uniform = torch.full((1, 1, tokens, tokens), 1 / tokens)
    far = float(attention_distance(uniform, subject.geometry))
    distance = "mean distance to the patches attended to"

    # A figure by depth, with a dot for each head
    images = plural(statistics.images, "image")
    notes = f"mean over {images} and all query patches; attention on prefix tokens has no distance"
    notes += " and is left out"
    figure = heads_figure(
        [
            (distance, statistics.distance, "pixels", far),
            ("entropy of the weights", statistics.entropy, "bits", math.log2(tokens)),
        ],
        statistics.layers.tolist(),
        "Attention distance and entropy of each head",
        f"{subject.caption} · {notes}",
    )
    arrays = {
        "images": statistics.images,
        "layers": statistics.layers,
        "prefix_mass": statistics.prefix_mass,
        "distance_pixels": statistics.distance,
        "distance_spread_pixels": statistics.distance_spread,
        "entropy_bits": statistics.entropy,
    }
    return figure, arrays


METHODS: dict[str, Draw] = {
    "rollout": draw_rollout,
    "relevance": draw_relevance,
    "legrad": draw_relevance,
    "pca": draw_pca,
    "distance": draw_distance,
}


# --- Words ---------------------------------------------------------------------------------------


def head_name(options: Namespace) -> str:
    """Return the head to draw of several layers in words."""
    if isinstance(options.head, int):
        return f"head {options.head}"
    return "mean of heads"


def layer_name(options: Namespace, subject: ModelWithImages) -> str:
    """Return the layer to draw in words: "layer 2 of 0 to 5".

    All layers have a map each, which does not say its head: "layer by layer, mean of heads".
    """
    if options.layer is None:
        return f"layer by layer, {head_name(options)}"

    # Layers are counted from 0, so the highest number shows how many there are
    depth = subject.model.encoder.config.depth
    return f"layer {options.layer % depth} of 0 to {depth - 1}"


def class_number(label: str, class_names: Sequence[str]) -> int:
    """Return the number of a class, by its number or name."""
    # A class may be called "3", so names come first
    keys = [class_key(name) for name in class_names]
    if class_key(label) in keys:
        return keys.index(class_key(label))
    count = len(class_names)
    if not label.isdecimal() or int(label) >= count:
        raise ConfigError(f"there is no class {label[:40]!r}: this model has {count}, from 0")
    return int(label)
