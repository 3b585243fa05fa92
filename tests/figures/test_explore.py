"""Law: the page to explore attention, in a real browser, draws the numbers that it was given."""

import base64
import io
import math
import re
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait
from tiny import seeded

from vit.errors import UserError
from vit.figures import ExploredImage, Moment, explore_page
from vit.figures.explore import codes_of, distinct, opening, weights_of
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


def attention(heads: int, tokens: int, seed: int = 0, sharpness: float = 2.0) -> torch.Tensor:
    noise = torch.randn(heads, tokens, tokens, generator=seeded(seed))
    return (noise * sharpness).softmax(-1)


def example(
    grid=(8, 8),
    class_token=True,
    registers=0,
    layers=(0, 1),
    heads=2,
    images=1,
    moments=1,
    masked=False,
    name="image",
):
    """What `explore_page` is called with; every map is another one."""
    (rows, columns), prefix = grid, class_token + registers
    draws = seeded(7)
    size = (3, 4 * rows, 4 * columns)
    pixels = [
        torch.randint(0, 256, size, generator=draws, dtype=torch.uint8) for _ in range(images)
    ]
    hidden = [torch.rand(grid, generator=draws) < 0.6 if masked else None for _ in range(images)]

    def explored(moment: int, i: int) -> ExploredImage:
        tokens, seed = prefix + rows * columns, 1000 * moment + 100 * i
        visible = tokens - int(hidden[i].sum()) if masked else tokens
        weights = {layer: attention(heads, visible, seed + layer) for layer in layers}
        if not masked:
            return ExploredImage(f"{name} {i}", pixels[i], weights)
        decoder = {n: attention(heads + 1, tokens, seed + 50 + n) for n in range(2)}
        filled = (255 - pixels[i]) // (moment + 1)
        return ExploredImage(f"{name} {i}", pixels[i], weights, hidden[i], decoder, filled)

    return dict(
        moments=[
            Moment(f"epoch {moment}", [explored(moment, i) for i in range(images)])
            for moment in range(moments)
        ],
        title="A title",
        facts=[("model", "a small one")],
        grid_size=grid,
        class_token=class_token,
        registers=registers,
        decoder_prefix=prefix if masked else 0,
    )


def page_of(arguments: dict, **changes) -> str:
    arguments = arguments | changes
    return explore_page(arguments.pop("moments"), **arguments)


# ---- The coding ------------------------------------------------------------------------------------------------------

ROWS = {
    "soft": attention(3, 65),
    "sharp": attention(3, 65, sharpness=8),
    "many tokens": attention(1, 500),
    "a sink beside an even rest": torch.cat(
        [torch.full((1, 1), 0.5), torch.full((1, 64), 0.5 / 64)], dim=1
    ),
    "one key": torch.eye(5),
    "two tokens": torch.tensor([[0.1, 0.9]]),
    "bfloat16": attention(2, 33).bfloat16(),
}


@pytest.mark.parametrize("weights", ROWS.values(), ids=ROWS)
def test_codes_keep_row_sums_and_are_off_by_less_than_a_step(weights):
    decoded = weights_of(codes_of(weights))
    exact = weights.double() / weights.double().sum(-1, keepdim=True)
    assert (decoded.sum(-1) - 1).abs().max() < 1e-12
    # A step of the code in terms of the weight; zeros of many tokens add what they lost to the others.
    step = (2 * exact.sqrt() / 255 + 1 / 255**2) * (1 + weights.shape[-1] / 1000)
    assert ((decoded - exact).abs() <= step).all()


def test_even_rows_and_single_keys_come_back_exact():
    for tokens in (1, 2, 65, 197):
        even = torch.full((tokens,), 1 / tokens, dtype=torch.float64)
        assert torch.allclose(weights_of(codes_of(even)), even, rtol=1e-12, atol=0)
    assert torch.equal(weights_of(codes_of(torch.eye(4))), torch.eye(4).double())


# ---- The text --------------------------------------------------------------------------------------------------------


def test_equal_input_gives_equal_text_at_any_time(monkeypatch):
    one = page_of(example(masked=True, moments=2))
    monkeypatch.setattr(time, "time", lambda: 1e9)
    two = page_of(example(masked=True, moments=2))
    assert one == two
    assert one != page_of(example(masked=True, moments=2, name="other"))


def test_names_tell_images_apart():
    assert distinct(["cat", "dog", "cat", ""]) == ["cat, image 0", "dog", "cat, image 2", ""]
    assert distinct(["", ""]) == ["image 0", "image 1"]


def test_an_image_in_several_moments_is_stored_once():
    image = torch.randint(0, 256, (3, 200, 200)).byte()
    moments = [
        Moment(m.name, [replace(m.images[0], image=image.clone())])
        for m in example(moments=2)["moments"]
    ]
    one, both = (len(page_of(example(), moments=moments[:count])) for count in (1, 2))
    assert one > image.numel()
    assert both - one < image.numel() / 4


def test_a_page_that_is_too_large_says_how_much_to_leave_out_and_that_is_enough():
    arguments = example(layers=range(12), images=10, moments=10, heads=1, grid=(4, 4))
    size = len(page_of(arguments).encode())
    for limit in (int(0.3 * size), int(0.9 * size)):
        with pytest.raises(UserError) as refusal:
            page_of(arguments, limit=limit)
        assert f"{size / 1e6:.2f} MB" in str(refusal.value)
        says = r"leave out ([\d.]+)% or more of its 12 layers, 10 images or 10 checkpoints"
        kept = int(10 * (1 - float(re.search(says, str(refusal.value))[1]) / 100))
        for less in (
            [Moment(m.name, m.images[:kept]) for m in arguments["moments"]],
            arguments["moments"][:kept],
        ):
            assert len(page_of(arguments, moments=less, limit=limit).encode()) <= limit
    with pytest.raises(UserError, match="cannot be so small"):
        page_of(arguments, limit=1000)


