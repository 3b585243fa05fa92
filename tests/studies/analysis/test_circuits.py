"""Angles between spaces, how much of a map lies in one, and the first layer as forms on pixels."""

import math

import pytest
import torch

from vit.config import ViTConfig
from vit.encoder import VisionTransformer
from vit.interpret import AttentionError
from vit.patches import patchify
from vit.studies.analysis.circuits import (
    leading_pairs,
    pixel_forms,
    positive_share,
    principal_angles,
    share_within,
    symmetric_share,
)
from vit.studies.analysis.logits import split_first_logits


def test_known_angles():
    plane = torch.eye(4)[:2]
    turned = torch.tensor([[math.cos(0.3), 0, math.sin(0.3), 0], [0, 0, 0, 1.0]])
    expected = [math.degrees(0.3), 90]
    assert principal_angles(plane, turned).tolist() == pytest.approx(expected)
    assert principal_angles(torch.cat([plane, plane]), turned).tolist() == pytest.approx(expected)  # nothing new


def test_shares_of_a_space_and_of_what_is_left_sum_to_one():
    torch.manual_seed(0)
    matrix, basis = torch.randn(8, 12), torch.linalg.qr(torch.randn(12, 12)).Q
    parts = [share_within(matrix, basis[:5]), share_within(matrix, basis[5:])]
    assert sum(parts) == pytest.approx(1)
    assert share_within(torch.randn(4, 5) @ basis[:5], basis[:5]) == pytest.approx(1)


# --- forms on pixels -----------------------------------------------------------------------------------------------------


def encoder_of(**settings) -> VisionTransformer:
    torch.manual_seed(0)
    sizes = dict(image_size=(8, 12), patch_size=(4, 4), embed_dim=24, depth=1, num_heads=3)
    model = VisionTransformer(ViTConfig(**sizes | settings))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def test_a_form_gives_the_logits_of_contents():
    encoder = encoder_of()
    images = torch.randn(2, 3, 8, 12)
    patches = patchify(images, (4, 4))
    block = encoder.blocks[0]
    divisor = (encoder.embed(encoder.patchify(images)).var(-1, unbiased=False) + block.norm1.eps).sqrt()[
        :, 1:
    ]  # (B, L)
    forms = pixel_forms(encoder)
    expected = (
        torch.einsum("bip,hpq,bjq->bhij", patches, forms, patches) / (divisor[:, :, None] * divisor[:, None])[:, None]
    )
    torch.testing.assert_close(split_first_logits(encoder, images)[0, 0, :, :, 1:, 1:], expected, rtol=1e-4, atol=1e-5)


def test_an_inner_product_is_symmetric_and_positive_and_its_negative_is_not():
    torch.manual_seed(0)
    a = torch.randn(2, 9, 5)
    inner = a @ a.mT
    for share, of, value in ((symmetric_share, inner, 1), (positive_share, inner, 1), (positive_share, -inner, 0)):
        assert share(of).tolist() == pytest.approx([value, value], abs=1e-6)
    turned = torch.randn(9, 9)
    assert float(symmetric_share(turned - turned.T)) == pytest.approx(0)
    assert float(positive_share(turned)) == pytest.approx(float(positive_share(turned + turned.T)))


def test_random_forms_have_the_shares_of_chance():
    torch.manual_seed(0)
    forms = torch.randn(200, 12, 12)
    assert float(symmetric_share(forms).mean()) == pytest.approx(0.5 + 1 / 24, abs=0.01)
    assert float(positive_share(forms).mean()) == pytest.approx(0.5, abs=0.02)


def test_equal_queries_and_keys_make_a_similarity():
    encoder = encoder_of()
    attention = encoder.attention(0)
    attention.W_K.data.copy_(attention.W_Q.data)
    forms = pixel_forms(encoder)
    assert symmetric_share(forms).tolist() == pytest.approx([1] * 3)
    assert positive_share(forms).tolist() == pytest.approx([1] * 3, abs=1e-6)


def test_all_pairs_together_are_the_form():
    torch.manual_seed(0)
    form = torch.randn(7, 7).double()
    asked, found, shares = leading_pairs(form, 7)
    assert float(shares.sum()) == pytest.approx(1)
    assert shares.tolist() == sorted(shares.tolist(), reverse=True)
    assert (asked.sum(1) >= 0).all()
    torch.testing.assert_close(asked.T * shares.sqrt() * form.norm() @ found, form)
    assert all(len(part) == 2 for part in leading_pairs(form, 2))


@pytest.mark.parametrize(("settings", "reason"), [({"qkv": "identity"}, "no W_Q"), ({"qk_norm": True}, "normalises")])
def test_attention_without_a_form_is_refused(settings, reason):
    with pytest.raises(AttentionError, match=reason):
        pixel_forms(encoder_of(**settings))
