"""Whether q . k measures similarity: found where it is planted, and its opposite where that is."""

from dataclasses import replace

import pytest
import torch

from vit.encoder import VisionTransformer
from vit.studies import is_it_similarity
from vit.studies.finding import StudyError
from vit.studies.is_it_similarity import KEYS, MEETINGS, _leaning, _others, form_shares, preferences, read, study


@pytest.fixture
def encoder(learned) -> VisionTransformer:
    """The model's encoder, whose heads take their own part of the tokens as queries and keys."""
    model = VisionTransformer(**learned.model.encoder.arguments)
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
    found = read(learned, learned.model.encoder, 48)
    assert found.first.shape == (3, len(MEETINGS))
    assert found.keys.shape == (2, 3, len(KEYS))
    for shares in (found.first, found.keys):
        torch.testing.assert_close(shares.sum(-1), torch.ones(shares.shape[:-1]), rtol=0, atol=1e-4)
    assert found.keys[0, :, 2].abs().max() < 1e-4


def test_others_are_all_but_oneself():
    square = torch.arange(16).view(4, 4)
    assert _others(square).tolist() == [[1, 2, 3], [4, 6, 7], [8, 9, 11], [12, 13, 14]]


def test_the_study_says_what_was_measured(laboratory, one_seed):
    finding = study(laboratory, one_seed)
    forms, heads, first, keys = finding.tables
    assert finding.answer.startswith(("No.", "Only in part.", "Yes, nearly."))
    assert str(forms.rows[2][1]) in finding.answer
    assert [row[0] for row in heads.rows] == ["layer 0", "layer 1", "all"]
    assert str(heads.rows[-1][1]) in finding.answer
    assert heads.rows[-1][-1].mean > 0.5 > heads.rows[-1][-2].mean
    assert [row[0] for row in first.rows] == list(MEETINGS)
    assert all(len(row) == 7 for row in keys.rows)
    assert set(finding.pictures) == set(finding.captions)


def test_a_model_without_the_two_matrices_is_refused(laboratory, plan):
    model = replace(plan.training.model, qkv="identity")
    with pytest.raises(StudyError, match="no W_Q and W_K"):
        study(laboratory, replace(plan, training=replace(plan.training, model=model)))
