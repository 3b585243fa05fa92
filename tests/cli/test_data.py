"""`vit data` describes what training would load; of Scenes it draws the parts beside their images."""

import pytest
import torch

from vit.config import DataConfig
from vit.data.sources import SCENES_SEED, load_data
from vit.scenes import draw_scenes, scene_indices


@pytest.mark.parametrize("held_out", [0, 10])
def test_parts_are_drawn_beside_their_own_images_or_not_at_all(
    held_out, unpainted, monkeypatch, tmp_path, called
):
    drawn = {}
    monkeypatch.setattr(
        "vit.cli.data.sheet_figure",
        lambda images, *about: drawn.update(images=images, parts=about[4]),
    )
    line = f"data scenes --data.limit 40 --data.val_size {held_out} --out"
    _, said, _ = called(line, tmp_path / "sheet.png")
    data = load_data(DataConfig(source="scenes", limit=40, val_size=held_out), (32, 32))
    assert said.splitlines() == [data.description, f"figure: {tmp_path / 'sheet.png'}"]
    if held_out:
        assert drawn["parts"] is None
        return
    scenes, _, expected, *_ = draw_scenes(scene_indices(40, "train"), SCENES_SEED)
    for image, part in zip(drawn["images"], drawn["parts"], strict=True):
        (number,) = (scenes == image).flatten(1).all(1).nonzero()
        assert torch.equal(part, expected[number[0]])
