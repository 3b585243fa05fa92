"""Law: the page to explore attention, in a real browser, draws the numbers that it was given."""

import base64
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait
from tiny import seeded, weights_of
from torch.nn.functional import pad

from vit.errors import UserError
from vit.figures.explore import Moment, codes_of, explore_page, opening
from vit.interpret import attention_rollout

HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "<!-- <script>",
    "line\u2028separator & \u202eredrocer\u202c \x00 \udcff",
    "{{data}} {{script}} ${alert(3)} \\u003c",
]
TABLE = matplotlib.colormaps["Reds"](np.arange(256), bytes=True)[:, :3]
PATIENCE = 60
"""Seconds to wait for what a page does at once; a busy machine takes longer."""
INDEX = {tuple(colour): index for index, colour in enumerate(TABLE.tolist())}


def attention(*shape: int, seed: int = 0, sharpness: float = 2.0) -> torch.Tensor:
    """Weights (..., tokens, tokens)."""
    noise = torch.randn(*shape, shape[-1], generator=seeded(seed))
    return (noise * sharpness).softmax(-1)


def example(
    grid=(8, 8), class_token=True, registers=0, layers=2, heads=2, images=1, moments=1, masked=False
):
    """What `explore_page` is called with; every map is another one."""
    (rows, columns), prefix = grid, class_token + registers
    draws = seeded(7)
    tokens = prefix + rows * columns
    pixels = torch.randint(0, 256, (images, 3, 4 * rows, 4 * columns), generator=draws).byte()
    ranks = torch.rand(images, rows * columns, generator=draws).argsort().argsort()
    hidden = (ranks < round(0.6 * rows * columns)).view(images, *grid) if masked else None
    visible = tokens - (int(hidden[0].sum()) if masked else 0)

    def moment(number: int) -> Moment:
        seed = 1000 * number
        weights = {n: attention(images, heads, visible, seed=seed + n) for n in range(layers)}
        decoder, filled = {}, None
        if masked:
            decoder = {n: attention(images, heads + 1, tokens, seed=seed + 50 + n) for n in (0, 1)}
            filled = (255 - pixels) // (number + 1) / 255
        return Moment(f"epoch {number}", weights, decoder, filled)

    return dict(
        moments=[moment(number) for number in range(moments)],
        names=[f"image {i}" for i in range(images)],
        images=pixels,
        hidden=hidden,
        facts=[("model", "a small one")],
        grid_size=grid,
        class_token=class_token,
        prefix=prefix,
    )


# ---- The coding ------------------------------------------------------------------------------------------------------

ROWS = [attention(3, 65, sharpness=8), attention(1, 500), attention(2, 33).bfloat16()]


@pytest.mark.parametrize("weights", ROWS, ids=["sharp", "many tokens", "bfloat16"])
def test_codes_keep_row_sums_and_are_off_by_less_than_a_step(weights):
    decoded = weights_of(codes_of(weights))
    exact = weights.double() / weights.double().sum(-1, keepdim=True)
    assert (decoded.sum(-1) - 1).abs().max() < 1e-12
    # A step of the code in terms of the weight; zeros of many tokens add what they lost to the others.
    step = (2 * exact.sqrt() / 255 + 1 / 255**2) * (1 + weights.shape[-1] / 1000)
    assert ((decoded - exact).abs() <= step).all()


# ---- The text --------------------------------------------------------------------------------------------------------


def test_a_page_that_is_too_large_is_refused():
    with pytest.raises(UserError, match=r"above 0\.01 MB; leave out some of its 2 layers"):
        explore_page(**example(), limit=10_000)


def test_the_page_opens_on_the_most_concentrated_head_that_follows_the_image():
    """Of heads that look at the patch itself, at one place in every image, and at an object of each image."""
    patches = torch.eye(36)
    objects = [patches[torch.randperm(36, generator=seeded(seed))[:3]] for seed in range(3)]
    own, place, thing = (
        pad(0.95 * keys.expand(3, 36, 36), (1, 0, 1, 0), value=0.05)[:, None]
        for keys in (patches, patches[20], torch.stack(objects).mean(1, keepdim=True))
    )
    layers = {0: torch.cat([own, own], 1), 1: torch.cat([place, thing], 1)}
    assert opening(layers, 1, (6, 6)) == (1, 1)
    # none qualifies: the mean of the last layer
    assert opening({0: layers[0]}, 1, (6, 6)) == (0, -1)


