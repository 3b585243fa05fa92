"""The study of what tokens are made of: shares that must be what they are by construction, and what a pasted patch shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vit.data.scenes import PART_NAMES, draw_scenes, scene_indices
from vit.studies import kinds
from vit.studies import static_and_contextual as study
from vit.studies.finding import StudyError
from vit.studies.static_and_contextual import (
    BALL,
    ELSEWHERE,
    HOME,
    STREET,
    TERMS,
    WHEEL,
    design_of,
    street_wheels,
    token_shares,
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """The laws hold for a design of any size."""
    for name, size in {"PATCHES": 5, "PLACES": 4, "IMAGES": 6, "CASES": 12}.items():
        monkeypatch.setattr(study, name, size)


@pytest.fixture
def cases(plan):
    return street_wheels(plan.training.model, 12)


def test_shares_sum_to_one_and_the_embedding_knows_no_image(learned):
    for model in (learned.model, learned.initial):
        shares = token_shares(model.encoder, design_of(learned))
        assert shares.shape == (3, len(TERMS))
        torch.testing.assert_close(shares.sum(1), torch.ones(3))
        torch.testing.assert_close(shares[0, 2:], torch.zeros(len(TERMS) - 2), rtol=0, atol=1e-6)  # patch + position
        assert (shares[0, :2] > 0.01).all()
        assert shares[-1, 3:].sum() > 0.01


def test_without_attention_no_token_knows_its_image(learned):
    encoder = learned.initial.encoder
    kept = {name: value.clone() for name, value in encoder.state_dict().items()}
    for block in encoder.blocks:
        block.attn.proj.weight.data.zero_()
    shares = token_shares(encoder, design_of(learned))
    encoder.load_state_dict(kept)
    torch.testing.assert_close(shares[:, 3:], torch.zeros(3, len(TERMS) - 3), rtol=0, atol=1e-6)
    assert shares[-1, 2] > 0  # each MLP mixes patch and position


def test_wheels_are_pasted_where_they_were_and_elsewhere(learned, cases):
    images, _, parts = draw_scenes(scene_indices(kinds.SCENES, "test"), 0)
    assert list(cases.scenes) == [HOME, STREET, *ELSEWHERE]
    found = {scene: set() for scene in cases.scenes}
    for scene, shown in cases.scenes.items():
        for image in shown:
            number = int((images == image).flatten(1).all(1).nonzero()[0])
            found[scene].update(PART_NAMES[part] for part in parts[number].unique().tolist())
    assert "road" in found[HOME] & found[STREET]
    assert not any("road" in found[scene] for scene in ELSEWHERE)
    assert "water" in found["sea"]
    assert "grass" in found["meadow"]
    assert "fuselage" in found["air"]
    assert not (cases.scenes[HOME] == cases.scenes[STREET]).flatten(1).all(1).any()
    inputs, patches, places = cases.pasted(learned, WHEEL, HOME)
    torch.testing.assert_close(study.paste(inputs, patches, places, (4, 4)), inputs)  # its own patch, put back
    assert not torch.equal(cases.pasted(learned, BALL, HOME)[1], patches)


def test_a_token_moves_only_where_something_comes_in(learned, cases):
    found = cases.distances(learned, learned.model.encoder)
    assert found.shape == (2, 4, 3, len(cases.places))
    torch.testing.assert_close(found[:, :, 0], torch.zeros_like(found[:, :, 0]), rtol=0, atol=1e-5)  # the embedding
    assert (found[:, :, -1].mean(-1) > 0.01).all()


def test_the_answer_follows_the_figures():
    shares = {
        name: torch.tensor(2 * [[[0.9, 0.1, 0, 0, 0, 0], [0.3, 0.2, 0.1, 0.2, 0.1, 0.1]]]) for name in study.MODELS
    }

    def answer(wheel: float, ball: float, spread: float = 0.0) -> str:
        moved = torch.full((2, 2, 4, 3, 5), 0.1)
        moved[:, 0, 1:], moved[:, 1, 1:] = wheel, ball
        moved[0, 0, 1:] += spread  # of two seeds
        moved[1, 0, 1:] -= spread
        return study.answer(shares, dict.fromkeys(study.MODELS, moved), "Scenes")

    assert "and the image around them (40.0% ± 0.0;" in answer(0.5, 0.5)
    assert answer(0.5, 0.52).endswith("whether the patch belongs there or not.")
    assert answer(0.03, 0.5).endswith("less than another street does.")
    assert answer(0.11, 0.5).endswith("around the wheel hardly matters.")
    assert answer(0.11, 0.5, 0.1).endswith("what kind of scene lies around the wheel is not clear.")
    assert answer(0.5, 0.52, 0.1).endswith("the foreign scenes move the wheel not clearly more or less than the ball.")
    assert answer(0.5, 0.2).endswith("move the wheel more than the ball.")
    assert answer(0.3, 0.6).endswith("move the wheel less than the ball.")


@pytest.mark.slow
def test_the_study_as_a_whole(laboratory, one_seed, monkeypatch):
    monkeypatch.setattr(study, "PLACES", 100)  # there are 64
    finding = study.study(laboratory, one_seed)
    assert finding.limits.startswith("The shares are those of 5 patches, each at 64 places of 6 images of Scenes, ")
    assert set(finding.pictures) == set(finding.captions)
    assert [len(row) for table in finding.tables for row in table.rows] == [
        len(table.columns) for table in finding.tables for _ in table.rows
    ]


class NoTraining:
    """Stands for a laboratory of these images where nothing may be trained."""

    def __init__(self, data: object):
        self.data = lambda config: data


@pytest.mark.parametrize("size", [8, 16])
def test_large_patches_are_refused_before_any_training(learned, plan, size):
    config = replace(plan.training, model=replace(plan.training.model, patch_size=size))
    said = f"^static-and-contextual: too few patches of {size} x {size} pixels are filled by a .*; take model.patch_size 4$"
    with pytest.raises(StudyError, match=said):
        study.study(NoTraining(learned.data), replace(plan, training=config))


@pytest.mark.parametrize("count", [1, 5, 6])
def test_too_few_images_are_refused_before_any_training(learned, plan, count):
    few = replace(learned.data, test=learned.data.test.subset(torch.arange(count)))
    with pytest.raises(StudyError, match=rf"^static-and-contextual: {count} test images are too few; .* 7 at least$"):
        study.study(NoTraining(few), plan)


def test_as_many_images_as_are_asked_for_are_enough(learned):
    few = replace(learned.data, test=learned.data.test.subset(torch.arange(7)))
    design = design_of(replace(learned, data=few))
    assert design.description == "5 patches, each at 4 places of 2 images"
    shares = token_shares(learned.model.encoder, design)
    torch.testing.assert_close(shares.sum(1), torch.ones(3))
