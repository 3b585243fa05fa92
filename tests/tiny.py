"""The small model, settings and data that tests of several rooms train with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from vit.config import AugmentConfig, ClassifyConfig, Config, ModelConfig, OptimConfig, RunConfig, TrainConfig
from vit.data import Dataset, ImageSet
from vit.data.images import content_hash

M = TypeVar("M", bound=nn.Module)
TINY = ModelConfig(
    image_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, decoder_dim=16, decoder_depth=1, decoder_heads=2
)
CLASSES = ("ape", "bee", "cat")
RECONSTRUCT = Config(
    augment=AugmentConfig(crop_scale=(0.5, 1.0)),
    model=TINY,
    optim=OptimConfig(blr=0.02, warmup_epochs=0.5, min_lr=1e-5),
    train=TrainConfig(epochs=2, batch_size=8, precision="fp32"),
    run=RunConfig(device="cpu"),
)
CLASSIFY = replace(  # with all that can be drawn
    RECONSTRUCT,
    augment=AugmentConfig(crop_scale=(0.5, 1.0), rand_augment=2, erasing=0.5),
    model=replace(TINY, drop_path=0.5),
    classify=ClassifyConfig(label_smoothing=0.1, mixup=0.8, cutmix=1.0, drop_patches=0.5, whole_epochs=1),
    optim=OptimConfig(blr=0.02, warmup_epochs=0.5, layer_decay=0.7),
    train=replace(RECONSTRUCT.train, objective="classify"),
)


def changed(config: Config, **sections: dict) -> Config:
    """`config` with some fields of some sections changed."""
    return replace(config, **{name: replace(getattr(config, name), **fields) for name, fields in sections.items()})


@contextmanager
def without_pictures() -> Iterator[None]:
    """Runs that end here leave no pictures and no page: these take longer than all else."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("pictures.draw_pictures", "page.write_report"):
            patch.setattr(f"vit.report.{name}", lambda *_: None)
        yield


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(count: int, seed: int = 0, size: tuple[int, int] = (16, 16)) -> Tensor:
    """uint8 (count, 3, H, W)"""
    return torch.randint(0, 256, (count, 3, *size), dtype=torch.uint8, generator=seeded(seed))


def image_set(images: Tensor, class_names: tuple[str, ...] = CLASSES) -> ImageSet:
    """Images whose classes take turns; without names they have no labels."""
    labels = torch.arange(len(images)) % len(class_names) if class_names else torch.full((len(images),), -1)
    return ImageSet(images, labels, class_names, content_hash(images, labels))


def dataset(train: int = 20, test: int = 4, seed: int = 0, class_names: tuple[str, ...] = CLASSES) -> Dataset:
    """Images of noise."""
    sets = (image_set(noise(count, part), class_names) for count, part in ((train, seed), (test, 1000 + seed)))
    return Dataset("Noise", "folder", *sets)


def randomized(model: M, std: float = 0.3) -> M:
    """The model with every number that learns drawn anew, so that none hides behind a 0 or a 1; in eval mode."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=std)
    return model.eval()


def assert_same(one: object, other: object) -> None:
    """Equal to the bit, tensors included."""
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other
