"""Law: in every kind of figure, with hostile names too, no text overlaps another or leaves the page.

Patches are whole dots, equal figures equal files, and text in vector files is text.
"""

import itertools

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from tiny import seeded

from studies.figures import (
    Panel,
    arms_figure,
    layers_figure,
    scatter_figure,
    shares_figure,
)
from vit.errors import printable
from vit.figures.attention import attention_figure, masked_figure
from vit.figures.classification import confusion_figure, reliability_figure
from vit.figures.curves import Curve, curves_figure
from vit.figures.dynamics import QUANTITIES, dynamics_figure
from vit.figures.images import reconstruction_figure, sheet_figure
from vit.figures.measures import heads_figure
from vit.figures.style import COLOURS, fitted, save_figure, text_width, wrapped

HOSTILE = [
    "$x^$ {",
    "<script>",
    "a\nb\rc",
    "\u202egpj.exe",
    "_hidden",
    "",
    "\udcff",
    "very long " * 40,
]
T = ("Title $", "subtitle " * 40)


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=seeded())


def maps(count: int, panels: int) -> torch.Tensor:
    return (4 * rand(count, panels, 15)).softmax(-1).unflatten(-1, (3, 5))


def attention(count: int, panels: int, **options):
    names = ["mean of heads", *(f"head {head}" for head in range(panels - 1))]
    images = rand(count, 3, 12, 20)
    return attention_figure(images, maps(count, panels), names, ["one"] * count, *T, **options)


def masked():
    hidden = torch.zeros(4, 3, 5, dtype=torch.bool)
    hidden[:, 1:, 2:] = True
    images, names = rand(4, 3, 12, 20), ["layer 0, mean", "layer 1, mean"]
    patches = [(2, 3)] * 4
    look = {"masses": torch.zeros(4, 2), "scale": "log"}
    return masked_figure(
        images, hidden, 1 - images, maps(4, 2), patches, names, HOSTILE[4:], *T, **look
    )


def sheet():
    """Images under hostile names, beside the parts of their pixels."""
    images = (255 * rand(len(HOSTILE), 3, 16, 16)).to(torch.uint8)
    return sheet_figure(images, HOSTILE, *T, 3, images[:, 0] % 2, ["sky", "road"])


METRICS = [
    {"epoch": i / 10, "loss": 1 / (i + 1), "lr": 1e-3 * i, "grad_norm": 1.0} for i in range(30)
]
METRICS += [{"epoch": 1.0, "held": 0.3}, {"epoch": 3.0, "held": 0.1}]
HELD = Curve("held out alone", "", "held", {"a $ line": 0.5}, share=True)
LOSS = Curve("loss", "loss", "held", {"a $ line": 0.5, "another": 0.2})


MATRICES = ("W_Q", "W_K", "W_V", "W_O", "MLP", "W_E", "positions", "head")
SHARES = {f"row {i}": {"a $ part": 0.5, "another part": 0.7, "against": -0.2} for i in range(6)}
NAMED = [f"{name}: long name of a series" for name in "abcd"]
BINS = {"confidence": [0.2, 0.9], "accuracy": [0.5, 0.6], "count": [3, 1]}

FIGURES = {
    "16 images, one map": lambda: attention(16, 1, masses=rand(16, 1), overlay=True, query=(0, 4)),
    "masked": masked,
    "confusion": lambda: confusion_figure(torch.eye(8, dtype=torch.int64) + 1, HOSTILE, *T),
    "reliability": lambda: reliability_figure(BINS, 0.1, *T),
    "dynamics": lambda: dynamics_figure(
        torch.tensor([1, 2, 4, 8, 16, 20, 40, 60]),
        dict.fromkeys(QUANTITIES, dict.fromkeys(MATRICES, rand(8, 3))),
        *T,
    ),
    "hostile names": lambda: attention_figure(
        rand(4, 3, 12, 20), maps(4, 8), HOSTILE, HOSTILE[4:], "$", "\n", unit=HOSTILE[-1]
    ),
    "reconstruction of 16": lambda: reconstruction_figure(
        rand(16, 3, 16, 16), rand(16, 3, 16, 16), rand(16, 4, 4) > 0.5, HOSTILE * 2, *T
    ),
    "sheet with parts": sheet,
    "three curves": lambda: curves_figure(
        METRICS, [LOSS, Curve("accuracy", "loss", share=True), HELD], *T
    ),
    "four panels of layers": lambda: layers_figure(
        [Panel("gradient " * 9, dict.fromkeys(NAMED, rand(3, 5)), "share", {"W_E": 0.1})] * 4, *T
    ),
    "heads": lambda: heads_figure(
        [("mean distance to the patches attended to", rand(6, 3), "pixels", 0.5)] * 2,
        range(6),
        *T,
    ),
    "arms in two rows": lambda: arms_figure(
        ["one", "other"],
        [Panel("a long title, " * 4, [[0.1, 0.2], [1.0]], "unit", log=True)] * 4,
        *T,
    ),
    "scatter": lambda: scatter_figure(
        [Panel("r = 0.3, " * 8, {"a $": (rand(9).numpy(), rand(9).numpy() ** 9)}, "x")] * 5,
        "loss",
        *T,
    ),
    "shares": lambda: shares_figure([Panel("a long title of a panel " * 3, SHARES)] * 2, *T),
}


