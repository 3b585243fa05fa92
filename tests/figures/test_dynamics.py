"""Law: dynamics.png shows the values that were recorded, whatever a model has or lacks."""

from __future__ import annotations

import numpy as np
import torch
from tiny import seeded

from vit.figures import dynamics_figure
from vit.figures.dynamics import DECADES, QUANTITIES, Courses
from vit.figures.style import NAMED, PALETTE

STEPS = torch.tensor([1, 2, 4, 8, 16, 20, 40, 60])
NAMES = ("W_Q", "W_K", "W_V", "W_O", "MLP", "W_E", "positions", "head")


def courses(layers: int = 3) -> Courses:
    generator = seeded(0)
    return {
        name: {
            quantity: torch.rand(len(STEPS), layers, generator=generator) + 0.01
            for quantity in QUANTITIES
        }
        for name in NAMES
    }


def test_a_line_is_the_mean_over_layers_and_told_from_all_others():
    given = courses()
    figure = dynamics_figure(STEPS, given, "Title", "subtitle")
    for axes, quantity in zip(figure.axes, QUANTITIES, strict=True):
        for line, name in zip(axes.lines, NAMES, strict=True):
            assert np.allclose(line.get_ydata(), given[name][quantity].numpy().mean(1))
            assert list(line.get_xdata()) == STEPS.tolist()
            # its colour on every page
            if name in NAMED:
                assert line.get_color() == PALETTE[NAMED[name]]
        assert len({(line.get_color(), str(line.get_linestyle())) for line in axes.lines}) == len(
            NAMES
        )
        values = np.concatenate([line.get_ydata() for line in axes.lines])
        assert axes.get_ylim()[0] < values.min() <= values.max() < axes.get_ylim()[1]


def test_a_frozen_matrix_is_named_and_stretches_no_axis():
    given = courses()
    for quantity in QUANTITIES:
        given["W_K"][quantity][:] = 0
        given["W_V"][quantity][0] = 1e-30
    figure = dynamics_figure(STEPS, given, "Title", "subtitle")
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [name for name in names if "frozen" in name] == ["W_K (frozen)"]
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert 0 < high / low < 10.0 ** (DECADES + 1)
