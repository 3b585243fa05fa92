"""The study of what tokens are made of: shares that must be what they are by construction, and what a pasted patch shows."""

import pytest
import torch
from small import close
from tiny import seeded, wide_encoder
from torch.testing import assert_close

from studies import kinds
from studies import static_and_contextual as study
from studies.kinds import residual_stream
from studies.static_and_contextual import (
    BALL,
    HOME,
    STREET,
    TERMS,
    WHEEL,
    alike,
    cells_of,
    design_of,
    pasted_tokens,
    shares_of_draws,
    street_wheels,
    token_shares,
)
from vit.patches import patchify
from vit.scenes import PART_NAMES, scene_indices


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """The laws hold for a design of any size."""
    for name, size in {"PATCHES": 5, "PLACES": 4, "IMAGES": 6, "CASES": 12, "DRAWS": 2}.items():
        monkeypatch.setattr(study, name, size)


@pytest.fixture
def cases(experiment):
    return street_wheels(experiment.config.model, 12)


def test_shares_sum_to_one_and_the_embedding_knows_no_image(trained):
    for model in (trained.model, trained.initial):
        shares = token_shares(model.encoder, design_of(trained, 0))
        assert shares.shape == (3, len(TERMS))
        assert_close(shares.sum(1), torch.ones(3))
        # patch + position
        close(shares[0, 2:], torch.zeros(len(TERMS) - 2), 1e-6)
        assert (shares[0, :2] > 0.01).all()
        assert shares[-1, 2:4].sum() > 0.01


def test_without_attention_no_token_knows_its_image(trained):
    encoder = trained.initial.encoder
    for block in encoder.blocks:
        block.attn.proj.weight.data.zero_()
    shares = token_shares(encoder, design_of(trained, 0))
    close(shares[:, 2:4], torch.zeros(3, 2), 1e-6)
    assert shares[-1, 4] > 0  # each MLP mixes patch and position


def test_the_mean_of_the_image_is_not_token_specific_context(trained, monkeypatch):
    """Tokens of a sum of terms of known variances: the split gives each its own share."""
    variances = {
        (5, 1, 1): 1,  # of the patch
        (1, 4, 1): 2,  # of the place
        (5, 4, 1): 0.5,
        (1, 1, 6): 4,  # of the image
        (1, 4, 6): 1,
        (5, 1, 6): 0.5,
        (5, 4, 6): 1,
    }
    tokens = torch.full((5, 4, 6, 8), 7.0, dtype=torch.double)
    for seed, (shape, variance) in enumerate(variances.items()):
        tokens += variance**0.5 * centred(*shape, 8, seed=seed)
    monkeypatch.setattr(study, "pasted_tokens", lambda *_: tokens.flatten(0, 2)[None])
    (shares,) = token_shares(trained.model.encoder, design_of(trained, 0))
    expected = {
        "its own patch": 1,
        "its position": 2,
        "token-specific context": 2.5,
        "mean of the image": 4,
        "patch with position": 0.5,
    }
    assert (10 * shares).tolist() == pytest.approx([expected[name] for name in TERMS], abs=1e-5)
    # of all that the image adds, however large the rest is
    assert float(alike(shares)) == pytest.approx(4 / 6.5)


def test_draws_are_others_for_the_same_model_and_the_same_for_other_models(experiment):
    models = experiment.models()
    shares = shares_of_draws(models)
    for values in shares.values():
        assert values.shape == (2, 2, 3, len(TERMS))  # seeds, draws, stages
    trained, *untrained = shares.values()
    for draw in range(2):
        found = token_shares(models[1].model.encoder, design_of(models[1], draw))
        assert torch.equal(trained[1, draw], found)
    # with random weights of the draw's own
    for values in untrained:
        assert not torch.equal(values[:, 0], values[:, 1])
    assert torch.equal(design_of(models[0], 1).places, design_of(models[1], 1).places)
    # the image adds nothing to the embedding, so there is no part of it
    assert cells_of(trained[:, :, 0])[-1] == ""


def test_wheels_are_pasted_where_they_were_and_elsewhere(trained, cases):
    images, _, parts = kinds.draw_scenes(scene_indices(kinds.SCENES, "test"), 0)
    for scene, shown in cases.scenes.items():
        numbers = [int((images == image).flatten(1).all(1).nonzero()[0]) for image in shown]
        has_road = (parts[numbers] == PART_NAMES.index("road")).any()
        assert has_road == (scene in (HOME, STREET))
    assert not (cases.scenes[HOME] == cases.scenes[STREET]).flatten(1).all(1).any()
    inputs, patches, places = cases.pasted(trained, WHEEL, HOME)
    # its own patch, put back
    assert_close(study.paste(inputs, patches, places, (4, 4)), inputs)
    assert not torch.equal(cases.pasted(trained, BALL, HOME)[1], patches)


# --- patches put elsewhere

SIZE = (4, 2)


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 8, 12, generator=seeded(count))


def test_a_patch_put_back_has_its_own_token():
    model = wide_encoder()
    inputs, places = images(300), torch.arange(300) % 12  # more than one batch
    rows = torch.arange(300)
    found = pasted_tokens(model, inputs, patchify(inputs, SIZE)[rows, places], places)
    assert_close(found, residual_stream(model, inputs)[:, rows, places], rtol=1e-4, atol=1e-5)


def centred(*shape: int, seed: int) -> torch.Tensor:
    """Random values whose mean over each axis but the last is 0: a term of one set of factors alone."""
    values = torch.randn(*shape, generator=seeded(seed), dtype=torch.double)
    for axis in range(len(shape) - 1):
        if shape[axis] > 1:
            values = values - values.mean(axis, keepdim=True)
    return values / values.square().mean().sqrt()