def texts(figure: Figure) -> list[Text]:
    """All texts that are seen in a figure, which is drawn once as it is made."""
    hidden: set[Text] = set()
    for axes in figure.findobj(Axes):
        if not axes.get_visible():
            hidden |= {*axes.findobj(Text)}
        for axis in (axes.xaxis, axes.yaxis):
            # matplotlib keeps ticks that lie outside of the axis
            shown = axis._update_ticks() if axes.axison else []
            labels = {label for tick in shown for label in tick.findobj(Text)}
            hidden |= {*axis.findobj(Text)} - labels - ({axis.label} if axes.axison else set())
    found = [text for text in figure.findobj(Text) if text not in hidden]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.filterwarnings("ignore:Glyph")
def test_no_text_overlaps_another_or_leaves_the_page(name):
    figure = FIGURES[name]()
    assert to_rgb(figure.get_facecolor()) == to_rgb(COLOURS.paper)
    boxes = [(text, text.get_window_extent()) for text in texts(figure)]
    page = figure.bbox.padded(0.5)
    for text, box in boxes:
        assert page.x0 <= box.x0 < box.x1 <= page.x1, text
        assert page.y0 <= box.y0 < box.y1 <= page.y1, text
    straight = [(text, box) for text, box in boxes if text.get_rotation() % 90 == 0]
    for (one, first), (other, second) in itertools.combinations(straight, 2):
        wide = min(first.x1, second.x1) - max(first.x0, second.x0)
        high = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert wide <= 1 or high <= 1, (one, other)
    # one canvas holds all of a sheet
    for legend in figure.legends if name != "sheet with parts" else []:
        box = legend.get_window_extent()
        seen = [axes for axes in figure.axes if axes.axison and axes.get_visible()]
        assert not any(box.overlaps(axes.get_tightbbox()) for axes in seen)


@pytest.mark.parametrize(
    "text", ["short", "x" * 500, "several words of a name " * 9, "\u202egpj.exe", "日本" * 40]
)
def test_text_is_cut_and_wrapped_by_its_width(text):
    cut = fitted(text, 60, 8)
    assert text_width(cut, 8) <= 60
    assert cut == text or cut.endswith("…") or cut == printable(text)
    lines = wrapped(text, 60, 8)
    assert all(text_width(line, 8) <= 60 for line in lines)
    assert "".join(lines).replace(" ", "") == printable(text).replace(" ", "")


@pytest.mark.slow
def test_equal_figures_are_equal_files_whose_text_is_text(tmp_path, caplog):
    """The solver that lays out charts gives other last digits each time."""

    def save(folder):
        folder.mkdir()
        for kind in ("png", "svg", "pdf"):
            save_figure(attention(1, 2), folder / f"map.{kind}")
        save_figure(FIGURES["dynamics"](), folder / "chart.png")
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    files = save(tmp_path / "one")
    assert save(tmp_path / "two") == files
    assert b"<text" in files["map.svg"]
    assert b"head 0" in files["map.svg"]
    assert b"/Type3" not in files["map.pdf"]
    assert b"/CIDFontType2" in files["map.pdf"]
    assert not caplog.records  # no font is missed
    for name in ("map.png", "chart.png"):
        picture = imread(tmp_path / "one" / name)[..., :3]
        assert picture.std() > 0.01
        for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
            assert (edge == 1).all()  # nothing runs over it
