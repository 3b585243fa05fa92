"""`vit checkpoint` reports every tensor, and writes what timm and we load again."""

import json

import pytest
import timm
import torch
from tiny import autoencoder, encoder

from vit.checkpoints import load_model, save_model
from vit.cli import main
from vit.inputs import Normalization

SIZES = dict(image_size=(16, 8), embed_dim=32, depth=3, num_heads=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("checkpoint")
    normalize = Normalization([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    save_model(place / "model", autoencoder(**SIZES), normalize, ("cat", "dog"), "pictures")
    return place / "model"


def vit(*argv: object) -> int:
    return main(["checkpoint", *map(str, argv)])


def test_inspect_says_what_it_is(folder, capsys):
    assert vit("inspect", folder) == 0
    said = capsys.readouterr().out
    count = sum(value.numel() for value in load_model(folder).state_dict().values())
    for part in (
        "checksum           verified", "format             vit-patch-trainer", "embed_dim 32, depth 3, num_heads 4",
        "image_size 16 x 8, patch_size 4 x 4, channels 3", f"parameters         {count}", "0.1, 0.2, 0.3", "cat, dog",
        f"used as they are   {len(load_model(folder).state_dict())} tensors",
    ):  # fmt: skip
        assert part in said, part
    assert "note:" not in said


def test_inspect_as_json_has_all_of_it(folder, capsys):
    assert vit("inspect", folder, "--json", "--part", "encoder", "--image-size", "8") == 0
    known = json.loads(capsys.readouterr().out)
    assert known["decoder"] is None
    assert known["encoder"]["image_size"] == [8, 8]
    assert known["converted"]["pos_embed"][1] == "resized from a grid of 4 x 2 to 2 x 2, bicubic"
    assert set(known["dropped"].values()) == {"only the encoder was requested"}
    assert known["problems"] == known["notes"] == []


def test_inspect_shows_what_stands_in_the_way(tmp_path, capsys):
    state = encoder(**SIZES).state_dict()
    del state["blocks.1.mlp.fc1.weight"]
    state["blocks.0.norm1.bias"][:3] = float("nan")
    torch.save(state | {"odd": torch.ones(1)}, tmp_path / "x.pth")
    assert vit("inspect", tmp_path / "x.pth", "--num-heads", 4, "--grid-size", "4,2") == 2
    said = capsys.readouterr().out
    assert "missing, untrained 1 tensor\n    blocks.1.mlp.fc1.weight (128 x 32)" in said
    assert "unexpected         1 tensor\n    odd" in said
    assert said.count("cannot be loaded: ") == 3
    assert "blocks.0.norm1.bias holds 3 values that are nan or infinite" in said


def test_convert_and_load_elsewhere(folder, tmp_path, capsys):
    assert vit("convert", folder, "--to", "timm", "--out", tmp_path / "timm") == 0
    assert "left out" in capsys.readouterr().out
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    images = torch.randn(2, 3, 16, 8)
    torch.testing.assert_close(
        theirs.forward_features(images), load_model(folder).encoder(images), rtol=0, atol=1e-5
    )
    argv = ["--to", "safetensors", "--image-size", 32, "--out", tmp_path / "large"]
    assert vit("convert", tmp_path / "timm", *argv) == 0
    assert load_model(tmp_path / "large").patch_embed.grid_size == (8, 8)
    assert "resized" in capsys.readouterr().out


def test_names_in_a_file_cannot_write_on_the_terminal(tmp_path, capsys):
    state = encoder(**SIZES).state_dict()
    torch.save(state | {"\x1b[2Jgone\rnew\nline": torch.ones(1)}, tmp_path / "x.pth")
    argv = ["--num-heads", 4, "--grid-size", "4,2"]
    assert vit("inspect", tmp_path / "x.pth", *argv) == 2
    assert vit("convert", tmp_path / "x.pth", *argv, "--to", "timm", "--out", tmp_path / "o") == 2
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "\r" not in said.out + said.err
    assert len(said.err.splitlines()) == 1
