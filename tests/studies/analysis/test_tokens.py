"""Tokens: the residual stream is the encoder's own, pasting changes nothing else, shares and means by their definition."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vit.config import ViTConfig
from vit.encoder import VisionTransformer
from vit.masking import mask_from_noise
from vit.patches import patchify
from vit.studies.analysis.tokens import (
    group_cosines,
    group_means,
    paste,
    pasted_tokens,
    residual_stream,
    variance_shares,
)


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


# --- patches put elsewhere

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


# --- variance

FACTORS = ("patch", "place", "context")


def centred(*shape: int, seed: int) -> torch.Tensor:
    """Random values whose mean over each axis but the last is 0: a term of one set of factors alone."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    for axis in range(len(shape) - 1):
        if shape[axis] > 1:
            values = values - values.mean(axis, keepdim=True)
    return values / values.square().mean().sqrt()


def test_known_terms_are_found_exactly():
    sizes = {"patch": 5, "place": 3, "context": 4}
    terms = {
        ("patch",): 3.0,
        ("place",): 1.0,
        ("context",): 2.0,
        ("patch", "place"): 0.5,
        ("place", "context"): 1.5,
        ("patch", "place", "context"): 2.0,
    }
    values = torch.full((5, 3, 4, 6), 7.0, dtype=torch.double)
    for number, (term, share) in enumerate(terms.items()):
        shape = [sizes[factor] if factor in term else 1 for factor in FACTORS]
        values = values + share**0.5 * centred(*shape, 6, seed=number)
    found = variance_shares(values, FACTORS)
    assert list(found) == [
        ("patch",),
        ("place",),
        ("context",),
        ("patch", "place"),
        ("patch", "context"),
        ("place", "context"),
        FACTORS,
    ]
    for term, share in found.items():
        assert share == pytest.approx(terms.get(term, 0) / 10, abs=1e-9)


def test_shares_sum_to_one():
    found = variance_shares(torch.randn(4, 3, 5, 2, generator=torch.Generator().manual_seed(0)), FACTORS)
    assert sum(found.values()) == pytest.approx(1)
    assert all(share >= 0 for share in found.values())


# --- groups of tokens


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_group_means_by_their_definition():
    tokens = draws(2, 8, 6, 4)  # two stages of eight images of six patches
    labels = torch.randint(-1, 3, (8, 6), generator=torch.Generator().manual_seed(1))
    found = group_means(iter(tokens.split(3, dim=1)), labels, 3)
    assert found.shape == (2, 2, 3, 4)
    beyond = tokens - tokens.mean(1, keepdim=True)
    for half in (0, 1):
        for group in range(3):
            expected = beyond[:, half::2][:, labels[half::2] == group].mean(1)
            torch.testing.assert_close(found[:, half, group].float(), expected, rtol=1e-4, atol=1e-5)


def test_what_belongs_to_a_place_is_no_likeness():
    tokens, labels = draws(1, 40, 6, 4), torch.randint(3, (40, 6), generator=torch.Generator().manual_seed(1))
    moved = tokens + 100 * draws(6, 4, seed=2)
    assert torch.allclose(group_means([tokens], labels, 3), group_means([moved], labels, 3), atol=1e-3)


def test_a_group_that_a_half_has_not_is_not_a_number():
    labels = torch.tensor([[0, 1], [0, 0]])
    found = group_means([draws(1, 2, 2, 4)], labels, 2)
    assert found[0, 1, 1].isnan().all()
    assert not found[0, 0].isnan().any()


def test_cosines_are_across_halves_and_about_the_mean_of_all():
    one = torch.tensor([[1.0, 0], [0, 1], [-1, -1]])
    found = group_cosines(torch.stack([one, one])[None] + 5)[0]  # 5 is common to all, and goes away
    torch.testing.assert_close(found, F.normalize(one, dim=1) @ F.normalize(one, dim=1).T)
    halves = draws(3, 2, 5, 8)
    found = group_cosines(halves)
    torch.testing.assert_close(found, found.transpose(1, 2))
    torch.testing.assert_close(found, group_cosines(halves.flip(1)))
    assert found.diagonal(dim1=1, dim2=2).max() < 1  # the halves of a group differ
