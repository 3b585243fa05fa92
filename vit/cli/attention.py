"""`vit attention`: pictures of a model's attention, each with its numbers beside it as .npz."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vit import figures
from vit.atomic import make_folder, write_npz
from vit.checkpoints import load_model
from vit.cli.options import images_or_data, load_options
from vit.cli.outputs import refuse_among_images, require_folder, require_free
from vit.cli.parsers import named_data
from vit.data.images import class_key
from vit.errors import ConfigError, RunError, one_line, plural
from vit.interpret import attention_distance, attention_statistics, top_mass_mask
from vit.interpret.capture import Patch, Query
from vit.interpret.geometry import usual_query
from vit.look.collection import of_files
from vit.look.filled import fill_in
from vit.look.panels import (
    Panels,
    class_relevance,
    decoder_panels,
    feature_colours,
    head_panels,
    reconstruction_relevance,
    rollout_panels,
)
from vit.look.subject import ModelWithImages
from vit.pretrained import located
from vit.progress import track
from vit.runs import RunFiles

# What the maps of a result's inputs are, for the caption
NOTES = {
    "relevance": "gradient-weighted attention through all layers (Chefer et al. 2021), as shares",
    "legrad": "gradient of each layer's own score by its attention (LeGrad, Bousselham et al."
    " 2025), as shares",
}


class Picture(NamedTuple):
    """A figure, and the arrays to write beside it."""

    figure: Any
    arrays: dict[str, Any]


def run(options: Namespace) -> int:
    """Draw all pictures before writing any, so that an error leaves none."""
    require_folder(options.out)
    _, data = images_or_data(options)
    if data is not None:
        refuse_among_images(options.out, data)

    # The model and its images, their mask, and whose attention is drawn
    subject = load_with_images(options)
    subject, masked_patches = with_mask_and_query(options, subject)

    # Existing files are refused before anything is drawn
    paths = picture_paths(options, masked_patches is not None)
    files = []
    for path in paths:
        files += [path, path.with_suffix(".npz")]
    require_free(files, options.overwrite)

    # Each method is a function below
    draw = METHODS[options.method]
    pictures = draw(options, subject, masked_patches)
    for picture, path in zip(pictures, paths, strict=True):
        save(picture, path)
    return 0


# --- Options -------------------------------------------------------------------------------------


def layer_to_draw(options: Namespace) -> int | None:
    """Return the layer to draw; None for all."""
    if options.layer == "all":
        return None
    # By default the last layer, but distance is drawn over depth
    if options.layer is None and options.method != "distance":
        return -1
    return options.layer


def picture_paths(options: Namespace, has_reconstruction: bool) -> list[Path]:
    """Return the pictures to write, in the order in which they are drawn."""
    # Each other method gives one picture
    if options.method != "weights":
        return [options.out / f"{options.method}.{options.format}"]

    # Weights give a picture of the maps, and up to three others
    names = ["attention"]
    if layer_to_draw(options) is None:
        names = ["layers"]
    if options.keep is not None:
        names.append("strongest")
    if has_reconstruction:
        names.append("masked")
    return [options.out / f"{name}.{options.format}" for name in names]


# --- The model, its images, mask and query -------------------------------------------------------


def load_with_images(
    options: Namespace, snapshots: Mapping[str, Path] | None = None
) -> ModelWithImages:
    """Load a model, and the images to show it.

    Args:
        options: of `vit attention` or `vit explore`.
        snapshots: of the run, if these are shown: while it still trains, the last is the model.

    Raises:
        ConfigError: neither files nor data are named, or both are; a file is missing.
        CheckpointError: the model is missing or cannot be loaded.
    """
    load = load_options(options)
    images, data = images_or_data(options)

    # All names are checked before the weights are read
    located(options.checkpoint)
    if data is not None:
        named_data(data)

    # A run that still trains has snapshots, and no final weights yet
    checkpoint: str | Path = options.checkpoint
    if snapshots and not RunFiles(Path(checkpoint)).model.is_file():
        checkpoint = list(snapshots.values())[-1]
    model = load_model(checkpoint, strict=True, **load)
    if data is None and options.on_bad_image == "stop":
        return ModelWithImages(model, of_files(images))

    # Reading folders and data sets takes many modules that a photo does not need
    from vit.look.datasets import of_data, of_images

    if data is None:
        return ModelWithImages(model, of_images(images, options.on_bad_image))
    size = model.origin.image_size
    collection = of_data(data, size, str(options.root), options.count, options.on_bad_image)
    return ModelWithImages(model, collection)


def snapshots_of(checkpoint: str) -> dict[str, Path]:
    """Return a run's snapshots by name.

    Raises:
        RunError: there are none.
    """
    snapshots = RunFiles(Path(checkpoint)).saved_snapshots()
    if not snapshots:
        raise RunError(
            f"{checkpoint} holds no snapshots; "
            "a run with --run.snapshots 8 keeps its weights along the way"
        )
    return snapshots


def with_mask_and_query(
    options: Namespace, subject: ModelWithImages
) -> tuple[ModelWithImages, list[Patch] | None]:
    """Put the mask on the images, and choose the query token.

    Returns:
        the model and the images; per image the masked patch that the decoder fills in, None if no
        decoder does.
    """
    # Under a mask, a named patch is masked or visible in all images, whatever the draw
    query: Query = options.query
    masked_patches = None
    if options.mask is not None:
        patch = query if isinstance(query, tuple) else None
        has_decoder = subject.model.decoder is not None
        if has_decoder and options.method != "rollout":
            # The named patch is the one to fill in, so the encoder's query is the usual one
            subject = subject.with_mask(options.mask, options.seed, masked=patch)
            masked_patches = subject.middle_patches(subject.masked)
            if patch is not None:
                masked_patches = [patch] * len(subject.names)
                query = "auto"
        else:
            # The encoder has queries for visible patches only
            subject = subject.with_mask(options.mask, options.seed, visible=patch)

    # The usual one; the middle patch may be masked, so then the visible one nearest to it
    if query == "auto":
        query = usual_query(subject.model.encoder)
        if isinstance(query, tuple) and subject.mask is not None:
            query = subject.middle_patches(~subject.masked)
    return replace(subject, query=query), masked_patches


# --- The methods ---------------------------------------------------------------------------------


def draw_weights(
    options: Namespace, subject: ModelWithImages, masked_patches: list[Patch] | None
) -> list[Picture]:
    """Draw the heads of a layer, or all layers, and under a mask what the decoder does."""
    layer = layer_to_draw(options)
    panels = head_panels(subject, layer, options.head)
    title = f"Attention of {query_name(subject.query)}, {layer_name(options, subject)}"
    pictures = [picture_of_maps(options, subject, panels, title)]

    # On request, what the maps say most clearly; and the other half of a masked autoencoder
    if options.keep is not None:
        pictures.append(draw_strongest(options, subject, panels))
    if masked_patches is not None:
        pictures.append(draw_decoder(options, subject, masked_patches))
    return pictures


def draw_strongest(options: Namespace, subject: ModelWithImages, panels: Panels) -> Picture:
    """Draw the fewest patches that hold a share of each map's attention."""
    layer = layer_name(options, subject)
    # The share is of each map's own attention, so a diffuse head needs more patches
    title = f"The fewest patches with {options.keep:.0%} of the attention of "
    title += f"{query_name(subject.query)}, {layer}"
    caption = caption_of(options, subject)
    strongest = top_mass_mask(panels.maps, options.keep)
    figure = figures.strongest_figure(
        subject.images,
        maps=panels.maps,
        kept=strongest,
        panels=panels.names,
        labels=subject.names,
        title=title,
        subtitle=caption,
        share=options.keep,
        masses=panels.prefix_mass,
        query=query_patch(subject.query),
    )
    return Picture(figure, arrays_of(subject, panels, title, caption) | {"kept": strongest})


