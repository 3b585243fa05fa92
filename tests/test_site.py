"""The pages of docs as a site: what docs/site/hooks.py adds, and how the pages look in a browser."""

import importlib.util
import json
import re
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import markdown
import pytest
from forks import ROOT
from mkdocs.commands.build import build
from mkdocs.config import load_config
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from vit.figures.style import DARK_PALETTE, PALETTE

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))


def module_of_the_site(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks, pages = map(module_of_the_site, ("hooks", "pages"))


@pytest.fixture(scope="module")
def converter():
    """Markdown as mkdocs.yml sets it up."""
    site = load_config(str(ROOT / "mkdocs.yml"))
    return markdown.Markdown(
        extensions=[name for name in site.markdown_extensions if name != "toc"],
        extension_configs=site.mdx_configs,
    )


@pytest.fixture(scope="module")
def render(converter):
    return lambda text: hooks.finish_page(converter.reset().convert(text))


def without_code(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`|^    .*$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_every_formula_of_a_page_becomes_mathml(page, render):
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"\$\$.+?\$\$", without_code(text), re.DOTALL)
    lines = re.findall(
        r"\$[^$]+\$", re.sub(r"\$\$.+?\$\$", "", without_code(text), flags=re.DOTALL)
    )
    content, dollars = render(text)
    assert dollars == []
    assert content.count("<math") == len(blocks) + len(lines)
    assert "arithmatex" not in content
    assert "&amp;#" not in content


def test_letters_in_prose_have_their_colours_and_code_keeps_its_text(render):
    content, dollars = render("W_Q & `W_Q` cost <b>5</b>; W_QK.\n\n    echo $W_Q\n")
    assert content.count('<b class="letter-q">W<sub>Q</sub></b> &amp;') == 1
    assert "<code>W_Q</code>" in content
    assert "W_QK" in content
    assert dollars == []


def test_a_formula_that_is_not_closed_is_reported(render):
    assert render("The score $q is not closed.")[1] == ["The score $q is not closed."]


def test_a_picture_is_a_link_to_its_file_unless_it_is_in_a_link_already(render):
    content, _ = render("![wide](wide.png)")
    assert content == (
        '<p><a class="picture" href="wide.png"><img alt="wide" src="wide.png" /></a></p>'
    )
    content, _ = render("[![small](small.png)](page.md)")
    assert content == '<p><a href="page.md"><img alt="small" src="small.png" /></a></p>'


@pytest.mark.parametrize("path", hooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_a_page_with_its_pictures(path):
    notebook = json.loads(path.read_text("utf-8"))
    page, pictures = hooks.notebook_page(notebook, path.stem)
    assert page.count("```python\n") == sum(c["cell_type"] == "code" for c in notebook["cells"])
    assert len(pictures) == path.read_text("utf-8").count('"image/png"')
    assert all(f"]({name})" in page for name in pictures)


@pytest.mark.parametrize("name", pages.PAGES)
def test_settings_and_commands_are_as_they_are_declared(name):
    """If not: python docs/site/pages.py"""
    assert (ROOT / "docs" / name).read_text("utf-8") == pages.PAGES[name]()


def test_a_link_to_a_file_beside_docs_leads_to_its_page_or_to_the_repository():
    text = "[How](../CONTRIBUTING.md#conventions), [`folder.yaml`](../configs/folder.yaml), [the code](../vit/encoder.py), [here](faq.md)"
    assert hooks.link_beside(text, "start.md", None) == (
        "[How](contributing.md#conventions), `folder.yaml`, the code (`vit/encoder.py`), [here](faq.md)"
    )
    linked = hooks.link_beside(text, "start.md", "https://host/you/vit")
    assert "[the code](https://host/you/vit/blob/HEAD/vit/encoder.py)" in linked
    notebook = "[Load](../docs/checkpoints.md#what-loads) `a[0](b)`"
    made = hooks.link_beside(notebook, "notebooks/02_attention_by_hand.md", None)
    assert made == "[Load](../checkpoints.md#what-loads) `a[0](b)`"
    assert hooks.link_beside("[a](docs/faq.md)", "changes.md", None) == "[a](faq.md)"


def test_its_colours_are_those_of_the_figures():
    default, slate = hooks.palette_css().splitlines()
    assert default.startswith('[data-md-color-scheme="default"]')
    assert slate.startswith('[data-md-color-scheme="slate"]')
    assert dict(re.findall(r"--([a-z-]+): (#\w+);", default)) == PALETTE
    assert dict(re.findall(r"--([a-z-]+): (#\w+);", slate)) == DARK_PALETTE


LIVE = (ROOT / "docs" / "live.md").read_text("utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site; its live pages are empty."""
    live, folder = (tmp_path_factory.mktemp(name) for name in ("live", "site"))
    for _, written in hooks.live_commands(LIVE).values():
        (live / written).parent.mkdir(parents=True, exist_ok=True)
        (live / written).write_text("<!doctype html>")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(hooks.LIVE, str(live))
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
    return folder


@pytest.fixture
def phone(driver):
    """The browser, as wide as a phone: 390 pixels."""
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield driver
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(phone, site):
    pages = sorted(site.rglob("index.html"))
    assert len(pages) > 35
    too_wide = {}
    for path in pages:
        phone.get(path.as_uri())
        width = phone.execute_script("return document.documentElement.scrollWidth")
        if width > 390:
            too_wide[path.relative_to(site).as_posix()] = width
    assert too_wide == {}


@pytest.mark.slow
def test_a_picture_enlarges_with_the_keyboard_and_closes(driver, site):
    driver.get((site / "looking-inside" / "index.html").as_uri())
    driver.find_element(By.CSS_SELECTOR, "a.picture").send_keys(Keys.ENTER)
    large = driver.find_element(By.CSS_SELECTOR, "dialog.enlarged")
    assert large.is_displayed()
    assert large.find_element(By.TAG_NAME, "img").get_attribute("alt")
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not large.is_displayed()


@pytest.mark.slow
def test_a_search_for_mask_ratio_finds_the_settings_first(driver, site):
    handler = partial(SimpleHTTPRequestHandler, directory=site)
    with ThreadingHTTPServer(("localhost", 0), handler) as server:
        Thread(target=server.serve_forever).start()
        driver.get(f"http://localhost:{server.server_port}/?q=mask_ratio")
        found = WebDriverWait(driver, 20).until(
            lambda page: page.find_elements(By.CSS_SELECTOR, ".md-search-result__item a")
        )
        addresses = [link.get_attribute("href") for link in found[:2]]
        server.shutdown()
    assert all("/settings/" in address for address in addresses)
    assert addresses[1].endswith("#mask")
