"""Law: charts show the numbers that they are given.

Oracle: those numbers, and a running mean computed value by value.
"""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from tiny import seeded

from vit.figures.classification import confusion_figure, reliability_figure
from vit.figures.curves import Curve, curves_figure
from vit.figures.dynamics import DECADES, MATRICES, QUANTITIES, dynamics_figure
from vit.figures.images import reconstruction_figure
from vit.figures.measures import heads_figure
from vit.figures.style import COLOURS, PALETTE

STEPS = torch.tensor([1, 2, 4, 8, 16, 20, 40, 60])
NAMES = ("W_Q", "W_K", "W_V", "W_O", "MLP", "W_E", "positions", "head")


@pytest.fixture
def courses():
    """What was recorded of each matrix, in three layers."""
    draws = seeded(0)
    found = {}
    for part in QUANTITIES:
        found[part] = {name: torch.rand(8, 3, generator=draws) + 0.01 for name in NAMES}
    return found


def test_each_head_is_a_dot_where_its_value_is():
    given = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, float("nan")]])
    axes = heads_figure([("", given, "pixels", 6.0)], [2, 3], "Title", "subtitle").axes[0]
    lines = {line.get_label(): line.get_xydata() for line in axes.lines}
    dots = lines["a head"]
    assert np.allclose(dots[~np.isnan(dots[:, 1])], [[2, 1], [2, 2], [2, 3], [3, 4], [3, 5]])
    assert np.allclose(lines["mean of the heads"], [[2, 2], [3, 4.5]])
    assert np.allclose(lines["uniform attention"][:, 1], 6)
    assert axes.get_ylim() == pytest.approx((0, 1.05 * 6))  # nothing is cut


def test_a_single_value_is_seen():
    step = {"epoch": 1.0, "loss": 0.5, "lr": 0.1, "grad_norm": 1.0}
    once = {part: {"W_Q": torch.ones(1, 2)} for part in QUANTITIES}
    figures = [
        curves_figure([step], [Curve("loss", "loss")], "", ""),
        dynamics_figure(STEPS[:1], once, "", ""),
        heads_figure([("x", torch.tensor([[1.0, 2.0]]), "", None)], [4], "", ""),
    ]
    for line in [line for figure in figures for axes in figure.axes for line in axes.lines]:
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


def test_masked_pixels_are_not_shown_in_the_masked_row():
    images, hidden = torch.rand(2, 3, 16, 16), torch.zeros(2, 4, 4, dtype=torch.bool)
    hidden[:, :2] = True
    figure = reconstruction_figure(images, images, hidden, ["one", "two"], "Title", "subtitle")
    canvas = figure.axes[0].images[0].get_array()
    absent = (canvas == np.round(255 * np.array(to_rgb(COLOURS.absent)))).all(-1)
    side = 16 * round(150 / 16)  # an inch, in whole dots per pixel
    rims = 6 * ((side + 2) ** 2 - side**2)
    assert absent.sum() == 2 * side * side // 2 + rims


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
    assert [label.get_text() for label in axes.get_yticklabels()][1] == "dog  10"


def test_reliability_is_drawn_at_its_values():
    bins = {"confidence": [None, 0.4, 0.9], "accuracy": [None, 0.5, 0.6], "count": [0, 3, 1]}
    figure = reliability_figure(bins, 0.15, "Title", "subtitle")
    line = figure.axes[0].lines[1]
    np.testing.assert_allclose(line.get_xydata()[1:], [[0.4, 0.5], [0.9, 0.6]], atol=1e-6)
    heights = [bar.get_height() for bar in figure.axes[1].patches]
    assert heights == pytest.approx([0, 0.75, 0.25])


def test_a_line_of_dynamics_is_the_mean_over_layers_and_told_from_all_others(courses):
    figure = dynamics_figure(STEPS, courses, "Title", "subtitle")
    for axes, quantity in zip(figure.axes, QUANTITIES, strict=True):
        for line, name in zip(axes.lines, NAMES, strict=True):
            assert np.allclose(line.get_ydata(), courses[quantity][name].numpy().mean(1))
            assert list(line.get_xdata()) == STEPS.tolist()
            # its colour on every page
            if name in MATRICES:
                assert line.get_color() == PALETTE[MATRICES[name]]
        looks = {(line.get_color(), str(line.get_linestyle())) for line in axes.lines}
        assert len(looks) == len(NAMES)


def test_a_frozen_matrix_is_named_and_stretches_no_axis(courses):
    for quantity in QUANTITIES:
        courses[quantity]["W_K"][:] = 0
        courses[quantity]["W_V"][0] = 1e-30
        courses[quantity]["W_V"][-1] = torch.inf  # of an overflow
    figure = dynamics_figure(STEPS, courses, "Title", "subtitle")
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [name for name in names if "frozen" in name] == ["W_K (frozen)"]
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert 0 < high / low < 10.0 ** (DECADES + 1)
