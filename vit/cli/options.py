"""What several commands do with their options: load a checkpoint, choose a device, refuse."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vit.checkpoints import load_model
from vit.config import BUILT_IN, RunConfig
from vit.device import Compute
from vit.errors import ConfigError, DataError
from vit.load_options import LoadOptions
from vit.machine import choose_compute
from vit.mae import Model


def load_options(options: Namespace) -> dict[str, Any]:
    """Return how the checkpoint is to be read, as `load_model` takes it."""
    values = vars(options)
    return {name: values[name] for name in LoadOptions.model_fields if name in values}


def load(options: Namespace, checkpoint: str | Path | None = None) -> Model:
    """Load a model, by default that of the options, and put it where it is to run."""
    model = load_model(checkpoint or options.checkpoint, strict=True, **load_options(options))
    if "device" in options:
        model = model.to(choose_device(options).device)
    return model


def choose_device(options: Namespace, threads: int = 0) -> Compute:
    """Return where to run, in float32."""
    return choose_compute(RunConfig(device=options.device, threads=threads), "fp32")


def images_or_data(options: Namespace) -> tuple[list[str], str | None]:
    """Return the image files of a command line, and the data; a single place may name either."""
    images = options.images
    data = options.data
    if data is None and len(images) == 1:
        name = images[0]
        if os.path.isdir(name) or (name in BUILT_IN and not os.path.exists(name)):
            data = name
            images = []
    if bool(images) == (data is not None):
        raise ConfigError("name image files, or a folder or data set, and not both")
    return images, data


@contextmanager
def naming_the_option() -> Iterator[None]:
    """Add to the message about an unreadable image the option that leaves such files out."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; --on-bad-image skip leaves out all such files") from error
