"""`vit data` as a shell calls it: a sheet and a line about the data, or one line that says why not."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize("how", [[], ["--format", "png"]], ids=["jpeg", "png"])
def test_exported_folder_is_read_by_name(how, tmp_path, capsys):
    copy = tmp_path / "copy"
    assert main(["data", *SCENES, "--export", str(copy), *how]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [load_data(DataConfig(source="scenes", limit=20), (32, 32)).description, f"folder: {copy}, 40 files"]
    cache = ["--data.cache", str(tmp_path / "cache")]
    assert main(["data", str(copy), *cache, "--out", str(tmp_path / "sheet.png")]) == 0
    assert capsys.readouterr().out.startswith("copy: 20 training and 20 test images")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (SCENES, "--out"),
        ([*SCENES, "--out", "sheet.jpg"], "sheet.jpg"),
        (["--data.source", "folder", "--data.root", "nowhere", "--out", "sheet.png"], "nowhere"),
        ([*SCENES, "--export", ""], "--export"),
        ([*SCENES, "--export", "."], ". is there already"),
        ([*SCENES, "--export", "copy", "--quality", "0"], "1 to 100"),
        ([*SCENES, "--export", "copy", "--quality", "fine"], "1 to 100"),
        ([*SCENES, "--export", "copy", "--format", "gif"], "jpeg or png"),
        ([*SCENES, "--export", "copy", "--format", "png", "--quality", "75"], "--quality: is of jpeg"),
        ([*SCENES, "--out", "sheet.png", "--quality", "75"], "--quality: is of --export"),
        ([*SCENES, "--out", "sheet.png", "--format", "png"], "--format: is of --export"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(argv, said, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused("data", *argv)
    assert not list(tmp_path.iterdir())


def test_a_page_that_names_the_copy_has_the_command_that_makes_it():
    make = "vit data cifar10 --export cifar10-jpeg"
    root = Path(__file__).parents[2]
    pages = {path: path.read_text(encoding="utf-8") for path in (root / "README.md", *root.glob("docs/**/*.md"))}
    naming = [path for path, text in pages.items() if "cifar10-jpeg" in text and "questions" not in path.parts]
    assert root / "docs" / "results" / "README.md" in naming
    assert [path for path in naming if make not in pages[path]] == []
