"""The page about a run says what its files say, whatever stands in them, and a browser shows it as it should."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from functools import cache
from html import unescape
from html.parser import HTMLParser
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from small_runs import make_run
from tiny import noise, save_images

from vit.cli import main
from vit.config import Config, flat_settings, spelled
from vit.errors import RunError, printable
from vit.figures.document import data_uri
from vit.metrics import BASELINES
from vit.report.curves import curves_of
from vit.report.page import changed_settings, report_page, write_report
from vit.report.record import read_run

HOSTILE = [
    "</style></title><script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "' onmouseover='alert(3)",
    "\u202eredrocer\u202c\u2066 \x00 & &lt; \u2028",
    "{{main}} {{policy}}",
]
RESULTS = {
    "checkpoint": "run",
    "data": {"name": "Other data", "train_images": 1234, "test_images": 567, "tested_on": "test images", "warning": None},
    "scores": {
        "knn": [{"protocol": "k 20", "images": 567, "accuracy": 0.4321, "baselines": {"raw_pixels": 0.3333}}],
        "linear": [{"protocol": "900 labels", "images": 567, "accuracy": 0.5432, "spread": 0.0123, "seeds": [0, 1]}],
        "reconstruction": [{"protocol": "block mask, 75% masked", "images": 567, "loss": 0.6789,
                            "baselines": {"mean_of_visible_patches": 0.789, "nearest_visible_patch": 0.891}}],
    },
    "command": "vit evaluate run --data 'other data'",
}  # fmt: skip


class Read(HTMLParser):
    """What a browser would take for tags, for text and for rows of tables."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        self.words = " ".join(self.text)
        rows = [re.findall("<t[hd][^>]*>([^<]*)<", row) for row in page.split("<tr")[1:]]
        self.rows = [list(map(unescape, row)) for row in rows]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)

    def pictures(self, alt: str = "") -> list[str]:
        """The addresses of those whose description has `alt` in it."""
        return [attrs["src"] for tag, attrs in self.tags if tag == "img" and alt in attrs["alt"]]


@cache
def page_of(folder: Path) -> str:
    """The page about a run that does not change."""
    return report_page(read_run(folder), folder / "report.html")


def read(folder: Path, out: Path | None = None) -> Read:
    """The page about a run."""
    return Read(report_page(read_run(folder), out or folder / "report.html"))


@pytest.fixture(scope="module")
def page(pretrained) -> Read:
    return read(pretrained)


@pytest.fixture
def copied(pretrained, tmp_path) -> Path:
    return shutil.copytree(pretrained, tmp_path / "run")


# ---- What it says ----------------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_summary(pretrained, page):
    summary = json.loads((pretrained / "summary.json").read_text())
    rows = {row[0]: row[-1] for row in page.rows}
    (masks,), (neighbours,) = summary["scores"]["reconstruction"], summary["scores"]["knn"]
    for key, value in masks["baselines"].items():
        assert rows[BASELINES[key]] == f"{value:.4f}"
    # Twelve images: no decimals, and a standard error by their number
    for key, share in neighbours["baselines"].items():
        assert rows[BASELINES[key]] == f"{share:.0%} ± {(share * (1 - share) / 12) ** 0.5:.0%}"
    for text in (f"{masks['loss']:.4f}", f"{summary['parameters']:,}", "24 images from Noise"):
        assert text in page.words