def draw_decoder(
    options: Namespace, subject: ModelWithImages, masked_patches: list[Patch]
) -> Picture:
    """Draw masked input, reconstruction, and the decoder's attention from a masked patch."""
    # A picture has room for one map per layer, so all heads become their mean
    head: int | str = "mean"
    notes = "decoder, mean of heads"
    if isinstance(options.head, int):
        head = options.head
        notes = f"decoder, head {head}"
    panels = decoder_panels(subject, masked_patches, head)
    reconstruction = fill_in(subject)

    # The caption says how the panels and the reconstruction were made
    title = "Decoder attention from the outlined masked patch"
    if reconstruction.from_normalized:
        notes += " · the model predicts normalised patches; brightness and contrast are estimated"
        notes += " from visible patches around"
    caption = caption_of(options, subject, notes)
    figure = figures.masked_figure(
        subject.images,
        hidden=subject.masked,
        filled=reconstruction.filled,
        maps=panels.maps,
        patch=masked_patches,
        panels=panels.names,
        labels=subject.names,
        title=title,
        subtitle=caption,
        masses=panels.prefix_mass,
        scale=options.scale,
    )
    arrays = arrays_of(subject, panels, title, caption)
    arrays["filled"] = reconstruction.filled
    arrays["patch"] = masked_patches
    return Picture(figure, arrays)


