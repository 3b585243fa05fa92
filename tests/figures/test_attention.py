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
from vit.figures import Panel, attention_figure, layers_figure, masked_figure, strongest_figure
from vit.figures import mosaic as mosaics
from vit.figures.attention import dimmed
from vit.figures.scale import AROUND_UNIFORM, PALETTE, Scale
from vit.figures.style import COLOURS

GRID = (3, 5)
SHARES = AROUND_UNIFORM(np.arange(512), bytes=True)[:, :3]
"""The colours of shares, from low to high; white, in the middle, is uniform."""


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


TILES: WeakKeyDictionary = WeakKeyDictionary()
"""Figure -> (top, left, height, width) of each of its pictures, row by row."""


@pytest.fixture(autouse=True)
def tiles(monkeypatch):
    """Remember where the pictures of every figure stand."""
    pasted = []
    paste, canvas_figure = mosaics.paste, mosaics.canvas_figure

    def remember(canvas, top, left, tile):
        pasted.append((top, left, *tile.picture.shape[:2]))
        paste(canvas, top, left, tile)

    def figure(*arguments):
        drawn = canvas_figure(*arguments)
        TILES[drawn[0]] = list(pasted)
        pasted.clear()
        return drawn

    monkeypatch.setattr(mosaics, "paste", remember)
    monkeypatch.setattr(mosaics, "canvas_figure", figure)


def crops(figure) -> list[np.ndarray]:
    """The pixels of each picture on the sheet, row by row."""
    pixels = rendered(figure)
    heading = len(pixels) - len(figure.axes[0].images[0].get_array())
    return [
        pixels[heading + top : heading + top + high, left : left + wide]
        for top, left, high, wide in TILES[figure]
    ]


def bars(figure) -> list:
    """The axes of the colour bars."""
    return figure.axes[0].child_axes


def patches(crop: np.ndarray, grid: tuple[int, int] = GRID, at: int = 4) -> np.ndarray:
    """(rows, columns, 3): a pixel of each patch, off its middle, where a stroke would be."""
    height, width = crop.shape[0] // grid[0], crop.shape[1] // grid[1]
    return crop[height // at :: height, width // at :: width]


def centres(crop: np.ndarray, grid: tuple[int, int] = GRID) -> np.ndarray:
    return patches(crop, grid, 2)


def places_of(colours: np.ndarray) -> np.ndarray:
    """(..., 3) -> (...): the place of each colour in the scale of shares, from 0 to 1."""
    return np.abs(colours[..., None, :].astype(int) - SHARES).sum(-1).argmin(-1) / 511


def texts(figure) -> list[str]:
    shown = [*figure.texts, *figure.axes[0].texts]
    if figure.axes[0].get_legend():
        shown += figure.axes[0].get_legend().get_texts()
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
        assert any("masked patch" in text for text in texts(figure))
    assert patches(crop)[1, 1].tolist() == centres(crop)[1, 1].tolist() == SHARES[0].tolist()
    assert not any("masked" in text for text in texts(draw(weights(1, 1))))


def test_values_are_multiples_of_uniform_attention_over_the_visible_patches():
    maps = torch.full((1, 2, *GRID), 1 / 15)
    maps[0, 0, 0, 0] = 3 / 15
    maps[0, 1, :2] = float("nan")  # 5 of 15 are left
    maps[0, 1, 2] = torch.tensor([3.0, 1.0, 1.0, 0.0, 0.0]) / 5
    figure = draw(maps)
    _, first, second = crops(figure)
    assert places_of(patches(first))[0, 0] == 1
    assert (patches(first)[1, 1] >= 254).all()
    assert np.abs(places_of(patches(second))[2] - [1, 0.5, 0.5, 0, 0]).max() < 0.01
    (bar,) = bars(figure)
    labels = [label.get_text() for label in bar.get_yticklabels()]
    ticks = dict(zip(labels, bar.get_yticks(), strict=True))
    assert ticks["1 = uniform"] == pytest.approx(1)
    assert bar.get_ylim() == pytest.approx((0, 3))


def test_uniform_attention_is_white_and_nearly_uniform_attention_pale():
    maps = torch.full((1, 1, *GRID), 1 / 15)
    assert (crops(draw(maps))[1] >= 254).all()
    maps[0, 0, 0, :2] += torch.tensor([0.15, -0.15]) / 15
    assert (crops(draw(maps))[1] > 220).all()


def test_a_scale_is_shared_or_the_rows_own():
    maps = weights()
    louder = maps * torch.tensor([2.0, 1.0])[:, None, None, None]
    for scale, unchanged, count in (("shared", False, 1), ("log", False, 1), ("row", True, 2)):
        first, second = (draw(part, scale=scale) for part in (maps, louder))
        pairs = zip(crops(first)[5:8], crops(second)[5:8], strict=True)
        assert all((a == b).all() for a, b in pairs) == unchanged, scale
        assert len(bars(first)) == count


def test_a_logarithmic_scale_has_equal_steps_for_equal_factors():
    scale = Scale(np.array([0.001, 0.01, 0.1, 1.0]), share=False, log=True)
    steps = np.diff(scale.places(np.array([0.003, 0.03, 0.3])))
    assert np.allclose(steps, steps[0])
    around = Scale(np.array([0.01, 1.0, 100.0]), share=True, log=True)
    places = around.places(np.array([0.1, 1.0, 10**0.5, 10.0, 10**1.5]))
    assert places[1] == pytest.approx(0.5)
    assert np.allclose(np.diff(places[1:]), places[2] - places[1])


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[0.0, 0.0], [1e-9, 2e-9], [0.0, 1e6], [float("nan")] * 2])
def test_every_scale_has_a_range(values, log, share):
    scale = Scale(np.array(values), share, log)
    ends = np.array([scale.low, scale.top])
    assert scale.places(ends).tolist() == [0, 1]
    assert 0 < scale.places(ends.mean()) < 1


