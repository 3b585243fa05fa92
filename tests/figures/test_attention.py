"""Law: a picture of attention, read back from its pixels, says what the numbers say.

Oracle: the maps that were drawn, and the colours of their scale.
"""

from itertools import product

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from tiny import rendered, seeded

from vit.figures.attention import attention_figure, dimmed, masked_figure, strongest_figure
from vit.figures.mosaic import MARGIN, MARK
from vit.figures.scale import AROUND_UNIFORM, Scale
from vit.figures.style import COLOURS

GRID = (3, 5)
SHARES = AROUND_UNIFORM(np.arange(512), bytes=True)[:, :3]
"""The colours of shares, from low to high; white, in the middle, is uniform."""
HIDDEN = np.zeros(GRID, dtype=bool)
HIDDEN[1:, 2:] = True


def images(count: int = 2, grid: tuple[int, int] = GRID, channels: int = 3) -> torch.Tensor:
    return torch.rand(count, channels, 4 * grid[0], 4 * grid[1], generator=seeded(0))


def weights(count: int = 2, panels: int = 3, grid: tuple[int, int] = GRID) -> torch.Tensor:
    noise = torch.randn(count, panels, grid[0] * grid[1], generator=seeded(1))
    return noise.mul(2).softmax(-1).unflatten(-1, grid)


def draw(maps: torch.Tensor, **options):
    count, panels, *grid = maps.shape
    names = [f"head {head}" for head in range(panels)]
    return attention_figure(images(count, grid), maps, names, [""] * count, "T", "sub", **options)


def places(figure) -> list[tuple[int, int, int, int]]:
    """(top, left, height, width) of each picture on the array, by the words above and below it."""
    words = [text.get_position() for text in figure.axes[0].texts if text.get_ha() == "center"]
    width = round(2 * (words[0][0] - MARGIN))
    return [
        (above + 5, round(x - width / 2), below - above - 9, width)
        for (x, above), (_, below) in zip(words[::2], words[1::2], strict=True)
    ]


def crops(figure) -> list[np.ndarray]:
    """The pixels of each picture on the sheet, row by row."""
    pixels = rendered(figure)
    sheet = pixels[len(pixels) - len(figure.axes[0].images[0].get_array()) :]
    return [sheet[top : top + high, left : left + wide] for top, left, high, wide in places(figure)]


