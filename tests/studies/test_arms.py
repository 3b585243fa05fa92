"""Arms: what is frozen stays, what is taken away is gone, and what two arms differ by is told with its spread."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from vit.interpret import AttentionMaps
from vit.masking import make_mask
from vit.studies import arms
from vit.studies.arms import (
    Arm,
    compared,
    difference,
    extremes,
    learn_arm,
    numbers_that_learn,
    require_labels,
    stands_out,
)
from vit.studies.finding import StudyError, seeds

THIRDS = {"W_Q": 0, "W_K": 1, "W_V": 2}


def moved(learned) -> set[str]:
    """Names of the parameters that training changed; of a qkv layer, its thirds."""
    names = set()
    before = learned.initial.state_dict()
    for name, value in learned.model.state_dict().items():
        if ".qkv." in name:
            thirds = zip(THIRDS, value.chunk(3), before[name].chunk(3), strict=True)
            names |= {f"{name}/{third}" for third, here, there in thirds if not torch.equal(here, there)}
        elif not torch.equal(value, before[name]):
            names.add(name)
    return names


@pytest.mark.parametrize(
    ("arm", "stays"),
    [
        (arms.W_E_FROZEN, ["patch_embed"]),
        (arms.W_V_FROZEN, ["/W_V"]),
        (arms.QUERIES_AND_KEYS_FROZEN, ["/W_Q", "/W_K"]),
        (arms.MLP_FROZEN, [".mlp."]),
    ],
)
def test_what_is_frozen_stays_and_all_else_learns(laboratory, one_seed, arm, stays):
    (usual,), (learned,) = (learn_arm(laboratory, one_seed, one) for one in (arms.AS_IT_IS, arm))
    frozen = {name for name in moved(usual) if any(part in name for part in stays)}
    assert {name.split(".")[0] for name in frozen} >= {"encoder"}
    keys = {name for name in moved(usual) if name.endswith("qkv.bias/W_K")}  # without a gradient, but for rounding
    assert moved(learned) | keys == (moved(usual) - frozen) | keys
    for name, value in usual.initial.state_dict().items():  # and begins alike
        assert torch.equal(learned.initial.state_dict()[name], value)


@pytest.mark.slow
def test_numbers_that_learn(laboratory, one_seed):
    def of(arm: Arm) -> int:
        return numbers_that_learn(learn_arm(laboratory, one_seed, arm)[0])

    layers = 2 * [96] + [32]  # widths, of encoder and decoder
    third = sum(width * width + width for width in layers)
    assert of(arms.AS_IT_IS) - of(arms.W_V_FROZEN) == third
    assert of(arms.AS_IT_IS) - of(arms.IDENTITY) == 3 * third
    assert of(arms.POSITIONS_LEARNED) - of(arms.AS_IT_IS) == 65 * 96
    assert of(arms.ENCODER_WITHOUT_POSITIONS) == of(arms.AS_IT_IS)
    (learned,) = learn_arm(laboratory, one_seed, arms.AS_IT_IS)
    fixed = 65 * 96 + 65 * 32
    assert of(arms.AS_IT_IS) == sum(value.numel() for value in learned.model.state_dict().values()) - fixed


def test_uniform_attention_is_uniform(laboratory, one_seed):
    (learned,) = learn_arm(laboratory, one_seed, arms.UNIFORM)
    images = learned.prepare(learned.data.test.images[:4])
    mask = make_mask("random", 4, (8, 8), 0.75, torch.Generator().manual_seed(0))
    for part, tokens in ((learned.model.encoder, 17), (learned.model.decoder, 65)):
        with AttentionMaps(part) as maps:
            learned.model(images, mask)
        for weights in maps.weights.values():
            assert torch.equal(weights, torch.full_like(weights, 1 / tokens))


def test_without_positions_in_the_encoder_a_token_does_not_know_its_place(laboratory, one_seed):
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    rolled = images.roll(4, dims=3)  # by one patch
    for arm, blind in ((arms.ENCODER_WITHOUT_POSITIONS, True), (arms.AS_IT_IS, False)):
        (learned,) = learn_arm(laboratory, one_seed, arm)
        with torch.no_grad():
            here, there = (learned.model.encoder(one)[:, 1:].unflatten(1, (8, 8)) for one in (images, rolled))
        assert torch.allclose(here.roll(1, dims=2), there, atol=1e-4) == blind


def test_without_any_positions_all_hidden_patches_are_filled_in_alike(laboratory, one_seed):
    mask = make_mask("random", 4, (8, 8), 0.75, torch.Generator().manual_seed(0))
    for arm, alike in ((arms.NO_POSITIONS, True), (arms.ENCODER_WITHOUT_POSITIONS, False)):
        (learned,) = learn_arm(laboratory, one_seed, arm)
        with torch.no_grad():
            prediction = learned.model(learned.prepare(learned.data.test.images[:4]), mask)
        for one, hidden in zip(prediction, mask.mask > 0, strict=True):
            spread = one[hidden].std(0).max() / one[hidden].std()
            assert (spread < 1e-3) == alike


def test_arms_of_the_same_name_are_the_same_models(laboratory, one_seed, monkeypatch):
    learn_arm(laboratory, one_seed, arms.IDENTITY)
    monkeypatch.setattr(laboratory, "tell", lambda line: pytest.fail(line))
    learn_arm(laboratory, one_seed, arms.IDENTITY)


def test_differences_are_taken_seed_by_seed():
    found = difference(seeds([0.5, 0.7, 0.9]), seeds([0.4, 0.6, 0.8]))
    assert found.values == pytest.approx((0.1, 0.1, 0.1))
    assert stands_out(found)
    assert not stands_out(difference(seeds([0.5, 0.7, 0.9]), seeds([0.6, 0.6, 0.8])))
    assert not stands_out(difference(seeds([0.9]), seeds([0.1])))  # one seed has no spread
    points = difference(seeds([0.5, 0.6], share=True), seeds([0.4, 0.6], share=True))
    assert points.values == pytest.approx((10, 0))
    assert not points.share


def test_images_without_labels_are_refused(laboratory, one_seed, tmp_path):
    for number in range(4):
        Image.new("RGB", (32, 32), (number * 20, 0, 0)).save(tmp_path / f"{number}.png")
    data = replace(one_seed.training.data, source="folder", root=str(tmp_path), cache=str(tmp_path / "cache"), limit=0)
    with pytest.raises(StudyError, match="has no labels to measure features by"):
        require_labels(laboratory, replace(one_seed, training=replace(one_seed.training, data=data)), "identity-case")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.02, 0.03, 0.025], "0.025 ± 0.005 higher"),
        ([-0.02, -0.03, -0.025], "0.025 ± 0.005 lower"),
        ([0.01, -0.03, 0.05], "not clearly lower or higher (+0.010 ± 0.040)"),
        ([-0.02], "0.020 lower (of one seed)"),
        ([0.02], "0.020 higher (of one seed)"),
    ],
)
def test_a_difference_says_whether_it_is_one(values, said):
    assert compared(seeds(values, digits=3), "lower", "higher") == said


def test_a_difference_has_its_unit():
    assert compared(seeds([3.0, 3.2], digits=1), "less often", "more often", " points") == "3.1 ± 0.1 points more often"
    unclear = "not clearly less often or more often (-0.5 ± 3.5 points)"
    assert compared(seeds([-3.0, 2.0], digits=1), "less often", "more often", " points") == unclear


COST = {"small": seeds([0.1, 0.12], digits=2), "large": seeds([0.5, 0.6], digits=2)}
NONE = {"none": seeds([0.01, -0.03], digits=2)}
LITTLE = {"little": seeds([0.01, 0.01], digits=2)}
GAIN = {"gain": seeds([-0.2, -0.22], digits=2)}


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        (COST, "most is lost with large (+0.55 ± 0.07)"),
        (COST | NONE, "most is lost with large (+0.55 ± 0.07), nothing clear with none"),
        (COST | LITTLE, "most is lost with large (+0.55 ± 0.07), little with little (+0.01 ± 0.00)"),
        (
            LITTLE | COST | NONE,
            "most is lost with large (+0.55 ± 0.07), little with little (+0.01 ± 0.00), nothing clear with none",
        ),
        (COST | NONE | GAIN, "most is lost with large (+0.55 ± 0.07), nothing clear with none"),
        (NONE, "nothing clear is lost with any of them"),
        (GAIN | NONE, "nothing clear is lost with any of them"),
        ({"a": seeds([0.1]), "b": seeds([0.2])}, "most is lost with b (+0.200), least with a (+0.100), of one seed"),
        ({"a": seeds([-0.1]), "b": seeds([-0.2])}, "nothing is lost with any of them, of one seed"),
    ],
)
def test_what_costs_most_and_what_costs_nothing(differences, said):
    assert extremes(differences, best=-1) == said


def test_where_more_is_better_the_lowest_costs_most():
    accuracy = {"better": seeds([3.0, 3.1]), "worse": seeds([-4.0, -4.1]), "none": seeds([1.0, -1.2])}
    said = "most is lost with worse (-4.050 ± 0.071 points), nothing clear with none"
    assert extremes(accuracy, best=1, unit=" points") == said


def test_of_many_arms_some_are_named():
    many = {name: seeds([0.1, -0.1]) for name in "abcdef"} | {"it": seeds([1.0, 1.1])}
    assert extremes(many, best=-1).endswith(" with a, b, c and 3 others")
    del many["e"], many["f"]
    assert extremes(many, best=-1).endswith(" with a, b, c or d")
