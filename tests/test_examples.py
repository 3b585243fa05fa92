"""The scripts in examples/ do what they say."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vit import load_model

ROOT = Path(__file__).resolve().parents[1]


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, str(ROOT / "examples" / script), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@torch.no_grad()
def test_export_onnx_computes_what_the_model_does(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    output = run("export_onnx.py", "vit-tiny-p4-cifar10-finetuned", tmp_path / "model.onnx")
    assert "differs from the model by at most" in output
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    model = load_model("vit-tiny-p4-cifar10-finetuned")
    for batch in (1, 5):
        images = torch.randn(batch, 3, 32, 32)
        tokens, logits = map(torch.from_numpy, session.run(None, {"images": images.numpy()}))
        torch.testing.assert_close(tokens, model(images), rtol=0, atol=1e-4)
        torch.testing.assert_close(logits, model.forward_head(model(images)), rtol=0, atol=1e-4)