@pytest.mark.parametrize(
    "weights", [attention(2, 65) * math.nan, attention(2, 65) * 2, attention(2, 64)]
)
def test_weights_that_are_no_shares_of_these_tokens_are_refused(weights):
    image = ExploredImage("one", torch.zeros(3, 8, 8).byte(), {0: weights})
    with pytest.raises(UserError, match="'one', layer 0: weights are"):
        page_of(example(), moments=[Moment("", [image])])


def patterned(pattern: str, seed: int, grid=(6, 6)) -> torch.Tensor:
    """A head (1 + 36, 1 + 36) that looks as it is told; which patches it seeks depends on the image, by `seed`."""
    row, column = (
        axis.flatten() for axis in torch.meshgrid(*map(torch.arange, grid), indexing="ij")
    )
    near = ((row[:, None] - row).abs() <= 1) & ((column[:, None] - column).abs() <= 1)
    seeks = torch.randperm(36, generator=seeded(seed))[:3]
    patches = {
        "neighbours": near.double(),
        "one place": (torch.arange(36) == 20).double().expand(36, -1) + 1e-3,
        "class token": torch.eye(36, dtype=torch.float64),
        "an object": torch.zeros(36, 36, dtype=torch.float64).index_fill(1, seeks, 1.0) + 1e-2,
        "even": torch.ones(36, 36, dtype=torch.float64),
    }[pattern]
    weights = torch.full((37, 37), 1 / 37, dtype=torch.float64)
    weights[1:, 0] = 0.9 if pattern == "class token" else 0.05
    weights[1:, 1:] = patches / patches.sum(-1, keepdim=True) * (1 - weights[1:, :1])
    return weights


def test_the_page_opens_on_the_most_concentrated_head_that_follows_the_image():
    def images(*layers: list[str], count: int = 3) -> list[ExploredImage]:
        made = []
        for seed in range(count):
            weights = {
                3 * n: torch.stack([patterned(head, seed) for head in heads])
                for n, heads in enumerate(layers)
            }
            made.append(ExploredImage("", torch.zeros(3, 6, 6).byte(), weights))
        return made

    shown = images(
        ["even", "neighbours"],
        ["one place", "an object", "class token"],
        ["even", "even", "neighbours"],
    )
    assert opening(shown, 1, (6, 6)) == (1, 1)
    # even heads are alike in all images
    assert opening(images(["neighbours", "even"], ["one place"]), 1, (6, 6)) == (1, -1)
    # of one image nobody knows what the next would change
    assert opening(shown[:1], 1, (6, 6)) == (1, 0)
    hidden = [replace(i, hidden=torch.zeros(6, 6, dtype=torch.bool)) for i in shown]
    assert opening(hidden, 1, (6, 6)) == (1, 0)


# ---- In the browser --------------------------------------------------------------------------------------------------


class Page:
    """An open page, and what a test asks of it."""

    def __init__(self, driver: webdriver.Chrome, folder: Path):
        self.driver, self._path = driver, folder / "page.html"

    def open(self, arguments: dict, link: str = "") -> "Page":
        return self.open_text(page_of(arguments), link)

    def open_text(self, text: str, link: str = "") -> "Page":
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


GEOMETRIES = {
    "16 x 16": dict(grid=(16, 16)),
    "registers": dict(grid=(4, 6), registers=4),
    "no class token": dict(grid=(5, 3), class_token=False),
}


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_pixels_are_the_numbers(page, geometry):
    arguments = example(**geometry)
    rows, columns = grid = arguments["grid_size"]
    prefix = arguments["class_token"] + arguments["registers"]
    given = arguments["moments"][0].images[0].weights
    page.open(arguments)
    for layer, head, row, column in ((1, 0, 0, 0), (0, 1, rows - 1, columns - 1), (1, 1, 1, 2)):
        token = prefix + row * columns + column
        for mode in ("row", "column"):
            page.follow(f"layer={layer}&head={head}&query={row},{column}&mode={mode}&scale=row")
            place = (slice(None), token) if mode == "row" else (slice(None), slice(None), token)
            exact, shares = given[layer][place], decoded(given[layer])[place]
            top = shares[:, prefix:].max()
            places = page.drawn()
            assert_drawn(places, shares[head, prefix:].reshape(grid), top)
            # and so they are what was given, as far as coded
            step = 2 * math.sqrt(exact.max()) / 255 + 1 / 255**2
            off = places / 255 * top - exact[head, prefix:].reshape(grid).numpy()
            assert np.abs(off).max() < step + top / 255
            percents = (100 * shares[head, :prefix]).tolist()
            assert page.numbers() == pytest.approx(percents, abs=0.051)
    for i in range(prefix):  # from tokens that have no place
        page.follow(f"layer=0&head=0&mode=row&scale=row&query={-1 - i}")
        shares = decoded(given[0])[:, i, prefix:]
        assert_drawn(page.drawn(), shares[0].reshape(grid), shares.max())


