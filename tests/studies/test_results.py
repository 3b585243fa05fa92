"""How measures and tables are written."""

import pytest
import torch

from vit.studies.results import Seeds, Table, seeds


@pytest.mark.parametrize(
    ("values", "share", "text"),
    [
        ([0.5, 0.52, 0.54], True, "52.0% ± 2.0"),
        ([0.5], True, "50.0%"),
        ([0.512, 0.515, 0.518], False, "0.5150 ± 0.0030"),
        ([1234.0, 1240.0], False, "1237.0 ± 4.2"),
        ([1200.0, 1300.0], False, "1250 ± 71"),
        ([0.04321], False, "0.0432"),
        ([44.6], False, "44.6"),
        ([1e-12, 3e-12], False, "2.0e-12 ± 1e-12"),
        ([-2.34e-5], False, "-2.3e-05"),
        ([3e-9, 2e-9], True, "0.0% ± 0.0"),
        ([0.0, 0.0], False, "0 ± 0"),
        ([float("nan")], False, "not finite"),
    ],
)
def test_a_measure_is_written_with_its_spread_and_no_digit_more(values, share, text):
    assert str(seeds(values, share)) == text


@pytest.mark.parametrize(
    ("values", "text"), [((-0.0008,), "0.00"), ((-0.126, -0.124), "-0.12 ± 0.00"), ((float("nan"), 1.0), "not finite")]
)
def test_or_with_as_many_digits_as_were_asked_for(values, text):
    assert str(seeds(values, digits=2)) == text


def test_the_spread_is_that_of_a_sample():
    assert Seeds((1.0, 3.0)).spread == pytest.approx(2**0.5)
    assert Seeds((1.0,)).spread is None


def test_of_a_tensor_the_mean_of_each_seed_is_taken():
    assert seeds(torch.tensor([[[1.0, 2], [3, 4]], [[0, 0], [0, 2]]])).values == (2.5, 0.5)


def test_differences_are_taken_seed_by_seed():
    found = seeds([0.5, 0.7, 0.9]) - seeds([0.4, 0.6, 0.8])
    assert found.values == pytest.approx((0.1, 0.1, 0.1))
    points = seeds([0.5, 0.6], share=True) - seeds([0.4, 0.6], share=True)
    assert points.values == pytest.approx((10, 0))
    assert not points.share


def test_markdown_cells_stay_cells():
    table = Table("T", ("arm", "loss"), [("a|b", seeds([0.5, 0.6])), ("plain", 3)])
    lines = table.as_markdown().splitlines()
    assert lines[0] == "**T**"
    assert lines[2:] == ["| arm | loss |", "| --- | --- |", r"| a\|b | 0.550 ± 0.071 |", "| plain | 3 |"]
    assert table.as_plain()["rows"] == [["a|b", [0.5, 0.6]], ["plain", 3]]
