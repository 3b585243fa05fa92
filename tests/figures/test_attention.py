"""Law: a picture of attention, read back from its pixels, says what the numbers say.

Oracle: the maps that were drawn, and the colours of their scale.
"""

from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from tiny import rendered, seeded

from vit.errors import UserError
from vit.figures import (
    Panel,
    attention_figure,
    layers_figure,
    masked_figure,
    patch_colours_figure,
    strongest_figure,
)
from vit.figures.attention import dimmed
from vit.figures.mosaic import MARK, Mosaic, layout_for
from vit.figures.scale import AROUND_UNIFORM, CENTRE, PALETTE, Scale
from vit.figures.style import COLOURS

GRID = (3, 5)


def images(count: int = 2, grid: tuple[int, int] = GRID, channels: int = 3) -> torch.Tensor:
    return torch.rand(count, channels, 4 * grid[0], 4 * grid[1], generator=seeded(0))


def weights(count: int = 2, panels: int = 3, grid: tuple[int, int] = GRID) -> torch.Tensor:
    noise = torch.randn(count, panels, grid[0] * grid[1], generator=seeded(1))
    return noise.mul(2).softmax(-1).unflatten(-1, grid)


def names(panels: int = 3) -> list[str]:
    return ["mean of heads", *(f"head {head}" for head in range(panels - 1))]


def draw(maps: torch.Tensor, **options):
    grid = (maps.shape[2], maps.shape[3])
    labels = [f"image {i}" for i in range(len(maps))]
    return attention_figure(
        images(len(maps), grid), maps, names(maps.shape[1]), labels, "Title", "subtitle", **options
    )


SHARES = AROUND_UNIFORM(np.arange(256), bytes=True)[:, :3]
"""The colours of shares, from low to high; white is uniform."""
UNIFORM = round(255 * CENTRE)


LAYOUTS: WeakKeyDictionary = WeakKeyDictionary()
"""Figure -> where its pictures stand."""


@pytest.fixture(autouse=True)
def layouts(monkeypatch):
    """Remember the layout of every figure that a test draws."""
    draw = Mosaic.figure

    def figure(mosaic, *args, **options):
        drawn = draw(mosaic, *args, **options)
        LAYOUTS[drawn] = mosaic.layout
        return drawn

    monkeypatch.setattr(Mosaic, "figure", figure)


def crops(figure, pixels: np.ndarray | None = None) -> list[np.ndarray]:
    """The pixels of each picture on the sheet, image by image."""
    pixels = rendered(figure) if pixels is None else pixels
    layout = LAYOUTS[figure]
    heading = len(pixels) - len(figure.axes[0].images[0].get_array())
    height, width = layout.tile
    result = []
    for block in range(layout.blocks):
        for number in range(layout.lead + layout.maps):
            x, y = layout.corner(block, number)
            result.append(pixels[heading + y : heading + y + height, x : x + width])
    return result


def bars(figure) -> list:
    """The axes of the colour bars."""
    return figure.axes[0].child_axes