# ---- In the browser --------------------------------------------------------------------------------------------------


class Page:
    """An open page, and what a test asks of it."""

    def __init__(self, driver: webdriver.Chrome, folder: Path):
        self.driver, self._path = driver, folder / "page.html"

    def open(self, arguments: dict, link: str = "") -> "Page":
        text = explore_page(**arguments)
        self._path.write_text(text, encoding="utf-8")
        self.driver.get("about:blank")
        self.driver.get(self._path.as_uri() + (f"{link}&held=1" if link else ""))
        WebDriverWait(self.driver, PATIENCE, 0.02).until(lambda _: self["explorer"].is_displayed())
        return self

    def follow(self, link: str) -> None:
        """Change what is shown through the address; the page is not loaded again."""
        # the page has listened for the event before this does; an equal address makes none
        self.run(
            """return new Promise((done) => {
              const before = location.href;
              addEventListener("hashchange", () => done(), { once: true });
              location.hash = arguments[0];
              if (location.href === before) done();
            });""",
            f"{link}&held=1",
        )

    def __getitem__(self, name: str):
        return self.driver.find_element(By.ID, name)

    def run(self, script: str, *arguments):
        return self.driver.execute_script(script, *arguments)

    def text(self, name: str) -> str:
        return self.run("return document.getElementById(arguments[0]).textContent", name)

    def pixels(self, canvas: str) -> np.ndarray:
        """(rows, columns, 4) of a canvas, by id or selector."""
        width, height, data = self.run(
            """const canvas = document.getElementById(arguments[0]) || document.querySelector(arguments[0]);
            const { width, height } = canvas;
            const data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
            return [width, height, btoa(String.fromCharCode(...data))];""",
            canvas,
        )
        return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)

    def drawn(self, canvas: str = "map-pixels") -> np.ndarray:
        """(rows, columns) places on the colour map, from 0 to 255; nan where nothing is drawn."""
        return np.array(
            [
                [INDEX[tuple(p[:3].tolist())] if p[3] else math.nan for p in row]
                for row in self.pixels(canvas)
            ]
        )

    def numbers(self) -> list[float]:
        """The percentages at the tokens that have no place."""
        found = "return [...document.querySelectorAll('#prefix .number')].map((e) => e.innerText)"
        return [float(text.strip("%<")) for text in self.run(found)]

    def press(self, *keys: str) -> None:
        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def at(self, stage: str, row: int, column: int, grid: tuple[int, int]) -> ActionChains:
        """The pointer goes to a patch; what follows is up to the caller."""
        element = self[stage]
        self.run("arguments[0].scrollIntoView({block: 'nearest'})", element)
        box = self.run(
            "const b = arguments[0].getBoundingClientRect(); return [b.width, b.height]", element
        )
        right = round(((column + 0.5) / grid[1] - 0.5) * box[0])
        down = round(((row + 0.5) / grid[0] - 0.5) * box[1])
        return ActionChains(self.driver, duration=0).move_to_element_with_offset(
            element, right, down
        )

    def log(self) -> list[dict]:
        """The console's messages, but for one about how a test itself reads canvases."""
        return [
            line
            for line in self.driver.get_log("browser")
            if "willReadFrequently" not in line["message"] and "getImageData" not in line["message"]
        ]


@pytest.fixture
def page(driver, tmp_path):
    """The driver on pages that stay silent: no message in the console (a breach of the policy is one), no request."""
    driver.get_log("browser")
    page = Page(driver, tmp_path)
    yield page
    assert page.log() == []
    assert page.run("return performance.getEntriesByType('resource').length") == 0


def decoded(weights: torch.Tensor) -> np.ndarray:
    return weights_of(codes_of(weights)).numpy()


def assert_drawn(places: np.ndarray, shares: np.ndarray, top: float) -> None:
    """Pixels are the colours of these shares; nan is transparent."""
    assert places.shape == shares.shape
    assert (np.isnan(places) == np.isnan(shares)).all()
    there = ~np.isnan(shares)
    assert np.abs(places[there] - 255 * np.minimum(shares[there] / top, 1)).max() <= 0.5 + 1e-3


