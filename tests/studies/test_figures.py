"""Law: the studies' charts show the numbers that they are given."""

import numpy as np
import pytest

from studies.figures import (
    Panel,
    arms_figure,
    layers_figure,
    shares_figure,
)


def test_layers_show_the_mean_over_seeds_and_its_range():
    values = np.array([[0.0, 1.0, 2.0], [2.0, 3.0, 4.0]])
    figure = layers_figure(
        [Panel("x", {"a": values, "b": values[0]}, lines={"chance": 0.5})], "Title", "sub"
    )
    (axes,) = figure.axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[1, 2, 3], [0, 1, 2], [0.5, 0.5]]
    (band,) = axes.collections
    assert band.get_paths()[0].get_extents().intervaly.tolist() == [0, 4]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b", "chance"]


def test_arms_show_means_and_what_seeds_differ_by_and_leave_gaps():
    panel = Panel("loss", [[0.5, 0.7], [], [0.9]], lines={"baseline": 1.1})
    figure = arms_figure(["all $x$", "none", "one"], [panel], "Title", "sub")
    (axes,) = figure.axes
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    spread = pytest.approx([0.6 - 0.02**0.5, 0.6 + 0.02**0.5])
    assert drawn == [
        (pytest.approx([0.6, 0.6]), [0, 1]),
        ([1.1, 1.1], [0, 1]),
        (spread, [2, 2]),
        (pytest.approx([0.6]), [2]),
        ([0.9, 0.9], [0, 0]),
        ([0.9], [0]),
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["all $x$", "none", "one"]


def test_parts_lie_end_to_end():
    rows = {"even $": {"a": 0.25, "b": 0.25, "c": 0.5}, "against": {"a": 0.9, "b": -0.2, "c": 0.3}}
    figure = shares_figure([Panel("whole", rows)], "Title", "sub")
    (axes,) = figure.axes
    bars = np.array([[(bar.get_x(), bar.get_width()) for bar in part] for part in axes.containers])
    assert bars[:, 0].ravel() == pytest.approx([0, 0.25, 0.25, 0.25, 0.5, 0.5])
    assert bars[:, 1].ravel() == pytest.approx([0, 0.9, 0, -0.2, 0.9, 0.3])
    assert axes.get_xlim()[0] <= -0.2
    assert [text.get_text() for text in axes.get_yticklabels()] == ["even $", "against"]
