"""Law: the lesson's numbers are the shipped model's own attention, and its page has them."""

import re

import pytest
import torch
from forks import ROOT
from tiny import captured

from studies.one_score import KEYS, MODEL, PICTURE, WHEEL, lesson_numbers, lesson_text
from vit.checkpoints import load_model
from vit.inputs import to_float
from vit.scenes import draw_scenes

QUESTIONS = ROOT / "docs" / "questions"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
WHEEL_TOKEN = 1 + 8 * WHEEL[0] + WHEEL[1]


@pytest.fixture(scope="module")
def encoder():
    return load_model(MODEL, part="encoder").eval()


@pytest.fixture(scope="module")
def numbers(encoder):
    return lesson_numbers(encoder)


@pytest.fixture(scope="module")
def inputs(encoder):
    pictures = draw_scenes(torch.tensor([PICTURE]), seed=0)[0]
    return encoder.origin.normalize(to_float(pictures, (32, 32)))


def test_the_shares_are_those_of_the_model_in_the_head_that_looks_most_at_the_road(
    encoder, numbers, inputs
):
    maps = captured(encoder, inputs)
    rows = torch.stack(
        [maps.layer_weights(layer)[0, :, WHEEL_TOKEN] for layer in range(len(encoder.blocks))]
    )
    row = rows[numbers["layer"], numbers["head"]]
    assert torch.allclose(row, numbers["maps"]["shares"], atol=1e-5)
    assert torch.allclose(numbers["maps"]["scores"].softmax(-1), row, atol=1e-5)
    road = KEYS["the road below it"]
    to_road = rows[..., 1 + 8 * road[0] + road[1]]
    assert float(to_road.max()) == pytest.approx(numbers["keys"]["the road below it"]["share"])
    for key in numbers["keys"].values():
        assert key["first_term"] + key["other_terms"] == pytest.approx(key["product"], abs=1e-3)


def test_the_page_is_what_the_command_writes(numbers):
    """Up to the last digit, which differs between machines."""
    page = (QUESTIONS / "one-score.md").read_text(encoding="utf-8")
    text = lesson_text(numbers)
    assert NUMBER.sub("#", page) == NUMBER.sub("#", text)
    for said, computed in zip(NUMBER.findall(page), NUMBER.findall(text), strict=True):
        unit = 10.0 ** -len(said.partition(".")[2])
        assert float(said) == pytest.approx(float(computed), abs=1.01 * unit), (said, computed)
