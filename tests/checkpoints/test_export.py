"""Programs: they compute what the model computes, for any batch size, and the model stays as it was."""

import builtins
import json

import pytest
import torch
from small import SIZES, autoencoder, random_model
from torch import nn

from vit.attention import MultiHeadSelfAttention
from vit.checkpoints import CheckpointError
from vit.checkpoints.export import export_program
from vit.config import ViTConfig
from vit.encoder import VisionTransformer

CASES = {
    "no class token, grey, non-square, identity": dict(
        class_token=False, image_size=(8, 24), patch_size=(4, 2), channels=1, qkv="identity"
    ),
    "all else, and a head": dict(
        registers=2, layer_scale=0.1, fc_norm=True, qk_norm=True, mlp="swiglu", num_classes=5, global_pool="token"
    ),
}


def encoder(**settings) -> VisionTransformer:
    return random_model(VisionTransformer(ViTConfig(**SIZES | dict(depth=1) | settings)))


def load(path):
    """The program alone, as a function from images to its outputs by name."""
    if path.suffix == ".pt2":
        program = torch.export.load(path).module()
        return lambda images: dict(zip(("tokens", "pooled"), program(images), strict=True))
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    return lambda images: {
        name: torch.from_numpy(value)
        for name, value in zip(names, session.run(None, {"images": images.numpy()}), strict=True)
    }


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("to", ["onnx", "torch-export"])
@pytest.mark.parametrize("case", CASES)
def test_the_program_computes_what_the_model_does(to, case, tmp_path):
    model = encoder(**CASES[case]).train()
    path = tmp_path / ("model.onnx" if to == "onnx" else "model.pt2")
    assert export_program(model, path, to) <= 1e-4
    assert model.training
    model.eval()
    run = load(path)
    for batch in (1, 2, 7):
        images = torch.randn(batch, model.config.channels, *model.config.image_size)
        tokens, *rest = run(images).values()
        torch.testing.assert_close(tokens, model(images), rtol=0, atol=1e-4)
        torch.testing.assert_close(rest[0], model.forward_head(model(images)), rtol=0, atol=1e-4)
    if to == "onnx":
        assert list(run(images)) == ["tokens", "logits" if model.config.num_classes else "features"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]  # the weights are inside


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_an_autoencoder_gives_its_encoder_and_stays_as_it_was(to, tmp_path, capfd):
    model = autoencoder(pos_embed="sincos")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    learns = [parameter.requires_grad for parameter in model.parameters()]
    path = tmp_path / ("model.onnx" if to == "onnx" else "model.pt2")
    random = torch.get_rng_state()
    export_program(model, path, to, {"mean": "[0.5]", "data": "some images"})
    assert torch.equal(random, torch.get_rng_state())
    assert b"encoder.py" not in path.read_bytes()  # nor where on this machine the sources are
    assert capfd.readouterr() == ("", "")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert learns == [parameter.requires_grad for parameter in model.parameters()]
    assert {m.kernel for m in model.modules() if isinstance(m, MultiHeadSelfAttention)} == {"auto"}
    if to == "onnx":
        import onnx

        program = onnx.load(path)
        assert {p.key: p.value for p in program.metadata_props}["mean"] == "[0.5]"
        assert program.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    else:
        files = {"metadata.json": ""}
        torch.export.load(path, extra_files=files)
        assert json.loads(files["metadata.json"]) == {"mean": "[0.5]", "data": "some images"}


@pytest.mark.slow
def test_a_program_that_computes_something_else_is_not_written(tmp_path, monkeypatch):
    path = tmp_path / "model.pt2"
    path.write_text("mine")
    monkeypatch.setattr("vit.checkpoints.export.MOST_DIFFERENCE", -1.0)
    with pytest.raises(CheckpointError, match="differs from the model by"):
        export_program(encoder(), path, "torch-export")
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_what_cannot_be_exported_is_said(tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="programs are onnx, torch-export"):
        export_program(encoder(), tmp_path / "x.onnx", "tflite")
    with pytest.raises(CheckpointError, match=r"ends in \.pt2"):
        export_program(encoder(), tmp_path / "x.onnx", "torch-export")
    model = encoder()
    model.blocks[0].mlp.act = nn.Identity()
    model.blocks[0].mlp.act.forward = lambda x: x if x.sum().item() > 0 else -x  # cannot be traced
    with pytest.raises(CheckpointError, match="cannot be exported to torch-export"):
        export_program(model, tmp_path / "x.pt2", "torch-export")
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("onnxruntime"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr("importlib.import_module", without)
    with pytest.raises(CheckpointError, match=r"pip install onnx onnxscript onnxruntime"):
        export_program(encoder(), tmp_path / "x.onnx", "onnx")
    assert not list(tmp_path.iterdir())
