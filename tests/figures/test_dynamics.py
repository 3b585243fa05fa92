"""dynamics.png: what is drawn is what was given, on scales that can be compared, whatever a model has or lacks."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from vit.figures import dynamics_figure
from vit.figures.dynamics import ROWS, Courses

STEPS = torch.tensor([1, 2, 4, 8, 16, 20, 40, 60])
LAYER = ("W_Q", "W_K", "W_V", "W_O", "fc1", "fc2")


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(len(STEPS), *shape, generator=torch.Generator().manual_seed(seed)) + 0.01


def courses(names: tuple[str, ...], layers: int) -> Courses:
    return {
        name: {row.quantity: noise(layers, seed=17 * at + place) for place, row in enumerate(ROWS)}
        for at, name in enumerate(names)
    }


def draw(dark: bool = False, **changed: object) -> Figure:
    given: dict = dict(
        layers=courses(LAYER, 3),
        decoder=courses(LAYER, 2),
        single=courses(("W_E", "pos_embed", "embed", "pred"), 1),
        products=noise(3, 2),
        biases=(noise(3, 3), noise(3, 3, seed=1)),
    )
    given |= changed
    return dynamics_figure(STEPS, **given, title="Title $", subtitle="subtitle " * 40, dark=dark)


def frozen() -> Courses:
    found = courses(LAYER, 3)
    for row in ROWS[:3]:
        found["W_Q"][row.quantity][:] = 0
        found["W_K"][row.quantity][:, 1] = 0
    return found


def panels(figure: Figure) -> list[list]:
    """Axes by row and column of the matrices."""
    return [figure.axes[8 * row + 1 : 8 * row + 8] for row in range(len(ROWS))]  # the first of each row is words


def test_lines_are_what_was_given_in_the_colours_of_their_layers():
    figure = draw()
    layers, decoder = courses(LAYER, 3), courses(LAYER, 2)
    colours = figure.axes[8 * len(ROWS)].collections[-1].get_cmap().colors  # of the bar
    for row, of_row in zip(ROWS, panels(figure), strict=True):
        assert len(of_row[0].lines) == 4
        for name, panel in zip(LAYER, of_row[1:], strict=True):
            drawn = [line for line in panel.lines if line.get_linestyle() == "-"]
            dashed = [line for line in panel.lines if line.get_linestyle() == "--"]
            for lines, expected in ((drawn, layers), (dashed, decoder)):
                values = np.stack([line.get_ydata() for line in lines], axis=1)
                np.testing.assert_array_equal(values, expected[name][row.quantity].numpy())
            assert [tuple(line.get_color()) for line in drawn] == [tuple(colour) for colour in colours]
    assert len(set(map(tuple, colours))) == 3


def test_scales_of_a_row_can_be_compared_and_hold_all_that_is_drawn():
    layers = courses(LAYER, 3)
    layers["fc1"]["drift"] *= 20
    layers["fc2"]["stable_rank"] += 5
    for row, of_row in zip(ROWS, panels(draw(layers=layers)), strict=True):
        alike = of_row if row.span is None else of_row[1:]
        assert len({panel.get_ylim() for panel in alike}) == 1
        assert {panel.get_yscale() for panel in of_row} == {"log" if row.span is None else "linear"}
        for panel in of_row:
            values = np.concatenate([line.get_ydata() for line in panel.lines])
            assert panel.get_ylim()[0] < values.min() <= values.max() < panel.get_ylim()[1]
            assert len(panel.get_yticks()) > 1


def test_frozen_matrices_are_named():
    single = courses(("W_E", "pred"), 1)
    single["W_E"]["gradient_norm"][:] = 0
    figure = draw(layers=frozen(), single=single)
    headings = [panel.get_title().split("\n") for panel in panels(figure)[0][1:4]]
    assert [lines[:-1] for lines in headings] == [["frozen:"], ["1 of 3 layers frozen:"], []]
    assert ["frozen" in text.get_text() for text in figure.subfigs[0].legends[0].get_texts()] == [True, False, False]


def test_key_bias_is_explained_with_what_was_measured():
    def said_of(biases: tuple[Tensor, Tensor] | None) -> str:
        figure = draw(layers=courses(("W_Q",), 3), decoder={}, single=courses(("W_E",), 1), biases=biases)
        return " ".join(" ".join(text.get_text() for axes in figure.axes for text in axes.texts).split())

    gradients, norms = noise(3, 3), noise(3, 3)
    gradients[:], norms[:] = torch.tensor([2.0, 6e-9, 1.0]), torch.tensor([1.0, 8e-4, 4.0])
    assert "softmax" in said_of((gradients, norms))
    assert r"$3\times10^{-9}$ of the others'" in said_of((gradients, norms))
    assert r"$2\times10^{-4}$ of the others' norm" in said_of((gradients, norms))
    gradients[..., 1] = 0  # frozen: there is nothing to tell of rounding
    assert "AdamW" not in said_of((gradients, norms))
    assert "softmax" not in said_of(None)
