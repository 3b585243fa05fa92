"""`vit verify` as a shell calls it."""

from __future__ import annotations

import torch
from safetensors.torch import save_file

from vit.cli import main
from vit.pretrained import shipped_models
from vit.runs import RunFiles, write_manifest


def test_run_is_as_it_ended_or_the_exit_code_says_so(tmp_path, capsys):
    files = RunFiles(tmp_path)
    files.config.write_text("train: {epochs: 1}\n")
    assert main(["verify", str(tmp_path)]) == 2
    assert "no manifest.json" in capsys.readouterr().err
    write_manifest(files)
    assert main(["verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "1 files are unchanged since the run ended\n"
    files.config.write_text("train: {epochs: 2}\n")
    assert main(["verify", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "config.yaml has changed\n"


def test_a_folder_of_weights_is_compared_with_its_own_hash(tmp_path, capsys, refused):
    shipped = shipped_models()["vit-tiny-p4-cifar10"]
    assert main(["verify", str(shipped)]) == 0
    assert capsys.readouterr().out == "model.safetensors has the SHA-256 in config.json\n"
    assert main(["verify", "vit-tiny-p4-cifar10"]) == 0
    save_file({"weight": torch.ones(3)}, tmp_path / "model.safetensors")
    assert "is no run folder, and no config.json in it has a SHA-256" in refused("verify", tmp_path)
    (tmp_path / "config.json").write_bytes((shipped / "config.json").read_bytes())
    assert "model.safetensors is damaged: its SHA-256 is not the one in config.json" in refused("verify", tmp_path)