def draw_rollout(
    options: Namespace, subject: ModelWithImages, _masked_patches: list[Patch] | None
) -> list[Picture]:
    """Draw how much of each patch reaches the query through the layers, up to one or to each."""
    panels = rollout_panels(subject, layer_to_draw(options), options.discard)
    title = f"Attention rollout to {query_name(subject.query)}"
    notes = "half of each layer's mixing is the token itself"
    if options.discard:
        notes += f", the smallest {options.discard:.0%} of the weights left out"
    return [picture_of_maps(options, subject, panels, title, notes, what="rollout")]


def draw_relevance(
    options: Namespace, subject: ModelWithImages, masked_patches: list[Patch] | None
) -> list[Picture]:
    """Draw what a class, or the reconstruction of a masked patch, depends on.

    Raises:
        ConfigError, CheckpointError: the model has no decoder, or no head, that it takes.
    """
    # A query's outline would be misread: relevance is of a result, not of a token
    style: dict[str, Any] = {"what": "relevance", "query": None}
    notes = NOTES[options.method]
    if masked_patches is not None:
        panels = reconstruction_relevance(subject, masked_patches)
        title = "Relevance for filling in the outlined masked patch"
        style["query"] = masked_patches
        style["mark"] = "the masked patch that is filled in"
    elif subject.mask is not None:
        raise ConfigError(
            "relevance under a mask explains a reconstruction, and this model has no decoder"
        )
    else:
        panels, style["labels"] = relevance_of_classes(options, subject)
        title = "Relevance for the predicted class"
        if options.label is not None:
            title = f"Relevance for class {options.label}"
    return [picture_of_maps(options, subject, panels, title, notes, **style)]


def relevance_of_classes(options: Namespace, subject: ModelWithImages) -> tuple[Panels, list[str]]:
    """Return what each image's class depends on, and its label: name, class, probability."""
    class_names = subject.model.origin.class_names
    number = None
    if options.label is not None:
        number = class_number(options.label, class_names, subject.model.encoder.config.num_classes)
    panels, classes, probabilities = class_relevance(subject, number, options.method)

    # A checkpoint may have a head and no names for its classes
    labels = []
    for name, chosen, probability in zip(subject.names, classes, probabilities, strict=True):
        class_name = class_names[chosen] if class_names else f"class {chosen}"
        labels.append(f"{name} · {class_name} {probability:.0%}")
    return panels, labels


def draw_pca(
    options: Namespace, subject: ModelWithImages, _masked_patches: list[Patch] | None
) -> list[Picture]:
    """Draw the features of the patches as colours: similar features, similar colours."""
    title = "Patch features as colours"
    caption = caption_of(options, subject, "first three components of the last layer")
    colours = feature_colours(subject)
    figure = figures.patch_colours_figure(
        subject.images,
        colours,
        labels=subject.names,
        title=title,
        subtitle=caption,
    )
    arrays = {
        "images": subject.pixels,
        "names": subject.names,
        "colours": colours,
        "title": title,
        "caption": caption,
    }
    return [Picture(figure, arrays)]


def draw_distance(
    options: Namespace, subject: ModelWithImages, _masked_patches: list[Patch] | None
) -> list[Picture]:
    """Draw how far and how selectively each head attends, by depth, over all images."""
    # Batch by batch: a data set may have any number of images
    layer = layer_to_draw(options)
    layers = None if layer is None else [layer]
    count = math.ceil(len(subject.names) / subject.batch_size)
    batches = track(subject.batches(), "attention distance", count, " batches")
    statistics = attention_statistics(subject.model.encoder, batches, layers)

    # Attention that is uniform over all tokens has these values, to compare with
    tokens = subject.geometry.num_tokens
    uniform = torch.full((1, 1, tokens, tokens), 1 / tokens)
    uniform_distance = float(attention_distance(uniform, subject.geometry))
    distance = figures.Panel(
        "mean distance to the patches attended to",
        {"mean of the heads": statistics.distance.T.numpy()},
        "pixels",
        {"uniform attention": uniform_distance},
        limits=(0, None),
    )
    entropy = figures.Panel(
        "entropy of the weights",
        {"mean of the heads": statistics.entropy.T.numpy()},
        "bits",
        {"uniform attention": math.log2(tokens)},
        limits=(0, None),
    )

    # A figure by depth, with a dot for each head
    images = plural(statistics.images, "image")
    notes = f"mean over {images} and all query patches; attention on prefix tokens has no distance"
    notes += " and is left out"
    figure = figures.layers_figure(
        [distance, entropy],
        "Attention distance and entropy of each head",
        f"{subject.caption} · {notes}",
        [str(number) for number in statistics.layers.tolist()],
        "layer",
        dots="a head",
    )
    arrays = {
        "images": statistics.images,
        "layers": statistics.layers,
        "prefix_mass": statistics.prefix_mass,
        "distance_pixels": statistics.distance,
        "distance_spread_pixels": statistics.distance_spread,
        "entropy_bits": statistics.entropy,
    }
    return [Picture(figure, arrays)]