@pytest.mark.slow
@pytest.mark.parametrize("which", ["pretrained", "classifier"])
def test_every_command_to_go_on_runs_on_the_run_that_the_page_is_of(
    which, tmp_path, monkeypatch, request
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    run = shutil.copytree(request.getfixturevalue(which), tmp_path / "run")
    another = shutil.copytree(run, tmp_path / "another")
    for split in ("train", "test"):
        for name in ("cat", "dog", "ship"):
            save_images(tmp_path / "images" / split / name, noise(8))
    photo = next((tmp_path / "images").rglob("*.png"))
    words = {"RUN": run, "ANOTHER": another, "IMAGES": tmp_path / "images", "photo.jpg": photo}
    section = page_of(run).split('id="next"')[1].split("</section>")[0]
    commands = re.findall(r"<code>(.*?)</code>", section)
    assert len(commands) >= 4
    for line in (re.sub("<.*?>", "", command) for command in commands):
        program, *argv = [str(words.get(word, word)) for word in shlex.split(line)]
        assert program == "vit"
        assert main(argv) == 0, line


def test_a_classifier_has_its_own_scores_and_mistakes(classifier):
    (scores,) = json.loads((classifier / "summary.json").read_text())["scores"]["head"]
    page = read(classifier)
    rows = {row[0]: row[-1] for row in page.rows}
    assert rows["the model"].startswith(f"{scores['accuracy']:.0%} ")
    assert rows["always the most common class"] == "33% ± 14%"

    # the most frequent confusions, and the surest mistakes
    names = ["cat", "dog", "ship"]
    table = np.array(scores["confusion"])
    wrong = table - np.diag(table.diagonal())
    mixed = [row for row in page.rows if len(row) == 3 and row[0] in names]
    expected = sorted(wrong.flatten(), reverse=True)[: len(mixed)]
    for (label, taken, share), count in zip(mixed, expected, strict=True):
        total = table[names.index(label)].sum()
        assert wrong[names.index(label), names.index(taken)] == count
        assert share == f"{count} of {total}"
    mistakes = [row[0] for row in page.rows if len(row) == 4 and row[1] in names]
    assert mistakes == [f"image {mistake['image']}" for mistake in scores["mistakes"]]
    assert len(page.pictures("Confusion matrix")) == 1
    assert "Reconstructions" not in page.words


def test_what_was_measured_in_training_is_a_curve_beside_what_was_at_the_end(pretrained):
    record = read_run(pretrained)
    line = {"step": 6, "epoch": 2.0, "val_knn_accuracy": 0.5}
    record.metrics.append(line)
    curves = curves_of(record)
    keys = [(curve.key, curve.val_key) for curve in curves]
    assert keys == [("loss", "val_loss"), ("", "val_knn_accuracy")]
    ends = (("reconstruction", "loss"), ("knn", "accuracy"))
    for curve, (method, key) in zip(curves, ends, strict=True):
        row = record.scores[method][0]
        assert list(curve.lines.values()) == [row[key], *row["baselines"].values()]
    # one of the 15 other views of a batch is the right one
    settings = record.settings | {"reconstruct.contrast": 1.0, "train.batch_size": 8}
    learning = replace(record, settings=settings, summary={"data": record.data})
    loss, other_view = curves_of(learning)
    assert (loss.key, other_view.lines) == ("masked_loss", {"chance": 1 / 15})


def test_every_setting_that_differs_is_shown_with_its_default_and_all_are_folded(pretrained, page):
    defaults = flat_settings(Config().to_dict())
    given = read_run(pretrained).settings
    changed = {key: value for key, value in given.items() if value != defaults[key]}
    rows = [tuple(row) for row in page.rows if "." in row[0]]
    shown = [(key, spelled(value), spelled(defaults[key])) for key, value in changed.items()]
    assert [row for row in rows if len(row) == 3] == shown
    assert rows[-len(given) :] == [(key, spelled(value)) for key, value in given.items()]
    # of another version
    assert changed_settings(given | {"reconstruct.temperature": 0.1}) == shown


def test_pictures_are_those_of_the_folder(copied):
    stems = ("reconstructions", "attention", "curves", "dynamics")
    drawn = [data_uri((copied / f"{stem}.png").read_bytes()) for stem in stems]
    assert sorted(read(copied).pictures()) == sorted(drawn)
    (copied / "attention.png").unlink()
    page = read(copied)
    assert drawn[1] not in page.pictures()
    assert "Attention" not in page.text


def test_an_unfinished_run_says_so_and_shows_its_curves(copied):
    """As after half of its steps: the summary and the pictures come at the end."""
    for path in (copied / "summary.json", *copied.glob("*.png")):
        path.unlink()
    metrics = copied / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:3]))
    page = read(copied)
    assert "This run is not finished" in page.words
    assert "1.0 of 2 epochs are done" in page.words
    assert "Results" not in page.text
    assert len(page.pictures("over 1.0 epochs")) == 1

    metrics.unlink()  # it has only begun
    assert "Training curves" not in read(copied).text