def test_scales_and_their_bar(page):
    arguments = example()
    given = arguments["moments"][0].images[0].weights
    shares = decoded(given[1])[1, 1 + 9, 1:].reshape(8, 8)
    page.open(arguments, "#layer=1&head=1&query=1,1&scale=log")
    bar = page.drawn("bar")
    assert (bar == np.arange(256)).all()
    places = page.drawn()
    expected = 255 * (1 + np.log10(np.maximum(shares, 1e-4)) / 4)
    assert np.abs(places - expected).max() <= 0.5 + 1e-3
    assert [tick.text for tick in page["ticks"].find_elements(By.TAG_NAME, "span")][-1] == "100%"

    tops = set()
    for layer, head, row in ((0, 0, 0), (1, 0, 7)):  # one top, whatever is chosen
        page.follow(f"layer={layer}&head={head}&query={row},1&scale=shared")
        tops.add(page["ticks"].find_elements(By.TAG_NAME, "span")[-1].text)
        top = float(max(tops).strip("≥ %")) / 100
        shares = decoded(given[layer])[head, 1 + 8 * row + 1, 1:].reshape(8, 8)
        assert np.abs(page.drawn() / 255 - np.minimum(shares / top, 1)).max() < 0.02
    assert len(tops) == 1
    between = np.concatenate([decoded(given[layer])[:, 1:, 1:].ravel() for layer in (0, 1)])
    assert (between > 1.02 * top).mean() < 0.01  # few are clipped


def test_small_maps_are_the_same_numbers_and_choose(page):
    arguments = example(layers=range(3), heads=3)
    given = arguments["moments"][0].images[0].weights
    page.open(arguments, "#layer=2&head=0&query=3,4")
    shares = decoded(given[2])[:, 1 + 28, 1:].reshape(3, 8, 8)
    for i, one in enumerate([shares.mean(0), *shares]):
        assert_drawn(
            page.drawn(f"#grid tbody tr:nth-child(3) td:nth-child({i + 2}) canvas"),
            one,
            shares.max(),
        )
    page["grid"].find_elements(By.TAG_NAME, "button")[1 * 4 + 3].click()
    shares = decoded(given[1])[:, 1 + 28, 1:].reshape(3, 8, 8)
    assert_drawn(page.drawn(), shares[2], shares.max())
    assert page.text("sentence").startswith("layer 1, head 2, patch row 3 column 4: ")


def test_strongest_keys_are_listed_with_their_numbers(page):
    arguments = example(registers=2)
    page.open(arguments, "#layer=1&head=1&query=2,6")
    shares = decoded(arguments["moments"][0].images[0].weights[1])[1, 3 + 22]
    lines = [row.text.split() for row in page["strongest"].find_elements(By.TAG_NAME, "tr")]
    order = np.argsort(-shares[3:], kind="stable")[:6]
    for line, patch in zip(lines, order, strict=False):
        assert line[:2] == [f"{patch // 8},", f"{patch % 8}"]
        assert float(line[-1].strip("%")) == pytest.approx(100 * shares[3 + patch], abs=0.051)
    assert sum(float(line[-1].strip("%")) for line in lines) + sum(page.numbers()) == pytest.approx(
        100, abs=0.5
    )
    most = f"most on row {order[0] // 8} column {order[0] % 8}, {100 * shares[3 + order[0]]:.1f}%; class token "
    assert most in page.text("sentence")


def asks(page) -> str:
    """Who asks, by the words under the map."""
    return re.search(
        r", ((patch row \d+ column \d+|class token|register \d+)):", page.text("sentence")
    )[1]


def test_the_pointer_moves_the_query_and_a_click_holds_it(page):
    grid = (3, 5)
    page.open(example(grid=grid))
    for stage in ("map", "picture"):
        for row, column in ((0, 0), (2, 4), (1, 3)):
            page.at(stage, row, column, grid).perform()
            assert asks(page) == f"patch row {row} column {column}"
            outline = f"#{stage} path.query:not(.halo)"
            drawn = f"return document.querySelector('{outline}').getAttribute('d')"
            assert page.run(drawn) == f"M{column} {row}h1v1h-1z"
    page.at("map", 0, 1, grid).click().perform()
    page.at("map", 2, 2, grid).perform()
    assert asks(page) == "patch row 0 column 1"  # held
    page.at("picture", 2, 3, grid).click().perform()
    assert asks(page) == "patch row 2 column 3"  # the hold moves
    page.press(Keys.ESCAPE)
    page.at("map", 1, 2, grid).perform()
    assert asks(page) == "patch row 1 column 2"


def test_keys_move_everything(page):
    page.open(
        example(grid=(3, 5), registers=1, layers=range(3), images=2), "#layer=2&head=0&query=1,1"
    )
    page.run("document.getElementById('map').focus()")
    for keys, expected in (
        ([Keys.ARROW_RIGHT], "patch row 1 column 2"),
        ([Keys.ARROW_DOWN] * 2, "patch row 2 column 2"),  # the edge
        ([Keys.ARROW_LEFT] * 4, "patch row 2 column 0"),
        ([Keys.ARROW_UP] * 5, "patch row 0 column 0"),
        (["c"], "class token"),
        (["c"], "register 0"),
        (["c"], "patch row 0 column 0"),
        (["C"], "register 0"),
        ([Keys.ARROW_LEFT], "patch row 0 column 0"),  # back where the grid was left
    ):
        page.press(*keys)
        assert asks(page) == expected
    for key, start in (
        ("l", "layer 0, head 0,"),
        ("L", "layer 2, head 0,"),
        ("h", "layer 2, head 1,"),
        ("h", "layer 2, mean of heads,"),
        ("m", "layer 2, mean of heads, who looks at"),
        ("m", "rollout up to layer 2,"),
    ):
        page.press(key)
        assert page.text("sentence").startswith(start)
    page.press("s")
    assert page["scale"].get_property("value") == "shared"
    page.press("i")
    assert page.text("picture-caption") == "image 1"
    before = page.run("return window.scrollY")
    page.press(Keys.ARROW_DOWN)
    assert page.run("return window.scrollY") == before  # the map has the arrows, not the page