@pytest.mark.parametrize(
    "geometry", [dict(grid=(4, 6), registers=2), dict(grid=(5, 3), class_token=False)], ids=str
)
def test_pixels_are_the_numbers(page, geometry):
    arguments = example(**geometry)
    rows, columns = grid = arguments["grid_size"]
    prefix = arguments["prefix"]
    given = {n: weights[0] for n, weights in arguments["moments"][0].weights.items()}
    page.open(arguments)
    for layer, head, row, column in ((1, 0, 0, 0), (0, 1, rows - 1, columns - 1)):
        token = prefix + row * columns + column
        for mode in ("row", "column"):
            page.follow(f"layer={layer}&head={head}&query={row},{column}&mode={mode}&scale=row")
            place = (slice(None), token) if mode == "row" else (slice(None), slice(None), token)
            shares = decoded(given[layer])[place]
            assert_drawn(
                page.drawn(), shares[head, prefix:].reshape(grid), shares[:, prefix:].max()
            )
            percents = (100 * shares[head, :prefix]).tolist()
            assert page.numbers() == pytest.approx(percents, abs=0.051)
            # a small map in the table, whose first column is the mean
            small = page.drawn(f"#grid tr:nth-child({layer + 1}) td:nth-child({head + 3}) canvas")
            assert_drawn(small, shares[head, prefix:].reshape(grid), shares[:, prefix:].max())
    page.follow("query=1,2&mode=rollout&scale=row&layer=1")
    exact = [torch.from_numpy(decoded(given[layer]))[None] for layer in range(2)]
    rollout = attention_rollout(exact)[0, prefix + columns + 2, prefix:].reshape(grid).numpy()
    assert_drawn(page.drawn(), rollout, rollout.max())
    for i in range(prefix):  # from tokens that have no place
        page.follow(f"layer=0&head=0&mode=row&scale=row&query={-1 - i}")
        shares = decoded(given[0])[:, i, prefix:]
        assert_drawn(page.drawn(), shares[0].reshape(grid), shares.max())


def test_pointer_and_keys_choose_the_query_layer_and_head(page):
    def asks(who: str) -> None:
        assert f", {who}: " in page.text("sentence")

    grid = (3, 5)
    page.open(example(grid, registers=1, layers=3), "#layer=2&head=0")
    page.press(Keys.ESCAPE)
    for stage in ("map", "picture"):
        for row, column in ((0, 0), (2, 4)):
            page.at(stage, row, column, grid).perform()
            asks(f"patch row {row} column {column}")
    page.at("map", 1, 1, grid).click().perform()
    page.at("map", 2, 2, grid).perform()
    asks("patch row 1 column 1")  # held
    page.press(Keys.ARROW_RIGHT, *[Keys.ARROW_DOWN] * 2)  # to the edge
    asks("patch row 2 column 2")
    page.press("c", "c")
    asks("register 0")
    page.press(Keys.ARROW_LEFT)
    asks("patch row 2 column 2")  # back where the grid was left
    page["grid"].find_elements(By.TAG_NAME, "button")[1 * 3 + 2].click()
    for keys, start in (
        ("", "layer 1, head 1,"),
        ("lLl", "layer 2, head 1,"),
        ("hm", "layer 2, mean of heads, who looks at"),
        ("m", "rollout up to layer 2,"),
    ):
        page.press(*keys)
        assert page.text("sentence").startswith(start)


def test_masked_model(page):
    arguments = example(grid=(4, 6), masked=True, registers=1)
    moment = arguments["moments"][0]
    hidden = arguments["hidden"][0].numpy()
    row, column = np.argwhere(~hidden)[1]
    page.open(arguments, f"#part=encoder&layer=1&head=1&query={row},{column}")
    shares = np.full((2, 4, 6), math.nan)
    shares[:, ~hidden] = decoded(moment.weights[1][0])[:, 2 + 1, 2:]
    assert_drawn(page.drawn(), shares[1], np.nanmax(shares[1]))
    row, column = np.argwhere(hidden)[1]
    page.follow(f"part=encoder&layer=1&head=1&query={row},{column}")
    assert np.isnan(page.drawn()).all()
    assert "masked: the encoder does not see it" in page.text("sentence")

    # The decoder asks from it
    page.follow(f"part=decoder&layer=1&head=2&query={row},{column}")
    shares = decoded(moment.decoder[1][0])[:, 2 + row * 6 + column, 2:].reshape(3, 4, 6)
    assert_drawn(page.drawn(), shares[2], shares[2].max())
    on_visible = float(re.search(r"([\d.]+)% is on visible", page.text("note"))[1])
    assert on_visible == pytest.approx(100 * shares[2][~hidden].sum(), abs=0.06)

    pixels = arguments["images"][0].permute(1, 2, 0).numpy()
    covered = hidden.repeat(4, axis=0).repeat(4, axis=1)
    for shown, expected in (("original", pixels), ("filled", 255 - pixels), ("seen", pixels)):
        page.driver.find_element(By.CSS_SELECTOR, f"input[value={shown}]").click()
        picture = page.pixels("picture-pixels")
        assert (picture[~covered, :3] == expected[~covered]).all()
        assert (picture[covered, 3] == 255 * (shown != "seen")).all()


