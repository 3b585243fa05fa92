"""`vit verify` as a shell calls it."""

from __future__ import annotations

from vit.cli import main
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
