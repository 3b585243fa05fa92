"""Maps of relations: the order, the colours' ends, and what is outlined."""

from itertools import pairwise

import numpy as np
import pytest

from vit.figures.relations import Relation, relations_figure, seriated

NAMES = ["a", "x", "b", "y", "c"]


def blocks() -> np.ndarray:
    """a, b, c belong together, and so do x, y."""
    group = np.array([0, 1, 0, 1, 0])
    return np.where(group[:, None] == group, 2.0, -1.0)


def test_what_is_high_stands_together():
    order = seriated(blocks())
    assert sorted(order) == [0, 1, 2, 3, 4]
    group = [NAMES[place] in "abc" for place in order]
    assert sum(one != other for one, other in pairwise(group)) == 1
    chain = -np.abs(np.subtract.outer([3, 0, 4, 1, 2], [3, 0, 4, 1, 2])).astype(float)  # places on a line
    along = [[3, 0, 4, 1, 2][place] for place in seriated(chain)]
    assert along in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0])


def test_each_panel_has_the_same_order_and_no_diagonal():
    other = np.arange(25.0).reshape(5, 5)
    other = other + other.T
    figure = relations_figure(
        NAMES, [Relation("one", blocks()), Relation("other", other, limit=9.0)], "t", "s", [("a", "y")]
    )
    order = seriated(blocks())
    first, second = (axes for axes in figure.axes if axes.images)
    for axes, values in ((first, blocks()), (second, other)):
        drawn = np.asarray(axes.images[0].get_array().filled(np.nan))
        off = ~np.eye(5, dtype=bool)
        assert np.array_equal(drawn[off], values[np.ix_(order, order)][off])
        assert np.isnan(np.diag(drawn)).all()
        assert [text.get_text() for text in axes.get_yticklabels()] == [NAMES[place] for place in order]
        assert len(axes.patches) == 2  # the pair, both ways
    assert first.images[0].get_clim() == (-2, 2)
    assert second.images[0].get_clim() == (-9, 9)
    assert blocks()[0, 0] == 2  # what was given is left as it is


def test_an_unknown_name_is_not_outlined_by_guess():
    with pytest.raises(ValueError, match="nobody"):
        relations_figure(NAMES, [Relation("one", blocks())], "t", "s", [("a", "nobody")])