def test_controls_do_what_they_say(page):
    arguments = example(layers=(3, 5, 9), heads=2, images=2)
    given = arguments["moments"][0].images[1].weights
    page.open(arguments, "#query=0,1")
    page["thumbs"].find_elements(By.TAG_NAME, "canvas")[1].click()
    assert page["image"].get_property("value") == "1"
    Select(page["head"]).select_by_visible_text("head 1")
    page["layer"].send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    assert page.text("layer-name") == "5"
    shares = decoded(given[5])[:, 2, 1:].reshape(2, 8, 8)
    assert_drawn(page.drawn(), shares[1], shares.max())
    page.driver.find_element(By.CSS_SELECTOR, "input[value=column]").click()
    shares = decoded(given[5])[:, 1:, 2].reshape(2, 8, 8)
    assert_drawn(page.drawn(), shares[1], shares.max())
    rollout = page.driver.find_element(By.CSS_SELECTOR, "input[value=rollout]")
    assert not rollout.is_enabled()  # layers 0 to 2 are not there
    assert page.text("grid-heading").startswith("Layers and heads of the encoder on this page")
    picture = page.pixels("picture-pixels")
    assert (
        picture[..., :3] == arguments["moments"][0].images[1].image.permute(1, 2, 0).numpy()
    ).all()


def test_rollout_is_that_of_the_measures(page):
    arguments = example(grid=(4, 6), registers=1, layers=range(4), heads=3)
    given = arguments["moments"][0].images[0].weights
    page.open(arguments, "#query=2,3&mode=rollout&scale=row")
    for layer in range(4):
        page.follow(f"query=2,3&mode=rollout&scale=row&layer={layer}")
        exact = attention_rollout(
            [torch.from_numpy(decoded(given[n]))[None] for n in range(layer + 1)]
        )[0].numpy()
        shares = exact[2 + 15, 2:].reshape(4, 6)
        assert_drawn(page.drawn(), shares, shares.max())
        given_exact = attention_rollout([given[n][None] for n in range(layer + 1)])[
            0, 2 + 15, 2:
        ].reshape(4, 6)
        assert np.abs(page.drawn() / 255 * shares.max() - given_exact.numpy()).max() < 0.004


def test_masked_model(page):
    arguments = example(grid=(4, 6), masked=True, registers=1)
    image = arguments["moments"][0].images[0]
    hidden = image.hidden.numpy()
    (row, column), (hidden_row, hidden_column) = np.argwhere(~hidden)[1], np.argwhere(hidden)[1]
    page.open(arguments)
    assert "hidden" not in page.text("sentence")  # it begins where there is something to see
    page.follow(f"part=encoder&layer=1&head=1&query={row},{column}")
    token = 2 + list(map(tuple, np.argwhere(~hidden))).index((row, column))
    shares = np.full((2, 4, 6), math.nan)
    shares[:, ~hidden] = decoded(image.weights[1])[:, token, 2:]
    assert_drawn(page.drawn(), shares[1], np.nanmax(shares))
    page.follow(f"part=encoder&layer=1&head=1&query={hidden_row},{hidden_column}")
    assert np.isnan(page.drawn()).all()
    assert "masked: the encoder does not see it" in page.text("sentence")
    assert page["strongest"].find_elements(By.TAG_NAME, "tr") == []
    assert not page.run("return document.querySelector('.bar').checkVisibility()")

    page.press("d")  # the decoder asks from it
    page.follow(f"part=decoder&layer=1&head=2&query={hidden_row},{hidden_column}")
    weights = decoded(image.decoder[1])[:, 2 + hidden_row * 6 + hidden_column]
    shares = weights[:, 2:].reshape(3, 4, 6)
    assert_drawn(page.drawn(), shares[2], shares.max())
    on_visible = float(re.search(r"([\d.]+)% is on visible", page.text("note"))[1])
    assert on_visible == pytest.approx(100 * shares[2][~hidden].sum(), abs=0.06)
    dots = page.run("return document.querySelector('#map path.dots').getAttribute('d')")
    assert dots.count("M") == hidden.sum()

    pixels = image.image.permute(1, 2, 0).numpy()
    covered = hidden.repeat(4, axis=0).repeat(4, axis=1)
    for shown in ("seen", "original", "filled"):
        page.driver.find_element(By.CSS_SELECTOR, f"input[value={shown}]").click()
        picture = page.pixels("picture-pixels")
        if shown == "seen":
            assert (picture[covered, 3] == 0).all()
            opaque = np.concatenate([pixels, np.full((16, 24, 1), 255)], -1)
            assert (picture[~covered] == opaque[~covered]).all()
        else:
            assert (picture[..., :3] == (255 - pixels if shown == "filled" else pixels)).all()


def test_training_slider(page):
    arguments = example(moments=3, masked=True)
    page.open(arguments)
    visible = np.argwhere(~arguments["moments"][0].images[0].hidden.numpy())[0]
    page.follow(f"query={visible[0]},{visible[1]}&head=0&layer=1")
    assert page.text("moment-name") == "epoch 2"  # the end comes first
    page.driver.find_element(By.CSS_SELECTOR, "input[value=filled]").click()
    for moment, keys in ((0, [Keys.HOME]), (1, [Keys.ARROW_RIGHT]), (2, [Keys.END])):
        page["moment"].send_keys(*keys)
        image = arguments["moments"][moment].images[0]
        shares = decoded(image.weights[1])[:, 1]
        expected = np.full((8, 8), math.nan)
        expected[~image.hidden.numpy()] = shares[0, 1:]
        assert_drawn(page.drawn(), expected, shares[:, 1:].max())
        assert page.text("moment-name") == f"epoch {moment}"
        assert (
            page.pixels("picture-pixels")[..., :3] == image.filled.permute(1, 2, 0).numpy()
        ).all()


