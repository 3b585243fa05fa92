"""Figures are drawn from tensors alone, whatever the names in them, and saved whole and alike."""

import io

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from vit.figures import (
    Curve,
    RunLine,
    RunPanel,
    compared_figure,
    confusion_figure,
    curve_figure,
    curves_figure,
    png_of,
    reconstruction_figure,
    reliability_figure,
    save_figure,
    sheet_figure,
)
from vit.figures.curves import smoothed
from vit.figures.style import DARK, HIDDEN, LIGHT, fitted, plain, text_width, titled_figure, wrapped

HOSTILE = ["$x^", "<script>", "a\nb", "\udcff", "", "$$ {"]
METRICS = [{"epoch": i / 10, "loss": 1 / (i + 1), "lr": 1e-3 * i, "grad_norm": 1.0} for i in range(30)]
METRICS += [{"epoch": 1.0, "held": 0.3}, {"epoch": 3.0, "held": 0.1}]
LOSS = Curve("loss", "loss", "held", {"a $ line": 0.5, "another": 0.2})


def images(count: int, height: int = 16, width: int = 16) -> torch.Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(0))


def reconstruction(labels: list[str], height: int = 16, width: int = 16):
    original = images(len(labels), height, width)
    hidden = torch.zeros(len(labels), 1, height, width, dtype=torch.bool)
    hidden[..., : height // 2, :] = True
    return reconstruction_figure(original, 1 - original, hidden, labels, "Title $", "subtitle " * 40)


def sheet(labels: list[str], with_parts: bool = False):
    pictures = (images(len(labels)) * 255).to(torch.uint8)
    parts = torch.ones(len(labels), 16, 16, dtype=torch.uint8) if with_parts else None
    return sheet_figure(pictures, labels, "Title", "subtitle", 3, parts, ["sky", "road"] if with_parts else [])


FIGURES = {
    "reconstruction": lambda: reconstruction(HOSTILE),
    "wide reconstruction": lambda: reconstruction(["one"], 8, 32),
    "sheet": lambda: sheet(HOSTILE),
    "sheet with parts": lambda: sheet(HOSTILE, with_parts=True),
    "curves": lambda: curves_figure(METRICS, [LOSS], "Title", "subtitle"),
    "two curves": lambda: curves_figure(METRICS, [LOSS, Curve("accuracy", "loss", "held", {})], "Title", "subtitle"),
    "compared runs": lambda: compared_figure(
        [
            RunPanel("loss", [RunLine(0, (), (), (3, 0.5), "$a$ " * 60), RunLine(4, [1, 2], [0.1, 0.2])]),
            RunPanel("accuracy", [RunLine(1, [1], [0.5], None, "b", rough=False)], share=True),
        ],
        "Title",
        "subtitle",
    ),
    "curves of one step": lambda: curves_figure(METRICS[:1], [LOSS], "Title", "subtitle"),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES)
def test_figure_is_a_picture_and_equal_figures_are_equal_files(make, tmp_path):
    for name in ("one.png", "two.png"):
        save_figure(make(), tmp_path / name)
    picture = imread(tmp_path / "one.png")
    assert picture.shape[0] > 150
    assert picture.shape[1] > 150
    assert picture[..., :3].std() > 0.01
    assert (picture[0, :, :3] == 1).all()  # nothing runs over the upper edge
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_hidden_pixels_are_not_shown_in_the_masked_row():
    figure = reconstruction(["one", "two"])
    masked = figure.axes[2].images[0].get_array()
    assert np.allclose(masked[:8], HIDDEN)
    assert not np.allclose(masked[8:], HIDDEN)


def test_plain_text_cannot_start_a_formula_or_a_line():
    assert plain("a$b\n\udcff") == "a\\$b��"


def test_running_mean_keeps_constants_and_matches_a_slow_one():
    assert np.allclose(smoothed(np.full(7, 3.0)), 3)
    values = np.random.default_rng(0).normal(size=500)
    slow = [values[max(i - 5, 0) : i + 6].mean() for i in range(500)]
    assert np.allclose(smoothed(values), slow)


def test_a_long_title_goes_on_in_a_second_line_and_then_ends():
    short, _ = titled_figure(4, 1, "A title", "subtitle")
    for title in ("word " * 12, "word " * 500, "x" * 5000, "$ " * 300):
        figure, free = titled_figure(4, 1, title, "subtitle")
        assert figure.get_figheight() == pytest.approx(short.get_figheight() + 0.24, abs=0.01)
        assert free == pytest.approx(1 / figure.get_figheight())
        edges = [text.get_window_extent() for text in figure.texts]
        assert all(edge.x1 <= figure.bbox.x1 for edge in edges)
        assert edges[0].y0 > edges[1].y1
    assert figure.texts[0].get_text().endswith("…")


@pytest.mark.parametrize("text", ["short", "x" * 500, "several words of a name " * 9, "\u202egpj.exe", "日本" * 40])
def test_text_is_cut_and_wrapped_by_its_width(text):
    cut = fitted(text, 60, 8)
    assert text_width(cut, 8) <= 60
    assert cut == text or cut.endswith("…") or "\N{REPLACEMENT CHARACTER}" in cut
    lines = wrapped(text, 60, 8)
    assert all(text_width(line, 8) <= 60 for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "").replace("\u202e", "\N{REPLACEMENT CHARACTER}")


def test_confusion_is_drawn_with_labels_in_rows_and_mistakes_in_colour():
    table = torch.tensor([[8, 2, 0], [0, 10, 0], [5, 0, 5]])
    figure = confusion_figure(table, ["cat", "dog", "$cow$"], "Title", "subtitle")
    axes = figure.axes[0]
    drawn = axes.images[0].get_array()
    assert drawn[0, 1] == pytest.approx(0.2)
    assert drawn[2, 0] == pytest.approx(0.5)
    assert np.isnan(np.asarray(drawn.filled(np.nan) if np.ma.isMaskedArray(drawn) else drawn).diagonal()).all()
    written = {(round(t.get_position()[0]), round(t.get_position()[1])): t.get_text() for t in axes.texts}
    assert (written[1, 0], written[0, 2], written[0, 0]) == ("20", "50", "80")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("taken for", "true class")


def test_reliability_is_drawn_at_its_values():
    nan = float("nan")
    confidence, accuracy = torch.tensor([nan, 0.4, 0.9]), torch.tensor([nan, 0.5, 0.6])
    figure = reliability_figure(confidence, accuracy, torch.tensor([0, 3, 1]), 0.15, "Title", "subtitle")
    line = figure.axes[0].lines[1]
    np.testing.assert_allclose(line.get_xydata()[1:], [[0.4, 0.5], [0.9, 0.6]], atol=1e-6)
    heights = [bar.get_height() for bar in figure.axes[1].patches]
    assert heights == pytest.approx([0, 0.75, 0.25])
    assert "15.0%" in figure.axes[0].get_legend().get_title().get_text()


RELIABILITY = (torch.tensor([0.2, 0.9]), torch.tensor([0.5, 0.6]), torch.tensor([3, 1]), 0.1)
BY_THEMSELVES = {
    "curve": lambda dark: curve_figure(METRICS, LOSS, 3.0, dark),
    "exact curve": lambda dark: curve_figure(METRICS, Curve("rate", "lr", exact=True), 1.9, dark),
    "confusion": lambda dark: confusion_figure(torch.eye(3, dtype=torch.int64) + 1, ["a", "b", "$"], "", "", dark),
    "confusion of many": lambda dark: confusion_figure(torch.eye(30, dtype=torch.int64), ["x"] * 30, "", "", dark),
    "reliability": lambda dark: reliability_figure(*RELIABILITY, "", "", dark),
}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("make", BY_THEMSELVES.values(), ids=BY_THEMSELVES)
def test_figures_for_a_page_have_its_paper_and_nothing_over_the_edge(make, dark):
    theme = DARK if dark else LIGHT
    figure = make(dark)
    picture = imread(io.BytesIO(png_of(figure)))[..., :3]
    paper = np.array(to_rgb(theme.paper))
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert np.allclose(edge, paper, atol=0.003)
    assert not np.allclose(picture, paper, atol=0.2)
    assert not figure.texts  # the page has the heading
    for axes in figure.axes:
        for text in (*axes.get_xticklabels(), *axes.get_yticklabels(), axes.title, axes.xaxis.label, axes.yaxis.label):
            if text.get_text():
                light = np.dot(to_rgb(text.get_color()), [0.2126, 0.7152, 0.0722])
                assert (light > 0.4) == dark, text  # ink on its paper


def test_more_dots_are_the_same_figure_in_more_detail():
    figure = curve_figure(METRICS, LOSS, 3.0)
    small, large = (imread(io.BytesIO(png_of(figure, dpi))).shape for dpi in (100, 200))
    assert (2 * small[0], 2 * small[1]) == large[:2]