def patches(crop: np.ndarray, grid: tuple[int, int] = GRID, at: int = 4) -> np.ndarray:
    """(rows, columns, 3): a pixel of each patch, off its middle, where a stroke would be."""
    height, width = crop.shape[0] // grid[0], crop.shape[1] // grid[1]
    return crop[height // at :: height, width // at :: width]


def crossed(crop: np.ndarray) -> np.ndarray:
    """(rows, columns): whether a stroke crosses the middle of a patch."""
    return (patches(crop, at=2) != patches(crop)).any(-1)


def places_of(colours: np.ndarray) -> np.ndarray:
    """(..., 3) -> (...): the place of each colour in the scale of shares, from 0 to 1."""
    return np.abs(colours[..., None, :].astype(int) - SHARES).sum(-1).argmin(-1) / 511


def texts(figure) -> set[str]:
    shown = [*figure.axes[0].texts]
    if figure.axes[0].get_legend():
        shown += figure.axes[0].get_legend().get_texts()
    return {line for text in shown for line in text.get_text().splitlines()}


def as_bytes(colour) -> list[int]:
    return [round(255 * part) for part in to_rgb(colour)]


# --- Colours -------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlay", [True, False])
def test_a_masked_patch_is_not_a_zero(overlay):
    maps = weights(1, 1)
    maps[0, 0, 0, 0], maps[0, 0, 1, 1] = float("nan"), 0
    figure = draw(maps, overlay=overlay)
    crop = crops(figure)[1]
    assert patches(crop)[0, 0].tolist() == as_bytes(COLOURS.absent)
    assert crossed(crop)[0, 0]
    assert "masked patch: no value, not zero" in texts(figure)
    if not overlay:
        assert patches(crop)[1, 1].tolist() == SHARES[0].tolist()
        assert crossed(crop).sum() == 1


def test_values_are_multiples_of_uniform_attention_over_the_visible_patches():
    maps = torch.full((1, 2, *GRID), 1 / 15)
    maps[0, 0, 0, 0] = 3 / 15
    maps[0, 1, :2] = float("nan")  # 5 of 15 are left
    maps[0, 1, 2] = torch.tensor([3.0, 1.0, 1.0, 0.0, 0.0]) / 5
    figure = draw(maps)
    _, first, second = crops(figure)
    assert places_of(patches(first))[0, 0] == 1
    assert (patches(first)[1, 1] >= 254).all()  # uniform is white
    assert np.abs(places_of(patches(second))[2] - [1, 0.5, 0.5, 0, 0]).max() < 0.01
    (bar,) = figure.axes[0].child_axes
    ticks = {label.get_text(): label.get_position()[1] for label in bar.get_yticklabels()}
    assert ticks["1 = uniform"] == pytest.approx(1)
    assert bar.get_ylim() == pytest.approx((0, 3))  # small differences are pale


def test_a_scale_is_shared_or_the_rows_own():
    maps = weights(2, 1)
    louder = maps * torch.tensor([2.0, 1.0])[:, None, None, None]
    for scale, unchanged, count in (("shared", False, 1), ("row", True, 2)):
        first, second = (draw(part, scale=scale) for part in (maps, louder))
        assert (crops(first)[3] == crops(second)[3]).all() == unchanged, scale
        assert len(first.axes[0].child_axes) == count


def test_a_logarithmic_scale_has_equal_steps_for_equal_factors():
    scale = Scale(np.array([0.01, 1.0, 100.0]), share=True, log=True)
    found = scale.places(np.array([0.1, 1.0, 10**0.5, 10.0, 10**1.5]))
    assert found[1] == pytest.approx(0.5)
    assert np.allclose(np.diff(found[1:]), found[2] - found[1])


def test_every_scale_has_a_range():
    values = ([0.0, 0.0], [1e-9, 2e-9], [0.0, 1e6], [float("nan")] * 2)
    for numbers, log, share in product(values, (False, True), (False, True)):
        scale = Scale(np.array(numbers), share, log)
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


@pytest.mark.parametrize("scale", ["shared", "log"])
def test_the_bar_has_the_colours_of_the_map_and_ends_in_a_number(scale):
    figure = draw(weights(1, 1), scale=scale)
    (bar,) = figure.axes[0].child_axes
    pixels = rendered(figure)
    box = bar.get_window_extent()
    middle = round((box.x0 + box.x1) / 2)
    strip = pixels[len(pixels) - round(box.y1) : len(pixels) - round(box.y0), middle]
    shown = np.unique(patches(crops(figure)[1]).reshape(-1, 3), axis=0).astype(int)
    assert np.abs(shown[:, None] - strip).max(-1).min(1).max() <= 6  # of 255: the ends are steep
    assert max(bar.get_yticks()) == pytest.approx(bar.get_ylim()[1])


# --- Images, marks and words ---------------------------------------------------------------------


@pytest.mark.parametrize("query", [(np.int64(2), np.int64(1)), [(0, 4), [2, 1]]])
def test_the_query_patch_is_outlined_in_image_and_maps(query):
    figure = draw(weights(2, 2), query=query)
    for number, crop in enumerate(crops(figure)):
        patch = np.array(query if isinstance(query, tuple) else query[number // 3])
        marked = np.argwhere(np.abs(crop.astype(int) - as_bytes(MARK)).sum(-1) < 40)
        size = np.array(crop.shape[:2]) / GRID
        assert np.abs(marked.min(0) - patch * size).max() <= 3
        assert np.abs(marked.max(0) - (patch + 1) * size).max() <= 3
    assert "query patch" in texts(figure)


def test_the_share_on_patches_stands_below_a_map_where_it_is_below_nine_tenths():
    # 1 - 0.103 is 89.7%, written 90%
    shown = texts(draw(weights(1, 3), masses=torch.tensor([[0.103, 0.0, 0.31]])))
    assert {text for text in shown if text.endswith("% on patches")} == {"69% on patches"}


def test_grey_images_are_grey_and_their_pixels_squares():
    grey = images(1, channels=1)
    picture = crops(attention_figure(grey, weights(1, 1), ["a"], [""], "", ""))[0]
    step = picture.shape[0] // 12
    expected = torch.kron((grey[0, 0] * 255).round(), torch.ones(step, step)).numpy()
    assert np.abs(picture - expected[..., None]).max() <= 1


def test_the_strongest_are_as_they_are_and_all_others_dimmed():
    maps = weights(1)
    kept = torch.zeros_like(maps, dtype=torch.bool)
    kept[0, 0, 1, 2:4] = True
    kept[0, 1] = True
    names = ["a", "b", "c"]
    masses = torch.zeros(1, 3)
    figure = strongest_figure(images(1), maps, kept, names, [""], "T", "", share=0.6, masses=masses)
    original, *panels = crops(figure)
    for panel, chosen in zip(panels, kept[0].numpy(), strict=True):
        assert (patches(panel)[chosen] == patches(original)[chosen]).all()
        assert (patches(panel)[~chosen] == patches(dimmed(original))[~chosen]).all()
    assert {"2 of 15 patches", "15 of 15 patches", "0 of 15 patches"} <= texts(figure)


def test_the_masked_picture_shows_what_the_model_sees_and_how_much_falls_there():
    maps = torch.zeros(1, 2, *GRID)
    maps[0, 0, 0, 0], maps[0, 0, 2, 2] = 0.25, 0.5  # the rest on prefix tokens
    maps[0, 1, 0, 0] = 1.0
    query = (2, 3)
    image = images(1)
    figure = masked_figure(
        image,
        torch.from_numpy(HIDDEN)[None],
        1 - image,
        maps,
        [query],
        ["a", "b"],
        ["one"],
        "Title",
        "",
        masses=torch.tensor([[0.25, 0.0]]),
    )
    original, seen, filled, *panels = crops(figure)
    others = np.ones(GRID, dtype=bool)
    others[query] = False
    assert (patches(seen)[HIDDEN & others] == as_bytes(COLOURS.absent)).all()
    assert (patches(seen)[~HIDDEN] == patches(original)[~HIDDEN]).all()
    total = patches(filled)[others].astype(int) + patches(original)[others]
    assert np.abs(total - 255).max() <= 1
    for panel in panels:
        assert (crossed(panel) == HIDDEN)[others].all()
    assert {"25% on visible", "100% on visible"} <= texts(figure)


@pytest.mark.parametrize(
    ("grid", "image"), [((14, 14), (224, 224)), ((2, 9), (8, 36)), ((1, 1), (7, 5))]
)
@pytest.mark.parametrize("maps", [1, 14])
def test_every_patch_covers_as_many_whole_dots_and_no_picture_touches_another(grid, image, maps):
    names = [f"layer {layer}" for layer in range(maps)]
    figure = attention_figure(
        torch.rand(3, 3, *image), weights(3, maps, grid), names, [""] * 3, "", ""
    )
    free = np.ones(figure.axes[0].images[0].get_array().shape[:2], dtype=bool)
    for top, left, high, wide in places(figure):
        assert high % grid[0] == wide % grid[1] == 0
        assert high / wide == pytest.approx(image[0] / image[1], rel=0.05)
        place = free[top - 3 : top + high + 3, left - 3 : left + wide + 3]
        assert place.sum() == (high + 6) * (wide + 6)
        place[:] = False
    assert len(places(figure)) == 3 * (1 + maps)
