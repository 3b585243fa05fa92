"""A patch put elsewhere: nothing else changes, and put where it was, nothing changes at all."""

import torch
from torch import nn

from vit.config import ViTConfig
from vit.encoder import VisionTransformer
from vit.interpret.pasting import paste, pasted_tokens
from vit.interpret.stream import residual_stream
from vit.patches import patchify

SIZE = (4, 2)


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 8, 12, generator=torch.Generator().manual_seed(count))


def test_only_the_place_changes():
    inputs, places = images(5), torch.tensor([0, 3, 11, 6, 6])
    before = inputs.clone()
    patches = torch.arange(5.0)[:, None].expand(-1, 24)
    found = patchify(paste(inputs, patches, places, SIZE), SIZE)
    assert torch.equal(inputs, before)
    untouched = torch.ones(5, 12, dtype=torch.bool)
    untouched[torch.arange(5), places] = False
    assert torch.equal(found[~untouched], patches)
    assert torch.equal(found[untouched], patchify(inputs, SIZE)[untouched])


def test_a_patch_put_back_has_its_own_token():
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(image_size=(8, 12), patch_size=SIZE, embed_dim=16, depth=2, num_heads=4))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    inputs, places = images(300), torch.arange(300) % 12  # more than one batch
    rows = torch.arange(300)
    found = pasted_tokens(model, inputs, patchify(inputs, SIZE)[rows, places], places)
    torch.testing.assert_close(found, residual_stream(model, inputs)[:, rows, places], rtol=1e-4, atol=1e-5)