def own_results(folder: Path) -> dict[str, Any]:
    """RESULTS, as measured on the weights of the run in `folder`."""
    summary = json.loads((folder / "summary.json").read_text())
    return RESULTS | {"content_hash": summary["content_hash"]}


def test_evaluations_below_the_run_are_taken_in_and_others_told_of(copied):
    mine = json.dumps(own_results(copied))
    files = {"evaluation": mine, "deep/er": mine, "cut": "{", "elsewhere": json.dumps(RESULTS)}
    for name, text in files.items():
        (copied / name).mkdir(parents=True)
        (copied / name / "results.json").write_text(text)
    page = read(copied)
    rows = [tuple(row[:2]) for row in page.rows]
    for row in (
        ("k-NN accuracy", "43% ± 2%"),
        ("linear probe of frozen features", "54% ± 1% over 2 seeds"),
        ("loss on masked patches", "0.6789"),
    ):
        assert rows.count(row) == 2
    assert "Other data: 1,234 training images, measured on 567 test images." in page.text
    assert RESULTS["command"] in "".join(page.text)
    assert "elsewhere/results.json is left out" in page.words
    assert page.words.count("cut/results.json") == 1


@pytest.mark.slow
@pytest.mark.parametrize("task", ["reconstruct", "classify"])
def test_what_was_measured_on_held_out_images_is_nowhere_called_test(task, tmp_path):
    page = read(make_run(tmp_path / "tuned", task, held_out=True))
    assert "held-out training images" in page.words
    assert not re.search(r"\btest (images|loss)", page.words, re.IGNORECASE)


def test_a_page_to_explore_is_linked_from_wherever_the_report_stands(copied):
    (copied / "explore.html").write_text("<!doctype html>")
    (copied / "attention.png").unlink()  # it is a page of its own
    out = copied.parent / "else where" / "page.html"
    for place, link in ((None, "explore.html"), (out, "../run/explore.html")):
        tags = read(copied, place).tags
        links = [attrs["href"] for tag, attrs in tags if tag == "a"]
        assert [href for href in links if not href.startswith("#")] == [link]
    write_report(read_run(copied), out)
    assert 'href="../run/explore.html"' in out.read_text(encoding="utf-8")


# ---- What it is written to -------------------------------------------------------------------------------------------


def test_equal_folders_give_equal_pages_and_another_file_is_left_as_it_is(pretrained, tmp_path):
    out = tmp_path / "page.html"
    page = page_of(pretrained)
    for _ in range(2):
        assert write_report(read_run(pretrained), out) == out.stat().st_size < 3_000_000
        assert out.read_text(encoding="utf-8") == page
    for content in ("", "<!doctype html><p>a page"):
        out.write_text(content)
        with pytest.raises(RunError, match=str(out)):
            write_report(read_run(pretrained), out)
        assert out.read_text() == content


# ---- Names that would be more than text ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """A classifier in which every name is out to be something else."""
    folder = tmp_path_factory.mktemp("runs") / '<img src=x onerror=alert(0)> "\u202egpj'
    make_run(folder, "classify", HOSTILE, HOSTILE[0], warning=" ".join(HOSTILE))
    named = {"name": HOSTILE[1], "tested_on": HOSTILE[0], "warning": HOSTILE[2]}
    data = RESULTS["data"] | named
    results = own_results(folder) | {"data": data, "command": " ".join(HOSTILE)}
    place = folder / "<b onclick=alert(4)>"
    place.mkdir()
    (place / "results.json").write_text(json.dumps(results))
    (folder / "<i>").mkdir()
    (folder / "<i>" / "results.json").write_text("<script>alert(5)</script>")
    return folder


