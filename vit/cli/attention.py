"""`vit attention`: pictures of what a model's attention looks at, each with its numbers."""

from __future__ import annotations

import math
import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vit.atomic import write_npz
from vit.cli.common import load_options, refuse_given, shown_images
from vit.cli.outputs import require_folder, require_free
from vit.config import named_data
from vit.errors import ConfigError, RunError, one_line
from vit.load_options import LoadOptions
from vit.pretrained import located
from vit.progress import track
from vit.runs import RunFiles

if TYPE_CHECKING:
    from vit.interpret.capture import Patch, Query
    from vit.look.panels import Panels
    from vit.look.shown import ModelWithImages

USED_BY = {
    "weights": {"layer", "head", "query", "mask", "keep", "film", "overlay", "scale"},
    "rollout": {"layer", "query", "mask", "discard", "overlay", "scale"},
    "relevance": {"label", "query", "mask", "overlay", "scale"},
    "distance": {"layer"},
}
"""The options that only some methods use, by method."""


def run(options: Namespace) -> int:
    """Draw all pictures before writing any, so that an error leaves none."""
    load = load_options(options)
    images, data = shown_images(options)

    # Refuse options that mean nothing here
    unused = set().union(*USED_BY.values()) - USED_BY[options.method]
    if options.method == "relevance" and options.mask is None:
        unused |= {"query"}  # it names the hidden patch to fill in
    refuse_given(options, unused, f"does not apply to --method {options.method}; leave it out")
    if options.method == "relevance" and options.mask is not None:
        what = "relevance under a mask explains how a hidden patch is filled in"
        refuse_given(options, {"label"}, f"{what}; leave it out")
        if isinstance(options.query, str) and options.query != "auto":
            raise ConfigError(f"--query: {what}; name that patch as ROW,COLUMN")
    if options.film and (options.mask is not None or options.scale == "row"):
        raise ConfigError(
            "--film: shows whole images on one scale; leave --mask and --scale row out"
        )
    require_folder(options.out)
    snapshots = snapshots_of(options.checkpoint) if options.film else {}

    subject = load_with_images(options, images, data, load, snapshots)

    from vit.figures import save_figure, save_film

    drawing = Drawing(options, subject)
    paths = [
        options.out / f"{name}.{'gif' if name == 'film' else options.format}"
        for name in drawing.names
    ]
    require_free(
        [file for path in paths for file in (path, path.with_suffix(".npz"))], options.overwrite
    )
    pictures: list[Picture] = getattr(drawing, options.method)()
    if options.film:
        pictures.append(drawing.film(snapshots, load))
    for picture, path in zip(pictures, paths, strict=True):
        film = path.suffix == ".gif"
        (save_film if film else save_figure)(picture.figure, path)
        write_npz(path.with_suffix(".npz"), picture.numbers)
        print(
            f"{'film' if film else 'picture'}: {one_line(str(path))}, numbers beside it in {picture.name}.npz"
        )
    return 0


def one_layer(options: Namespace) -> int | None:
    """Return the layer to show; None for all."""
    if options.layer is None:
        return None if options.method == "distance" else -1
    return None if options.layer == "all" else options.layer


def load_with_images(
    options: Namespace,
    images: Sequence[str],
    data: str | None,
    load: LoadOptions,
    snapshots: Mapping[str, Path],
) -> ModelWithImages:
    """Load a model, and the images to show it; of a run whose snapshots are shown while it trains, the last of these.

    Raises:
        ConfigError: neither files nor data are named, or both are; a file is missing.
        CheckpointError: the model is missing or cannot be loaded.
    """
    checkpoint = options.checkpoint
    if bool(images) == (data is not None):
        raise ConfigError(
            "name image files, or a data set with --data" + (", not both" if images else "")
        )
    located(checkpoint)
    if data is not None:
        named_data(data)
    for path in images:
        if not os.path.isfile(path):
            raise ConfigError(f"{path}: not a file" if path else "'' is not an image file")

    from vit.checkpoints import load_trained

    training = snapshots and not RunFiles(Path(checkpoint)).model.is_file()
    model = load_trained([*snapshots.values()][-1] if training else checkpoint, load)
    if data is None:
        from vit.look.shown import with_files

        return with_files(model, files_to_show(images, options.on_bad_image))

    from vit.look.datasets import with_data  # with every kind of data set

    return with_data(model, data, str(options.root), options.count, options.on_bad_image)


