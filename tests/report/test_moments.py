"""What the weights of several moments make of a run's images is what the model makes of them, asked directly."""

import shutil

import pytest
import torch
from small_runs import make_run

from vit.checkpoints import load_model
from vit.device import Compute
from vit.evaluate.reconstruction import fixed_mask, reconstruct
from vit.inputs import to_float
from vit.interpret import AttentionMaps
from vit.report import moments
from vit.report.moments import last_attention, moments_of_run
from vit.runs import read_run, read_sample_images


def test_moments_are_the_snapshots_with_one_mask(pretrained):
    images = read_sample_images(pretrained / "showcase.safetensors").images
    found, notes = moments_of_run(read_run(pretrained))
    assert [moment.name for moment in found] == ["step 1", "step 3", "step 6"]
    assert notes == []
    mask = fixed_mask("random", 0, len(images), (4, 4), 0.75)
    for moment in found:
        model = load_model(pretrained / "snapshots" / f"step-{int(moment.name.split()[1]):08d}")
        expected = reconstruct(model, images, model.origin.normalize, mask, Compute(torch.device("cpu")))
        assert torch.equal(moment.reconstruction.filled, expected.filled)
        assert torch.equal(moment.reconstruction.hidden, expected.hidden)
        with torch.no_grad(), AttentionMaps(model.encoder, layers=[-1]) as maps:
            model.encoder(model.origin.normalize(to_float(images, (16, 16))))
        looking = moment.attention
        assert torch.equal(looking.maps.flatten(2), maps.of(-1)[:, :, 0, 1:])  # what the class token gives to patches
        assert torch.allclose(1 - looking.prefix_mass, looking.maps.sum((2, 3)), atol=1e-5)
    assert not torch.equal(found[0].reconstruction.filled, found[-1].reconstruction.filled)


def test_of_many_snapshots_some_are_shown_the_first_and_the_last_among_them(pretrained, monkeypatch):
    monkeypatch.setattr(moments, "MOST_MOMENTS", 2)
    found, _ = moments_of_run(read_run(pretrained))
    assert [moment.name for moment in found] == ["step 1", "step 6"]


def test_without_snapshots_it_is_the_model_and_without_a_model_the_last_state(pretrained, tmp_path):
    run = shutil.copytree(pretrained, tmp_path / "run")
    shutil.rmtree(run / "snapshots")
    (whole,), _ = moments_of_run(read_run(run))
    (run / "model.safetensors").unlink()
    (state,), _ = moments_of_run(read_run(run))
    assert (whole.name, state.name) == ("the end", "step 6")
    assert torch.equal(whole.attention.maps, state.attention.maps)
    shutil.rmtree(run / "checkpoints")
    assert moments_of_run(read_run(run)) == ([], [])


def test_a_damaged_snapshot_is_left_out_and_told_of(pretrained, tmp_path):
    run = shutil.copytree(pretrained, tmp_path / "run")
    weights = run / "snapshots" / "step-00000003" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    found, notes = moments_of_run(read_run(run))
    assert [moment.name for moment in found] == ["step 1", "step 6"]
    assert len(notes) == 1
    assert "step 3" in notes[0]


@pytest.mark.parametrize(
    ("changes", "query"),
    [({}, "cls"), ({"class_token": False}, (2, 2)), ({"task": "classify", "class_token": False}, "mean")],
)
def test_the_token_that_is_asked_is_one_that_the_encoder_has(tmp_path, changes, query):
    encoder = load_model(make_run(tmp_path / "run", **changes, snapshots=0), part="encoder")
    found = last_attention(encoder, torch.rand(2, 3, 16, 16))
    assert (found.query, found.maps.shape, found.prefix_mass.shape) == (query, (2, 2, 4, 4), (2, 2))
