"""The study of company: a planted likeness is found and its absence is not, and the answer follows the figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from vit.studies import kinds, tyres_and_roads
from vit.studies.finding import StudyError
from vit.studies.kinds import ALONE, BESIDE, TOGETHER, WHOLE, Kinds
from vit.studies.tyres_and_roads import ARMS, AS_UNTRAINED, IN_SHORT, NO, UNCLEAR, UNSURE, YES, Company, answer

NAMES = ("wheel", "ball", "buoy", "road", "grass", "water")


def company(whole: list[float], alone: list[float], static: float = 0.0, p: float = 0.01) -> Company:
    """With gains of the arms in the last block, whole and alone, and of the trained one in the static embedding."""
    shown = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    found = Kinds("Scenes", NAMES, {WHOLE: (shown, False), ALONE: (shown, True)}, torch.zeros(2, 4), {})
    follows, cosines = {}, {}
    for view, values in ((WHOLE, whole), (ALONE, alone)):
        for arm, value in zip(ARMS, values, strict=True):
            of = torch.zeros(2, 3, 3)  # two seeds, three stages; correlation, p, gain
            of[:, -1] = torch.tensor([[0.5, p, value - 0.01], [0.5, 0.01, value + 0.01]])
            if arm == "trained":
                of[:, 0] = torch.tensor([0.4, 0.01, static])
            follows |= {(met, arm, view): of for met in (TOGETHER, BESIDE)}
            cosines[arm, view] = torch.zeros(2, 3, 6, 6)
    looks = {WHOLE: torch.zeros(6, 6), ALONE: torch.zeros(6, 6)}
    return Company(found, looks, cosines, follows)


@pytest.mark.parametrize(
    ("whole", "alone", "static", "verdicts"),
    [
        ([0.5, 0.2, 0.1, 0.5], [0.4, 0.1, 0.2, 0.1], 0.3, (YES, YES, YES)),
        ([0.5, 0.2, 0.48, 0], [0.4, 0.1, 0.2, 0.1], 0.04, (AS_UNTRAINED, YES, AS_UNTRAINED)),
    ],
)
def test_the_answer_follows_the_figures(whole, alone, static, verdicts):
    said = answer([company(whole, alone, static)])
    assert (
        f"On Scenes, two kinds of patches that are often in one image are, after the last block, {verdicts[0]}: "
        in said
    )
    assert f"rises by {whole[0]:.2f} ± 0.01 with each standard deviation of how often they meet; shown" in said
    assert f"they are {IN_SHORT[verdicts[1]]} ({alone[0]:.2f} ± 0.01)," in said
    assert f"in the static embedding {IN_SHORT[verdicts[2]]} ({static:.2f} ± 0.00)." in said


def test_what_chance_would_give_is_nothing():
    assert company([0.5, 0.1, 0.1, 0.1], [0.0] * 4).verdict(WHOLE, -1) == YES
    assert company([0.0, 0.1, 0.1, 0.1], [0.0] * 4, p=0.2).verdict(WHOLE, -1) == NO
    assert company([0.5, 0.1, 0.1, 0.1], [0.0] * 4, p=0.2).verdict(WHOLE, -1) == UNCLEAR
    turned = company([-0.5, 0.1, 0.1, 0.1], [0.0] * 4)
    turned.follows[TOGETHER, "trained", WHOLE][..., 0] *= -1  # farther apart, the more they are together
    assert turned.verdict(WHOLE, -1) == NO


def test_a_difference_within_the_spread_is_none():
    found = company([0.3, 0.2, 0.2, 0.2], [0.0] * 4)
    assert found.verdict(WHOLE, -1) == YES
    found.follows[TOGETHER, "random weights", WHOLE][:, -1, 2] += torch.tensor([-0.1, 0.1])
    assert found.verdict(WHOLE, -1) == UNSURE
    found.follows[TOGETHER, "shuffled across images", WHOLE][:, -1, 2] += 0.08  # shown to gain as much
    assert found.verdict(WHOLE, -1) == AS_UNTRAINED


def test_where_seeds_disagree_nothing_is_shown_not_to_be():
    found = company([0.0, 0.1, 0.1, 0.1], [0.0] * 4, p=0.2)
    found.follows[TOGETHER, "trained", WHOLE][:, -1, 2] = torch.tensor([0.0, 0.5])
    assert found.verdict(WHOLE, -1) == UNCLEAR


def test_data_are_named_where_they_differ():
    yes, no = company([0.5, 0.1, 0.1, 0.1], [0.0] * 4), company([0.0] * 4, [0.0] * 4, p=0.5)
    no = replace(no, kinds=replace(no.kinds, data="CIFAR-10"))
    said = answer([yes, no])  # the plan's own data are the last that were measured, and the first that are told of
    assert said.startswith(
        f"On CIFAR-10, two kinds of patches that are often in one image are, after the last block, {NO}: "
    )
    assert f" On Scenes, two kinds of patches that are often in one image are, after the last block, {YES}: " in said


@pytest.mark.parametrize(
    ("wheel", "ball", "said"),
    [
        (0.6, 0.2, "nearer to wheels than to balls (cosines of 0.60 ± 0.00 and 0.20 ± 0.00, with buoys 0.00"),
        (0.2, 0.6, "nearer to balls than to wheels ("),
        (0.6, 0.58, "as near to wheels as to balls ("),
    ],
)
def test_roads_are_said_to_be_where_they_are(wheel, ball, said):
    found = company([0.5, 0.1, 0.1, 0.1], [0.0] * 4)
    road = NAMES.index("road")
    for kind, cosine in (("wheel", wheel), ("ball", ball)):
        found.cosines["trained", WHOLE][:, -1, NAMES.index(kind), road] = cosine
    assert f"roads end {said}" in answer([found])
    assert "with each patch shown alone, as near to wheels as to balls (" in answer([found])


def test_roads_are_not_said_to_be_as_near_to_both_where_seeds_disagree():
    found = company([0.5, 0.1, 0.1, 0.1], [0.0] * 4)
    wheel = torch.tensor([0.1, 0.5])
    found.cosines["trained", WHOLE][:, -1, NAMES.index("wheel"), NAMES.index("road")] = wheel
    assert "roads end not clearly nearer to wheels or to balls (cosines of 0.30 ± 0.28 and 0.00 ± 0.00, with" in answer(
        [found]
    )


class Planted:
    """A model whose tokens are not computed but given: of each kind, a vector that is near those of its company."""

    def __init__(self, parts: Kinds, near: Tensor):
        values, vectors = torch.linalg.eigh(near.double())
        self.of = vectors * values.clamp(min=0).sqrt()  # (K, K), products as near as they can be to `near`
        self.labels, self.done = parts.labels, 0

    def __call__(self, encoder: object, inputs: Tensor, alone: bool) -> Tensor:
        labels = self.labels[self.done : self.done + len(inputs)]
        self.done += len(inputs)
        return self.of[labels.clamp(min=0)][None]  # (1, B, L, K)


@pytest.mark.parametrize("planted", [True, False])
def test_a_planted_likeness_is_found_and_its_absence_is_not(learned, parts, monkeypatch, planted):
    looks = parts.looks(learned, WHOLE)
    near = parts.met[TOGETHER].clamp(-3, 3) if planted else looks[0]
    monkeypatch.setattr(kinds, "residual_stream", Planted(parts, near))
    cosines = parts.cosines(learned, learned.model.encoder, WHOLE)
    found = tyres_and_roads.association(cosines[0], parts.met[TOGETHER], looks)
    if planted:
        assert found.correlation > 0.6
        assert found.p < 0.01
    else:
        assert abs(found.correlation) < 0.2


@pytest.mark.slow
def test_the_study_as_a_whole(laboratory, one_seed, monkeypatch):
    monkeypatch.setattr(kinds, "SCENES", 600)
    monkeypatch.setattr(kinds, "LEAST", 3)
    finding = tyres_and_roads.study(laboratory, one_seed)
    assert set(finding.pictures) == set(finding.captions)
    for table in finding.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    pixels = [row for row in finding.tables[0].rows if row[0] == "pixels"]
    assert all(float(str(row[-1])) > 0.9 for row in pixels)  # a wheel and a ball look alike


@pytest.mark.parametrize("size", [8, 16])
def test_large_patches_are_refused_before_any_training(plan, size):
    config = replace(plan.training, model=replace(plan.training.model, patch_size=size))
    said = f"^tyres-and-roads: too few patches of {size} x {size} pixels are filled by a .*; take model.patch_size 4$"
    with pytest.raises(StudyError, match=said):
        tyres_and_roads.study(None, replace(plan, training=config))


@pytest.mark.slow
@pytest.mark.parametrize("images", [1, 2])
def test_too_few_kinds_are_refused_before_any_training(laboratory, plan, monkeypatch, images):
    data = replace(plan.training.data, source="cifar10")  # any but Scenes; its images are not looked for
    other = replace(plan, images=images, training=replace(plan.training, data=data))
    found = replace(laboratory.data(plan.training), name="Mine")
    monkeypatch.setattr(laboratory, "data", lambda config: found)
    monkeypatch.setattr(laboratory, "learn", lambda *_: pytest.fail("trained"))
    said = rf"^Mine: [0-7] kinds of patches are frequent enough in {images} test images, 8 are needed; take more images"
    with pytest.raises(StudyError, match=said):
        tyres_and_roads.study(laboratory, other)
