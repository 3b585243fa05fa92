"""Shuffled patches: which patches stay together, and where they lie."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vit.config import Config, ModelConfig, TrainConfig
from vit.mae import build_autoencoder
from vit.patches import patchify
from vit.studies.shuffled import ShuffledPatches

CONFIG = Config(
    model=ModelConfig(
        image_size=16, patch_size=4, embed_dim=8, depth=1, num_heads=1, decoder_dim=8, decoder_depth=1, decoder_heads=1
    ),
    train=TrainConfig(batch_size=6, seed=3),
)


def shuffled(images: Tensor, across: bool, step: int = 0, part: slice = slice(0, 6)) -> tuple[Tensor, Tensor]:
    model = build_autoencoder(CONFIG.model.vit_config(), CONFIG.model.decoder_config(), True)
    task = ShuffledPatches(model, CONFIG, across)
    rows = task.rows(len(images), part)
    posed, (_, _, mask) = task.pose(images[rows], rows, step, len(images), part)
    return patchify(posed, (4, 4)), mask


def told_apart() -> Tensor:
    """Images of which every patch has one value: 100 x image + patch."""
    values = torch.arange(6.0)[:, None] * 100 + torch.arange(16)  # (6, 16)
    return values.view(6, 1, 4, 4).repeat_interleave(4, 2).repeat_interleave(4, 3).expand(-1, 3, -1, -1)


@pytest.mark.parametrize("across", [True, False])
def test_patches_stay_whole_and_none_is_lost(across):
    patches, _ = shuffled(told_apart(), across)
    assert (patches == patches[..., :1]).all()
    assert sorted(patches[..., 0].flatten().tolist()) == sorted(
        patchify(told_apart(), (4, 4))[..., 0].flatten().tolist()
    )


def test_across_images_each_patch_keeps_its_place():
    values = shuffled(told_apart(), True)[0][..., 0]
    assert torch.equal(values % 100, torch.arange(16.0).expand(6, -1))
    assert all(len((row // 100).unique()) > 2 for row in values)  # out of several images


def test_within_images_each_patch_keeps_its_image():
    values = shuffled(told_apart(), False)[0][..., 0]
    assert torch.equal(values // 100, torch.arange(6.0)[:, None].expand(-1, 16))
    assert len((values % 100).unique(dim=0)) == 6  # each image in an order of its own


@pytest.mark.parametrize("across", [True, False])
def test_it_is_drawn_by_seed_and_step(across):
    first, again, later = (shuffled(told_apart(), across, step)[0] for step in (4, 4, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


@pytest.mark.parametrize("across", [True, False])
def test_a_part_of_a_batch_is_what_it_is_in_the_whole(across):
    whole, mask = shuffled(told_apart(), across)
    part, masked = shuffled(told_apart(), across, part=slice(2, 5))
    assert torch.equal(part, whole[2:5])
    assert torch.equal(masked, mask[2:5])