def test_a_grey_image_and_one_patch_work(page):
    image = ExploredImage("", torch.arange(64).byte().view(1, 8, 8), {4: torch.ones(1, 1, 1)})
    page.open(example((1, 1), class_token=False) | dict(moments=[Moment("", [image])]))
    assert page.drawn().tolist() == [[255]]
    assert (page.pixels("picture-pixels")[..., 1].ravel() == np.arange(64)).all()
    assert "row 0 column 0, 100.0%" in page.text("sentence")


def test_hostile_names_stay_text(page):
    arguments = example(images=len(HOSTILE), moments=2)
    moments = []
    for number, moment in enumerate(arguments["moments"]):
        named = [replace(i, name=name) for i, name in zip(moment.images, HOSTILE, strict=True)]
        moments.append(Moment(f"{HOSTILE[number]}{number}", named))
    arguments |= dict(
        moments=moments, title=" ".join(HOSTILE), facts=[(name, name) for name in HOSTILE]
    )
    text = page_of(arguments)
    assert text.encode()  # no lone surrogate
    assert not set("\u2028\u202e\x00") & set(text)
    page.open_text(text)
    options = [option.text for option in Select(page["image"]).options]
    assert options[3].split() == ["line�separator", "&", "�redrocer�", "�", "�"]
    assert [options[i] for i in (1, 2, 4)] == [HOSTILE[i] for i in (1, 2, 4)]
    assert options[0] == HOSTILE[0]
    assert page.driver.find_elements(By.TAG_NAME, "img") == []
    assert len(page.driver.find_elements(By.TAG_NAME, "script")) == 3
    for i in range(len(HOSTILE)):
        page.press("i")
        assert page.text("picture-caption") == page.run(
            f"return document.getElementById('image')[{(i + 1) % 5}].text"
        )
    page.press("t")
    assert HOSTILE[0] in page.text("moment-name")
    assert page.driver.find_element(By.CSS_SELECTOR, "footer dd").text == HOSTILE[0]
    assert page.driver.title.startswith(HOSTILE[0])


def test_nothing_runs_over_the_side(page):
    arguments = example(
        (4, 4),
        masked=True,
        registers=4,
        moments=2,
        images=10,
        heads=12,
        layers=range(12),
        name="averylongname" * 8,
    )
    arguments |= dict(title="Averylongtitle" * 6, facts=[("model", "averylongfact" * 12)])
    page.open(arguments)
    try:
        for width in (360, 800, 1440):
            size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
            page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            assert page.run("return document.documentElement.scrollWidth") <= width
            top = "return document.getElementById(arguments[0]).getBoundingClientRect().top"
            beside = page.run(top, "picture") == page.run(top, "map")
            assert beside == (width > 360)  # stacked on a phone
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("head", ["mean", 0, 7, 15])
def test_the_small_map_that_is_chosen_is_in_sight_on_a_phone(page, head):
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.open(example((4, 4), heads=16), f"#layer=1&head={head}")
        left, right, names = page.run("""
            const box = document.querySelector("#grid [aria-pressed=true]").getBoundingClientRect();
            const name = document.querySelector("#grid tbody th").getBoundingClientRect();
            return [box.left, box.right, name.right];""")
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert names - 1 <= left < right <= 390


def test_on_paper_it_says_what_is_shown_and_cuts_nothing(page):
    page.open(example((4, 4), heads=16, moments=2), "#layer=1&head=15&moment=1")
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    size = {"width": 718, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert page["fold-name"].is_displayed()
        assert page["fold-name"].text == "epoch 1 · layer 1 · head 15"
        assert not page["layer"].is_displayed()
        assert page.run("return document.documentElement.scrollWidth") <= 718
        right = "return document.getElementById('grid').getBoundingClientRect().right"
        assert page.run(right) <= 718
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_keyboard_alone_reaches_every_control(page):
    # so many images that the row of their pictures scrolls
    page.open(example((4, 4), masked=True, registers=1, moments=2, images=120))
    controls = page.run("""
        const all = [...document.querySelectorAll("select, button, input, [tabindex]")].filter((e) => e.tabIndex >= 0);
        const there = all.filter((e) => !e.disabled && e.getClientRects().length && (e.type !== "radio" || e.checked));
        there.forEach((element, i) => { element.dataset.number = i; });
        return there.length;""")
    reached = []
    for _ in range(controls + 5):
        page.press(Keys.TAB)
        reached.append(
            page.run("""
            const now = document.activeElement;
            const ring = getComputedStyle(now.type === "radio" ? now.nextElementSibling : now);
            return [now.dataset.number, ring.outlineStyle, parseFloat(ring.outlineWidth),
                    now.matches("select, input") ? [...now.labels].map((label) => label.textContent).join()
                    : now.getAttribute("aria-label") || now.textContent, now.closest("[aria-hidden=true]") !== null];""")
        )
    assert not any(unheard for *_, unheard in reached)
    seen = {number: rest for number, *rest, _ in reached if number is not None}
    assert len(seen) == controls > 15
    for style, width, label in seen.values():
        assert style != "none"
        assert width >= 2
        assert label.strip()


def test_it_opens_where_it_is_told_and_on_the_ground_of_the_page(page):
    arguments = example(layers=range(3), heads=3)
    layer, head = opening(arguments["moments"][0].images, 1, (8, 8))
    page.open(arguments)
    shares = decoded(arguments["moments"][0].images[0].weights[layer])[:, 1 + 36, 1:].reshape(
        3, 8, 8
    )
    assert page.text("sentence").startswith(f"layer {layer}, head {head}, patch row 4 column 4")
    assert_drawn(page.drawn(), shares[head], shares.max())
    shown = page.text("sentence")
    page.follow("image=9&layer=-3&head=1e9&query=99,99&mode=evil&scale=<b>&moment=x&part=decoder")
    assert page.text("sentence") == f"{shown}; held"  # what is not there is passed over
    light = page.pixels("map-pixels")[..., :3].astype(int)
    dark_page = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    try:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark_page)
        magma = matplotlib.colormaps["magma"](np.arange(256), bytes=True)[:, :3]
        WebDriverWait(page.driver, PATIENCE, 0.05).until(
            lambda _: (page.pixels("bar")[0, :, :3] == magma).all()
        )
        dark = page.pixels("map-pixels")[..., :3].astype(int)
        least, most = (
            np.unravel_index(find(shares[head]), (8, 8)) for find in (np.argmin, np.argmax)
        )
        assert light[least].sum() > light[most].sum()
        assert dark[least].sum() < dark[most].sum()
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_map_over_the_image_is_as_opaque_as_a_share_is_high_and_the_slider_thins_it(page):
    arguments = example(layers=(0,), heads=2)
    page.open(arguments, "#layer=0&head=1&query=2,2&over=1&opacity=100")
    shares = decoded(arguments["moments"][0].images[0].weights[0])[:, 1 + 18, 1:].reshape(2, 8, 8)
    full = page.pixels("picture-map")[..., 3].astype(int)
    assert np.abs(full - 230 * shares[1] / shares.max()).max() <= 0.5 + 1e-3
    page.run("document.getElementById('opacity').focus()")
    page.press(*[Keys.ARROW_LEFT] * 10)
    assert page.text("opacity-name") == "50%"
    assert np.abs(page.pixels("picture-map")[..., 3] - full / 2).max() <= 1
    WebDriverWait(page.driver, PATIENCE, 0.05).until(
        lambda _: "opacity=50" in page.run("return location.hash")
    )
    page["over"].click()
    assert not page["picture-map"].is_displayed()
    assert not page["opacity"].is_enabled()
    page.press("o")
    assert page["picture-map"].is_displayed()


