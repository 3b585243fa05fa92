"""`vit study`: what is refused, in a line and at once."""

import pytest


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "name a study first: all, "),
        (["tyres", "--out", "x"], "'tyres' is not a study; choose all, "),
        (["one-hot"], "--out: name a folder"),
        (["one-hot", "--out", ""], "--out: name a folder"),
        (["one-hot", "--out", "file"], "file is not a folder"),
        (
            ["one-hot", "--out", "x", "--study.seeds", "[1,1]"],
            "study.seeds: [1, 1] cannot be used; one or more different numbers",
        ),
        (["one-hot", "--out", "x", "--study.images", "0"], "study.images: 0 cannot be used; 1 or more"),
        (["one-hot", "--out", "x", "--train.objective", "classify"], "studies need masked autoencoders"),
        (["one-hot", "--out", "x", "--model.qkv", "identity"], "model.qkv, model.qkv_bias: studies need W_Q"),
        (["one-hot", "--out", "x", "--model.init", "vit-tiny-p4-cifar10"], "model.init: studies compare"),
        (["one-hot", "--out", "x", "--study.checkpoint", "none"], "no checkpoint at none"),
        (["identity-case", "--out", "x", "--study.checkpoint", "none"], "identity-case compares training runs"),
        (["all", "--out", "x", "--study.checkpoint", "none"], "identity-case compares training runs"),
        (["one-hot", "--out", "x", "more"], "more"),
    ],
)
def test_bad_commands_are_refused(argv, says, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert says in refused("study", *argv)
    assert not (tmp_path / "x").exists()