def files_to_show(images: Sequence[str], on_bad_image: str) -> list[str]:
    """Return the image files that were named; without the unreadable ones, if these are to be skipped."""
    if on_bad_image == "stop":
        return list(images)

    from vit.data.folder import readable

    return list(compress(images, readable(images)))


def snapshots_of(checkpoint: str) -> dict[str, Path]:
    """Return a run's snapshots by name.

    Raises:
        RunError: there are none.
    """
    if not (snapshots := RunFiles(Path(checkpoint)).saved_snapshots()):
        way = "a run with --run.snapshots 8 keeps its weights along the way"
        raise RunError(f"{checkpoint} holds no snapshots; {way}")
    return snapshots


class Picture(NamedTuple):
    """A file name without its suffix, the figure or a film's frames, and the arrays written beside it."""

    name: str
    figure: Any
    numbers: dict[str, Any]


class Drawing:
    """Draws the pictures of each method.

    Attributes:
        subject: the model and the images, with the encoder's mask and query.
        hidden: the hidden patch per image that the decoder fills in; None if it is not asked.
    """

    def __init__(self, options: Namespace, subject: ModelWithImages):
        self.options, self.seed = options, options.seed
        self.hidden: list[Patch] | None = None
        query: Query = options.query

        # A requested patch is hidden if the decoder is to fill it in, else visible: the encoder sees no hidden ones
        if options.mask is not None:
            patch = query if isinstance(query, tuple) else None
            if subject.model.decoder is None or options.method == "rollout":
                subject = subject.with_mask(options.mask, options.seed, visible=patch)
            else:
                subject = subject.with_mask(options.mask, options.seed, hidden=patch)
                self.hidden = (
                    [patch] * len(subject.names)
                    if patch
                    else subject.middle_patches(subject.hidden)
                )
                query = "auto" if patch else query

        # The default is the class token, or without one the visible patch nearest the middle
        if query == "auto":
            middle = (
                subject.geometry.middle
                if subject.mask is None
                else subject.middle_patches(~subject.hidden)
            )
            query = "cls" if subject.geometry.class_token else middle
        self.subject = replace(subject, query=query)
        outlined = None if isinstance(query, str) else query
        self.style: dict[str, Any] = {
            "query": outlined,
            "scale": options.scale,
            "overlay": options.overlay,
        }

    @property
    def names(self) -> list[str]:
        """Of the pictures, in the order in which they are drawn."""
        options = self.options
        if options.method != "weights":
            return [options.method]
        others = {
            "strongest": options.keep is not None,
            "masked": self.hidden is not None,
            "film": options.film,
        }
        return [
            "layers" if one_layer(options) is None else "attention",
            *(name for name in others if others[name]),
        ]

    def weights(self) -> list[Picture]:
        """Draw the heads of a layer, or all layers, and under a mask how the decoder fills in."""
        from vit.figures import attention_figure, strongest_figure
        from vit.interpret import top_mass_mask
        from vit.look.panels import head_panels

        layer, share, query = (
            one_layer(self.options),
            self.options.keep,
            in_words(self.subject.query),
        )
        panels, depth = (
            head_panels(self.subject, layer, self.options.head),
            self.subject.model.encoder.config.depth,
        )
        where = "layer by layer" if layer is None else f"layer {layer % depth} of 0 to {depth - 1}"
        title = f"Where {query} looks, {where}"
        pictures = [self.picture(self.names[0], attention_figure, panels, title, **self.style)]
        if share is not None:
            title = f"The fewest patches with {share:.0%} of the attention of {query}, {where}"
            words = {
                "kept": top_mass_mask(panels.maps, share),
                "share": share,
                "query": self.style["query"],
            }
            pictures.append(self.picture("strongest", strongest_figure, panels, title, **words))
        if self.hidden is not None:
            pictures.append(self.decoder(self.hidden))
        return pictures

    def decoder(self, patches: list[Patch]) -> Picture:
        """Draw masked input, reconstruction, and the decoder's attention from a hidden patch, layer by layer."""
        from vit.figures import masked_figure
        from vit.look.filled import fill_in
        from vit.look.panels import head_panels

        head = self.options.head
        panels = head_panels(self.subject, None, head, decoder_query=patches)
        filled = fill_in(self.subject)
        which = f"head {head}" if isinstance(head, int) else "mean of heads"
        how = f"decoder, {which}"
        if filled.from_normalized:
            how += " · the model predicts normalised patches; brightness and contrast are estimated from visible patches around"
        title = "Filling in: where the decoder looks from the outlined hidden patch"
        words = {
            "hidden": self.subject.hidden,
            "filled": filled.filled,
            "patch": patches,
            "scale": self.options.scale,
        }
        return self.picture("masked", masked_figure, panels, title, how, **words)

    def rollout(self) -> list[Picture]:
        """Draw how much of each patch reaches the query through the layers, up to one or up to each."""
        from vit.figures import attention_figure
        from vit.look.panels import rollout_panels

        panels = rollout_panels(self.subject, one_layer(self.options), self.options.discard)
        title, words = (
            f"What has come to {in_words(self.subject.query)}",
            self.style | {"what": "rollout"},
        )
        how = "attention rollout: half of each layer's mixing is the token itself"
        how += (
            f", the weakest {self.options.discard:.0%} of the weights left out"
            if self.options.discard
            else ""
        )
        return [self.picture("rollout", attention_figure, panels, title, how, **words)]

    def relevance(self) -> list[Picture]:
        """Draw what a class, or the filling in of a hidden patch, depends on."""
        from vit.figures import attention_figure
        from vit.look.panels import class_relevance, reconstruction_relevance

        subject, label, count = (
            self.subject,
            self.options.label,
            self.subject.model.encoder.config.num_classes,
        )
        words = self.style | {"what": "relevance", "query": self.hidden}
        if self.hidden is not None:
            panels = reconstruction_relevance(subject, self.hidden)
            title = "What filling in the outlined hidden patch rests on"
            words["mark"] = "the hidden patch that is filled in"
        elif subject.mask is not None:
            raise ConfigError(
                "relevance under a mask explains a reconstruction, and this model has no decoder"
            )
        elif count:
            class_names = subject.model.origin.class_names
            number = None if label is None else class_number(label, class_names, count)
            panels, classes, probabilities = class_relevance(subject, number)
            title = f"What the {'predicted class' if label is None else f'class {label}'} rests on"
            found = [class_names[n] if class_names else f"class {n}" for n in classes]
            rows = zip(subject.names, found, probabilities, strict=True)
            words["labels"] = [
                f"{name} · {found} {probability:.0%}" for name, found, probability in rows
            ]
        else:
            way = "with a decoder, --mask shows what filling in a hidden patch rests on"
            raise ConfigError(f"relevance explains a prediction, and this model has no head; {way}")
        how = "gradient-weighted attention through all layers (Chefer et al. 2021), as shares of the whole"
        return [self.picture("relevance", attention_figure, panels, title, how, **words)]

    def distance(self) -> list[Picture]:
        """Draw how far and how evenly each head attends, by depth, over all images."""
        from vit.figures import Panel, layers_figure
        from vit.interpret import attention_distance, attention_statistics

        subject, layer, geometry = self.subject, one_layer(self.options), self.subject.geometry
        total = math.ceil(len(subject.names) / subject.batch_size)
        batches = track(subject.batches(), "attention distance", total, " batches")
        found = attention_statistics(
            subject.model.encoder, batches, None if layer is None else [layer]
        )
        tokens = geometry.num_tokens
        even = found.distance.new_full((1, 1, tokens, tokens), 1 / tokens)
        far = float(attention_distance(even, geometry))
        images = f"{found.images:,} image{'' if found.images == 1 else 's'}"
        how = f"mean over {images} and all query patches; attention on prefix tokens has no distance and is left out"
        panels = [
            Panel(
                title,
                {"mean of the heads": values.T.numpy()},
                unit,
                {"even attention": of_even},
                limits=(0, None),
            )
            for title, values, unit, of_even in (
                ("how far: mean distance of what it looks at", found.distance, "pixels", far),
                ("how evenly: entropy of its weights", found.entropy, "bits", math.log2(tokens)),
            )
        ]
        figure = layers_figure(
            panels,
            "How far each head looks, and how evenly",
            f"{subject.caption} · {how}",
            [str(number) for number in found.layers.tolist()],
            "layer",
            dots="a head",
        )
        numbers = {"images": found.images, "layers": found.layers, "prefix_mass": found.prefix_mass}
        numbers |= {
            "distance_pixels": found.distance,
            "distance_spread_pixels": found.distance_spread,
        }
        return [Picture("distance", figure, numbers | {"entropy_bits": found.entropy})]

    def film(self, snapshots: dict[str, Path], load: LoadOptions) -> Picture:
        """Draw the maps of the first image over the snapshots of a run."""
        import torch

        from vit.checkpoints import load_trained
        from vit.figures import film_frames
        from vit.look.panels import head_panels

        layer, image = one_layer(self.options), replace(self.subject, names=self.subject.names[:1])
        found = [
            head_panels(
                replace(image, model=load_trained(snapshot, load)), layer, self.options.head
            )
            for snapshot in track(snapshots.values(), "film", unit=" snapshots")
        ]
        maps, masses = (
            torch.cat([panels.maps for panels in found]),
            torch.cat([panels.prefix_mass for panels in found]),
        )
        moments, panels = list(snapshots), found[0].names
        where = (
            "all layers" if layer is None else f"layer {layer % image.model.encoder.config.depth}"
        )
        title = f"Where {in_words(image.query)} looks while the model learns, {where}"
        words = self.style | {"masses": masses}
        frames = film_frames(
            image.images[0], maps, moments, panels, image.names[0], title, image.caption, **words
        )
        numbers = {
            "moments": moments,
            "maps": maps,
            "prefix_mass": masses,
            "panels": panels,
            "image": image.pixels[0],
        }
        return Picture("film", frames, numbers)

    def picture(
        self,
        name: str,
        draw: Callable[..., Any],
        panels: Panels,
        title: str,
        how: str = "",
        **words: Any,
    ) -> Picture:
        """Draw panels beside each image; `words` are further arguments of `draw`, some of them numbers to keep."""
        subject = self.subject
        masked = "" if subject.mask is None else f"{subject.mask_caption}, seed {self.seed}"
        caption = " · ".join(filter(None, (subject.caption, masked, how)))
        words = {"labels": subject.names} | words
        same = {"maps": panels.maps, "panels": panels.names, "title": title}
        figure = draw(subject.images, subtitle=caption, masses=panels.prefix_mass, **same, **words)
        numbers = {
            "images": subject.pixels,
            "names": subject.names,
            "prefix_mass": panels.prefix_mass,
            "caption": caption,
        }
        numbers |= {
            key: words[key] for key in ("labels", "kept", "filled", "patch") if key in words
        }
        numbers |= {} if subject.mask is None else {"hidden": subject.hidden}
        return Picture(name, figure, numbers | same)


def in_words(query: Query) -> str:
    """Return the query token in words."""
    if isinstance(query, list):
        return "the outlined patch"
    if isinstance(query, tuple):
        return f"the patch in row {query[0]}, column {query[1]}"
    return {"cls": "the class token", "mean": "the average patch"}.get(query, f"the {query}")


def class_number(label: str, class_names: Sequence[str], count: int) -> int:
    """Return the number of a class, given its number or name."""
    if label in class_names:
        return class_names.index(label)
    if label.isdecimal() and len(label) < 9 and int(label) < count:
        return int(label)
    some = f", such as {', '.join(class_names[:5])}" if class_names else ""
    raise ConfigError(f"there is no class {label[:40]!r}: this model has {count}, from 0{some}")
