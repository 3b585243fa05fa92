"""`vit data` describes what training would load; of Scenes it draws the parts beside their images."""

from __future__ import annotations

import torch

from vit.atomic import write_text
from vit.cli.data import draw_sheet
from vit.config import DataConfig
from vit.data.sources import SCENES_SEED, load_data
from vit.scenes import draw_scenes, scene_indices


def test_data_is_described_and_drawn(tmp_path, called):
    out = tmp_path / "sheet.png"
    write_text(out, "is replaced")
    _, said, _ = called("data scenes --data.limit 20 --overwrite --out", out)
    description = load_data(DataConfig(source="scenes", limit=20), (32, 32)).description
    assert said.splitlines() == [description, f"sheet: {out}"]
    assert out.read_bytes().startswith(b"\x89PNG")


def test_parts_are_drawn_beside_their_own_images_or_not_at_all(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(
        "vit.figures.images.sheet_figure", lambda images, *about: drawn.append((images, about[4]))
    )
    monkeypatch.setattr("vit.figures.style.save_figure", lambda *_: None)
    for held_out in (0, 10):
        draw_sheet(
            load_data(DataConfig(source="scenes", limit=40, val_size=held_out), (32, 32)),
            tmp_path / "x.png",
        )
    (images, parts), (_, none) = drawn
    scenes, _, expected, *_ = draw_scenes(scene_indices(40, "train"), SCENES_SEED)
    for image, part in zip(images, parts, strict=True):
        (number,) = (scenes == image).flatten(1).all(1).nonzero()
        assert torch.equal(part, expected[number[0]])
    assert none is None