def jpeg(size: tuple[int, int]) -> bytes:
    """A file of (height, width) pixels, red at the left and blue at the right."""
    pixels = np.zeros((*size, 3), dtype=np.uint8)
    pixels[:, : size[1] // 2, 0] = pixels[:, size[1] // 2 :, 2] = 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="jpeg", quality=95)
    return file.getvalue()


def test_a_photograph_is_shown_in_its_own_pixels_and_so_are_the_patches_looked_at(page):
    arguments = example(grid=(4, 6))
    one = arguments["moments"][0].images[0]
    arguments["moments"] = [Moment("", [replace(one, photo=jpeg((80, 120)))])]
    page.open(arguments, "#layer=1&head=0&query=1,1")
    shown = page.pixels("picture-pixels")
    assert shown.shape[:2] == (80, 120)
    assert (shown[40, 20, :3] > 200).tolist() == [True, False, False]
    assert (shown[40, 100, :3] > 200).tolist() == [False, False, True]
    for number, row in enumerate(page["strongest"].find_elements(By.TAG_NAME, "tr")[:6]):
        column = int(row.text.split()[1])
        patch = page.pixels(f"#strongest tr:nth-child({number + 1}) canvas")
        assert (patch[16, 16, :3] > 200).tolist() == [column < 3, False, column >= 3]
    page.driver.find_element(By.CSS_SELECTOR, "input[value=original]").click()
    assert (page.pixels("picture-pixels")[..., :3] == one.image.permute(1, 2, 0).numpy()).all()


def test_the_photograph_comes_back_after_an_image_without_one(page):
    arguments = example(images=2)
    with_photo, without = arguments["moments"][0].images
    images = [replace(with_photo, photo=jpeg((64, 64))), without]
    page.open(arguments | dict(moments=[Moment("", images)]))
    for chosen, size in (("photo", 64), ("original", 32), ("photo", 64)):
        assert (
            page.run("return document.querySelector('input[name=shown]:checked').value") == chosen
        )
        assert page.pixels("picture-pixels").shape[:2] == (size, size)
        page.press("i")


def test_arrows_go_from_one_small_map_to_the_next(page):
    page.open(example(layers=range(3), heads=2), "#layer=1&head=0&query=1,1")
    page.run("document.querySelector('#grid [aria-pressed=true]').focus()")
    for key, start in (
        (Keys.ARROW_RIGHT, "layer 1, head 1,"),
        (Keys.ARROW_RIGHT, "layer 1, head 1,"),  # the edge
        (Keys.ARROW_UP, "layer 0, head 1,"),
        (Keys.ARROW_UP, "layer 0, head 1,"),
        (Keys.ARROW_LEFT, "layer 0, head 0,"),
        (Keys.ARROW_LEFT, "layer 0, mean of heads,"),
        (Keys.ARROW_DOWN, "layer 1, mean of heads,"),
    ):
        page.press(key)
        assert page.text("sentence").startswith(start)
        assert page.run("return document.activeElement.getAttribute('aria-pressed')") == "true"
    page.driver.find_element(By.CSS_SELECTOR, "input[value=rollout]").click()
    assert len(page["grid"].find_elements(By.TAG_NAME, "button")) == 3  # one a layer


def test_playing_goes_through_layers_and_training_to_the_end_and_can_be_stopped(page):
    page.open(example(layers=range(3), moments=3), "#layer=2&head=0&query=1,1&moment=0")
    page.run("""window.setInterval = (step) => { window.step = step; return 1; };
        window.clearInterval = () => { window.step = () => {}; };""")  # its time goes by as the test says
    page["play-layer"].click()  # from the end it begins anew
    assert (page.text("layer-name"), page.text("play-layer")) == ("0", "Stop")
    page.run("window.step()")
    assert page.text("layer-name") == "1"
    page.run("window.step()")
    assert page.text("layer-name") == "2"
    assert page.text("play-layer") == "Play"
    page.press("P")
    assert page.text("moment-name") == "epoch 1"
    page.press(Keys.ESCAPE)
    page.run("window.step()")
    assert page.text("moment-name") == "epoch 1"


def test_the_saved_picture_has_whole_patches_and_both_panes(page, tmp_path):
    page.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    page.open(example(grid=(4, 6)), "#layer=1&head=0&query=2,3&over=0")
    page["save"].click()
    saved = tmp_path / "attention-epoch-0-layer-1-head-0-patch-row-2-column-3.png"
    WebDriverWait(page.driver, PATIENCE, 0.05).until(lambda _: saved.exists())
    picture = np.asarray(Image.open(saved).convert("RGB"))
    across, down = 6 * 85, 4 * 85  # 512 pixels, in whole ones for each of six columns
    assert picture.shape == (down + 24 + 96, 2 * across + 3 * 24, 3)
    middles = picture[24 + 42 : 24 + down : 85]
    assert (
        middles[:, 2 * 24 + across + 42 :: 85][:, :6] == page.pixels("map-pixels")[..., :3]
    ).all()
    assert np.ptp(picture[down + 24 + 20 :].astype(int)) > 100  # words below


def saved_words(page, *links) -> list[dict]:
    """Save a picture at each link; return its file name, size, words, and the centres of dots."""
    page.run("""window.saved = [];
        HTMLAnchorElement.prototype.click = function () { saved[saved.length - 1].name = this.download; };
        const { fillText, arc } = CanvasRenderingContext2D.prototype;
        const now = ({ canvas }) => {
          if (!saved.length || saved[saved.length - 1].canvas !== canvas) {
            saved.push({ canvas, width: canvas.width, height: canvas.height, words: [], dots: [] });
          }
          return saved[saved.length - 1];
        };
        CanvasRenderingContext2D.prototype.fillText = function (text, x, y, most) {
          const wide = Math.min(this.measureText(text).width, most);
          const start = x - { left: 0, center: wide / 2, right: wide }[this.textAlign];
          now(this).words.push([text, start, start + wide, y]);
          fillText.call(this, text, x, y, most);
        };
        CanvasRenderingContext2D.prototype.arc = function (x, y, ...more) {
          now(this).dots.push([x, y]);
          arc.call(this, x, y, ...more);
        };""")
    for count, link in enumerate(links, 1):
        page.follow(link)
        page["save"].click()
        WebDriverWait(page.driver, PATIENCE, 0.05).until(
            lambda _, n=count: page.run("return saved.length") == n
        )
        WebDriverWait(page.driver, PATIENCE, 0.05).until(
            lambda _: page.run("return saved[saved.length - 1].name")
        )
    return page.run(
        "return saved.map(({ name, width, height, words, dots }) => ({ name, width, height, words, dots }))"
    )


NAMED = [
    ((8, 8), "a day in the mountains " * 9),
    ((8, 8), "x" * 200),
    ((16, 4), "photo"),
    ((16, 2), "\U0001f409 " * 40),
]


@pytest.mark.parametrize(  # every name once in the default suite, on one scale or the other
    ("grid", "name", "scale"),
    [
        pytest.param(
            grid, name, scale, marks=[pytest.mark.slow] * (scale != ("row", "log")[number % 2])
        )
        for number, (grid, name) in enumerate(NAMED)
        for scale in ("row", "log")
    ],
)
def test_the_saved_picture_holds_all_of_its_words(page, grid, name, scale):
    page.open(example(grid=grid, name=name, registers=2))
    (saved,) = saved_words(page, f"layer=1&head=0&query=2,1&scale={scale}")
    by_line: dict[float, list] = {}
    for text, left, right, base in saved["words"]:
        assert text
        assert left >= 24 - 0.5
        assert right <= saved["width"] - 24 + 0.5, text
        assert base <= saved["height"] - 24
        by_line.setdefault(base, []).append((left, right))
    for line in by_line.values():
        assert all(before[1] < after[0] for before, after in pairwise(sorted(line)))
    ticks = [tick.text for tick in page["ticks"].find_elements(By.TAG_NAME, "span")]
    drawn = [text for text, *_ in saved["words"]]
    count = len(ticks) if grid == (8, 8) else 2
    assert drawn[:count] == (ticks if count > 2 else [ticks[0], ticks[-1]])
    told = " ".join(drawn[count:])
    assert re.fullmatch(r"epoch 0 · .*?…?", told.partition(": layer 1, ")[0])
    assert page.text("sentence").removesuffix("; held").endswith(told.partition(": ")[2])


def test_saved_pictures_say_what_they_show(page):
    """Checkpoint, image, layer, head, kind of map and query: no two have the same name."""
    arguments = example(masked=True, images=2, moments=2)
    hidden = arguments["moments"][0].images[0].hidden.numpy()
    (row, column), (gone_row, gone_column) = np.argwhere(~hidden)[0], np.argwhere(hidden)[0]
    page.open(arguments)
    start = f"part=encoder&layer=1&head=0&mode=row&image=0&moment=0&query={row},{column}"
    one, *others = saved_words(
        page,
        start,
        start.replace("moment=0", "moment=1"),
        start.replace("image=0", "image=1"),
        start.replace("mode=row", "mode=column"),
        start.replace("mode=row", "mode=rollout"),
        start.replace(f"query={row},{column}", f"query={gone_row},{gone_column}"),
        start.replace("part=encoder", "part=decoder"),
    )
    assert (
        one["name"]
        == f"attention-epoch-0-image-0-layer-1-head-0-patch-row-{row}-column-{column}.png"
    )
    assert one["words"][3][0].startswith(
        f"epoch 0 · image 0: layer 1, head 0, patch row {row} column {column}: most on"
    )
    assert others[0]["words"][3][0].startswith("epoch 1 · image 0: ")
    assert len({picture["name"] for picture in (one, *others)}) == 7
    assert len({str(picture["words"]) for picture in (one, *others)}) == 7
    *_, without, decoder = others
    assert without["words"][0][0].startswith("epoch 0 · image 0: ")  # no map: no scale
    dots = {(int((y - 24) // 64), int((x - 2 * 24 - 512) // 64)) for x, y in decoder["dots"]}
    assert dots == set(map(tuple, np.argwhere(hidden).tolist()))
    assert " ".join(text for text, *_ in decoder["words"]).endswith("; dots mark hidden patches")
    assert not any(picture["dots"] for picture in (one, *others[:-1]))


def test_one_scale_for_all_maps_is_that_of_all_images(page):
    weights = [attention(2, 65, seed, sharpness) for seed, sharpness in enumerate((0.5, 6.0))]
    images = [ExploredImage("", torch.zeros(3, 32, 32).byte(), {0: found}) for found in weights]
    page.open(example() | dict(moments=[Moment("", images)]), "#scale=shared&query=1,1&head=0")
    ticks = set()
    for image in range(2):
        page.follow(f"scale=shared&query=1,1&head=0&image={image}")
        ticks.add(page.text("ticks"))
    assert len(ticks) == 1
    top = float(re.search(r"≥ ([\d.]+)%", ticks.pop())[1]) / 100
    between = np.concatenate([decoded(found)[:, 1:, 1:].ravel() for found in weights])
    assert (between > 1.02 * top).mean() < 0.01 < (between > 0.9 * top).mean() + 0.01


def test_the_link_that_is_copied_restores_the_state(page):
    page.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
    )
    link = "#image=1&layer=7&head=1&query=5,6&mode=column&scale=log&over=0&opacity=35&moment=0&part=decoder&shown=filled"
    page.open(
        example(images=2, layers=(2, 7), moments=2, masked=True), link.replace("layer=7", "layer=1")
    )
    shown = {
        name: page.text(name) for name in ("sentence", "moment-name", "opacity-name", "layer-name")
    }
    places = page.drawn()
    # the words stand for three seconds, which a busy machine may miss
    page.run(
        """window.said = [];
        new MutationObserver(() => said.push(document.getElementById("copy").textContent))
          .observe(document.getElementById("copy"), { childList: true });"""
    )
    page["copy"].click()
    WebDriverWait(page.driver, PATIENCE, 0.02).until(
        lambda _: "Link copied" in page.run("return said")
    )
    copied = page.run("return navigator.clipboard.readText()")
    page.driver.get("about:blank")
    page.driver.get(copied)
    WebDriverWait(page.driver, PATIENCE, 0.02).until(lambda _: page["explorer"].is_displayed())
    assert {name: page.text(name) for name in shown} == shown
    assert shown["opacity-name"] == "35%"
    assert not page["over"].is_selected()
    assert page.driver.find_element(By.CSS_SELECTOR, "input[value=filled]").is_selected()
    assert np.array_equal(page.drawn(), places, equal_nan=True)


def test_controls_fold_on_a_phone_and_image_and_map_do_not_wait_below_them(page):
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    try:
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        page.open(
            example(registers=2, moments=2, masked=True, images=5), "#layer=1&head=0&query=1,1"
        )
        assert not page["layer"].is_displayed()
        box = page.run(
            "const b = arguments[0].getBoundingClientRect(); return [b.top, b.bottom]",
            page["picture"],
        )
        assert 0 < box[0] < box[1] < 844  # the whole image, its map over it
        page.driver.find_element(By.CSS_SELECTOR, "#fold summary").click()
        assert page["layer"].is_displayed()
        assert (
            page.run("return document.getElementById('fold').getBoundingClientRect().top")
            > 0.25 * 844
        )
        assert page.text("fold-name") == "epoch 1 · layer 1 · head 0"
        page.driver.find_element(By.CSS_SELECTOR, "#fold summary").click()
        assert not page["layer"].is_displayed()
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    WebDriverWait(page.driver, PATIENCE, 0.05).until(lambda _: page["layer"].is_displayed())
    assert not page.driver.find_element(By.CSS_SELECTOR, "#fold summary").is_displayed()


def spoken(driver: webdriver.Chrome) -> str:
    """The names in the page's accessibility tree: what a screen reader finds, with or without scripts."""
    tree = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})
    return " ".join(str(node.get("name", {}).get("value", "")) for node in tree["nodes"])


def test_an_old_browser_and_one_without_scripts_are_told(page):
    source = {"source": "delete window.DecompressionStream"}
    script = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", source)[
        "identifier"
    ]
    try:
        page._path.write_text(page_of(example()), encoding="utf-8")
        page.driver.get(page._path.as_uri())
        WebDriverWait(page.driver, PATIENCE, 0.02).until(lambda _: "too old" in page["notice"].text)
        assert not page["explorer"].is_displayed()
    finally:
        page.driver.execute_cdp_cmd(
            "Page.removeScriptToEvaluateOnNewDocument", {"identifier": script}
        )
    page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.driver.get(page._path.as_uri())
        WebDriverWait(page.driver, PATIENCE, 0.02).until(
            lambda driver: "scripts are switched off" in spoken(driver)
        )
    finally:
        page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