def test_hostile_names_are_neither_tags_nor_attributes(hostile, classifier):
    page, usual = read(hostile), read(classifier)
    tags = {tag for tag, _ in page.tags} - {tag for tag, _ in usual.tags}
    assert tags <= {"ul", "li", "h3", "code"}
    known = [attrs.keys() for _, attrs in usual.tags]
    assert all(attrs.keys() in known for _, attrs in page.tags)
    assert all(src.startswith("data:image/png;base64,") for src in page.pictures())
    for name in (*HOSTILE, hostile.name):
        assert printable(name) in page.words
    assert page.words.replace("\n", "").isprintable()


# ---- In the browser --------------------------------------------------------------------------------------------------

CONTRAST = """
const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const found = channels(getComputedStyle(e).backgroundColor);
    if (found.length === 3 || found[3] > 0.99) return found;
    if (found[3] > 0) throw new Error("a ground that shows through");
  }
  return [255, 255, 255];
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
  if (!text || !element.checkVisibility()) continue;
  const [a, b] = [light(channels(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
  found.push([(a + 0.05) / (b + 0.05), text.slice(0, 40)]);
}
return found;
"""


REQUESTS = (
    "return performance.getEntriesByType('resource').filter((e) => !e.name.startsWith('data:'))"
)


@pytest.fixture
def show(driver, tmp_path):
    """`show(folder)` opens the page about a run, which must ask for nothing and stay silent."""
    driver.get_log("browser")

    def show(folder: Path) -> None:
        place = tmp_path / "page.html"
        place.write_text(page_of(folder), encoding="utf-8")
        driver.get(place.as_uri())

    yield show
    assert driver.get_log("browser") == []
    assert driver.execute_script(REQUESTS) == []
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def look(driver: Chrome, width: int) -> None:
    """The open page on a screen so wide."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.mark.parametrize("which", ["pretrained", "hostile"])
def test_page_fits_and_can_be_read(which, show, driver, request):
    show(request.getfixturevalue(which))
    driver.execute_script("for (const e of document.querySelectorAll('details')) e.open = true")
    for width, theme in ((1280, "light"), (390, "dark")):
        look(driver, width)
        media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        wide = driver.execute_script(
            """return [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1
            && !e.closest('.scroll, .line, .wide, .broad')).map((e) => e.outerHTML.slice(0, 200))"""
        )
        assert wide == []
        contrasts = driver.execute_script(CONTRAST)
        assert len(contrasts) > 100
        assert min(contrasts)[0] >= 4.5, min(contrasts)
        broken = "return [...document.images].filter((e) => !e.complete || !e.naturalWidth).map((e) => e.alt)"
        WebDriverWait(driver, 60, 0.05).until(
            lambda _, broken=broken: driver.execute_script(broken) == []
        )
        paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (theme == "light")  # as the figures have it


HEADINGS = """
const all = (selector) => [...document.querySelectorAll(selector)];
return [all('h1, h2, h3').map((e) => +e.tagName[1]), all('img').map((e) => e.alt.length),
        all('h2').map((e) => e.textContent), all('nav a').map((e) => e.textContent),
        all('nav a').map((e) => document.querySelector(e.hash).querySelector('h2').textContent)];
"""


def test_headings_pictures_and_links_are_in_order(pretrained, show, driver):
    show(pretrained)
    levels, descriptions, titles, links, targets = driver.execute_script(HEADINGS)
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert min(descriptions) > 5
    assert links == titles == targets


def test_a_picture_is_larger_when_it_is_clicked_until_it_is_closed(pretrained, show, driver):
    show(pretrained)
    large = driver.find_elements(By.CSS_SELECTOR, ".large")
    assert len(large) > 3
    for width, figure in zip(cycle((390, 1280)), large, strict=False):  # each on one of them
        look(driver, width)
        link, close = figure.find_elements(By.CSS_SELECTOR, "a")
        before = link.find_element(By.CSS_SELECTOR, "img").size["width"]
        assert not close.is_displayed()
        driver.execute_script("arguments[0].click()", link)
        assert link.find_element(By.CSS_SELECTOR, "img").size["width"] > before
        assert (
            driver.execute_script("return document.elementFromPoint(5, 5).closest('.large')")
            == figure
        )
        close.click()
        assert link.find_element(By.CSS_SELECTOR, "img").size["width"] == before