def patches(crop: np.ndarray, grid: tuple[int, int] = GRID) -> np.ndarray:
    """(rows, columns, 3): a pixel of each patch, off its middle, where a stroke would be, and off its edge."""
    height, width = crop.shape[0] // grid[0], crop.shape[1] // grid[1]
    return crop[height // 4 :: height, width // 4 :: width]


def centres(crop: np.ndarray, grid: tuple[int, int] = GRID) -> np.ndarray:
    height, width = crop.shape[0] // grid[0], crop.shape[1] // grid[1]
    return crop[height // 2 :: height, width // 2 :: width]


def index_of(colours: np.ndarray) -> np.ndarray:
    """(..., 3) -> (...): the place of each colour in the scale."""
    return np.abs(colours[..., None, :].astype(int) - SHARES).sum(-1).argmin(-1)


def texts(figure) -> list[str]:
    shown = list(figure.texts)
    for axes in figure.axes:
        shown += axes.texts
        if axes.get_legend():
            shown += axes.get_legend().get_texts()
    return [text.get_text() for text in shown]


def as_bytes(colour) -> list[int]:
    return [round(255 * part) for part in to_rgb(colour)]


def masked(maps: torch.Tensor, **options):
    hidden = torch.zeros(1, *GRID, dtype=torch.bool)
    hidden[:, 1:, 2:] = True
    original = images(1)
    return masked_figure(
        original, hidden, 1 - original, maps, [(2, 3)], names(), ["one"], "Title", "", **options
    )


def test_a_masked_patch_is_not_a_zero():
    maps = weights(1, 1)
    maps[0, 0, 0, 0] = float("nan")
    maps[0, 0, 1, 1] = 0
    for overlay in (True, False):
        figure = draw(maps, overlay=overlay)
        crop = crops(figure)[1]
        assert patches(crop)[0, 0].tolist() == as_bytes(COLOURS.absent)
        assert (centres(crop)[0, 0] != patches(crop)[0, 0]).any(), "crossed by a stroke"
        assert "masked patch: no value, not zero" in texts(figure)
    lowest = SHARES[0]
    assert patches(crop)[1, 1].tolist() == lowest.tolist()
    assert (centres(crop)[1, 1] == lowest).all()
    assert not any("masked" in text for text in texts(draw(weights(1, 1))))


def test_values_are_multiples_of_uniform_attention_over_the_visible_patches():
    maps = torch.full((1, 2, *GRID), 1 / 15)
    maps[0, 0, 0, 0] = 3 / 15
    maps[0, 1, :2] = float("nan")  # 5 of 15 are left
    maps[0, 1, 2] = torch.tensor([3.0, 1.0, 1.0, 0.0, 0.0]) / 5
    figure = draw(maps)
    _, first, second = crops(figure)
    uniform = UNIFORM
    assert index_of(patches(first))[0, 0] == 255
    assert abs(index_of(patches(first))[1, 1] - uniform) <= 1
    assert np.abs(index_of(patches(second))[2] - [255, uniform, uniform, 0, 0]).max() <= 1
    (bar,) = bars(figure)
    labels = [label.get_text() for label in bar.get_yticklabels()]
    ticks = dict(zip(labels, bar.get_yticks(), strict=True))
    assert ticks["1 = uniform"] == 1
    assert bar.get_ylim() == pytest.approx((0, 3))


def test_uniform_attention_is_white_and_nearly_uniform_attention_pale():
    maps = torch.full((1, 1, *GRID), 1 / 15)
    assert (crops(draw(maps))[1] >= 254).all()
    maps[0, 0, 0, :2] += torch.tensor([0.15, -0.15]) / 15
    assert (crops(draw(maps))[1] > 220).all()


def test_values_in_a_unit_of_their_own_begin_at_white():
    maps = torch.arange(15.0).reshape(1, 1, *GRID)
    panel = patches(crops(draw(maps, unit="pixels"))[1])
    assert panel[0, 0].tolist() == PALETTE[0].tolist()
    assert panel[-1, -1].tolist() == PALETTE[255].tolist()


def test_a_scale_is_shared_or_the_rows_own():
    maps = weights()
    louder = maps * torch.tensor([2.0, 1.0])[:, None, None, None]
    for scale, unchanged, count in (("shared", False, 1), ("log", False, 1), ("row", True, 2)):
        first, second = (draw(part, scale=scale) for part in (maps, louder))
        before, after = crops(first)[5:8], crops(second)[5:8]
        same = all((a == b).all() for a, b in zip(before, after, strict=True))
        assert same == unchanged, scale
        assert len(bars(first)) == count


def test_a_logarithmic_scale_has_equal_steps_for_equal_factors():
    scale = Scale.of(np.array([0.001, 0.01, 0.1, 1.0]), log=True)
    assert np.allclose(scale(np.array([0.001, 0.01, 0.1, 1.0])), [0, 1 / 3, 2 / 3, 1])
    scale = Scale.of(np.array([0.0, 1e-12, 1e-12, 1.0]), log=True)
    assert (scale.low, scale.top, scale.under) == (1e-4, 1.0, True)
    assert np.allclose(scale.inverse(scale(np.array([1e-4, 0.02, 1.0]))), [1e-4, 0.02, 1.0])
    scale = Scale.of(np.array([0.01, 1.0, 100.0]), log=True, centre=1.0)
    assert np.allclose(scale(np.array([0.01, 0.1, 1.0, 10.0, 100.0])),
                       [0, CENTRE / 2, CENTRE, (1 + CENTRE) / 2, 1])  # fmt: skip


@pytest.mark.parametrize("centre", [None, 1.0])
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        [0.0, 0.0],
        [1.0, 1.0],
        [1e-9, 2e-9],
        [0.0, 1e6],
        [float("nan"), 3.0],
        [float("nan")] * 2,
        [-1.0, 2.0],
    ],
)
def test_every_scale_has_a_range_and_ticks_within(values, log, centre):
    scale = Scale.of(np.array(values), log, centre)
    assert scale.low < scale.top
    ticks = np.array(scale.ticks(5))
    assert len(ticks) >= 2
    slack = 1e-5 * (scale.top - scale.low)
    assert ((ticks >= scale.low - slack) & (ticks <= scale.top + slack)).all()
    assert ((scale(ticks) >= 0) & (scale(ticks) <= 1)).all()


