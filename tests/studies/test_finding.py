"""What is written down of a finding."""

import json

import pytest
from matplotlib.figure import Figure

from vit.studies.finding import Finding, Seeds, Table, brief, seeds, write_finding

ABOUT = {
    "seeds": [0, 1], "data": [{"name": "Scenes"}, {"name": "CIFAR-10"}], "device": "a processor", "date": "2026-01-02",
    "versions": {"torch": "2.10"}, "training_seconds": 61.4, "measuring_seconds": 2.0,
}  # fmt: skip


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


@pytest.mark.parametrize(
    ("measure", "text"),
    [
        (seeds([0.501, 0.521], share=True), "51% ± 1"),
        (seeds([0.051, 0.053], share=True), "5.2% ± 0.1"),
        (seeds([0.0691]), "0.07"),
    ],
)
def test_a_sentence_wants_fewer_digits(measure, text):
    assert str(brief(measure)) == text
    assert brief(measure).values == measure.values


def test_the_spread_is_that_of_a_sample():
    assert Seeds((1.0, 3.0)).spread == pytest.approx(2**0.5)
    assert Seeds((1.0,)).spread is None


def test_markdown_cells_stay_cells():
    table = Table("T", ("arm", "loss"), [("a|b", seeds([0.5, 0.6])), ("plain", 3)])
    lines = table.as_markdown().splitlines()
    assert lines[0] == "**T**"
    assert lines[2:] == ["| arm | loss |", "| --- | --- |", r"| a\|b | 0.550 ± 0.071 |", "| plain | 3 |"]
    assert table.as_plain()["rows"] == [["a|b", [0.5, 0.6]], ["plain", 3]]


def test_a_finding_is_a_page_its_pictures_and_its_numbers(tmp_path):
    table = Table("T", ("loss",), [(seeds([0.5, 0.6]),)])
    finding = Finding("It does.", "Not everywhere.", [table], {"one": Figure(), "two": Figure()}, {"one": "the first"})
    write_finding(tmp_path / "x", "Does it?", finding, ABOUT, "vit study x --out y")
    assert {path.name for path in (tmp_path / "x").iterdir()} == {"answer.md", "results.json", "one.png", "two.png"}
    page = (tmp_path / "x" / "answer.md").read_text()
    parts = [
        "# Does it?",
        "It does.",
        "![the first](one.png)",
        "![Does it?](two.png)",
        "**T**",
        "*Limits.* Not everywhere.",
    ]
    places = [
        page.index(part) for part in [*parts, "    vit study x --out y", "Measured on Scenes and CIFAR-10, 2 seeds"]
    ]
    assert places == sorted(places)
    found = json.loads((tmp_path / "x" / "results.json").read_text())
    assert found["answer"] == "It does."
    assert found["tables"][0]["rows"] == [[[0.5, 0.6]]]
    assert found["command"] == "vit study x --out y"
    assert found["seeds"] == [0, 1]
