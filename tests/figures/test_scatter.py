"""Points stand where they belong, on one scale upwards."""

import numpy as np
import pytest

from vit.figures.scatter import ScatterPanel, scatter_figure

Y = np.array([0.2, 0.001, -0.0005])


@pytest.mark.parametrize("log", [False, True])
def test_points_of_all_panels_share_one_scale(log):
    panels = [
        ScatterPanel("first", {"a": (np.array([1.0, 2, 3]), Y), "b $": (np.array([2.0]), np.array([0.5]))}, "x"),
        ScatterPanel("second", {"a": (np.array([5.0, 6, 7]), Y)}, "z"),
    ]
    figure = scatter_figure(panels, "loss", "Title", "sub", log)
    one, two = figure.axes
    assert one.get_yscale() == two.get_yscale() == ("symlog" if log else "linear")
    assert one.get_ylim() == two.get_ylim()
    assert one.get_ylim()[1] > 0.5
    assert one.get_ylim()[0] < -0.0005
    assert list(two.lines[0].get_xdata()) == [5, 6, 7]
    assert list(two.lines[0].get_ydata()) == list(Y)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", r"b \$"]
