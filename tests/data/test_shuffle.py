"""Shuffled patches: which patches stay together, and where they lie."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vit.config import AugmentConfig, Config, ModelConfig, TrainConfig
from vit.data.augment import shuffle_patches
from vit.data.draws import draw_step
from vit.patches import patchify


def shuffled(images: Tensor, across: bool, step: int = 0) -> Tensor:
    config = Config(
        augment=AugmentConfig(shuffle="across" if across else "within"),
        model=ModelConfig(image_size=16, patch_size=4, preset="micro"),
        train=TrainConfig(batch_size=6, seed=3),
    )
    noise = draw_step(config, step, 6, masked=True).shuffle
    return patchify(shuffle_patches(images, noise, (4, 4), across), (4, 4))


def told_apart() -> Tensor:
    """Images of which every patch has one value: 100 x image + patch."""
    values = torch.arange(6.0)[:, None] * 100 + torch.arange(16)  # (6, 16)
    return values.view(6, 1, 4, 4).repeat_interleave(4, 2).repeat_interleave(4, 3).expand(-1, 3, -1, -1)


@pytest.mark.parametrize("across", [True, False])
def test_patches_stay_whole_and_none_is_lost(across):
    patches = shuffled(told_apart(), across)
    assert (patches == patches[..., :1]).all()
    assert sorted(patches[..., 0].flatten().tolist()) == sorted(
        patchify(told_apart(), (4, 4))[..., 0].flatten().tolist()
    )


def test_across_images_each_patch_keeps_its_place():
    values = shuffled(told_apart(), True)[..., 0]
    assert torch.equal(values % 100, torch.arange(16.0).expand(6, -1))
    assert all(len((row // 100).unique()) > 2 for row in values)  # out of several images


def test_within_images_each_patch_keeps_its_image():
    values = shuffled(told_apart(), False)[..., 0]
    assert torch.equal(values // 100, torch.arange(6.0)[:, None].expand(-1, 16))
    assert len((values % 100).unique(dim=0)) == 6  # each image in an order of its own


@pytest.mark.parametrize("across", [True, False])
def test_it_is_drawn_by_seed_and_step(across):
    first, again, later = (shuffled(told_apart(), across, step) for step in (4, 4, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