METHODS = {
    "weights": draw_weights,
    "rollout": draw_rollout,
    "relevance": draw_relevance,
    "legrad": draw_relevance,
    "pca": draw_pca,
    "distance": draw_distance,
}


# --- What the pictures have in common ------------------------------------------------------------


def picture_of_maps(
    options: Namespace,
    subject: ModelWithImages,
    panels: Panels,
    title: str,
    notes: str = "",
    **style: Any,
) -> Picture:
    """Draw panels beside each image.

    Args:
        options: of `vit attention`.
        subject: the model and the images.
        panels: the maps.
        title: of the picture.
        notes: end of the caption.
        style: other arguments of `figures.attention_figure` than the options and the query.
    """
    caption = caption_of(options, subject, notes)
    usual = {
        "labels": subject.names,
        "query": query_patch(subject.query),
        "scale": options.scale,
        "overlay": options.overlay,
    }
    style = usual | style
    figure = figures.attention_figure(
        subject.images,
        maps=panels.maps,
        panels=panels.names,
        title=title,
        subtitle=caption,
        masses=panels.prefix_mass,
        **style,
    )
    arrays = arrays_of(subject, panels, title, caption)
    arrays["labels"] = style["labels"]
    return Picture(figure, arrays)


def caption_of(options: Namespace, subject: ModelWithImages, notes: str = "") -> str:
    """Return the model, the images, the mask, and notes, as one line."""
    # A picture must be repeatable from what it says, so the mask's seed is named
    parts = [subject.caption]
    if subject.mask is not None:
        parts.append(f"{subject.mask_caption}, seed {options.seed}")
    if notes:
        parts.append(notes)
    return " · ".join(parts)


def arrays_of(subject: ModelWithImages, panels: Panels, title: str, caption: str) -> dict[str, Any]:
    """Return the arrays that are written beside a picture of maps, by their names in the file."""
    # The names stay as they are: people read these files with scripts of their own
    arrays = {
        "images": subject.pixels,
        "names": subject.names,
        "labels": subject.names,
        "panels": panels.names,
        "maps": panels.maps,
        "prefix_mass": panels.prefix_mass,
        "title": title,
        "caption": caption,
    }
    if subject.mask is not None:
        arrays["hidden"] = subject.masked
    return arrays


def save(picture: Picture, path: Path) -> None:
    """Write a picture, and its arrays beside it."""
    make_folder(path.parent)
    figures.save_figure(picture.figure, path)
    arrays = path.with_suffix(".npz")
    write_npz(arrays, picture.arrays)
    print(f"picture: {one_line(str(path))}, numbers beside it in {arrays.name}")


def query_patch(query: Query) -> Patch | list[Patch] | None:
    """Return the query patch to outline; None if the query is no patch."""
    # Class token, registers and the mean over patches have no place in the image
    return None if isinstance(query, str) else query


def query_name(query: Query) -> str:
    """Return the query token in words."""
    if isinstance(query, list):
        return "the outlined patch"
    if isinstance(query, tuple):
        return f"the patch in row {query[0]}, column {query[1]}"
    words = {"cls": "the class token", "mean": "the average patch"}
    return words.get(query, query)


def layer_name(options: Namespace, subject: ModelWithImages) -> str:
    """Return the layer to draw in words: "layer 2 of 0 to 5", "layer 5, the last".

    All layers have a map each, which does not say its head: "layer by layer, mean of heads".
    """
    layer = layer_to_draw(options)
    if layer is None:
        head = "mean of heads"
        if isinstance(options.head, int):
            head = f"head {options.head}"
        return f"layer by layer, {head}"

    # Layers are counted from 0, so the highest number shows how many there are
    depth = subject.model.encoder.config.depth
    number = layer % depth
    if number == depth - 1:
        return f"layer {number}, the last"
    return f"layer {number} of 0 to {depth - 1}"


def class_number(label: str, class_names: Sequence[str], count: int) -> int:
    """Return the number of a class, by its number or name.

    Raises:
        ConfigError: there is no such class.
    """
    # A class may be called "3", so names come first
    keys = [class_key(name) for name in class_names]
    if class_key(label) in keys:
        return keys.index(class_key(label))
    if label.isdecimal() and len(label) < 9 and int(label) < count:
        return int(label)
    examples = f", such as {', '.join(class_names[:5])}" if class_names else ""
    raise ConfigError(f"there is no class {label[:40]!r}: this model has {count}, from 0{examples}")
