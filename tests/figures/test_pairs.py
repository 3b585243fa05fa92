"""Tiles show what they are given, on one scale around grey."""

import numpy as np
import pytest
import torch

from vit.figures.pairs import PairsPanel, pairs_figure


def test_zero_is_grey_and_opposites_lie_as_far_from_it():
    pairs = torch.zeros(1, 2, 2, 3, 4, 4)
    pairs[0, 0, 0], pairs[0, 0, 1] = 0.3, -0.3
    figure = pairs_figure(["head $0$"], [PairsPanel("all", pairs, [["a", "b"]])], ("asks", "is found"), "Title", "sub")
    (axes,) = figure.axes
    tiles = [int(image.get_array()[0, 0, 0]) for image in axes.images]
    assert tiles[0] == 255
    assert tiles[1] == 0
    assert tiles[2:] == [128, 128]
    words = [text.get_text() for text in axes.texts]
    assert words.count("asks") == 2
    assert {"a", "b", "all", r"head \$0\$"} <= set(words)


def test_tiles_stand_apart_in_their_rows():
    pairs = torch.randn(3, 2, 2, 1, 4, 4)
    panels = [PairsPanel(name, pairs, [["x", "y"]] * 3) for name in ("one", "two")]
    figure = pairs_figure(["a", "b", "c"], panels, ("l", "r"), "Title", "sub")
    (axes,) = figure.axes
    assert len(axes.images) == 3 * 2 * 2 * 2
    spans = np.array([image.get_extent() for image in axes.images])
    corners = {(round(left, 3), round(top, 3)) for left, _, _, top in spans}
    assert len(corners) == len(spans)
    assert spans[:, 1].max() < axes.get_xlim()[1]
    with pytest.raises(ValueError, match="pairs are"):
        pairs_figure(["a"], panels, ("l", "r"), "Title", "sub")
