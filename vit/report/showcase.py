"""A few test images that a run keeps, so that its folder can show the model at work without the data."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save

from vit.atomic import replacing
from vit.data import Dataset
from vit.runs import SampleImages

SHOWN = 10
"""How many; of CIFAR-10, one of each class."""


def showcase_of(data: Dataset) -> SampleImages:
    """Return some test images, spread evenly over the classes: those of a run's pictures."""
    some = data.test.subset(data.test.showcase(SHOWN))
    return SampleImages(some.images, some.label_names, list(some.class_names), data.facts)


def save_showcase(samples: SampleImages, path: Path) -> None:
    """Write sample images to `path`, whole or not at all; `vit.runs.read_sample_images` reads them."""
    about = json.dumps({"labels": samples.labels, "class_names": samples.class_names, "data": samples.data})
    with replacing(path) as temporary:
        temporary.write_bytes(save({"images": samples.images.contiguous()}, metadata={"showcase": about}))
