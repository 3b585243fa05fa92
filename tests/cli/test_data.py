"""`vit data` as a shell calls it: a sheet and a line about the data, or one line that says why not."""

from __future__ import annotations

import pytest

from vit.cli import main
from vit.config import DataConfig
from vit.data import load_data

SCENES = ["--data.source", "scenes", "--data.limit", "20"]


def test_sheet_is_drawn_and_the_data_described(tmp_path, capsys):
    out = tmp_path / "new" / "sheet.png"
    assert main(["data", *SCENES, "--out", str(out)]) == 0
    description = load_data(DataConfig(source="scenes", limit=20), (32, 32)).description
    assert capsys.readouterr().out.splitlines() == [description, f"sheet: {out}"]
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (SCENES, "--out"),
        ([*SCENES, "--out", "sheet.jpg"], "sheet.jpg"),
        (["--data.source", "folder", "--data.root", "nowhere", "--out", "sheet.png"], "nowhere"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(argv, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["data", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
