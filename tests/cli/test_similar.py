"""`vit similar` says which images are nearest; the features are those of `vit embed`."""

import json
import os
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from tiny import encoder, randomize

from vit.checkpoints import save_model
from vit.inputs import Normalization


@pytest.fixture(autouse=True)
def _within(models, monkeypatch):
    monkeypatch.chdir(models)


@pytest.fixture
def page_of(called, tmp_path):
    """`page_of(line)`: the page that `vit similar` writes."""

    def page_of(*line):
        out = tmp_path / "page.html"
        assert called("similar", *line, "--out", out)[0] == 0
        return out.read_text()

    return page_of


@pytest.mark.parametrize("name", ["mae", "encoder", "bare"])
def test_it_is_the_search_in_numpy_over_the_features_of_vit_embed(name, tmp_path, called):
    path = tmp_path / "features.npz"
    assert called("embed", name, "data --out", path)[0] == 0
    found = np.load(path)
    query = found["files"].tolist().index("dog/5.png")
    vectors = found["pooled"].astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors[query]
    order = np.argsort(-cosines)

    line = f"similar {name} data/dog/5.png data --count 99 --json"
    code, said, error = called(line)
    assert (code, error) == (0, "")
    answer = json.loads(said)
    assert answer["images"] == 24
    assert answer["median"] == pytest.approx(np.median(cosines), abs=1e-6)
    assert [row["file"] for row in answer["neighbours"]] == found["files"][order].tolist()
    similarities = [row["similarity"] for row in answer["neighbours"]]
    np.testing.assert_allclose(similarities, cosines[order], atol=1e-6)

    # The image itself is first
    assert answer["neighbours"][0]["file"] == "dog/5.png"
    assert similarities[0] == pytest.approx(1, abs=1e-9)

    # Features of `vit embed` give the same, but not those of other weights
    assert called(line, "--features", path)[1] == said
    code, _, error = called("similar plain data/dog/5.png data --features", path)
    assert (code, "features.npz" in error) == (2, True)


def test_the_table_is_the_same_with_and_without_a_page(called, page_of):
    line = "encoder two.png data --count 5"
    table = called("similar", line)[1]
    rows = [row.split() for row in table.splitlines()]
    values = [float(value) for value, _ in rows]
    assert len(rows) == 5
    assert values == sorted(values, reverse=True)
    page = page_of(line)
    assert re.findall(r'class="number">([-.\d]+)<', page) == [value for value, _ in rows]
    assert re.findall(r'class="name" dir="auto">([^<]*)<', page) == [name for _, name in rows]


def test_a_page_is_one_file_whose_names_are_text(page_of, tmp_path):
    folder = tmp_path / "<script>alert(1)"
    folder.mkdir()
    shutil.copy("one.png", folder / "<img src=x onerror=alert(2)>.png")
    shutil.copy("two.png", os.fsdecode(os.fsencode(folder) + b"/caf\xe9.png"))
    page = page_of("encoder one.png", tmp_path)
    assert "<script" not in page
    assert "<img src=x" not in page
    sources = re.findall(r'(?:src|href)="([^"]{5})', page)
    assert sources == ["data:"] * 5  # the icon, the image twice, two neighbours


def test_a_photograph_is_shown_larger_than_the_model_takes_it(page_of, tmp_path):
    """And one that has no more pixels pixel by pixel, as does a grey model's input."""
    photos = tmp_path / "photos"
    photos.mkdir()
    Image.radial_gradient("L").resize((900, 700)).save(photos / "large.jpg")
    shutil.copy("data/cat/3.png", photos / "small.png")
    page = page_of("encoder one.png", photos)
    kinds = dict(re.findall(r'<img class="(\w+)" src="data:image/(\w+);', page))
    assert kinds == {"jpeg": "jpeg", "png": "png"}
    assert page.count("data:image/jpeg") == 2  # one.png has 40 x 30 pixels, the model 16 x 12
    assert page.count("data:image/png") == 2

    grey = randomize(encoder(image_size=(12, 16), channels=1))
    save_model(tmp_path / "grey", grey, Normalization([0.5], [0.2]))
    page = page_of(tmp_path / "grey", "one.png data --overwrite")
    assert page.count("data:image/png") == 13  # twelve neighbours, and what it sees


def test_every_image_of_the_page_is_shown_whole(page_of, tmp_path, driver):
    """The model takes 16 x 12 pixels."""
    page_of("encoder one.png data")
    driver.get((tmp_path / "page.html").as_uri())
    ratios = driver.execute_script("""return [...document.images].map((e) =>
        [e.clientWidth / e.clientHeight, e.naturalWidth / e.naturalHeight])""")
    assert len(ratios) > 3
    for shown, own in ratios:
        assert shown == pytest.approx(own, rel=0.03)
        assert own != pytest.approx(1, rel=0.03)


def test_images_that_cannot_be_read_are_left_out_on_request(called, tmp_path, caplog):
    shutil.copy("one.png", tmp_path)
    (tmp_path / "bad.jpg").write_text("no image")
    code, said, _ = called("similar encoder one.png", tmp_path, "--on-bad-image skip")
    assert (code, said.split()) == (0, ["1.000", "one.png"])
    assert "bad.jpg" in caplog.text
