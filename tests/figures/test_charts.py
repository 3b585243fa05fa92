"""Law: charts show the numbers that they are given.

Oracle: those numbers, and a running mean computed value by value.
"""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

from vit.figures import (
    Curve,
    Panel,
    confusion_figure,
    curves_figure,
    dynamics_figure,
    reconstruction_figure,
    reliability_figure,
)
from vit.figures.curves import smoothed
from vit.figures.dynamics import QUANTITIES
from vit.figures.measures import layers_figure
from vit.figures.style import COLOURS


def test_layers_show_the_mean_over_seeds_and_its_range():
    values = np.array([[0.0, 1.0, 2.0], [2.0, 3.0, 4.0]])
    figure = layers_figure(
        [Panel("x", {"a": values, "b": values[0]}, lines={"chance": 0.5})], "Title", "sub"
    )
    (axes,) = figure.axes
    mean, alone, chance = axes.lines
    assert list(mean.get_ydata()) == [1, 2, 3]
    assert list(alone.get_ydata()) == [0, 1, 2]
    assert list(chance.get_ydata()) == [0.5, 0.5]
    (band,) = axes.collections
    assert band.get_paths()[0].get_extents().intervaly.tolist() == [0, 4]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b", "chance"]


def test_a_single_value_is_seen_and_no_line_in_the_legend_either():
    step = {"epoch": 1.0, "loss": 0.5, "lr": 0.1, "grad_norm": 1.0}
    steps = torch.tensor([1])
    courses = {"W_Q": {quantity: torch.ones(1, 2) for quantity in QUANTITIES}}
    alone = Panel("x", {"mean": np.array([[1.0], [2.0]])})
    figures = [
        curves_figure([step], [Curve("loss", "loss")], "", ""),
        dynamics_figure(steps, courses, "", ""),
        layers_figure([alone], "", "", dots="a head"),
    ]
    for figure in figures:
        for line in (line for axes in figure.axes for line in axes.lines):
            assert line.get_marker() not in ("", "None"), line
            assert line.get_linestyle() == "None", line


def test_a_spike_hides_no_other_value():
    lines = [{"epoch": at, "loss": 1 + at, "lr": 1.0, "grad_norm": 1 + at} for at in range(40)]
    lines[20] |= {"loss": 1e6, "grad_norm": 1e9}
    loss, rate, norm = curves_figure(lines, [Curve("loss", "loss")], "", "").axes
    for axes in (loss, norm):
        line = axes.lines[0]
        heights = axes.transAxes.inverted().transform(axes.transData.transform(line.get_xydata()))
        assert heights[39, 1] - heights[0, 1] > 0.1  # of the panel's height
    assert rate.get_ylim()[0] == 0


def test_panels_of_the_same_entries_have_one_legend():
    series = {f"a long name of a series, {number}": np.full((2, 3), number) for number in range(14)}
    lines = {f"line {number}": number / 2 for number in range(5)}
    figure = layers_figure([Panel(title, series, lines=lines) for title in "xy"], "Title", "sub")
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {*series, *lines}


def test_masked_pixels_are_not_shown_in_the_masked_row():
    images, hidden = torch.rand(2, 3, 16, 16), torch.zeros(2, 1, 16, 16, dtype=torch.bool)
    hidden[..., :8, :] = True
    figure = reconstruction_figure(images, images, hidden, ["one", "two"], "Title", "subtitle")
    canvas = figure.axes[0].images[0].get_array()
    absent = (canvas == np.round(255 * np.array(to_rgb(COLOURS.absent)))).all(-1)
    side = 16 * round(150 / 16)  # an inch, in whole dots per pixel
    rims = 6 * ((side + 2) ** 2 - side**2)
    assert absent.sum() == 2 * side * side // 2 + rims


def test_running_mean_keeps_constants_and_matches_a_slow_one():
    assert np.allclose(smoothed(np.full(7, 3.0)), 3)
    values = np.random.default_rng(0).normal(size=500)
    slow = [values[max(i - 5, 0) : i + 6].mean() for i in range(500)]
    assert np.allclose(smoothed(values), slow)
    for few in (0, 1, 2, 19):  # a short run's fall is not averaged away
        assert np.array_equal(smoothed(values[:few]), values[:few])
    assert (smoothed(values[:20]) != values[:20]).mean() > 0


def test_confusion_is_drawn_with_labels_in_rows_and_mistakes_in_colour():
    table = torch.tensor([[8, 2, 0], [0, 10, 0], [5, 0, 6]])
    axes = confusion_figure(table, ["cat", "dog", "$cow$"], "Title", "subtitle").axes[0]
    drawn = axes.images[0].get_array()
    assert np.allclose(drawn, table / table.sum(1, keepdim=True))
    luma = axes.images[0].to_rgba(drawn)[..., :3].sum(-1)
    # right answers darkest, no answer as the paper
    assert luma[1, 1] < luma[2, 0] < luma[0, 1] < luma[1, 0]
    written = {text.get_position(): text.get_text() for text in axes.texts}
    expected = {(0, 0): "80", (1, 0): "20", (1, 1): "100", (0, 2): "45", (2, 2): "55"}
    assert written == expected  # x is the prediction


def test_reliability_is_drawn_at_its_values():
    bins = {"confidence": [None, 0.4, 0.9], "accuracy": [None, 0.5, 0.6], "count": [0, 3, 1]}
    figure = reliability_figure(bins, 0.15, "Title", "subtitle")
    line = figure.axes[0].lines[1]
    np.testing.assert_allclose(line.get_xydata()[1:], [[0.4, 0.5], [0.9, 0.6]], atol=1e-6)
    heights = [bar.get_height() for bar in figure.axes[1].patches]
    assert heights == pytest.approx([0, 0.75, 0.25])
