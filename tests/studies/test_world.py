"""The world that one sets: what occurs together in it, what a model of it learns, and the study."""

import json
from dataclasses import replace

import pytest
import torch
from small import close

from studies import StudyConfig, world
from studies.running import run_study
from studies.world import BALL, CONE, GRASS, ROAD, SKY, WATER, WHEEL, Arm, Training, World


def drawn(**settings) -> torch.Tensor:
    """The kinds in 4,000 images, (n, row, column)."""
    return World(**settings).draw(4000, torch.Generator().manual_seed(0)).view(-1, 4, 4)


def test_no_two_kinds_look_more_alike_than_others():
    pixels = world.kind_pixels()
    torch.testing.assert_close(pixels @ pixels.T / world.PIXELS, torch.eye(len(world.KINDS)))


@pytest.mark.parametrize("substitutes", [False, True])
@pytest.mark.parametrize("company", [0.5, 1])
@pytest.mark.parametrize("one_scene", [False, True])
def test_what_is_set_occurs_together_and_nothing_else(company, substitutes, one_scene):
    kinds = drawn(company=company, substitutes=substitutes, one_scene=one_scene)
    assert (kinds[:, :2] == SKY).all()
    below = kinds[:, 2:].flatten(1) if one_scene else kinds[:, 2:].mT.flatten(0, 1)
    has = torch.stack([(below == kind).any(1) for kind in range(len(world.KINDS))])
    together = (has[:, None] & has).float().sum(-1)  # (K, K): in how many scenes or columns

    # Of what each thing comes with: road, grass, water
    grounds = together[CONE:, ROAD : WATER + 1]
    of_wheels = [company, 1 - company, 0]
    expected = [*torch.eye(3).tolist(), of_wheels, of_wheels if substitutes else [0, 0, 1]]
    shares = grounds / grounds.sum(1, keepdim=True)
    close(shares, torch.tensor(expected), 0.05)
    # No two grounds; of the things only wheel and ball, which never share a column
    assert together[ROAD, GRASS] == together[ROAD, WATER] == together[GRASS, WATER] == 0
    assert together[CONE:WHEEL, WHEEL:].sum() == 0
    assert (together[WHEEL, BALL] > 0) == (substitutes and one_scene)


def test_shuffled_nothing_occurs_together():
    kinds = drawn(shuffled=True)
    wheel, road = kinds[:, 2] == WHEEL, kinds[:, 3] == ROAD
    chance = float(wheel.float().mean() * road.float().mean())
    assert float((wheel & road).float().mean()) == pytest.approx(chance, rel=0.1)


def test_what_takes_the_wheels_place_becomes_similar_and_other_draws_stay_as_they_were():
    before = torch.get_rng_state()
    measured = {}
    for company in (0, 1):
        training = Training(seed=10)
        for _ in range(150):
            training.step(World(company, substitutes=True))
        measured[company] = world.measure(training.model)
    assert sum(parameter.numel() for parameter in training.model.parameters()) == 20_848
    assert torch.equal(torch.get_rng_state(), before)
    for found in measured.values():
        assert found["embedding: ball"] > 0.7
    for name in ("embedding", "reconstructed"):
        assert measured[1][f"{name}: road"] > measured[1][f"{name}: grass"] + 0.2
        assert measured[0][f"{name}: grass"] > measured[0][f"{name}: road"] + 0.2


def test_the_world_changes_after_half_of_the_steps(monkeypatch):
    monkeypatch.setattr(world, "EVERY", 1)
    always = world.learn(Arm(World()), [10], 4)["embedding: road"][0]
    changed = world.learn(Arm(World(), then=World(0)), [10], 4)["embedding: road"][0]
    assert (always == changed).tolist() == [True, True, True, False, False]


def test_the_study_takes_neither_images_nor_models(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(world, "QUICK_STEPS", 4)
    monkeypatch.setattr(world, "EVERY", 1)
    quick = replace(experiment, study=StudyConfig([10], quick=True))
    monkeypatch.setattr(quick, "data", lambda *_: pytest.fail("loaded"))
    run_study("world", quick, tmp_path, "")
    found = json.loads((tmp_path / "world" / "results.json").read_text())
    assert (found["data"], found["seeds"]) == ([], [10])
    assert all(table["rows"] for table in found["tables"])
    assert (tmp_path / "world" / "curves.png").exists()
