"""Each example does what its first lines say."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import encoded, noise
from torchvision.transforms.v2.functional import to_pil_image

from vit import load_model
from vit.runs import read_metrics

ROOT = Path(__file__).resolve().parents[1]


def run_example(name: str, *arguments: object, home: Path) -> subprocess.CompletedProcess[str]:
    """Run examples/NAME as a user does, with the cache in `home`."""
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(home)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_track_callback_sends_every_line_of_metrics(tmp_path):
    done = run_example("track_callback.py", tmp_path / "run", home=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "run" / "track.csv").open(newline="") as file:
        rows = [(int(step), key, float(value)) for step, key, value in csv.reader(file)]
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert rows == [(line["step"], key, value) for line in lines for key, value in line.items()]


@pytest.mark.slow
def test_jpeg_copy_writes_each_image_at_quality_75_in_its_class(tmp_path):
    pictures = {}
    for number, image in enumerate(noise(12, size=(32, 32))):
        split = "test" if number > 7 else "train"
        name = f"{split}/{('ape', 'bee')[number % 2]}/{number:02}"
        path = tmp_path / "images" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pictures[name] = to_pil_image(image)
        pictures[name].save(path)
    done = run_example("jpeg_copy.py", tmp_path / "images", tmp_path / "copy", home=tmp_path)
    assert done.returncode == 0, done.stderr
    copies = sorted((tmp_path / "copy").rglob("*.jpg"))
    names = sorted(pictures)
    assert [path.parent.relative_to(tmp_path / "copy") for path in copies] == [
        Path(name).parent for name in names
    ]
    for path, name in zip(copies, names, strict=True):
        assert path.read_bytes() == encoded(pictures[name], "JPEG", quality=75, subsampling="4:2:0")
    assert (tmp_path / "copy" / "train" / "ape" / "0003.jpg").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cache", "copy", "images"]

    again = run_example("jpeg_copy.py", tmp_path / "images", tmp_path / "copy", home=tmp_path)
    assert again.returncode == 1
    assert again.stderr.endswith("copy already exists; name another folder, or remove it first\n")


@pytest.mark.slow
@torch.no_grad()
def test_export_onnx_computes_what_the_model_does(tmp_path):
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    done = run_example(
        "export_onnx.py",
        "vit-tiny-p4-cifar10-finetuned",
        tmp_path / "model.onnx",
        "--opset",
        20,
        home=tmp_path,
    )
    assert "differs from the model by at most" in done.stdout, done.stderr
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
    opsets = {item.domain: item.version for item in onnx.load(tmp_path / "model.onnx").opset_import}
    assert opsets[""] == 20
    for batch in (1, 5):
        images = torch.randn(batch, 3, 32, 32)
        tokens, logits = map(torch.from_numpy, session.run(None, {"images": images.numpy()}))
        torch.testing.assert_close(tokens, model(images), rtol=0, atol=1e-4)
        torch.testing.assert_close(logits, model.forward_head(model(images)), rtol=0, atol=1e-4)
