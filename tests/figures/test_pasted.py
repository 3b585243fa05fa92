"""Rows of images with one place outlined: that place, in each, and the words under their own picture."""

import torch

from vit.figures.pasted import pasted_figure


def test_every_picture_has_its_outline_and_its_words():
    rows = [torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    words = [["", "0.1", "0.2"], ["", "0.3", "0.4"]]
    figure = pasted_figure(rows, (1, 0), (2, 2), ["a wheel", "a ball"], ["own", "sea", "air"], words, "t", "s")
    axes = figure.axes[0]
    pictures = [image for image in axes.images if image.get_array().shape[0] > 20]
    assert len(pictures) == 6
    written = [text.get_text() for text in axes.texts]
    assert [name for name in written if name in ("0.1", "0.2", "0.3", "0.4")] == ["0.1", "0.2", "0.3", "0.4"]
    corners = {(outline.get_x(), outline.get_y()) for outline in axes.patches}
    for image in pictures:
        left, _, bottom, top = image.get_extent()
        assert (left, (top + bottom) / 2) in corners  # the lower left of four
