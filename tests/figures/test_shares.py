"""Stacked bars are as long as their shares, and what works against the rest lies left of 0."""

import numpy as np
import pytest

from vit.figures.shares import SharesPanel, shares_figure


def test_parts_lie_end_to_end():
    panel = SharesPanel("whole", ("a", "b", "c"), {"even $": (0.25, 0.25, 0.5), "against": (0.9, -0.2, 0.3)})
    figure = shares_figure([panel, SharesPanel("other", ("x",), {"all": (1.0,)})], "Title", "sub")
    axes, other = figure.axes
    bars = np.array([[(bar.get_x(), bar.get_width()) for bar in part] for part in axes.containers])
    assert bars[:, 0].ravel() == pytest.approx([0, 0.25, 0.25, 0.25, 0.5, 0.5])
    assert bars[:, 1].ravel() == pytest.approx([0, 0.9, 0, -0.2, 0.9, 0.3])
    assert axes.get_xlim()[0] <= -0.2
    assert axes.get_xlim()[1] >= 1.2
    assert [text.get_text() for text in axes.get_yticklabels()] == [r"even \$", "against"]
    assert [text.get_text() for text in other.get_legend().get_texts()] == ["x"]
    tops = [one.get_position().y1 for one in figure.axes]
    assert tops[0] == pytest.approx(tops[1])


def test_what_is_no_whole_is_refused():
    with pytest.raises(ValueError, match="'a' needs 2 shares that sum to 1"):
        shares_figure([SharesPanel("t", ("x", "y"), {"a": (0.5, 0.4)})], "Title", "sub")
    with pytest.raises(ValueError, match="needs 2 shares"):
        shares_figure([SharesPanel("t", ("x", "y"), {"a": (1.0,)})], "Title", "sub")