def test_outliers_do_not_stretch_the_scale_and_are_told():
    maps = torch.full((1, 4, 8, 8), 1 / 64)
    maps[0, 0, 0, 0] = 50 / 64
    figure = draw(maps)
    assert any("above the bar, the highest 50." in text for text in texts(figure))
    assert places_of(patches(crops(figure)[1], (8, 8)))[0, 0] == 1
    assert (crops(figure)[2] >= 254).all()
    assert not any("above the bar" in text for text in texts(draw(weights())))


def test_lightness_falls_on_both_sides_of_uniform_so_that_each_colour_is_one_value():
    for colours, middle in ((PALETTE, 0), (SHARES, 256)):
        light = (colours / 255) ** 2.2 @ [0.2126, 0.7152, 0.0722]
        assert (np.diff(light[middle:]) <= 0).all()
        assert (np.diff(light[:middle]) >= 0).all()
        assert len(np.unique(colours, axis=0)) > 250
    cool, warm = SHARES[:250].astype(int), SHARES[262:].astype(int)
    assert (cool[:, 2] > cool[:, 0]).all()
    assert (warm[:, 0] > warm[:, 2]).all()


def test_up_to_uniform_the_overlaid_image_shows():
    maps = torch.zeros(1, 1, *GRID)
    maps[0, 0, 0, 0], maps[0, 0, 0, 1] = 0.8, 0.2
    picture, panel = (crop / 255 for crop in crops(draw(maps, overlay=True)))
    rows, columns = panel.shape[0] // GRID[0], panel.shape[1] // GRID[1]
    paler = 0.4 + 0.6 * (picture @ [0.2126, 0.7152, 0.0722])[rows:, :, None]
    assert np.abs(panel[rows:] - paler).max() < 0.01
    tint = np.ptp(panel[:rows], axis=-1).mean(0).reshape(GRID[1], columns).mean(1)
    assert tint[0] > 0.2 < 4 * tint[1]
    assert tint[2] < 0.01


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
    for number, crop in enumerate(crops(figure)):
        patch = np.array(query if isinstance(query, tuple) else query[number // 3])
        marked = np.argwhere(np.abs(crop.astype(int) - as_bytes(mosaics.MARK)).sum(-1) < 40)
        size = np.array(crop.shape[:2]) / GRID
        assert np.abs(marked.min(0) - patch * size).max() <= 3
        assert np.abs(marked.max(0) - (patch + 1) * size).max() <= 3
    assert "query patch" in texts(figure)


def test_the_share_on_patches_stands_below_a_map_where_it_is_below_nine_tenths():
    # 1 - 0.103 is 89.7%, written 90%
    shown = texts(draw(weights(1, 3), masses=torch.tensor([[0.103, 0.0, 0.997]])))
    assert sum(text.endswith("% on patches") for text in shown) == 1
    assert "<1% on patches" in shown


@pytest.mark.parametrize("scale", ["shared", "log"])
def test_a_bar_has_numbers_at_its_top_and_at_uniform_and_none_touch(scale):
    noise = torch.randn(1, 3, 15, generator=seeded(1))
    figure = draw(noise.mul(3).softmax(-1).unflatten(-1, GRID), scale=scale)
    rendered(figure)
    (bar,) = bars(figure)
    ticks, labels = bar.get_yticks(), bar.get_yticklabels()
    assert max(ticks) == pytest.approx(bar.get_ylim()[1])
    assert any(label.get_text() == "1 = uniform" for label in labels)
    boxes = sorted((label.get_window_extent().intervaly for label in labels), key=min)
    assert all(lower[1] <= upper[0] for lower, upper in pairwise(boxes))


def test_grey_images_are_grey_and_their_pixels_squares():
    grey = images(1, channels=1)
    picture = crops(attention_figure(grey, weights(1, 1), ["a"], [""], "", ""))[0]
    assert (picture == picture[..., :1]).all()
    step = picture.shape[0] // 12
    expected = torch.kron((grey[0, 0] * 255).round(), torch.ones(step, step)).numpy()
    assert np.abs(picture[..., 0] - expected).max() <= 1


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
            shown = pick(panel)
            assert (shown[chosen] == pick(original)[chosen]).all()
            assert (shown[~chosen] == pick(grey)[~chosen]).all()
    assert {"2 of 15 patches", "15 of 15 patches", "0 of 15 patches"} <= set(texts(figure))


def test_the_masked_picture_shows_what_the_model_sees_and_how_much_falls_there():
    maps = torch.zeros(1, 3, *GRID)
    maps[0, 0, 0, 0], maps[0, 0, 2, 2] = 0.25, 0.5  # the rest on prefix tokens
    maps[0, 1, 0, 0] = 1.0
    maps[0, 2, 2, 4] = 1.0
    figure = masked(maps, masses=torch.tensor([[0.25, 0.0, 0.0]]))
    original, seen, filled, *panels = crops(figure)
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
    assert "33% on visible" in texts(masked(maps))


def test_the_distance_figure_has_its_points_where_the_values_are():
    given = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, float("nan")]])
    panel = Panel("", {"mean": given.T}, "pixels", {"uniform": 6.0}, limits=(0, None))
    axes = layers_figure([panel], "Title", "subtitle", dots="a head").axes[0]
    lines = {line.get_label(): line.get_xydata() for line in axes.lines}
    dots = lines["a head"]
    assert np.allclose(dots[~np.isnan(dots[:, 1])], [[0, 1], [0, 2], [0, 3], [1, 4], [1, 5]])
    assert np.allclose(lines["mean"], [[0, 2], [1, 4.5]])
    assert np.allclose(lines["uniform"][:, 1], 6)
    assert axes.get_ylim() == pytest.approx((0, 1.05 * 6))  # nothing is cut


@pytest.mark.parametrize(
    ("grid", "image"),
    [((8, 8), (32, 32)), ((14, 14), (224, 224)), ((2, 9), (8, 36)), ((1, 1), (7, 5))],
)
@pytest.mark.parametrize("maps", [1, 13, 40])
def test_every_patch_covers_as_many_whole_dots_and_no_picture_touches_another(grid, image, maps):
    pictures = torch.rand(3, 3, *image)
    figure = attention_figure(pictures, weights(3, maps, grid), names(maps), [""] * 3, "", "")
    free = np.ones(figure.axes[0].images[0].get_array().shape[:2], dtype=bool)
    for top, left, high, wide in TILES[figure]:
        assert high % grid[0] == wide % grid[1] == 0
        assert high / wide == pytest.approx(image[0] / image[1], rel=0.05)
        place = free[top - 3 : top + high + 3, left - 3 : left + wide + 3]
        assert place.sum() == (high + 6) * (wide + 6)
        place[:] = False
    assert len(TILES[figure]) == 3 * (1 + maps)


def test_more_pictures_than_a_sheet_holds_are_refused():
    with pytest.raises(UserError, match="480"):
        draw(torch.ones(10, 50, *GRID))
