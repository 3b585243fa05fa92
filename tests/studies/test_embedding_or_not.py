"""What W_Q, W_K and W_V read of what the embedding writes."""

import pytest
import torch

from vit.config import ViTConfig
from vit.encoder import VisionTransformer
from vit.studies.embedding_or_not import MATRICES, answer, reading, study
from vit.studies.finding import seeds


@pytest.fixture
def encoder() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(ViTConfig((16, 16), (4, 4), embed_dim=96, depth=1, num_heads=3))


def test_a_matrix_that_reads_only_what_is_written_lies_in_it(encoder):
    written = encoder.patch_embed.proj.weight.detach().flatten(1).T  # (48, 96)
    written = written - written.mean(1, keepdim=True)
    encoder.attention(0).W_K.data.copy_((torch.randn(96, 48) @ written).T)
    angle, share = reading(encoder, "W_K")[0].tolist()
    assert share == pytest.approx(1)
    assert angle == pytest.approx(0, abs=1e-4)


def test_a_matrix_that_reads_nothing_of_it_is_at_right_angles(encoder):
    written = encoder.patch_embed.proj.weight.detach().flatten(1).T
    _, _, rows = torch.linalg.svd(torch.cat([written, torch.ones(1, 96)]).double())
    encoder.attention(0).W_Q.data.copy_((torch.randn(96, 47).double() @ rows[49:]).T)
    angle, share = reading(encoder, "W_Q")[0].tolist()
    assert share == pytest.approx(0, abs=1e-9)
    assert angle == pytest.approx(90, abs=1e-3)


def test_random_matrices_are_at_chance_and_the_scale_of_the_norm_counts(encoder):
    before = reading(encoder, "W_V")[0]
    assert float(before[1]) == pytest.approx(48 / 95, abs=0.03)
    encoder.blocks[0].norm1.weight.data[:48] = 0
    assert not torch.allclose(reading(encoder, "W_V")[0], before, atol=1e-2)


def test_the_study_says_what_was_measured(laboratory, plan):
    finding = study(laboratory, plan)
    assert finding.answer.startswith(
        "No: the embedding W_E makes a patch's first vector of its 48 pixel values, once; in each of 2"
    )
    shapes, angles = finding.tables
    assert f"lie {angles.rows[0][2].mean:.1f} ± " in finding.answer
    assert shapes.rows[0][1] == "48 x 96"
    assert [row[0] for row in angles.rows] == list(MATRICES)
    assert all(len(cell.values) == 2 for row in angles.rows for cell in row[1:4])
    assert shapes.rows[1][2] == 2  # layers


@pytest.mark.parametrize(
    ("queries", "keys", "said"),
    [
        ([44.6, 44.8], [44.0, 44.1], "and W_K's 44.0 ± 0.1 (before training 44.0 ± 0.0 and 45.0 ± 0.0): no nearer"),
        ([60.0, 60.1], [44.6, 44.6], ": no nearer than two random spaces (44.6)."),
        ([30.0, 30.2], [44.6, 44.6], ": only W_Q nearer than two random spaces (44.6)."),
        ([44.6, 44.6], [30.0, 30.2], ": only W_K nearer than two random spaces (44.6)."),
        ([30.0, 30.2], [31.0, 31.2], "lie 30.1 ± 0.1 degrees from those that W_E writes, and W_K's 31.1 ± 0.1 ("),
        ([30.0, 50.0], [30.0, 50.0], ": no nearer than two random spaces (44.6)."),  # within the spread
        ([30.0], [30.0], ": both nearer than two random spaces (44.6)."),
    ],
)  # fmt: skip
def test_the_answer_follows_the_angles(queries, keys, said):
    ended = [seeds(values, digits=1) for values in (queries, keys)]
    began = [seeds([angle, angle], digits=1) for angle in (44.0, 45.0)]
    assert said in answer(48, 6, began, ended, 44.6, everything=False)
    assert "cannot be asked here" in answer(48, 6, began, ended, 44.6, everything=True)
