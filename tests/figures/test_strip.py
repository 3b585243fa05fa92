"""Rows of small pictures: their pixels are the numbers, in cells of one measure."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from vit.figures import Scale, bar_strip, image_strip, map_strip
from vit.figures.scale import PALETTE
from vit.figures.strip import GAP, LARGEST, VEIL, cell_of


def opened(content: bytes) -> np.ndarray:
    """uint8 (height, width, 4)."""
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGBA"))


def cells(content: bytes, count: int) -> list[np.ndarray]:
    sheet = opened(content)
    width = (sheet.shape[1] + GAP) // count - GAP
    for place in range(1, count):
        between = sheet[:, place * (width + GAP) - GAP : place * (width + GAP)]
        assert not between.any()
    return [sheet[:, place * (width + GAP) : place * (width + GAP) + width] for place in range(count)]


@pytest.mark.parametrize("size", [(8, 8), (4, 12), (LARGEST, 8)], ids=str)
def test_small_images_come_back_to_the_pixel_and_what_is_hidden_does_not(size):
    pixels = torch.randint(0, 256, (3, 3, *size), generator=torch.Generator().manual_seed(0))
    hidden = torch.zeros(3, 1, *size, dtype=torch.bool)
    hidden[1, 0, :2] = True
    for number, cell in enumerate(cells(image_strip(pixels / 255, hidden), 3)):
        covered = hidden[number, 0].numpy()
        assert (cell[~covered][:, :3] == pixels[number].permute(1, 2, 0).numpy()[~covered]).all()
        assert (cell[~covered][:, 3] == 255).all()
        assert (cell[covered] == VEIL).all()


def test_large_images_are_made_smaller_in_their_shape():
    assert cell_of((32, 32)) == (32, 32)
    assert cell_of((224, 224)) == (LARGEST, LARGEST)
    assert cell_of((100, 400)) == (LARGEST // 4, LARGEST)
    assert opened(image_strip(torch.rand(2, 3, 224, 224))).shape == (LARGEST, 2 * LARGEST + GAP, 4)


def test_maps_have_their_colours_at_their_places():
    maps = torch.tensor([[[0.0, 1.0], [2.0, 4.0]], [[4.0, 3.0], [1.0, 9.0]]])
    scale = Scale(0.0, 4.0, 0.0, 9.0)
    first, second = cells(map_strip(maps, (6, 4), scale), 2)
    for row, column, value in ((0, 0, 0), (0, 1, 64), (1, 0, 128), (1, 1, 255)):
        patch = first[3 * row : 3 * row + 3, 2 * column : 2 * column + 2]
        assert (patch == [*PALETTE[value], 255]).all()
    assert (second[3:, 2:, :3] == PALETTE[255]).all()  # beyond the scale


def test_bar_is_the_scale_from_left_to_right():
    assert (opened(bar_strip())[0, :, :3] == PALETTE).all()
