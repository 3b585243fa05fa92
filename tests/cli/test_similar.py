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


@pytest.fixture
def similar(models, monkeypatch, called):
    """`similar(*argv)` within `models`: its exit code, output and error."""
    monkeypatch.chdir(models)
    return lambda *argv: called("similar", *argv)


@pytest.mark.parametrize("name", ["mae", "encoder", "bare"])
def test_it_is_the_search_in_numpy_over_the_features_of_vit_embed(name, similar, tmp_path, called):
    path = tmp_path / "features.npz"
    assert called("embed", name, "data", "--out", path)[0] == 0
    found = np.load(path)
    query = found["files"].tolist().index("dog/5.png")
    vectors = found["pooled"].astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors[query]
    order = np.argsort(-cosines)

    code, said, error = similar(name, "data/dog/5.png", "data", "--count", 99, "--json")
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


def test_features_of_vit_embed_give_the_same_but_not_of_other_weights(
    similar, tmp_path, called, refused
):
    path = tmp_path / "features.npz"
    assert called("embed", "encoder", "data", "--out", path)[0] == 0
    line = ("encoder", "two.png", "data", "--count", 5)
    assert similar(*line, "--features", path)[1] == similar(*line)[1]
    assert "features.npz" in refused("similar", "mae", *line[1:], "--features", path)


def test_the_table_is_the_same_with_and_without_a_page(similar, tmp_path):
    line = ["encoder", "two.png", "data", "--count", 5]
    code, table, _ = similar(*line)
    assert code == 0
    rows = [row.split() for row in table.splitlines()]
    assert len(rows) == 5
    values = [float(value) for value, _ in rows]
    assert values == sorted(values, reverse=True)
    code, said, _ = similar(*line, "--out", tmp_path / "page.html")
    assert (code, said.startswith(table)) == (0, True)
    page = (tmp_path / "page.html").read_text()
    assert re.findall(r'class="number">([-.\d]+)<', page) == [value for value, _ in rows]
    assert re.findall(r'class="name" dir="auto">([^<]*)<', page) == [name for _, name in rows]


def test_a_page_is_one_file_whose_names_are_text(similar, models, tmp_path):
    folder = tmp_path / "<script>alert(1)"
    folder.mkdir()
    shutil.copy(models / "one.png", folder / "<img src=x onerror=alert(2)>.png")
    shutil.copy(models / "two.png", os.fsdecode(os.fsencode(folder) + b"/caf\xe9.png"))
    out = tmp_path / "page.html"
    assert similar("encoder", "one.png", tmp_path, "--out", out)[0] == 0
    page = out.read_text()
    assert "<script" not in page
    assert "<img src=x" not in page
    sources = re.findall(r'(?:src|href)="([^"]{5})', page)
    assert len(sources) == 5  # the icon, the image twice, two neighbours
    assert set(sources) == {"data:"}


def test_a_photograph_is_shown_larger_than_the_model_takes_it(similar, models, tmp_path):
    """And one that has no more pixels pixel by pixel, as does a grey model's input."""
    (tmp_path / "photos").mkdir()
    Image.radial_gradient("L").resize((900, 700)).save(tmp_path / "photos" / "large.jpg")
    shutil.copy(models / "data" / "cat" / "3.png", tmp_path / "photos" / "small.png")
    out = tmp_path / "page.html"
    assert similar("encoder", "one.png", tmp_path / "photos", "--out", out)[0] == 0
    page = out.read_text()
    kinds = dict(re.findall(r'<img class="(\w+)" src="data:image/(\w+);', page))
    assert kinds == {"jpeg": "jpeg", "png": "png"}
    assert page.count("data:image/jpeg") == 2  # one.png has 40 x 30 pixels, the model 16 x 12
    assert page.count("data:image/png") == 2


def test_every_image_of_the_page_is_shown_whole(similar, tmp_path, driver):
    """The model takes 16 x 12 pixels."""
    out = tmp_path / "page.html"
    assert similar("encoder", "one.png", "data", "--out", out)[0] == 0
    driver.get(out.as_uri())
    ratios = driver.execute_script("""return [...document.images].map((e) =>
        [e.clientWidth / e.clientHeight, e.naturalWidth / e.naturalHeight])""")
    assert len(ratios) > 3
    for shown, own in ratios:
        assert shown == pytest.approx(own, rel=0.03)
        assert own != pytest.approx(1, rel=0.03)


def test_images_that_cannot_be_read_are_left_out_on_request(similar, tmp_path, models, caplog):
    (tmp_path / "photos").mkdir()
    shutil.copy(models / "one.png", tmp_path / "photos")
    (tmp_path / "photos" / "bad.jpg").write_text("no image")
    line = ["encoder", "one.png", tmp_path / "photos"]
    code, _, error = similar(*line)
    assert code == 2
    assert error.endswith("; --on-bad-image skip leaves out all such files\n")
    code, said, _ = similar(*line, "--on-bad-image", "skip")
    assert (code, said.split()) == (0, ["1.000", "one.png"])
    assert "bad.jpg" in caplog.text


def test_a_model_of_another_number_of_channels(similar, tmp_path):
    grey = randomize(encoder(image_size=(12, 16), channels=1))
    save_model(tmp_path / "grey", grey, Normalization([0.5], [0.2]))
    out = tmp_path / "page.html"
    assert similar(tmp_path / "grey", "one.png", "data", "--out", out)[0] == 0
    assert out.read_text().count("data:image/png") == 13  # twelve neighbours, and what it sees