def test_outliers_do_not_stretch_the_scale_and_are_told():
    maps = torch.full((1, 4, 8, 8), 1 / 64)
    maps[0, 0, 0, 0] = 50 / 64
    figure = draw(maps)
    assert any("<1% of the values lie above it, the highest 50." in text for text in texts(figure))
    assert index_of(patches(crops(figure)[1], (8, 8)))[0, 0] == 255
    assert (crops(figure)[2] >= 254).all()
    assert not any("Pointed end" in text for text in texts(draw(weights())))


def test_lightness_falls_on_both_sides_of_uniform_so_that_each_colour_is_one_value():
    for colours, middle in ((PALETTE, 0), (SHARES, UNIFORM)):
        light = (colours / 255) ** 2.2 @ [0.2126, 0.7152, 0.0722]
        assert (np.diff(light[middle + 1 :]) < 0).all()
        assert (np.diff(light[:middle]) > 0).all()
        assert len(np.unique(colours, axis=0)) > 250
    assert (SHARES[UNIFORM] >= 254).all()
    cool, warm = SHARES[: UNIFORM - 1].astype(int), SHARES[UNIFORM + 2 :].astype(int)
    assert (cool[:, 2] > cool[:, 0]).all()
    assert (warm[:, 0] > warm[:, 2]).all()


