"""What several commands do with their options: load a checkpoint and images."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.checkpoints import load_model
from vit.commandline import named_data
from vit.config import BUILT_IN, DataConfig, RunConfig
from vit.errors import ConfigError
from vit.load_options import LoadOptions
from vit.machine import choose_compute
from vit.mae import Model

if TYPE_CHECKING:
    from vit.look.subject import Collection


def load_options(options: Namespace) -> dict[str, Any]:
    """Return how the checkpoint is to be read, as `load_model` takes it."""
    values = vars(options)
    return {name: values[name] for name in LoadOptions.model_fields if name in values}


def load(options: Namespace, checkpoint: str | Path | None = None) -> Model:
    """Load a model, by default that of the options, and put it where it is to run, in float32."""
    model = load_model(checkpoint or options.checkpoint, strict=True, **load_options(options))
    if "device" in options:
        # Not every command that takes a device takes a number of threads
        threads = getattr(options, "threads", 0)
        config = RunConfig(device=options.device, threads=threads)
        model = model.to(choose_compute(config, "fp32").device)
    return model


def data_of(options: Namespace) -> str | None:
    """Return the data of a command line, which a single place may name; None for image files."""
    images = options.images
    if options.data is None and len(images) == 1:
        name = images[0]
        if os.path.isdir(name) or (name in BUILT_IN and not os.path.exists(name)):
            return name
    if bool(images) == (options.data is not None):
        raise ConfigError("name image files, or a folder or data set, and not both")
    return options.data


def load_with_images(
    options: Namespace, count: int, both_splits: bool = False
) -> tuple[Model, Collection]:
    """Load a model, and find the images of a command line.

    Args:
        options: of the command.
        count: see `of_data`; image files are not limited.
        both_splits: see `of_data`.
    """
    # Reading folders and data sets takes many modules that other commands do not need
    from vit.look.datasets import of_data, of_images

    # What does not exist is refused before the weights are read
    data = data_of(options)
    if data is None:
        collection = of_images(options.images, options.on_bad_image)
        return load(options), collection
    named = named_data(data, options.root)
    config = DataConfig(**named, on_bad_image=options.on_bad_image)
    model = load(options)
    return model, of_data(config, model.origin.image_size, count, both_splits)
