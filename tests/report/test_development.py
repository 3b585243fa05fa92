"""What the weights of several moments make of a run's images is what the model makes of them, asked directly."""

import shutil

import pytest
import torch
import yaml

from vit.checkpoints import load_model
from vit.data.augment import to_float
from vit.device import Compute
from vit.evaluate.reconstruction import fixed_mask, reconstruct
from vit.interpret import AttentionMaps
from vit.report.development import MOST_MOMENTS, development_of, spread, who_asks
from vit.runs import flat_settings, read_sample_images
from vit.training.run_folder import RunFolder


def developed(path):
    folder = RunFolder(path)
    images = read_sample_images(folder.showcase).images
    return images, development_of(folder, images, flat_settings(yaml.safe_load(folder.config.read_text())))


def test_moments_are_the_snapshots_with_one_mask(pretrained):
    images, found = developed(pretrained)
    assert [moment.name for moment in found.moments] == ["step 1", "step 3", "step 6"]
    assert found.notes == []
    mask = fixed_mask("random", 0, len(images), (4, 4), 0.75)
    for moment in found.moments:
        model = load_model(pretrained / "snapshots" / f"step-{int(moment.name.split()[1]):08d}")
        expected = reconstruct(model, images, model.origin.normalize, mask, Compute(torch.device("cpu")))
        assert torch.equal(moment.reconstruction.filled, expected.filled)
        assert torch.equal(moment.reconstruction.hidden, expected.hidden)
        with torch.no_grad(), AttentionMaps(model.encoder, layers=[-1]) as maps:
            model.encoder(model.origin.normalize(to_float(images, (16, 16))))
        assert torch.equal(moment.maps.flatten(2), maps.of(-1)[:, :, 0, 1:])  # what the class token gives to patches
        assert torch.allclose(moment.on_patches, moment.maps.sum((2, 3)).mean(0), atol=1e-5)
    assert not torch.equal(found.moments[0].reconstruction.filled, found.moments[-1].reconstruction.filled)


def test_without_snapshots_it_is_the_model_and_without_a_model_the_last_state(pretrained, make_run, tmp_path):
    shutil.copytree(pretrained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "snapshots")
    _, whole = developed(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    _, state = developed(tmp_path / "run")
    assert ([moment.name for moment in whole.moments], [moment.name for moment in state.moments]) == (
        ["the end"],
        ["step 6"],
    )
    assert torch.equal(whole.moments[0].maps, state.moments[0].maps)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    _, nothing = developed(tmp_path / "run")
    assert (nothing.moments, nothing.notes) == ([], [])


def test_a_damaged_snapshot_is_left_out_and_told_of(pretrained, tmp_path):
    shutil.copytree(pretrained, tmp_path / "run")
    weights = tmp_path / "run" / "snapshots" / "step-00000003" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    _, found = developed(tmp_path / "run")
    assert [moment.name for moment in found.moments] == ["step 1", "step 6"]
    assert len(found.notes) == 1
    assert "step 3" in found.notes[0]


def test_a_classifier_fills_nothing_in_and_its_patches_ask(classifier):
    _, found = developed(classifier)
    last = found.moments[-1]
    assert last.reconstruction is None
    assert (last.asking.query, last.asking.patch) == ("mean", None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "query"),
    [({}, "cls"), ({"class_token": False}, (2, 2)), ({"task": "classify", "class_token": False}, "mean")],
)
def test_who_asks_is_what_the_encoder_has(make_run, tmp_path, changes, query):
    path = make_run(tmp_path / "run", **changes, snapshots=0)
    encoder = load_model(path, part="encoder")
    assert who_asks(encoder).query == query


@pytest.mark.parametrize("count", [0, 1, 2, MOST_MOMENTS, MOST_MOMENTS + 1, 100])
def test_spread_keeps_the_first_and_the_last(count):
    chosen = list(spread(count, MOST_MOMENTS))
    assert len(chosen) == len(set(chosen)) == min(count, MOST_MOMENTS)
    assert chosen == sorted(chosen)
    assert chosen[:1] + chosen[-1:] == ([0, count - 1] if count else [])