def test_up_to_uniform_the_overlaid_image_shows():
    maps = torch.zeros(1, 1, *GRID)
    maps[0, 0, 0, 0], maps[0, 0, 0, 1] = 0.8, 0.2
    picture, panel = crops(draw(maps, overlay=True))
    grey, seen = (picture / 255) @ [0.2126, 0.7152, 0.0722], panel / 255
    rows, columns = (length // count for length, count in zip(panel.shape[:2], GRID, strict=True))
    paler = 0.4 + 0.6 * grey[rows:, :, None]
    assert np.abs(seen[rows:] - paler).max() < 0.01
    tints = [
        np.ptp(seen[:rows, at * columns : (at + 1) * columns], axis=-1).mean() for at in (0, 1, 2)
    ]
    assert tints[0] > 0.2 < 4 * tints[1]
    assert tints[2] < 0.01


def test_the_bar_has_the_colours_of_the_map():
    figure = draw(weights(1, 1))
    (bar,) = bars(figure)
    pixels = rendered(figure)
    box = bar.get_window_extent()
    middle = round((box.x0 + box.x1) / 2)
    strip = pixels[len(pixels) - round(box.y1) : len(pixels) - round(box.y0), middle]
    shown = np.unique(patches(crops(figure)[1]).reshape(-1, 3), axis=0).astype(int)
    assert np.abs(shown[:, None] - strip).max(-1).min(1).max() <= 6  # of 255: the ends are steep


@pytest.mark.parametrize("query", [(np.int64(2), np.int64(1)), [(0, 4), [2, 1]]])
def test_the_query_patch_is_outlined_in_image_and_maps(query):
    figure = draw(weights(2, 2), query=query)
    for number, crop in enumerate(crops(figure)[:6]):
        row, column = query if isinstance(query, tuple) else query[number // 3]
        marked = np.argwhere(np.abs(crop.astype(int) - as_bytes(MARK)).sum(-1) < 40)
        height, width = crop.shape[0] / GRID[0], crop.shape[1] / GRID[1]
        assert np.abs(marked.min(0) - [row * height, column * width]).max() <= 3
        assert np.abs(marked.max(0) - [(row + 1) * height, (column + 1) * width]).max() <= 3
    assert "query patch" in texts(figure)


def test_the_share_on_patches_stands_below_a_map_where_it_is_below_nine_tenths():
    shown = texts(draw(weights(1, 3), masses=torch.tensor([[0.07, 0.0, 0.997]])))
    assert "<1% on patches" in shown
    assert sum("on patches" in text for text in shown) == 2  # and the note
    for mass in (0.07, 0.103):  # of which the second leaves 89.7%, written 90%
        most = texts(draw(weights(1, 1), masses=torch.tensor([[mass]])))
        assert any(text.startswith("At least 90% of each map's attention") for text in most)


def test_the_class_of_an_image_beside_others_is_not_cut():
    labels = [f"airplane · dog {share}%" for share in range(5)]
    square, maps = images(5, (8, 8)), weights(5, 1, (8, 8))
    for figure in (
        attention_figure(square, maps, ["relevance"], labels, "", ""),
        strongest_figure(square, maps, maps > 0, ["relevance"], labels, "", "", share=0.6),
        patch_colours_figure(square, torch.rand(5, 8, 8, 3), labels, "", ""),
    ):
        assert set(labels) <= {text.replace("\n", " ") for text in texts(figure)}


@pytest.mark.parametrize(
    ("options", "strength"),
    [
        ({}, 1.0),
        ({}, 3.0),
        ({"overlay": True}, 1.0),
        ({"scale": "log"}, 3.0),
        ({"scale": "log"}, 1.0),
        ({"scale": "row"}, 3.0),
    ],
)
def test_a_bar_has_numbers_at_its_top_and_at_uniform_and_none_touch(options, strength):
    noise = torch.randn(1, 3, 15, generator=seeded(1))
    maps = noise.mul(strength).softmax(-1).unflatten(-1, GRID)
    figure = draw(maps, **options)
    rendered(figure)
    (bar,) = bars(figure)
    ticks, labels = bar.get_yticks(), bar.get_yticklabels()
    assert max(ticks) == pytest.approx(bar.get_ylim()[1])
    assert any(label.get_text() == "1 = uniform" for label in labels)
    boxes = sorted((label.get_window_extent().intervaly for label in labels), key=min)
    assert all(lower[1] <= upper[0] for lower, upper in pairwise(boxes))


def test_the_input_size_stands_in_the_title():
    assert "Title (12 x 20 pixels)" in texts(draw(weights()))


def test_grey_images_are_grey_and_large_ones_are_resampled():
    grey = images(1, channels=1)
    figure = attention_figure(grey, weights(1, 1), ["a"], [""], "", "")
    picture = crops(figure)[0]
    assert (picture == picture[..., :1]).all()
    step = picture.shape[0] // 12
    expected = (grey[0, 0].numpy() * 255).round()
    assert np.abs(picture[step // 2 :: step, step // 2 :: step, 0] - expected).max() <= 1
    large = torch.rand(1, 3, 120, 200)
    assert crops(attention_figure(large, weights(1, 1), ["a"], [""], "", ""))[0].std() > 5


@pytest.mark.parametrize(("panels", "lines"), [(1, 1), (13, 1), (17, 2), (40, 4)])
def test_many_panels_go_on_in_lines_of_equal_length(panels, lines):
    layout = layout_for(1, 1, panels, (8, 8), (32, 32))
    corners = [layout.corner(0, number) for number in range(1 + panels)]
    assert len({y for _, y in corners}) == lines
    assert len({x for x, _ in corners}) == 1 + -(-panels // lines)
    height, width = layout.tile
    assert 0.8 * 150 <= width <= 2.4 * 150
    assert width % 32 == height % 32 == 0


@pytest.mark.parametrize(
    ("count", "panels", "across"), [(1, 1, 1), (4, 1, 2), (7, 1, 3), (5, 2, 2), (3, 3, 1)]
)
def test_images_with_few_panels_stand_beside_each_other(count, panels, across):
    for beside, expected in ((True, across), (False, 1)):
        layout = layout_for(count, 1, panels, (8, 8), (32, 32), beside=beside)
        assert len({layout.corner(block, 0)[0] for block in range(count)}) == expected


def test_the_strongest_are_as_they_are_and_all_others_dimmed():
    maps = weights(1)
    kept = torch.zeros_like(maps, dtype=torch.bool)
    kept[0, 0, 1, 2:4] = True
    kept[0, 1] = True
    figure = strongest_figure(images(1), maps, kept, names(), ["one"], "Title", "", share=0.6)
    original, *panels = crops(figure)
    for panel, chosen in zip(panels, kept[0].numpy(), strict=True):
        grey = dimmed(original)
        for pick in (patches, centres):
            assert (pick(panel)[chosen] == pick(original)[chosen]).all()
            assert (
                np.abs(pick(panel)[~chosen].astype(int) - pick(grey)[~chosen]).max(initial=0) <= 1
            )
    assert {"2 of 15 patches", "15 of 15 patches", "0 of 15 patches"} <= set(texts(figure))
    assert any("60% of the attention on patches" in text for text in texts(figure))


def test_the_masked_picture_shows_what_the_model_sees_and_how_much_falls_there():
    maps = torch.zeros(1, 3, *GRID)
    maps[0, 0, 0, 0], maps[0, 0, 2, 2] = 0.25, 0.5  # the rest on prefix tokens
    maps[0, 1, 0, 0] = 1.0
    maps[0, 2, 2, 4] = 1.0
    figure = masked(maps, masses=torch.tensor([[0.25, 0.0, 0.0]]))
    original, seen, filled, *panels = crops(figure)[:6]
    hidden = np.zeros(GRID, dtype=bool)
    hidden[1:, 2:] = True
    query = np.zeros(GRID, dtype=bool)
    query[2, 3] = True
    assert (patches(seen)[hidden & ~query] == as_bytes(COLOURS.absent)).all()
    assert (patches(seen)[~hidden] == patches(original)[~hidden]).all()
    total = patches(filled)[~query].astype(int) + patches(original)[~query]
    assert np.abs(total - 255).max() <= 1
    for panel in panels:  # a stroke crosses the middle of masked patches alone
        stroke = (centres(panel) != patches(panel)).any(-1)
        assert (stroke == hidden)[~query].all()
    assert {"25% on visible", "100% on visible", "0% on visible"} <= set(texts(figure))
    assert any(text.startswith("%: share of the attention on visible") for text in texts(figure))
    assert "33% on visible" in texts(masked(maps))


def test_the_distance_figure_has_its_points_where_the_values_are():
    given = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, float("nan")], [2.0, 2.0, 2.0]])
    panels = [
        Panel(
            "",
            {"mean of the heads": values.T.numpy()},
            unit,
            {"uniform attention": even},
            limits=(0, None),
        )
        for values, unit, even in ((given, "pixels", 4.5), (given / 2, "bits", 3.0))
    ]
    figure = layers_figure(panels, "Title", "subtitle", dots="a head")
    far, spread = figure.axes[:2]
    for axes, factor, even in ((far, 1.0, 4.5), (spread, 0.5, 3.0)):
        lines = {line.get_label(): line.get_xydata() for line in axes.lines}
        expected = np.array([[0, 1], [0, 2], [0, 3], [1, 4], [1, 5], [2, 2], [2, 2], [2, 2]]) * [
            1,
            factor,
        ]
        dots = lines["a head"]
        assert np.allclose(dots[~np.isnan(dots[:, 1])], expected)
        assert np.allclose(
            lines["mean of the heads"], [[0, 2 * factor], [1, 4.5 * factor], [2, 2 * factor]]
        )
        assert np.allclose(lines["uniform attention"][:, 1], even)
        low, high = axes.get_ylim()
        assert low == 0
        assert high == pytest.approx(1.05 * max(5 * factor, even))  # no dot is cut
    assert (far.get_ylabel(), spread.get_ylabel()) == ("pixels", "bits")


REFUSED = {
    "too many": (lambda: draw(torch.ones(10, 50, *GRID)), "480"),
    "a scale": (lambda: draw(weights(), scale="other"), "shared, row, log"),
    "a patch": (lambda: draw(weights(), query=(3, 0)), "no patch in row 3"),
    "labels": (
        lambda: attention_figure(images(), weights(), names(), ["one"], "", ""),
        "do not fit",
    ),
    "a patch per image": (lambda: draw(weights(), query=[(0, 0)]), "1 query patches"),
    "masses": (lambda: draw(weights(), masses=torch.zeros(2, 1)), "masses have the shape"),
    "kept": (
        lambda: strongest_figure(
            images(), weights(), weights()[:, :1] > 0, names(), ["", ""], "", "", share=0.6
        ),
        "kept patches have the shape",
    ),
    "hidden": (
        lambda: masked_figure(
            images(),
            torch.ones(1, *GRID),
            images(),
            weights(),
            [(0, 0), (1, 1)],
            names(),
            ["", ""],
            "",
            "",
        ),
        "hidden patches have the shape",
    ),
}


@pytest.mark.parametrize(("make", "says"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(make, says):
    with pytest.raises(UserError, match=says):
        make()
