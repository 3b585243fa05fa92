"""Each example does what its first lines say."""

import csv
import json
import runpy
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from forks import ROOT
from PIL import Image
from small import close
from tiny import (
    NORMALIZE,
    assert_same,
    autoencoder,
    encoded,
    encoder,
    randomize,
    save,
    without_layout,
)
from torchvision.transforms.v2.functional import to_pil_image

from vit import cli, load_model
from vit.commandline import Parser, given_settings
from vit.config import OBJECTIVES, Config, read_settings
from vit.data.sources import load_scenes
from vit.report.pictures import draw_pictures
from vit.runs import read_metrics
from vit.train import fit
from vit.training.objectives import CLASSES, Reconstruct
from vit.training.run_folder import load_state, saved_states


def example_here(name: str, *arguments: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run examples/NAME in this process."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


@pytest.mark.slow
def test_track_callback_sends_every_line_of_metrics(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # of the cache
    example_here("track_callback.py", tmp_path / "run", monkeypatch=monkeypatch)
    with (tmp_path / "run" / "track.csv").open(newline="") as file:
        rows = [(int(step), key, float(value)) for step, key, value in csv.reader(file)]
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert rows == [(line["step"], key, value) for line in lines for key, value in line.items()]


@pytest.mark.slow
def test_track_mlflow_goes_on_in_the_same_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("HOME", str(tmp_path))  # of the cache
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    for resume in ([], ["--resume"]):
        example_here("track_mlflow.py", tmp_path / "run", *resume, monkeypatch=monkeypatch)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("vit").experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["train.epochs"] == "2"
    logged = {
        metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "loss")
    }
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert logged == {line["step"]: line["loss"] for line in lines if "loss" in line}


def test_reconstruct_draws_a_row_for_each_image(tmp_path, monkeypatch):
    files = [tmp_path / "out.png", tmp_path / "photo.png", tmp_path / "photo.png"]
    Image.radial_gradient("L").save(files[1])
    name = "vit-tiny-p4-cifar10"
    example_here("reconstruct.py", name, "32,64", *files, monkeypatch=monkeypatch)
    with Image.open(files[0]) as drawn:
        assert drawn.size == (800, 316)


def test_film_has_a_frame_for_each_snapshot(tmp_path, monkeypatch):
    for step in (0, 5, 20):
        model = randomize(autoencoder(), 0.1 + step / 40)
        save(tmp_path / "snapshots" / f"step-{step:08d}", model)
    Image.radial_gradient("L").save(tmp_path / "photo.png")
    files = [tmp_path / "photo.png", tmp_path / "film.gif"]
    example_here("film.py", tmp_path, *files, monkeypatch=monkeypatch)
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == 3


def test_jpeg_copy_writes_each_image_at_quality_75_in_its_class(tmp_path, monkeypatch):
    counts = {"train": 30, "test": 12}
    monkeypatch.setattr("vit.data.sources.SCENES_COUNTS", tuple(counts.values()))
    target = tmp_path / "copy"
    example_here("jpeg_copy.py", "scenes", target, monkeypatch=monkeypatch)
    expected = {}
    for split, count in counts.items():
        scenes = load_scenes(count, split)
        numbers: Counter[str] = Counter()
        for image, name in zip(scenes.images, scenes.label_names, strict=True):
            path = target / split / name / f"{numbers[name]:04}.jpg"
            picture = to_pil_image(image)
            expected[path] = encoded(picture, "JPEG", quality=75, subsampling="4:2:0")
            numbers[name] += 1
    assert {path: path.read_bytes() for path in target.rglob("*.jpg")} == expected
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


@pytest.mark.slow
@torch.no_grad()
def test_export_onnx_computes_what_the_model_does(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    argv = ("vit-tiny-p4-cifar10-finetuned", tmp_path / "model.onnx", "--opset", 20)
    with torch.enable_grad():
        example_here("export_onnx.py", *argv, monkeypatch=monkeypatch)
    assert "differs from the model by at most" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    model = load_model("vit-tiny-p4-cifar10-finetuned")

    # what a program without this package needs to know
    metadata = session.get_modelmeta().custom_metadata_map
    assert {key: json.loads(value) for key, value in metadata.items()} == {
        "image_size": [32, 32],
        "interpolation": "bicubic",
        "crop_share": 1.0,
        "squash": False,
        "mean": model.origin.normalize.mean,
        "std": model.origin.normalize.std,
        "class_names": list(model.origin.class_names),
    }
    for batch in (1, 5):
        images = torch.randn(batch, 3, 32, 32)
        tokens, logits = map(torch.from_numpy, session.run(None, {"images": images.numpy()}))
        close(tokens, model(images), 1e-4)
        close(logits, model.forward_head(model(images)), 1e-4)


@pytest.fixture
def _forgotten(monkeypatch):
    """What an example registers is forgotten."""
    for registry in (OBJECTIVES, CLASSES):
        for name in ("Teach", "Distil"):
            monkeypatch.setitem(registry, name, Reconstruct)
            registry.pop(name)


SMALL = (
    "--data scenes --data.limit 40 --model.depth 2 --train.epochs 2 --train.batch_size 10"
    " --optim.warmup_epochs 0 --train.precision fp32 --run.device cpu --run.save_every 3"
)


@pytest.mark.slow
@pytest.mark.usefixtures("_forgotten")
def test_objective_trains_and_keeps_its_teacher(tmp_path):
    """Through the whole program, of which it stands outside."""
    example = ROOT / "examples" / "objective.py"
    assert len(example.read_text().splitlines()) <= 60
    teach = runpy.run_path(str(example))["Teach"]
    options = Parser("train").read(f"{SMALL} --model.preset micro --reconstruct.contrast 0".split())
    config = Config.from_settings(read_settings("quickstart"), given_settings(options))

    whole = tmp_path / "whole"
    run = fit(config, whole, objective=teach)
    metrics = read_metrics(whole / "metrics.jsonl")
    assert metrics[-1]["feature_loss"] < metrics[0]["feature_loss"]
    assert metrics[0]["loss"] == pytest.approx(
        metrics[0]["masked_loss"] + 0.1 * metrics[0]["feature_loss"]
    )
    assert Config.read(whole / "config.yaml").train.objective == "Teach"
    with without_layout():
        draw_pictures(run)
    assert (whole / "reconstructions.png").exists()

    # the teacher follows the model, in the states too
    before, state = map(load_state, saved_states(whole / "checkpoints"))
    key = "teacher.module.norm.weight"
    assert not torch.equal(before["objective"][key], state["objective"][key])

    # another program knows the name alone
    for registry in (OBJECTIVES, CLASSES):
        registry.pop("Teach")
    assert cli.main(["report", str(whole)]) == 0


@pytest.mark.usefixtures("_forgotten")
def test_distil_learns_the_features_of_another_model_and_goes_on(tmp_path, monkeypatch):
    # its input, patches and width are not the student's
    teacher = encoder(image_size=(24, 36), patch_size=(12, 9), embed_dim=20, drop_path=0.5)
    randomize(teacher)
    save(tmp_path / "teacher", teacher, trained_on=torch.arange(5))
    run = tmp_path / "run"
    words = [tmp_path / "teacher", "--out", run]
    example_here("distil.py", *words, *SMALL.split(), monkeypatch=monkeypatch)
    metrics = read_metrics(run / "metrics.jsonl")
    assert metrics[-1]["feature_loss"] < metrics[0]["feature_loss"]
    assert torch.isin(torch.arange(5), load_model(run).origin.trained_on).all()

    # the teacher stays; a run that goes on ends with the same weights
    state = load_state(saved_states(run / "checkpoints")[-1])
    for name, value in teacher.state_dict().items():
        assert torch.equal(state["objective"][f"teacher.{name}"], value)
    (run / "checkpoints" / "step-00000008.pt").unlink()
    example_here("distil.py", *words, "--resume", monkeypatch=monkeypatch)
    again = load_state(saved_states(run / "checkpoints")[-1])
    for part in ("model", "objective"):
        assert_same(state[part], again[part])

    # the corners of a finer grid have the features of the teacher's corners, and no gradient
    distil = CLASSES["Distil"]
    config = Config.read(run / "config.yaml")
    model = distil.build_model(config, config.model.vit_config())
    scenes = load_scenes(3, "train")
    data = SimpleNamespace(train=scenes)
    objective = distil(model, config, data).train()
    images = scenes.images[:].float() / 255
    targets = objective.targets_of(objective.normalize(images)).unflatten(1, (8, 8))
    resized = F.interpolate(images, (24, 36), mode="bicubic", antialias=True)
    tokens = teacher.eval()(NORMALIZE(resized))[:, 1:].detach()
    expected = F.layer_norm(tokens, (20,)).unflatten(1, (2, 4))
    close(targets[:, ::7, ::7], expected[:, :, ::3])
    assert not any(value.requires_grad for value in (targets, *objective.teacher.parameters()))


def test_near_identity_is_what_the_paper_begins_with(tmp_path, monkeypatch):
    out = tmp_path / "start"
    options = "--model.preset micro --model.depth 2 --data scenes --data.limit 40"
    example_here("near_identity.py", *options.split(), "--out", out, monkeypatch=monkeypatch)
    encoder = load_model(out).encoder
    width = encoder.config.embed_dim
    for block in encoder.blocks:
        queries, keys, values = block.attn.qkv.weight.detach().T.chunk(3, dim=1)  # each (D, D)
        copied = values @ block.attn.proj.weight.detach().T  # W_V W_O
        assert copied.diag().mean() == pytest.approx(-0.4, abs=0.03)
        assert (copied + 0.4 * torch.eye(width)).square().sum() / width == pytest.approx(
            0.16, rel=0.05
        )
        # the best approximation of rank 32 or less keeps the largest part of the diagonal
        for q, k in zip(queries.chunk(3, dim=1), keys.chunk(3, dim=1), strict=True):
            assert 0.2 < (q @ k.T).diag().mean() < 0.7
