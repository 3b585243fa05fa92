"""Features: the oracle is the encoder, block by block; laws of standardised features."""

import pytest
import torch
from tiny import CPU, NORMALIZE
from torch import Tensor
from torchvision.transforms.v2.functional import resize

from vit.config import ViTConfig
from vit.encoder import VisionTransformer
from vit.errors import TrainingError
from vit.evaluation.features import encoder_features, pixel_features, standardised
from vit.inputs import to_float


def prepare(images: Tensor) -> Tensor:
    return NORMALIZE(to_float(images, (8, 12)))


def small_encoder(**settings) -> VisionTransformer:
    return VisionTransformer(
        ViTConfig(
            image_size=(8, 12),
            patch_size=(4, 4),
            embed_dim=8,
            depth=4,
            num_heads=2,
            drop_path=0.5,
            **settings,
        )
    )


@pytest.mark.parametrize("training", [True, False])
def test_encoder_is_measured_in_eval_mode_and_left_in_its_own(training):
    encoder, images = (
        small_encoder().train(training),
        torch.randint(0, 256, (5, 3, 8, 12), dtype=torch.uint8),
    )
    one, two = (encoder_features(encoder, images, prepare, CPU) for _ in range(2))
    assert torch.equal(one, two)
    assert all(module.training == training for module in encoder.modules())


def test_features_that_are_not_finite_are_not_judged():
    encoder = small_encoder()
    torch.nn.init.constant_(encoder.norm.bias, float("inf"))
    with pytest.raises(TrainingError, match="features of some images are nan or infinite"):
        encoder_features(encoder, torch.zeros(1, 3, 8, 12, dtype=torch.uint8), prepare, CPU)


@pytest.mark.parametrize(
    ("size", "expected"), [((8, 12), (8, 12)), ((64, 48), (32, 32)), ((16, 64), (16, 32))]
)
def test_pixel_features_are_the_pixels_of_at_most_32_by_32(size, expected):
    images = torch.randint(0, 256, (3, 3, *size), dtype=torch.uint8)
    whole = resize(images.float() / 255, list(expected), antialias=True).flatten(1)
    assert torch.equal(pixel_features(images), whole)
    assert torch.equal(pixel_features(images, torch.tensor([2, 0])), whole[[2, 0]])


@torch.no_grad()
@pytest.mark.parametrize("settings", [dict(), dict(registers=3), dict(class_token=False)], ids=str)
def test_features_of_any_layer_are_the_mean_of_the_patch_tokens(settings):
    encoder, images = (
        small_encoder(**settings).eval(),
        torch.randint(0, 256, (5, 3, 10, 10), dtype=torch.uint8),
    )
    seen = []
    hooks = [
        block.register_forward_hook(lambda *args: seen.append(args[2])) for block in encoder.blocks
    ]
    last = encoder(prepare(images))
    for hook in hooks:
        hook.remove()
    expected = [tokens[:, -6:].mean(1) for tokens in (*seen[:-1], last)]
    found = encoder_features(encoder, images, prepare, CPU, layers=[3, 0, -3], batch_size=2)
    for features, layer in zip(found, (3, 0, 1), strict=True):
        torch.testing.assert_close(features, expected[layer], rtol=0, atol=1e-5)
    assert not any(block._forward_hooks for block in encoder.blocks)


def test_standardised_by_the_banks_statistics():
    bank, other = 3 + 2 * torch.randn(50, 4), torch.randn(7, 4)
    bank[:, 2] = 5.0
    before = bank.clone()
    one, two = standardised(bank, other)
    assert torch.equal(bank, before)
    torch.testing.assert_close(one[:, [0, 1, 3]].mean(0), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        one[:, [0, 1, 3]].std(0, correction=0), torch.ones(3), rtol=0, atol=1e-5
    )
    torch.testing.assert_close(
        two[:, 0], (other[:, 0] - bank[:, 0].mean()) / bank[:, 0].std(correction=0)
    )
    assert not one[:, 2].any()
    assert not two[:, 2].any()  # whatever it is there, the bank says nothing about it
    assert not standardised(torch.ones(1, 4), torch.ones(1, 4))[0].any()