def test_training_slider(page):
    arguments = example(moments=3)
    page.open(arguments)
    page.follow("query=0,0&head=0&layer=1")
    assert page.text("moment-name") == "epoch 2"  # the end comes first
    for moment, keys in ((0, [Keys.HOME]), (1, [Keys.ARROW_RIGHT]), (2, [Keys.END])):
        page["moment"].send_keys(*keys)
        shares = decoded(arguments["moments"][moment].weights[1][0])[:, 1, 1:]
        assert_drawn(page.drawn(), shares[0].reshape(8, 8), shares[0].max())
        assert page.text("moment-name") == f"epoch {moment}"


def test_hostile_names_stay_text(page):
    arguments = example(images=len(HOSTILE))
    arguments |= dict(
        moments=[replace(arguments["moments"][0], name=HOSTILE[0])] * 2,
        names=HOSTILE,
        facts=[(name, name) for name in HOSTILE],
    )
    text = explore_page(**arguments)
    assert not set("\u2028\u202e\x00\udcff") & set(text)
    page.open(arguments)
    options = [option.text for option in Select(page["image"]).options]
    assert options[:3] == HOSTILE[:3]
    assert page.driver.find_elements(By.TAG_NAME, "img") == []
    assert len(page.driver.find_elements(By.TAG_NAME, "script")) == 3
    assert HOSTILE[0] in page.text("moment-name")
    assert page.driver.find_element(By.CSS_SELECTOR, "footer dd").text == HOSTILE[0]


def test_the_keyboard_alone_reaches_every_control(page):
    # so many images that the row of their pictures scrolls
    page.open(example((4, 4), masked=True, registers=1, moments=2, images=120))
    controls = page.run("""
        const all = [...document.querySelectorAll("select, button, input, [tabindex]")].filter((e) => e.tabIndex >= 0);
        const there = all.filter((e) => !e.disabled && e.getClientRects().length && (e.type !== "radio" || e.checked));
        there.forEach((element, i) => { element.dataset.number = i; });
        return there.length;""")
    reached = set()
    for _ in range(controls + 5):
        page.press(Keys.TAB)
        number, *good = page.run("""
            const now = document.activeElement;
            const ring = getComputedStyle(now.type === "radio" ? now.nextElementSibling : now);
            const label = now.matches("select, input") ? [...now.labels].map((label) => label.textContent).join()
                    : now.getAttribute("aria-label") || now.textContent;
            return [now.dataset.number, ring.outlineStyle !== "none" && parseFloat(ring.outlineWidth) >= 2,
                    label.trim() !== "", now.closest("[aria-hidden=true]") === null];""")
        if number is not None:
            assert good == [True, True, True]
            reached.add(number)
    assert len(reached) == controls > 15


def test_it_opens_where_it_is_told_and_passes_over_what_is_not_there(page):
    arguments = example(layers=3, heads=3)
    layer, head = opening(arguments["moments"][0].weights, 1, (8, 8))
    page.open(arguments)
    shown = page.text("sentence")
    assert shown.startswith(f"layer {layer}, head {head}, patch row 4 column 4")
    page.follow("image=9&layer=-3&head=1e9&query=99,99&mode=evil&scale=<b>&moment=x&part=decoder")
    assert page.text("sentence") == f"{shown}; held"
    page.follow("scale=log")
    assert (page.drawn("bar") == np.arange(256)).all()


