"""The residual stream is what the encoder itself computes, and a patch alone is one whose neighbours are hidden."""

import pytest
import torch
from torch import nn

from vit.config import ViTConfig
from vit.encoder import VisionTransformer
from vit.interpret.stream import residual_stream
from vit.masking import mask_from_noise


@pytest.fixture(params=[{}, dict(class_token=False), dict(registers=2)], ids=str)
def model(request) -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(
        ViTConfig(image_size=(8, 12), patch_size=(4, 2), embed_dim=16, depth=3, num_heads=4, **request.param)
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def test_it_begins_with_the_embedding_and_ends_with_what_the_model_gives(model):
    images, prefix = torch.randn(3, 3, 8, 12), model.num_prefix_tokens
    model.train()
    found = residual_stream(model, images)
    assert model.training
    assert found.shape == (4, 3, 12, 16)
    with torch.no_grad():
        torch.testing.assert_close(found[0], model.embed(model.patchify(images))[:, prefix:])
        torch.testing.assert_close(model.norm(found[-1]), model(images)[:, prefix:], rtol=1e-4, atol=1e-5)


def test_a_patch_alone_is_one_with_all_others_hidden(model):
    images = torch.randn(2, 3, 8, 12)
    found = residual_stream(model, images, alone=True)
    assert found.shape == (4, 2, 12, 16)
    for patch in (0, 5, 11):
        mask = mask_from_noise((torch.arange(12) != patch).float().expand(2, -1), 1)
        with torch.no_grad():
            expected = model(images, mask)[:, model.num_prefix_tokens]
            torch.testing.assert_close(model.norm(found[-1, :, patch]), expected, rtol=1e-4, atol=1e-5)


def test_nothing_of_its_surroundings_reaches_a_patch_alone(model):
    images = torch.randn(1, 3, 8, 12)
    other = torch.randn(1, 3, 8, 12)
    other[..., 4:8, 2:4] = images[..., 4:8, 2:4]  # patch 7: second row, second column
    for alone in (True, False):
        one, two = (residual_stream(model, x, alone)[:, 0, 7] for x in (images, other))
        assert torch.allclose(one, two, atol=1e-6) == alone
