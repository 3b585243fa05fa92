"""`vit attention` and `vit explore`: the numbers are the model's, the pictures are there, and bad input is one line."""

import base64
import gzip
import hashlib
import json
import os
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from vit.checkpoints import load_model, save_model
from vit.cli import main
from vit.cli.attention import attention_parser
from vit.cli.explore import explore_parser
from vit.config import DecoderConfig, ViTConfig
from vit.data.augment import Normalization, to_float
from vit.data.folder import list_splits
from vit.device import Compute
from vit.encoder import VisionTransformer
from vit.evaluate.reconstruction import reconstruct
from vit.figures import explore
from vit.interpret import AttentionMaps, attention_rollout, attention_statistics, relevance, to_grid, top_mass_mask
from vit.interpret.viewing import Pictures, Subject, in_grid_order
from vit.mae import build_autoencoder
from vit.masking import mask_from_noise, num_keep

SIZES = dict(image_size=(12, 16), patch_size=(4, 4), embed_dim=16, depth=3, num_heads=2)
NORMALIZE = Normalization([0.4, 0.5, 0.6], [0.2, 0.3, 0.25])
CLASSES = ("cat", "dog", "<b>cow")


def randomize(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two models, an encoder with a head and an autoencoder, two images, and a folder of classes."""
    place = tmp_path_factory.mktemp("attention")
    encoder = VisionTransformer(ViTConfig(**SIZES, num_classes=3, registers=2, global_pool="token"))
    save_model(place / "encoder", randomize(encoder), NORMALIZE, CLASSES, "pictures")
    whole = build_autoencoder(ViTConfig(**SIZES), DecoderConfig(dim=16, depth=2, num_heads=2), True)
    save_model(place / "mae", randomize(whole), NORMALIZE, CLASSES, "pictures")
    mean = VisionTransformer(ViTConfig(**SIZES, num_classes=3, global_pool="avg"))
    save_model(place / "mean", randomize(mean), NORMALIZE, CLASSES)
    bare = build_autoencoder(
        ViTConfig(**SIZES | dict(class_token=False)), DecoderConfig(dim=16, depth=2, num_heads=2), True
    )
    save_model(place / "bare", randomize(bare), NORMALIZE)
    registers = build_autoencoder(
        ViTConfig(**SIZES | dict(registers=2)), DecoderConfig(dim=16, depth=2, num_heads=4), False
    )
    save_model(place / "registers", randomize(registers), NORMALIZE)
    plain = VisionTransformer(ViTConfig(**SIZES, class_token=False))
    save_model(place / "plain", randomize(plain), NORMALIZE)
    generator = np.random.default_rng(0)
    for name in ("one", "two"):
        Image.fromarray(generator.integers(0, 255, (30, 40, 3), dtype=np.uint8)).save(place / f"{name}.png")
    for name in ("cat", "dog"):
        (place / "data" / name).mkdir(parents=True)
        for number in range(12):
            pixels = generator.integers(0, 255, (12, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / "data" / name / f"{number}.png")
    return place


@pytest.fixture
def vit(place, tmp_path, monkeypatch, capsys):
    """`vit ...` within the place; gives back its exit code, its output, its error and the folder for pictures."""
    monkeypatch.chdir(place)

    def run(command, *argv):
        out = ["--out", str(tmp_path / "out")] if "--out" not in argv else []
        code = main([command, *map(str, argv), *out])
        said = capsys.readouterr()
        return code, said.out, said.err

    run.out = tmp_path / "out"
    return run


def drawn(vit, *argv):
    """The numbers beside the picture that `vit attention` draws."""
    code, said, error = vit("attention", *argv)
    assert (code, error) == (0, "")
    name = re.search(r"numbers beside it in (\S+)", said)[1]
    return np.load(vit.out / name)


def shown(place, name="encoder", files=("one", "two")):
    """A model, and images as it takes them."""
    model = load_model(place / name)
    pixels = model.origin.read_images([place / f"{file}.png" for file in files])
    return model, model.origin.normalize(to_float(pixels, (12, 16))), pixels


def weights_of(model, inputs, *mask):
    with torch.no_grad(), AttentionMaps(model) as maps:
        model(inputs, *mask)
    return maps


# --- the numbers are the model's ----------------------------------------------------------------------------------------


def test_heads_of_the_last_layer(place, vit):
    numbers = drawn(vit, "encoder", "one.png", "two.png")
    model, inputs, pixels = shown(place)
    maps, mass = weights_of(model, inputs).to_grid(-1, "cls")
    assert numbers["panels"].tolist() == ["mean of heads", "head 0", "head 1"]
    assert numbers["names"].tolist() == ["one", "two"]
    np.testing.assert_array_equal(numbers["images"], pixels)
    np.testing.assert_array_equal(numbers["maps"][:, 1:], maps)
    np.testing.assert_allclose(numbers["maps"][:, 0], maps.mean(1), atol=1e-7)
    np.testing.assert_array_equal(numbers["prefix_mass"][:, 1:], mass)
    np.testing.assert_allclose(numbers["maps"].sum((-2, -1)) + numbers["prefix_mass"], 1, atol=1e-5)
    assert "layer 2 of 0 to 2" in str(numbers["title"])
    for part in ("encoder: 3 layers x 2 heads", "patch 4", "trained on pictures", "image files"):
        assert part in str(numbers["caption"])
    with Image.open(vit.out / "attention.png") as picture:
        assert len(set(picture.convert("RGB").get_flattened_data())) > 50


@pytest.mark.parametrize(
    ("argv", "layer", "query", "head"),
    [
        (["--layer", 0, "--query", "2,3", "--head", 1], 0, (2, 3), 1),
        (["--layer", "1", "--query", "mean", "--head", "mean"], 1, "mean", None),
        (["--layer", "-2", "--query", "register 1", "--head", 0], 1, "register 1", 0),
        (["--query", "cls", "--head", 0], 2, "cls", 0),
    ],
)
def test_one_head_one_layer_any_query(argv, layer, query, head, place, vit):
    numbers = drawn(vit, "encoder", "one.png", *argv)
    model, inputs, _ = shown(place, files=("one",))
    maps = weights_of(model, inputs).to_grid(layer, query, fuse="mean" if head is None else None).maps
    expected = maps if head is None else maps[:, head : head + 1]
    np.testing.assert_allclose(numbers["maps"], expected, atol=1e-7)


def test_all_layers(place, vit):
    numbers = drawn(vit, "plain", "one.png", "--layer", "all", "--head", 1)
    model, inputs, _ = shown(place, "plain", ("one",))
    maps = weights_of(model, inputs)
    assert numbers["panels"].tolist() == ["layer 0", "layer 1", "layer 2"]
    for layer in range(3):  # without a class token, the patch in the middle asks
        np.testing.assert_array_equal(numbers["maps"][:, layer], maps.to_grid(layer, (1, 2)).maps[:, 1])


def test_the_strongest_patches(place, vit):
    code, said, _ = vit("attention", "encoder", "one.png", "--keep", 0.6)
    assert code == 0
    assert said.count("picture: ") == 2
    numbers = np.load(vit.out / "strongest.npz")
    np.testing.assert_array_equal(numbers["kept"], top_mass_mask(torch.from_numpy(numbers["maps"]), 0.6))


@pytest.mark.slow
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_rollout(layer, place, vit):
    numbers = drawn(vit, "encoder", "one.png", "--method", "rollout", "--layer", layer, "--discard", 0.3)
    model, inputs, _ = shown(place, files=("one",))
    maps = weights_of(model, inputs)
    rolled = attention_rollout([maps.weights[i] for i in range(layer + 1)], discard=0.3, num_prefix_tokens=3)
    np.testing.assert_allclose(numbers["maps"].reshape(-1), rolled[0, 0, 3:], atol=1e-6)
    every = drawn(vit, "encoder", "one.png", "--method", "rollout", "--layer", "all", "--discard", 0.3)
    np.testing.assert_array_equal(every["maps"][:, layer], numbers["maps"][:, 0])


@pytest.mark.parametrize("label", [None, "1", "dog", "<b>cow"])
def test_relevance_of_a_class(label, place, vit):
    numbers = drawn(
        vit, "encoder", "one.png", "two.png", "--method", "relevance", *(["--label", label] if label else [])
    )
    model, inputs, _ = shown(place)
    logits = model.forward_head(model(inputs)).detach()
    number = {None: None, "1": 1, "dog": 1, "<b>cow": 2}[label]
    for image in range(2):
        chosen = int(logits[image].argmax()) if number is None else number
        found = relevance(model, inputs[image : image + 1], chosen, run=lambda x: model.forward_head(model(x)))
        row = (found - torch.eye(found.shape[-1]))[0, 0]
        np.testing.assert_allclose(numbers["maps"][image, 0].reshape(-1), row[3:] / row.sum(), rtol=1e-3, atol=1e-6)
        chance = float(logits[image].softmax(-1)[chosen])
        assert numbers["labels"][image] == f"{('one', 'two')[image]} · {CLASSES[chosen]} {chance:.0%}"


def test_relevance_of_a_head_that_reads_the_mean(place, vit):
    numbers = drawn(vit, "mean", "one.png", "--method", "relevance", "--label", 2)
    model, inputs, _ = shown(place, "mean", ("one",))
    found = relevance(model, inputs, 2, run=lambda x: model.forward_head(model(x)))[0] - torch.eye(13)
    row = found[1:].mean(0)
    np.testing.assert_allclose(numbers["maps"].reshape(-1), row[1:] / row.sum(), rtol=1e-3, atol=1e-6)


def masked(place, ratio, hide=(), show=(), seed=0, name="mae", files=("one", "two")):
    """The mask that the commands draw, with some patches hidden or visible in every image."""
    model, inputs, pixels = shown(place, name, files)
    noise = torch.rand(len(files), 12, generator=torch.Generator().manual_seed(seed))
    noise[:, list(hide)], noise[:, list(show)] = 2.0, -1.0
    return model, inputs, pixels, mask_from_noise(noise, num_keep(12, ratio))


def test_relevance_of_filling_in_a_hidden_patch(place, vit):
    numbers = drawn(vit, "mae", "one.png", "two.png", "--method", "relevance", "--mask", 0.5, "--query", "1,2")
    model, inputs, _, mask = masked(place, 0.5, hide=[6])
    targets = model.targets(inputs)
    found = relevance(
        model.encoder, inputs, lambda filled: -(filled - targets).square().mean(-1)[:, 6], run=lambda x: model(x, mask)
    )
    rows = (found - torch.eye(found.shape[-1])).mean(1)  # the decoder reads every token, the class token too
    shares = rows / rows.sum(-1, keepdim=True)
    np.testing.assert_array_equal(np.isnan(numbers["maps"][:, 0]), numbers["hidden"])
    for image in range(2):
        assert numbers["hidden"][image, 1, 2]
        ids = mask.ids_keep[image]
        found_here = numbers["maps"][image].reshape(-1)[ids]
        np.testing.assert_allclose(found_here, shares[image, 1:], rtol=1e-3, atol=1e-6)


def test_rollout_under_a_mask(place, vit):
    numbers = drawn(vit, "mae", "one.png", "two.png", "--method", "rollout", "--mask", 0.5, "--query", "0,1")
    model, inputs, _, mask = masked(place, 0.5, show=[1])
    maps = weights_of(model.encoder, inputs, mask)
    rolled = attention_rollout([maps.weights[layer] for layer in range(3)])
    expected = to_grid(rolled[:, None], maps.geometry, (0, 1), None, mask)
    np.testing.assert_allclose(numbers["maps"], expected.maps, atol=1e-6)
    assert not numbers["hidden"][:, 0, 1].any()


@pytest.mark.slow
@pytest.mark.parametrize("query", [[], ["--query", "0,0"], ["--query", "1,2"], ["--query", "mean"]], ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_without_a_class_token_a_visible_patch_asks_under_a_mask(query, seed, place, vit):
    numbers = drawn(vit, "bare", "one.png", "two.png", "--mask", 0.75, "--seed", seed, *query)
    assert (np.isnan(numbers["maps"][:, 0]) == numbers["hidden"]).all()
    hidden = [int(query[1][0]) * 4 + int(query[1][2])] if query and query[1] != "mean" else []
    model, inputs, _, mask = masked(place, 0.75, hide=hidden, seed=seed, name="bare")
    maps = weights_of(model.encoder, inputs, mask)
    if query and query[1] == "mean":
        expected = maps.to_grid(-1, "mean", mask=mask).maps
    else:  # the nearest to the middle that is visible
        visible = [[(n // 4, n % 4) for n in range(12) if not mask.mask[image, n]] for image in range(2)]
        asks = [min(places, key=lambda place: (place[0] - 1) ** 2 + (place[1] - 2) ** 2) for places in visible]
        expected = maps.to_grid(-1, asks, mask=mask).maps
    np.testing.assert_allclose(numbers["maps"][:, 1:], expected, atol=1e-6)


@pytest.mark.parametrize("query", ["register 1", "mean", "cls"])
def test_under_a_mask_the_token_that_was_asked_for_is_drawn(query, place, vit):
    numbers = drawn(vit, "registers", "one.png", "two.png", "--mask", 0.5, "--query", query)
    model, inputs, _, mask = masked(place, 0.5, name="registers")
    expected = weights_of(model.encoder, inputs, mask).to_grid(-1, query, mask=mask).maps
    np.testing.assert_allclose(numbers["maps"][:, 1:], expected, atol=1e-6)
    who = {"register 1": "the register 1", "mean": "the average patch", "cls": "the class token"}[query]
    assert who in str(numbers["title"])


def test_one_head_of_the_decoder(place, vit):
    assert vit("attention", "mae", "one.png", "two.png", "--mask", 0.75, "--head", 1, "--query", "0,1")[0] == 0
    numbers = np.load(vit.out / "masked.npz")
    assert numbers["panels"].tolist() == ["layer 0, head 1", "layer 1, head 1"]
    model, inputs, _, mask = masked(place, 0.75, hide=[1])
    with torch.no_grad(), AttentionMaps(model.decoder) as maps:
        model(inputs, mask)
    for layer in range(2):
        row = maps.weights[layer][:, 1, 1 + 1, 1:]
        np.testing.assert_allclose(numbers["maps"][:, layer].reshape(2, -1), row, atol=1e-6)


def test_a_masked_model_shows_what_its_decoder_looks_at(place, vit):
    code, said, _ = vit("attention", "mae", "one.png", "two.png", "--mask", 0.75, "--seed", 3, "--query", "0,1")
    assert code == 0
    assert said.count("picture: ") == 2
    encoder, decoder = np.load(vit.out / "attention.npz"), np.load(vit.out / "masked.npz")
    hidden = decoder["hidden"]
    assert hidden.sum((1, 2)).tolist() == [9, 9]
    assert hidden[:, 0, 1].all()
    for image in range(2):
        assert (np.isnan(encoder["maps"][image]) == hidden[image]).all()
    model, inputs, pixels = shown(place, "mae")
    noise = torch.rand(2, 12, generator=torch.Generator().manual_seed(3))
    noise[:, 1] = 2
    mask = mask_from_noise(noise, 3)
    with torch.no_grad(), AttentionMaps(model.decoder) as maps:
        model(inputs, mask)
    for layer in range(2):
        row = maps.weights[layer][:, :, 1 + 1].mean(1)
        np.testing.assert_allclose(decoder["maps"][:, layer].reshape(2, -1), row[:, 1:], atol=1e-6)
        np.testing.assert_allclose(decoder["prefix_mass"][:, layer], row[:, 0], atol=1e-6)
    pixels = pixels.numpy() / 255  # what is visible is the image's own
    for image in range(2):
        visible = ~hidden[image].repeat(4, 0).repeat(4, 1)
        np.testing.assert_allclose(decoder["filled"][image][:, visible], pixels[image][:, visible], atol=1e-5)


def test_without_a_decoder_a_mask_shows_the_encoder_alone(place, vit):
    numbers = drawn(vit, "mae", "one.png", "--part", "encoder", "--mask", 0.75, "--query", "1,1", "--head", 0)
    assert not numbers["hidden"][0, 1, 1]  # the patch that asks is visible
    assert not (vit.out / "masked.png").exists()


def test_under_a_mask_the_nearest_hidden_patch_is_asked_about(vit):
    assert vit("attention", "mae", "one.png", "two.png", "--mask", 0.5)[0] == 0
    numbers = np.load(vit.out / "masked.npz")
    for hidden, (row, column) in zip(numbers["hidden"], numbers["patch"], strict=True):
        apart = [(r - 1) ** 2 + (c - 2) ** 2 for r, c in np.argwhere(hidden)]
        assert hidden[row, column]
        assert (row - 1) ** 2 + (column - 2) ** 2 == min(apart)


def test_weights_under_a_mask_in_the_order_of_the_grid():
    ids = torch.tensor([[5, 0, 3], [2, 4, 1]])
    weights = torch.rand(2, 2, 4, 4)
    found = in_grid_order(weights, ids, 1)
    for image in range(2):
        places = [0, *(1 + int(i) for i in ids[image].argsort())]
        assert torch.equal(found[image], weights[image][:, places][:, :, places])


def test_distances_over_a_data_set(place, vit):
    numbers = drawn(vit, "encoder", "--data", place / "data", "--count", 2, "--method", "distance")
    assert (int(numbers["images"]), numbers["layers"].tolist()) == (2, [0, 1, 2])
    assert numbers["distance_pixels"].shape == (3, 2)
    assert ((numbers["entropy_bits"] > 0) & (numbers["entropy_bits"] <= np.log2(15) + 1e-5)).all()
    model = load_model(place / "encoder")
    _, files = list_splits(place / "data")
    paths = [place / "data" / files[i].name for i in (0, len(files) // 2)]
    inputs = model.origin.normalize(to_float(model.origin.read_images(paths), (12, 16)))
    found = attention_statistics(model, [inputs])
    for key, value in (
        ("distance_pixels", found.distance), ("distance_spread_pixels", found.distance_spread),
        ("entropy_bits", found.entropy), ("prefix_mass", found.prefix_mass),
    ):  # fmt: skip
        np.testing.assert_allclose(numbers[key], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("size", "heads"), [(64, 3), (14, 12), (37, 16)])
def test_batches_do_not_grow_with_the_square_of_the_tokens(size, heads, place):
    """The weights of a layer over a batch are what fills the memory."""
    encoder = VisionTransformer(ViTConfig((size, size), (1, 1), embed_dim=4 * heads, depth=1, num_heads=heads))
    save_model(place / f"grid{size}", encoder, NORMALIZE)
    pictures = Pictures([""] * 40, "", lambda numbers: torch.zeros(len(numbers), 3, size, size, dtype=torch.uint8))
    batches = [len(batch) for batch in Subject(load_model(place / f"grid{size}"), pictures).batches()]
    assert sum(batches) == 40
    tokens = size**2 + 1
    assert all(batch == 1 or batch * heads * tokens**2 <= 8 << 20 for batch in batches)


def test_scenes_need_no_files(vit):
    numbers = drawn(vit, "plain", "--data", "scenes", "--count", 3, "--head", "mean")
    assert numbers["images"].shape == (3, 3, 12, 16)
    assert "Scenes, test images" in str(numbers["caption"])


def test_images_of_a_folder_are_spread_over_its_classes(place, vit):
    (place / "many" / "test").mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        for name in ("a", "b", "c"):
            (place / "many" / split / name).mkdir(parents=True, exist_ok=True)
            for number in range(3):
                Image.new("RGB", (8, 8), (number, 9, 9)).save(place / "many" / split / name / f"{number}.png")
    numbers = drawn(vit, "plain", "--data", "many", "--count", 3)
    assert sorted(numbers["names"].tolist()) == ["a", "b", "c"]
    assert "many, test images" in str(numbers["caption"])


# --- how it is drawn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", [["--scale", "row"], ["--scale", "log"], ["--overlay"], ["--dark"]], ids=str)
def test_styles_change_the_picture_and_not_the_numbers(style, vit):
    argv = ["encoder", "one.png", "two.png"]
    plain = drawn(vit, *argv)["maps"]
    before = (vit.out / "attention.png").read_bytes()
    np.testing.assert_array_equal(drawn(vit, *argv, *style)["maps"], plain)
    assert (vit.out / "attention.png").read_bytes() != before


@pytest.mark.parametrize(("format", "magic"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_other_formats_and_the_same_files_again(format, magic, vit):
    def digests():
        drawn(vit, "encoder", "one.png", "--format", format)
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in vit.out.iterdir()}

    first = digests()
    assert set(first) == {f"attention.{format}", "attention.npz"}
    assert (vit.out / f"attention.{format}").read_bytes().startswith(magic)
    assert digests() == first


@pytest.fixture(scope="module")
def run(place):
    """A run folder with three snapshots that differ."""
    for step in (0, 5, 20):
        torch.manual_seed(step)
        model = build_autoencoder(ViTConfig(**SIZES), DecoderConfig(dim=16, depth=1, num_heads=2), True)
        for parameter in model.parameters():
            if parameter.requires_grad:
                nn.init.normal_(parameter, std=0.1 + step / 40)
        folder = place / "run" / "snapshots" / f"step-{step:08d}"
        save_model(folder, model, NORMALIZE, dtype=torch.float16)
    save_model(place / "run", model, NORMALIZE)
    return place / "run"


def test_a_film_over_the_snapshots_of_a_run(run, vit):
    code, said, error = vit("attention", "run", "one.png", "--film", "--layer", 1)
    assert (code, error) == (0, "")
    assert "film: " in said
    with Image.open(vit.out / "film.gif") as film:
        assert film.n_frames == 3
    numbers = np.load(vit.out / "film.npz")
    assert numbers["moments"].tolist() == ["step 0", "step 5", "step 20"]
    model, inputs, _ = shown(run.parent, "run/snapshots/step-00000005", ("one",))
    np.testing.assert_allclose(
        numbers["maps"][1, 1:], weights_of(model.encoder, inputs).to_grid(1, "cls").maps[0], atol=1e-6
    )


# --- the page -----------------------------------------------------------------------------------------------------------


def read_page(path):
    """What a page holds: its description, and all codes."""
    text = path.read_text()
    described, packed = (
        re.search(rf'id="{name}">(.*?)</script>', text, re.DOTALL)[1] for name in ("description", "data")
    )
    codes = gzip.decompress(base64.b64decode(packed))
    return json.loads(described), torch.frombuffer(bytearray(codes), dtype=torch.uint8)


def weights_in(codes, start, layers, heads, tokens):
    """Weights (layers, heads, tokens, tokens) as the page reads them."""
    count = layers * heads * tokens**2
    return explore.weights_of(codes[start : start + count].view(layers, heads, tokens, tokens))


@pytest.mark.parametrize("name", ["encoder", "plain"])
def test_the_page_and_its_numbers(name, place, vit, tmp_path):
    page = tmp_path / "page.html"
    code, said, error = vit("explore", name, "one.png", "two.png", "--out", page, "--numbers")
    assert (code, error) == (0, "")
    assert f"{page.stat().st_size:,} bytes" in said
    numbers = np.load(tmp_path / "page.npz")
    model, inputs, pixels = shown(place, name)
    maps = weights_of(model, inputs)
    described, codes = read_page(page)
    for image in range(2):
        whole = weights_in(codes, described["images"][image]["encoder"][0], 3, 2, maps.geometry.num_tokens)
        for layer in range(3):
            np.testing.assert_array_equal(numbers[f"layer{layer}"], maps.weights[layer])
            np.testing.assert_allclose(whole[layer], maps.weights[layer][image], atol=0.004)
    np.testing.assert_array_equal(numbers["images"], pixels)
    again = tmp_path / "again.html"
    vit("explore", name, "one.png", "two.png", "--out", again)
    assert again.read_bytes() == page.read_bytes()
    text = page.read_text()
    assert "Content-Security-Policy" in text
    assert "://" not in text.replace("http://www.w3.org/", "")  # nothing from elsewhere


def test_the_page_of_a_masked_model_with_registers(place, vit, tmp_path):
    """What each image shows is its own: pixels, hidden patches, weights in the order of the grid, and the reconstruction."""
    page = tmp_path / "page.html"
    assert vit("explore", "registers", "one.png", "two.png", "--mask", 0.6, "--seed", 4, "--out", page)[0] == 0
    described, codes = read_page(page)
    model, inputs, pixels, mask = masked(place, 0.6, seed=4, name="registers")
    with torch.no_grad(), AttentionMaps(model) as maps:
        model(inputs, mask)
    filled = reconstruct(model, pixels, NORMALIZE, mask, Compute(torch.device("cpu"))).filled
    assert (described["registers"], described["encoder"]["heads"], described["decoder"]["heads"]) == (2, 2, 4)
    for image in range(2):
        one = described["images"][image]
        hidden = [bool(int(digit)) for digit in one["hidden"]]
        assert hidden == mask.mask[image].bool().tolist()
        visible = [patch for patch in range(12) if not hidden[patch]]
        order = [0, 1, 2, *(3 + mask.ids_keep[image].tolist().index(patch) for patch in visible)]
        found = weights_in(codes, one["encoder"][0], 3, 2, 3 + len(visible))
        for layer in range(3):
            np.testing.assert_allclose(found[layer], maps.weights[layer][image][:, order][:, :, order], atol=0.004)
        found = weights_in(codes, one["decoder"][0], 2, 4, 15)
        for layer in range(2):
            np.testing.assert_allclose(found[layer], maps.weights[3 + layer][image], atol=0.004)
        for key, expected in (("pixels", pixels[image]), ("filled", (filled[image] * 255).round().to(torch.uint8))):
            start = one[key][0] if isinstance(one[key], list) else one[key]
            assert torch.equal(codes[start : start + 3 * 12 * 16], expected.permute(1, 2, 0).flatten()), key


def test_the_page_of_a_masked_model_and_of_a_run(run, vit, tmp_path):
    argv = ["explore", "run", "one.png", "--mask", 0.5, "--snapshots", "--layers", "0,-1", "--numbers"]
    code, _, error = vit(*argv, "--out", tmp_path / "page.html")
    assert (code, error) == (0, "")
    numbers = np.load(tmp_path / "page.npz")
    names = {f"{part}_moment{moment}" for part in ("layer0", "layer2", "decoder0") for moment in range(3)}
    assert set(numbers.files) == names | {"images", "names"}
    assert numbers["layer0_moment0"].shape == (1, 2, 7, 7)  # the class token and six visible patches
    assert numbers["decoder0_moment2"].shape == (1, 2, 13, 13)
    assert not np.array_equal(numbers["layer0_moment0"], numbers["layer0_moment2"])


# --- bad input ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bad(place):
    """Images that are none, or none that can be taken."""
    (place / "text.png").write_text("no image")
    (place / "cut.png").write_bytes((place / "one.png").read_bytes()[:300])
    header = (place / "one.png").read_bytes()
    huge = bytearray(header)
    huge[16:24] = (20_000).to_bytes(4, "big") * 2
    import zlib

    huge[29:33] = zlib.crc32(huge[12:29]).to_bytes(4, "big")
    (place / "huge.png").write_bytes(huge)
    torch.save({"fc.weight": torch.ones(2, 2)}, place / "mlp.pth")
    (place / "file").write_text("mine")


@pytest.mark.usefixtures("bad", "run")
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["encoder"], "name image files, or a data set by --data"),
        (["encoder", "one.png", "--data", "scenes"], "not both"),
        (["nowhere", "one.png"], "no checkpoint at nowhere"),
        (["mlp.pth", "one.png"], "of no format that is known"),
        (["encoder", "none.png"], "none.png: not a file"),
        (["encoder", "text.png"], "text.png: its content is no image"),
        (["encoder", "one.png", "cut.png"], "cut.png: "),
        (["encoder", "huge.png"], "exceeds limit of"),
        (["encoder", *["one.png"] * 200], "pictures do not fit one legible figure"),
        (["encoder", "--data", "nodata"], "'nodata' is neither cifar10, cifar100, scenes nor a folder of images"),
        (["encoder", ""], "'' is no image file"),
        (["encoder", "one.png", "--method", "relevance", "--layer", "1"], "--layer: has no meaning for --method relevance"),
        (["encoder", "one.png", "--method", "relevance", "--query", "0,0"], "--query: has no meaning for --method relevance"),
        (["encoder", "one.png", "--method", "distance", "--mask", "0.5"], "--mask: has no meaning for --method distance"),
        (["encoder", "one.png", "--method", "rollout", "--head", "1"], "--head: has no meaning for --method rollout"),
        (["encoder", "one.png", "--discard", "0.5"], "--discard: has no meaning for --method weights"),
        (["encoder", "one.png", "--seed", "3"], "--seed: is of the mask; add --mask"),
        (["encoder", "one.png", "--count", "3"], "--count: is about a data set; add --data"),
        (["mae", "one.png", "--mask", "0.5", "--seed", "9" * 30], "--seed: '999"),
        (["encoder", "one.png", "--query", "register " + "9" * 5000], "cannot be used; auto, cls, mean"),
        (["encoder", "one.png", "--method", "relevance", "--label", "9" * 5000], "there is no class '999"),
        (["registers", "one.png", "--mask", "0.75", "--head", "2"], "there is no head 2 in layer 2"),
        (["registers", *["one.png"] * 97, "--mask", "0.5"], "pictures do not fit one legible figure"),
        (["encoder", "--data", "scenes", "--count", "0"], "--count: '0' cannot be used"),
        (["encoder", "one.png", "--layer", "3"], "there is no attention layer 3: this model has 3, from 0 to 2"),
        (["encoder", "one.png", "--layer", "last"], "--layer: 'last' cannot be used"),
        (["encoder", "one.png", "--head", "2"], "there is no head 2 in layer 2: it has 2, from 0 to 1"),
        (["encoder", "one.png", "--head", "-1"], "there is no head -1"),
        (["encoder", "one.png", "--query", "3,0"], "there is no patch in row 3, column 0: the grid is 3 x 4"),
        (["encoder", "one.png", "--query", "3x0"], "--query: '3x0' cannot be used"),
        (["encoder", "one.png", "--query", "register 2"], "this model has 2 registers, counted from 0"),
        (["plain", "one.png", "--query", "cls"], "this model has no class token"),
        (["encoder", "one.png", "--mask", "1.5"], "--mask: cannot hide 1.5 of 12 patches"),
        (["encoder", "one.png", "--mask", "nan"], "--mask: cannot hide nan"),
        (["encoder", "one.png", "--keep", "0"], "--keep: '0' cannot be used"),
        (["encoder", "one.png", "--film"], "encoder holds no snapshots; a run with --run.snapshots 8"),
        (["run", "one.png", "--film", "--mask", "0.5"], "--film: shows whole images"),
        (["run", "one.png", "--film", "--method", "rollout"], "--film: has no meaning for --method rollout"),
        (["run", "one.png", "--film", "--scale", "row"], "--film: shows whole images on one scale"),
        (["encoder", "one.png", "--keep", "0.6", "--method", "rollout"], "--keep: has no meaning for --method rollout"),
        (["encoder", "one.png", "--label", "cat"], "--label: has no meaning for --method weights"),
        (["encoder", "one.png", "--method", "relevance", "--label", "horse"], "there is no class 'horse': this model has 3"),
        (["encoder", "one.png", "--method", "relevance", "--label", "3"], "there is no class '3'"),
        (["plain", "one.png", "--method", "relevance"], "relevance is about a result, and this model has no head"),
        (["encoder", "one.png", "--method", "relevance", "--mask", "0.5"], "what a decoder fills in, and this model has none"),
        (["encoder", "one.png", "--method", "rollout", "--discard", "1"], "--discard: 1.0 cannot be used; a share from 0"),
        (["encoder", "one.png", "--num-classes", "5"], "parts of this model are untrained (head.weight, 2 in all)"),
        (["encoder", "one.png", "--channels", "4"], "takes 4 channels"),
        (["encoder", "one.png", "--out", "file"], "--out: file is not a folder"),
        (["encoder", "one.png", "--out", "file/below"], "is not a folder"),
        (["encoder", "one.png", "--scale", "linear"], "invalid choice: 'linear'"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)  # fmt: skip
def test_what_is_wrong_is_one_line_and_nothing_is_written(argv, said, place, vit):
    before = sorted(path.name for path in place.iterdir())
    code, out, error = vit("attention", *argv)
    assert code == 2, error
    assert out == ""
    assert error.startswith("vit: error: ")
    assert len(error.splitlines()) == 1
    assert said in error
    assert not vit.out.exists()
    assert sorted(path.name for path in place.iterdir()) == before


def test_a_page_far_too_large_is_refused_before_anything_is_computed(place, vit, monkeypatch):
    monkeypatch.setattr("vit.interpret.page.MOST_CODES", 3 * 2 * 15**2 - 1)
    monkeypatch.setattr("vit.interpret.page.AttentionMaps", None)  # it would be called
    code, _, error = vit("explore", "encoder", "one.png", "--out", "p.html")
    assert code == 2
    assert "the page would hold 1,350 weights, far too many for one; --layers and --count choose" in error
    assert not (place / "p.html").exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["encoder", "one.png", "--out", "x" * 300 + ".html"], "File name too long"),
        (["encoder", "one.png", "--out", "page.txt"], "name a page that ends in .html"),
        (["encoder", "one.png", "--out", "mae"], "name a page that ends in .html"),
        (["encoder", "one.png", "--out", "one.png/page.html"], "is not a folder"),
        (["encoder", "one.png", "--layers", "7", "--out", "p.html"], "there is no attention layer 7"),
        (["encoder", "one.png", "--snapshots", "--out", "p.html"], "holds no snapshots"),
        (["encoder", "--out", "p.html"], "name image files"),
    ],
)
def test_a_page_that_cannot_be(argv, said, place, vit):
    code, out, error = vit("explore", *argv)
    assert (code, out) == (2, "")
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (place / "p.html").exists()


def test_an_unwritable_folder_is_refused_before_anything_is_computed(vit, monkeypatch):
    asked = []

    def access(path, mode):  # as for somebody whose folder it is not; root may write anywhere
        asked.append((path, mode))
        return False

    monkeypatch.setattr("os.access", access)
    code, _, error = vit("attention", "nowhere", "one.png")
    assert code == 2
    assert "cannot be written to; name another folder" in error
    assert asked[0][1] & os.W_OK


def test_options_may_stand_anywhere():
    options = attention_parser().parse_intermixed_args(["m", "a.png", "--out", "d", "--layer", "all", "b.png"])
    assert (options.checkpoint, options.images, options.layer) == ("m", ["a.png", "b.png"], None)
    options = explore_parser().parse_intermixed_args(["--out", "p.html", "m", "--mask", "0.5", "a.png"])
    assert (options.checkpoint, options.images, options.mask) == ("m", ["a.png"], 0.5)


def test_hostile_names_stay_text(place, vit, tmp_path):
    name = "<img src=x onerror=alert(1)>$x$.png"
    (tmp_path / name).write_bytes((place / "one.png").read_bytes())
    assert vit("attention", "encoder", tmp_path / name)[0] == 0
    assert vit("explore", "encoder", tmp_path / name, "--out", tmp_path / "p.html")[0] == 0
    assert "<img src=x" not in (tmp_path / "p.html").read_text()
    config = json.loads((place / "encoder" / "config.json").read_text())
    assert config["class_names"][2] == "<b>cow"
