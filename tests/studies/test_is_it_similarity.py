"""Whether q . k measures similarity: found where it is planted, and its opposite where that is."""

from dataclasses import replace

import pytest
import torch

from vit.encoder import VisionTransformer
from vit.studies import is_it_similarity
from vit.studies.finding import brief
from vit.studies.is_it_similarity import (
    KEYS,
    MEETINGS,
    Reading,
    _answer,
    _leaning,
    form_shares,
    preferences,
    read,
    study,
)


@pytest.fixture
def encoder(learned) -> VisionTransformer:
    """The model's encoder, whose heads take their own part of the tokens as queries and keys."""
    model = VisionTransformer(learned.model.encoder.config)
    model.load_state_dict(learned.model.encoder.state_dict())
    for block in model.blocks:
        block.attn.W_Q.data.copy_(torch.eye(96))
        block.attn.W_K.data.copy_(torch.eye(96))
        block.attn.qkv.bias.data.zero_()
    return model.eval()


def test_likeness_that_is_planted_is_found_and_so_is_its_opposite(learned, encoder):
    like = preferences(learned, encoder, 48)
    torch.testing.assert_close(like, preferences(learned, encoder, 48, identity=True), rtol=0, atol=1e-5)
    assert like.shape == (12, 2, 3, 3)
    assert like.mean((0, 2))[:, [0, 2]].min() > 0.5  # of the tokens, also with nearness held constant
    assert _leaning(like)[0].all()
    for block in encoder.blocks[:1]:
        block.attn.W_K.data.neg_()
    unlike = preferences(learned, encoder, 48)
    torch.testing.assert_close(unlike[:, 0], -like[:, 0], rtol=0, atol=1e-5)
    assert _leaning(unlike)[1][0].all()


def test_a_form_that_is_a_similarity_has_all_shares(learned, encoder):
    root = is_it_similarity.spread(learned)
    torch.testing.assert_close(form_shares(encoder, root), torch.ones(3, 4).double())
    encoder.attention(0).W_K.data.neg_()
    shares = form_shares(encoder, root)
    assert shares[:, [0, 2]].min() > 0.999
    assert shares[:, [1, 3]].max() < 1e-6


def test_random_weights_lean_neither_way(learned):
    found = form_shares(learned.initial.encoder, torch.eye(48).double())
    assert found.mean(0).tolist() == pytest.approx([0.51, 0.5] * 2, abs=0.1)
    assert preferences(learned, learned.initial.encoder, 48)[..., 0].mean().abs() < 0.3


def test_shares_sum_to_one_and_the_first_layer_has_taken_nothing_in(learned):
    found = read(learned, learned.model.encoder, 48, is_it_similarity.spread(learned))
    assert found.first.shape == (3, len(MEETINGS))
    assert found.keys.shape == (2, 3, len(KEYS))
    for shares in (found.first, found.keys):
        torch.testing.assert_close(shares.sum(-1), torch.ones(shares.shape[:-1]), rtol=0, atol=1e-4)
    assert found.keys[0, :, 2].abs().max() < 1e-4


def test_the_study_says_what_was_measured(laboratory, one_seed):
    finding = study(laboratory, one_seed)
    forms, heads, first, keys = finding.tables
    assert finding.answer.startswith(("No: ", "Only in part: ", "Yes, nearly: "))
    assert f"are so to {brief(forms.rows[2][1])} (with random weights {brief(forms.rows[2][2])})" in finding.answer
    assert finding.answer.endswith(f"unweighted to {brief(forms.rows[0][1])} ({brief(forms.rows[0][2])}).")
    assert f"in the last layer, {brief(finding.tables[3].rows[-1][1])} of what tells keys apart is" in finding.answer
    assert [row[0] for row in heads.rows] == ["layer 0", "layer 1", "all"]
    assert f": {brief(heads.rows[-1][1])} of the heads prefer keys that are like the query" in finding.answer
    assert heads.rows[-1][-1].mean > 0.5 > heads.rows[-1][-2].mean
    assert [row[0] for row in first.rows] == list(MEETINGS)
    assert all(len(row) == 7 for row in keys.rows)
    assert set(finding.pictures) == set(finding.captions)


def reading(like: int, unlike: int, symmetric: float) -> Reading:
    """Of ten heads of one layer, so many of which prefer like and unlike keys; the others prefer neither."""
    signs = torch.tensor([1.0] * like + [-1.0] * unlike + [0.0] * (10 - like - unlike))
    noise = torch.tensor([-0.1, 0.1] * 20)  # over images
    liking = (0.5 * signs + noise[:, None])[:, None, :, None].expand(-1, 1, 10, 3)
    return Reading(torch.full((10, 4), symmetric), liking, torch.zeros(10, 5), torch.zeros(1, 10, 3))


@pytest.mark.parametrize(
    ("trained", "random", "verdict", "moved"),
    [
        (
            reading(10, 0, 0.95),
            reading(2, 2, 0.5),
            "Yes, nearly: 100% of the heads prefer",
            "moves them towards like keys",
        ),
        (
            reading(10, 0, 0.8),
            reading(2, 2, 0.5),
            "Only in part: 100% of the heads prefer",
            "moves them towards like keys",
        ),
        (
            reading(7, 3, 0.95),
            reading(7, 3, 0.5),
            "Only in part: 70% of the heads prefer",
            "does not clearly move them",
        ),
        (reading(1, 5, 0.95), reading(8, 2, 0.5), "No: 10% of the heads prefer", "moves them towards unlike keys"),
    ],
)
def test_the_answer_follows_the_figures(trained, random, verdict, moved):
    plain = reading(10, 0, 1.0).liking
    said = _answer([trained], [random], [plain])
    assert said.startswith(verdict)
    assert f"where a plain similarity, q = k = x, would by 0.50; training {moved}" in said
    assert f"forms on pixels are so to {float(trained.forms[0, 2]):.0%} (with random weights 50%), unweighted" in said


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            [0.7, 0.2, 0.1],
            ", but like need not mean looking alike: in the last layer, 70% of what tells keys apart is their",
        ),
        ([0.2, 0.7, 0.1], "; in the last layer, 20% of what tells keys apart is their place, 70% their own patch."),
    ],
)
def test_what_tells_keys_apart_is_told_as_it_is(keys, said):
    of = replace(reading(10, 0, 0.8), keys=torch.tensor(keys).expand(1, 10, 3))
    assert said in _answer([of], [reading(2, 2, 0.5)], [of.liking])


def test_of_one_head_nothing_is_clear(laboratory, one_seed):
    model = replace(one_seed.training.model, depth=1, num_heads=1)
    finding = study(laboratory, replace(one_seed, training=replace(one_seed.training, model=model)))
    assert "training does not clearly move them towards either" in finding.answer


@pytest.mark.slow
def test_the_covariance_is_measured_once_a_seed(laboratory, plan, monkeypatch):
    measured, spread = [], is_it_similarity.spread
    monkeypatch.setattr(is_it_similarity, "spread", lambda one: measured.append(one) or spread(one))
    study(laboratory, plan)
    assert len(measured) == 2


def test_seeds_that_disagree_make_nothing_clear():
    apart, alike = [reading(10, 0, 0.95), reading(2, 8, 0.95)], [reading(10, 0, 0.95), reading(9, 0, 0.95)]
    plain = [one.liking for one in alike]
    assert _answer(apart, alike, plain).startswith(
        "Not clearly: 60% ± 57 of the heads prefer keys that are like the query"
    )
    assert _answer(alike, apart, plain).startswith(
        "Yes, nearly: 95% ± 7 of the heads prefer keys that are like the query"
    )