def test_the_map_over_the_image_is_as_opaque_as_a_share_is_high_and_the_slider_thins_it(page):
    arguments = example(layers=1)
    page.open(arguments, "#layer=0&head=1&query=2,2&over=1&opacity=100")
    shares = decoded(arguments["moments"][0].weights[0][0])[:, 1 + 18, 1:].reshape(2, 8, 8)
    full = page.pixels("picture-map")[..., 3].astype(int)
    assert np.abs(full - 230 * shares[1] / shares[1].max()).max() <= 0.5 + 1e-3
    page.run("document.getElementById('opacity').focus()")
    page.press(*[Keys.ARROW_LEFT] * 10)
    assert np.abs(page.pixels("picture-map")[..., 3] - full / 2).max() <= 1
    page.press("o")
    assert not page["picture-map"].is_displayed()


def saved_words(page, *links) -> list[dict]:
    """Save a picture at each link; return its file name, size and words."""
    page.run("""window.saved = [];
        HTMLAnchorElement.prototype.click = function () { saved[saved.length - 1].name = this.download; };
        const { fillText } = CanvasRenderingContext2D.prototype;
        CanvasRenderingContext2D.prototype.fillText = function (text, x, y, most) {
          const { canvas } = this;
          if (!saved.length || saved[saved.length - 1].canvas !== canvas) {
            saved.push({ canvas, width: canvas.width, height: canvas.height, words: [] });
          }
          const wide = Math.min(this.measureText(text).width, most);
          const start = x - { left: 0, center: wide / 2, right: wide }[this.textAlign];
          saved[saved.length - 1].words.push([text, start, start + wide, y]);
          fillText.call(this, text, x, y, most);
        };""")
    for count, link in enumerate(links, 1):
        page.follow(link)
        page["save"].click()
        WebDriverWait(page.driver, PATIENCE, 0.05).until(
            lambda _, n=count: page.run("return saved.filter(({ name }) => name).length") == n
        )
    return page.run("return saved.map(({ canvas, ...saved }) => saved)")


def test_a_saved_picture_holds_all_of_its_words_and_says_what_it_shows(page):
    """Checkpoint, image, layer, head, kind of map and query: no two have the same name."""
    arguments = example(grid=(16, 2), masked=True, images=2, moments=2)
    arguments["moments"] = [
        replace(moment, name="\U0001f409 " * 40 + moment.name) for moment in arguments["moments"]
    ]
    row, column = np.argwhere(~arguments["hidden"][0].numpy())[0]
    page.open(arguments)
    start = f"part=encoder&layer=1&head=0&mode=row&image=0&moment=0&query={row},{column}"
    changes = (
        ("moment=0", "moment=1"),
        ("image=0", "image=1"),
        ("mode=row", "mode=column"),
        ("mode=row", "mode=rollout"),
        ("part=encoder", "part=decoder"),
    )
    saved = saved_words(page, start, *(start.replace(*change) for change in changes))
    assert saved[0]["name"].endswith(f"layer-1-head-0-patch-row-{row}-column-{column}.png")
    assert len({picture["name"] for picture in saved}) == 6
    assert len({str(picture["words"]) for picture in saved}) == 6
    by_line: dict[float, list] = {}
    for text, left, right, base in saved[0]["words"]:
        assert left >= 24 - 0.5
        assert right <= saved[0]["width"] - 24 + 0.5, text
        assert base <= saved[0]["height"] - 24
        by_line.setdefault(base, []).append((left, right))
    for line in by_line.values():
        assert all(before[1] < after[0] for before, after in pairwise(sorted(line)))


def test_a_link_restores_the_state(page):
    link = "#image=1&layer=1&head=1&query=5,6&mode=column&scale=log&over=0&opacity=35&moment=0&part=decoder&shown=filled"
    arguments = example(images=2, moments=2, masked=True)
    page.open(arguments, link)
    names = ("sentence", "moment-name", "opacity-name", "layer-name")
    shown = [page.text(name) for name in names]
    places = page.drawn()
    page.open(arguments, page.run("return location.hash"))
    assert [page.text(name) for name in names] == shown
    assert shown[2] == "35%"
    assert not page["over"].is_selected()
    assert page.driver.find_element(By.CSS_SELECTOR, "input[value=filled]").is_selected()
    assert np.array_equal(page.drawn(), places, equal_nan=True)
