"""Figures of measures draw what they are given."""

import numpy as np
import pytest

from vit.figures.measures import ArmPanel, LayerPanel, arms_figure, layers_figure, percent


def test_arms_show_every_seed_and_its_mean_and_leave_gaps():
    panel = ArmPanel("loss", [[0.5, 0.7], [], [0.9]], {"baseline": 1.1})
    figure = arms_figure(["all $x$", "none", "one"], [panel], "Title", "sub")
    (axes,) = figure.axes
    lines = [(line.get_xdata(), line.get_ydata(), line.get_marker()) for line in axes.lines]
    dots = {int(y[0]): list(x) for x, y, mark in lines if mark == "o"}
    means = {int(y[0]): float(x[0]) for x, y, mark in lines if mark == "|"}
    assert dots == {2: [0.5, 0.7], 0: [0.9]}
    assert means == {2: pytest.approx(0.6), 0: 0.9}
    assert [label.get_text() for label in axes.get_yticklabels()] == [r"all \$x\$", "none", "one"]
    upright = [x[0] for x, y, mark in lines if mark not in ("o", "|")]
    assert upright == pytest.approx([0.6, 1.1])
    assert axes.get_xlim()[1] > 1.1


def test_layers_show_the_mean_over_seeds_and_its_range():
    values = np.array([[0.0, 1.0, 2.0], [2.0, 3.0, 4.0]])
    figure = layers_figure([LayerPanel("x", {"a": values, "b": values[0]}, lines={"chance": 0.5})], "Title", "sub")
    (axes,) = figure.axes
    mean, alone, chance = axes.lines
    assert list(mean.get_ydata()) == [1, 2, 3]
    assert list(alone.get_ydata()) == [0, 1, 2]
    assert list(chance.get_ydata()) == [0.5, 0.5]
    (band,) = axes.collections
    assert band.get_paths()[0].get_extents().intervaly.tolist() == [0, 4]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b", "chance"]


def test_long_titles_do_not_run_into_each_other():
    panels = [LayerPanel("a long title, " * 5, {"a": np.zeros((1, 4))}) for _ in range(5)]
    figure = layers_figure(panels, "Title", "sub")
    figure.canvas.draw()
    boxes = [axes._left_title.get_window_extent() for axes in figure.axes]
    assert boxes[0].x1 < boxes[1].x0 < boxes[1].x1 < boxes[2].x0
    assert boxes[3].y1 < figure.axes[0].xaxis.get_tightbbox().y0
    figure = layers_figure(panels[:4], "Title", "sub")  # in two rows of two
    figure.canvas.draw()
    boxes = [axes._left_title.get_window_extent() for axes in figure.axes]
    assert boxes[0].x1 < boxes[1].x0
    assert boxes[2].y1 < figure.axes[0].xaxis.get_tightbbox().y0


def test_panels_of_the_same_series_have_one_legend_and_it_hides_nothing():
    series = {f"a long name of a series, {number}": np.full((2, 3), number) for number in range(4)}
    figure = layers_figure([LayerPanel("x", series, lines={"chance": 0.5}), LayerPanel("y", series)], "Title", "sub")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(series)
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["chance"]
    assert figure.axes[1].get_legend() is None
    figure.canvas.draw()
    box = legend.get_window_extent()
    assert box.y1 < min(axes.xaxis.get_tightbbox().y0 for axes in figure.axes)
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    other = layers_figure(
        [LayerPanel("x", series), LayerPanel("y", {"b": np.zeros(3), "c": np.ones(3)})], "Title", "sub"
    )
    assert not other.legends


def test_a_logarithmic_axis_says_its_values_in_plain_numbers():
    panel = LayerPanel("x", {"a": np.array([0.04, 0.06, 0.3]), "b": np.array([0.002, 0.002, 0.002])}, log=True)
    figure = layers_figure([panel], "Title", "sub")
    figure.canvas.draw()
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    shown = [label.get_text() for label in axes.get_yticklabels() if low <= float(label.get_text()) <= high]
    assert shown == ["0.002", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2"]
    assert not [label for label in axes.get_yticklabels(minor=True) if label.get_text()]


def test_shares_are_not_rounded_to_whole_percents():
    figure = arms_figure(["a", "b"], [ArmPanel("accuracy", [[0.42], [0.498]], share=True)], "Title", "sub")
    figure.canvas.draw()
    (axes,) = figure.axes
    for label, at in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True):
        assert float(label.get_text().removesuffix("%")) == pytest.approx(100 * at)
    assert [percent(share) for share in (0.05, 0.425, 1)] == ["5%", "42.5%", "100%"]
