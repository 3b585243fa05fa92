"""`vit similar` says which images are nearest; the features are those of `vit embed`."""

import json
import os
import re
import shutil

import numpy as np
import pytest
import torch

from vit.look.predict import nearest


@pytest.fixture
def page_of(called, models, tmp_path, monkeypatch):
    """`page_of(line)`: the page that `vit similar` writes, and what it prints."""
    monkeypatch.chdir(models)

    def page_of(*line):
        out = tmp_path / "page.html"
        code, said, _ = called("similar", *line, "--out", out)
        assert code == 0
        return out.read_text(), said

    return page_of


@pytest.mark.parametrize("name", ["mae", "encoder", "bare"])
def test_it_is_the_search_in_the_features_of_vit_embed(name, models, tmp_path, monkeypatch, called):
    monkeypatch.chdir(models)
    path = tmp_path / "features.npz"
    assert called("embed", name, "data --out", path)[0] == 0
    found = np.load(path)
    query = found["files"].tolist().index("dog/5.png")
    pooled = torch.from_numpy(found["pooled"])
    expected = nearest(pooled, pooled[query], 99)

    line = f"similar {name} data/dog/5.png data --count 99 --json"
    code, said, error = called(line)
    assert (code, error) == (0, "")
    answer = json.loads(said)
    assert answer["images"] == 24
    assert answer["median"] == pytest.approx(expected.median, abs=1e-6)
    assert [row["file"] for row in answer["neighbours"]] == found["files"][
        expected.numbers
    ].tolist()
    similarities = [row["similarity"] for row in answer["neighbours"]]
    np.testing.assert_allclose(similarities, expected.similarities, atol=1e-6)

    # Features of `vit embed` give the same, but not those of other weights or another crop
    again = json.loads(called(line, "--features", path)[1])
    for one, other in zip(again["neighbours"], answer["neighbours"], strict=True):
        assert one == other | {"similarity": pytest.approx(other["similarity"], abs=1e-9)}
    code, _, error = called("similar plain data/dog/5.png data --features", path)
    assert (code, "features.npz" in error) == (2, True)
    code, _, error = called(line, "--crop-share 0.5 --features", path)
    assert (code, "features.npz" in error) == (2, True)
    code, _, error = called(f"similar {name} data/dog/5.png data/dog --features", path)
    assert (code, "features.npz" in error) == (2, True)


def test_the_page_says_what_the_table_says(page_of):
    page, said = page_of("encoder two.png data --count 5")
    rows = [row.split() for row in said.splitlines()[:-1]]
    values = [float(value) for value, _ in rows]
    assert (len(rows), values) == (5, sorted(values, reverse=True))
    assert re.findall(r'class="number">([-.\d]+)<', page) == [value for value, _ in rows]
    assert re.findall(r'class="name" dir="auto">([^<]*)<', page) == [name for _, name in rows]


def test_a_page_is_one_file_whose_names_are_text(page_of, tmp_path):
    folder = tmp_path / "<script>alert(1)"
    folder.mkdir()
    shutil.copy("one.png", folder / "<img src=x onerror=alert(2)>.png")
    shutil.copy("two.png", os.fsdecode(os.fsencode(folder) + b"/caf\xe9.png"))
    page, _ = page_of("encoder one.png", tmp_path)
    assert "<script" not in page
    assert "<img src=x" not in page
    sources = re.findall(r'(?:src|href)="([^"]{5})', page)
    assert sources == ["data:"] * 5  # the icon, the image twice, two neighbours
