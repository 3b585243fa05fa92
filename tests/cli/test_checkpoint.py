"""`vit checkpoint` reports every tensor, and writes what timm and we load again."""

import json

import torch
from tiny import encoder

from vit.checkpoints import load_model


def test_inspect_says_what_it_is_and_as_json_all_of_it(models, called):
    folder = models / "mae"
    code, said, _ = called("checkpoint inspect", folder)
    assert code == 0
    assert "checksum           verified" in said
    assert f"used as they are   {len(load_model(folder).state_dict())} tensors" in said

    _, said, _ = called("checkpoint inspect", folder, "--json --part encoder --image-size 8")
    known = json.loads(said)
    assert (known["decoder"], known["encoder"]["image_size"]) == (None, [8, 8])
    assert known["converted"]["pos_embed"][1] == "resized from a grid of 3 x 4 to 2 x 2, bicubic"
    assert set(known["dropped"].values()) == {"only the encoder was requested"}


def test_convert_says_what_is_left_out_and_what_is_resized(models, tmp_path, called):
    _, said, _ = called("checkpoint convert", models / "mae", "--to timm --out", tmp_path / "timm")
    assert "left out" in said
    line = f"checkpoint convert {tmp_path / 'timm'} --to safetensors --image-size 32 --out"
    _, said, _ = called(line, tmp_path / "large")
    assert load_model(tmp_path / "large").patch_embed.grid_size == (8, 8)
    assert "resized" in said


def test_inspect_shows_what_stands_in_the_way_and_names_cannot_write_on_the_terminal(
    tmp_path, called
):
    state = encoder().state_dict()
    del state["blocks.1.mlp.fc1.weight"]
    state["blocks.0.norm1.bias"][:3] = float("nan")
    torch.save(state | {"\x1b[2Jgone\rnew\nline": torch.ones(1)}, tmp_path / "x.pth")
    code, said, _ = called(
        "checkpoint inspect", tmp_path / "x.pth", "--num-heads 2 --grid-size 4,4"
    )
    assert code == 2
    assert "missing, untrained 1 tensor\n    blocks.1.mlp.fc1.weight (64 x 16)" in said
    assert "unexpected         1 tensor\n" in said
    assert "blocks.0.norm1.bias holds 3 values that are nan or infinite" in said
    assert not {"\x1b", "\r"} & set(said)
