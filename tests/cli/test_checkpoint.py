"""`vit checkpoint` reports every tensor, and writes what timm and we load again."""

import json

import torch
from tiny import encoder


def test_inspect_says_as_json_what_it_is(models, called):
    folder = models / "mae"
    _, said, _ = called("checkpoint inspect", folder, "--json --part encoder --image-size 8")
    known = json.loads(said)
    assert (known["decoder"], known["encoder"]["image_size"]) == (None, [8, 8])
    assert known["converted"]["pos_embed"][1] == "resized from a grid of 3 x 4 to 2 x 2, bicubic"
    assert set(known["dropped"].values()) == {"only the encoder was requested"}


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
