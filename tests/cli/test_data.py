"""`vit data` as a shell calls it: a sheet and a line about the data, or one line that says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vit.atomic import write_text
from vit.cli.data import draw_sheet
from vit.config import DataConfig
from vit.data import SCENES_SEED, load_data
from vit.scenes import draw_scenes, scene_indices

SCENES = ["--data.source", "scenes", "--data.limit", "20"]


@pytest.mark.parametrize("how", [[], ["--format", "png"]], ids=["jpeg", "png"])
def test_data_is_described_drawn_and_exported_into_a_folder_that_is_read_by_name(how, tmp_path, called, monkeypatch):
    out, copy = tmp_path / "new" / "sheet.png", tmp_path / "copy"
    drawn = ["--out", out, "--overwrite"] if how else []
    write_text(out, "is replaced")
    code, said, _ = called("data", *SCENES, *drawn, "--export", copy, *how)
    assert code == 0
    description = load_data(DataConfig(source="scenes", limit=20), (32, 32)).description
    assert called("data", *SCENES)[:2] == (0, f"{description}\n")
    assert said.splitlines() == [description, *[f"sheet: {out}"] * bool(drawn), f"folder: {copy}, 40 files"]
    assert not drawn or out.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("vit.figures.save_figure", lambda *_: None)
    code, said, _ = called("data", copy, "--data.cache", tmp_path / "cache", "--out", tmp_path / "sheet.png")
    assert code == 0
    assert said.startswith("copy: 20 training and 20 test images")


def test_parts_are_drawn_beside_their_own_images_or_not_at_all(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr("vit.figures.sheet_figure", lambda images, *about: drawn.append((images, about[4])))
    monkeypatch.setattr("vit.figures.save_figure", lambda *_: None)
    for held_out in (0, 10):
        draw_sheet(load_data(DataConfig(source="scenes", limit=40, val_size=held_out), (32, 32)), tmp_path / "x.png")
    (images, parts), (_, none) = drawn
    scenes, _, expected, *_ = draw_scenes(scene_indices(40, "train"), SCENES_SEED)
    for image, part in zip(images, parts, strict=True):
        (number,) = (scenes == image).flatten(1).all(1).nonzero()
        assert torch.equal(part, expected[number[0]])
    assert none is None


def test_a_page_that_names_the_copy_has_the_command_that_makes_it():
    make = "vit data cifar10 --export cifar10-jpeg"
    root = Path(__file__).parents[2]
    pages = {path: path.read_text(encoding="utf-8") for path in (root / "README.md", *root.glob("docs/**/*.md"))}
    naming = [path for path, text in pages.items() if "cifar10-jpeg" in text and "questions" not in path.parts]
    assert root / "docs" / "results" / "README.md" in naming
    assert [path for path in naming if make not in pages[path]] == []
