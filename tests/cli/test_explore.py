"""Law: what the page of `vit explore` holds is the model's own attention, within 8 bits.

Oracle: `AttentionMaps` and `reconstruct`, called on the same images and mask.
"""

import base64
import gzip
import io
import json
import re

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from tiny import captured, encoder, randomize, save, weights_of

from vit.evaluation.reconstruction import reconstruct


def read_page(path):
    """What a page holds: its description, and all codes."""
    text = path.read_text()
    described, packed = (
        re.search(rf'id="{name}">(.*?)</script>', text, re.DOTALL)[1]
        for name in ("description", "data")
    )
    codes = gzip.decompress(base64.b64decode(packed))
    return json.loads(described), torch.frombuffer(bytearray(codes), dtype=torch.uint8)


def weights_in(codes, start, layers, heads, tokens):
    """Weights (layers, heads, tokens, tokens) as the page reads them."""
    count = layers * heads * tokens**2
    return weights_of(codes[start : start + count].view(layers, heads, tokens, tokens))


@pytest.mark.parametrize("name", ["encoder", "plain"])
def test_the_page_and_its_numbers(name, shown, vit, tmp_path):
    page = tmp_path / "page.html"
    line = f"{name} one.png two.png mae/config.json --on-bad-image skip --numbers --out"
    code, _, error = vit("explore", line, page)
    assert (code, error) == (0, "")
    numbers = np.load(tmp_path / "page.npz")
    model, inputs, pixels, _ = shown(name)
    maps = captured(model, inputs)
    described, codes = read_page(page)
    for image, entry in enumerate(described["images"]):
        whole = weights_in(codes, entry["encoder"][0], 3, 2, maps.geometry.num_tokens)
        for layer in range(3):
            assert_array_equal(numbers[f"layer{layer}"], maps.weights[layer])
            assert_allclose(whole[layer], maps.weights[layer][image], atol=0.004)
    assert_array_equal(numbers["images"], pixels)


def test_the_page_of_a_masked_model_with_registers(shown, vit, tmp_path):
    """Each image has its own pixels, masked patches, weights in grid order, and reconstruction."""
    page = tmp_path / "page.html"
    line = "registers one.png two.png --mask 0.6 --seed 4 --numbers --out"
    assert vit("explore", line, page)[0] == 0
    numbers = np.load(tmp_path / "page.npz")
    described, codes = read_page(page)
    model, inputs, pixels, mask = shown("registers", ratio=0.6, seed=4)
    maps = captured(model, inputs, mask)
    filled = reconstruct(model, pixels, mask)
    assert_array_equal(numbers["hidden"].reshape(2, 12), mask.mask.bool())
    assert_array_equal(numbers["filled"], filled)
    for image, entry in enumerate(described["images"]):
        assert entry["hidden"] == "".join(str(int(cell)) for cell in mask.mask[image])
        # which patches the tokens are
        order = [0, 1, 2, *(3 + mask.ids_keep[image].argsort()).tolist()]
        weights = weights_in(codes, entry["encoder"][0], 3, 2, len(order))
        for layer in range(3):
            expected = maps.weights[layer][image][:, order][:, :, order]
            assert_allclose(weights[layer], expected, atol=0.004)
        weights = weights_in(codes, entry["decoder"][0], 2, 4, 15)
        for layer in range(2):
            assert_allclose(weights[layer], maps.weights[3 + layer][image], atol=0.004)
        filled_bytes = (filled[image] * 255).round().to(torch.uint8)
        for start, expected in (
            (entry["pixels"], pixels[image]),
            (entry["filled"][0], filled_bytes),
        ):
            stored = codes[start : start + 3 * 12 * 16]
            assert torch.equal(stored, expected.permute(1, 2, 0).flatten())


def test_each_snapshot_is_a_moment_of_the_page(shown, vit, tmp_path):
    """Of a run that still trains, too, which has no other weights yet."""
    models = [randomize(encoder(image_size=(12, 16))).eval() for _ in range(2)]
    for step, model in zip((0, 20), models, strict=True):
        save(tmp_path / "snapshots" / f"step-{step:08d}", model)
    page = tmp_path / "page.html"
    line = f"{tmp_path} one.png --snapshots --numbers --out {page}"
    assert vit("explore", line)[0] == 0
    numbers = np.load(tmp_path / "page.npz")
    assert numbers["moments"].tolist() == ["step 0", "step 20"]
    assert read_page(page)[0]["moments"] == ["step 0", "step 20"]
    inputs = shown("encoder", "one")[1]
    for moment, model in enumerate(models):
        maps = captured(model, inputs)
        assert_array_equal(numbers[f"layer1_moment{moment}"], maps.weights[1])


def test_a_photograph_with_more_pixels_than_the_model_takes_is_shown_as_it_is(vit, tmp_path):
    """The crop that the model takes, 12 x 16, in the file's own pixels."""
    pixels = np.zeros((60, 100, 3), dtype=np.uint8)
    pixels[..., 0], pixels[..., 2] = np.linspace(0, 255, 100), np.linspace(0, 255, 60)[:, None]
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    page = tmp_path / "p.html"
    assert vit("explore", "encoder", tmp_path / "photo.png", "--out", page)[0] == 0
    described, stream = read_page(page)
    start, length = described["images"][0]["photo"]
    photo = Image.open(io.BytesIO(stream[start : start + length].numpy().tobytes()))
    assert photo.format == "JPEG"
    assert np.abs(np.asarray(photo).astype(int) - pixels[:, 10:90]).max() < 12
