"""A few test images that a run keeps, so that whoever has its folder can see it at work without its data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vit.atomic import replacing
from vit.data import Dataset
from vit.errors import UserError, one_line

SHOWN = 10
"""How many; of CIFAR-10, one of each class."""


class ShowcaseError(UserError):
    """A file of images that cannot be read; the message is one line."""


@dataclass(frozen=True)
class Showcase:
    """Images of a test set, and what the data is.

    Attributes:
        images: uint8 (B, C, H, W).
        labels: B names; may be empty strings.
        class_names: of all classes.
        data: `vit.data.Dataset.facts` of the whole.
    """

    images: Tensor
    labels: list[str]
    class_names: list[str]
    data: dict[str, Any]


def showcase_of(data: Dataset) -> Showcase:
    """Some test images, spread evenly over the classes: those of a run's pictures."""
    some = data.test.subset(data.test.showcase(SHOWN))
    return Showcase(some.images, some.label_names, list(some.class_names), data.facts)


def save_showcase(showcase: Showcase, path: Path) -> None:
    """Write it to `path`, whole or not at all."""
    told = json.dumps({"labels": showcase.labels, "class_names": showcase.class_names, "data": showcase.data})
    with replacing(path) as temporary:
        temporary.write_bytes(save({"images": showcase.images.contiguous()}, metadata={"showcase": told}))


def load_showcase(path: Path) -> Showcase:
    """What `save_showcase` wrote.

    Raises:
        ShowcaseError: it is damaged, or another file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            told, images = json.loads((file.metadata() or {})["showcase"]), file.get_tensor("images")
        found = Showcase(images, told["labels"], told["class_names"], told["data"])
    except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
        raise ShowcaseError(f"{path} cannot be read: {one_line(str(error))}; remove it to do without") from error
    if images.dtype != torch.uint8 or images.ndim != 4 or len(found.labels) != len(images):
        raise ShowcaseError(f"{path} does not hold images with a label each; remove it to do without")
    return found
