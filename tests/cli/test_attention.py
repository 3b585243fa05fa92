"""Law: the arrays beside each picture of `vit attention` are the model's own attention.

Oracle: `AttentionMaps`, rollout, relevance and statistics, called on the same images and mask.
"""

import hashlib
import re

import numpy as np
import pytest
import torch
from PIL import Image

from vit.atomic import write_text
from vit.inputs import to_float
from vit.interpret import (
    AttentionMaps,
    attention_rollout,
    attention_statistics,
    legrad,
    relevance,
    top_mass_mask,
)
from vit.look.datasets import list_splits
from vit.look.features import pca_colours

CLASSES = ("cat", "dog", "<b>cow")


@pytest.fixture
def drawn(vit, unpainted, monkeypatch):
    """`drawn(*argv)`: the arrays beside the first picture of `vit attention`, without pictures."""
    names = ("attention_figure", "masked_figure", "strongest_figure", "patch_colours_figure")
    for name in names:
        monkeypatch.setattr(f"vit.cli.attention.{name}", lambda *_, **__: None)

    def drawn(*argv):
        code, output, error = vit("attention", *argv, "--overwrite")
        assert (code, error) == (0, "")
        name = re.search(r"numbers beside it in (\S+)", output)[1]
        return np.load(vit.out / name)

    return drawn


# --- Whole images --------------------------------------------------------------------------------


def test_heads_of_the_last_layer(shown, weights_of, vit):
    assert vit("attention", "encoder one.png two.png")[::2] == (0, "")
    numbers = np.load(vit.out / "attention.npz")
    model, inputs, pixels = shown("encoder")
    maps, mass = weights_of(model, inputs).to_grid(-1, "cls")
    assert numbers["panels"].tolist() == ["mean of heads", "head 0", "head 1"]
    assert numbers["names"].tolist() == ["one", "two"]
    np.testing.assert_array_equal(numbers["images"], pixels)
    np.testing.assert_array_equal(numbers["maps"][:, 1:], maps)
    np.testing.assert_allclose(numbers["maps"][:, 0], maps.mean(1), atol=1e-7)
    np.testing.assert_array_equal(numbers["prefix_mass"][:, 1:], mass)
    np.testing.assert_allclose(numbers["maps"].sum((-2, -1)) + numbers["prefix_mass"], 1, atol=1e-5)
    with Image.open(vit.out / "attention.png") as picture:
        assert len(set(picture.convert("RGB").get_flattened_data())) > 50


@pytest.mark.parametrize(
    ("layer", "query", "head"), [(0, "2,3", 1), (1, "mean", "mean"), (-2, "register 1", 0)]
)
def test_one_head_one_layer_any_query(layer, query, head, shown, weights_of, drawn):
    numbers = drawn(f"encoder one.png --layer {layer} --query '{query}' --head {head}")
    query = (2, 3) if query == "2,3" else query
    model, inputs, _ = shown("encoder", ("one",))
    maps = weights_of(model, inputs).to_grid(layer, query).maps
    expected = maps.mean(1) if head == "mean" else maps[:, head]
    np.testing.assert_allclose(numbers["maps"][:, 0], expected, atol=1e-7)


@pytest.mark.usefixtures("unpainted")
def test_all_layers_and_the_fewest_patches_that_hold_a_share(shown, weights_of, vit):
    assert vit("attention", "plain one.png --layer all --head 1 --keep 0.6")[0] == 0
    numbers = np.load(vit.out / "layers.npz")
    strongest = np.load(vit.out / "strongest.npz")
    maps = weights_of(*shown("plain", ("one",))[:2])
    assert numbers["panels"].tolist() == ["layer 0", "layer 1", "layer 2"]
    for layer in range(3):  # without a class token, the query is the patch in the middle
        np.testing.assert_array_equal(
            numbers["maps"][:, layer], maps.to_grid(layer, (1, 2)).maps[:, 1]
        )
    np.testing.assert_array_equal(
        strongest["kept"], top_mass_mask(torch.from_numpy(numbers["maps"]), 0.6)
    )


def test_rollout(shown, weights_of, drawn):
    numbers = drawn("encoder one.png --method rollout --discard 0.3 --layer 1")
    maps = weights_of(*shown("encoder", ("one",))[:2])
    first_two = [maps.weights[0], maps.weights[1]]
    rolled = attention_rollout(first_two, discard=0.3, num_prefix_tokens=3)
    np.testing.assert_allclose(numbers["maps"].reshape(-1), rolled[0, 0, 3:], atol=1e-6)
    every = drawn("encoder one.png --method rollout --discard 0.3 --layer all")
    np.testing.assert_array_equal(every["maps"][:, 1], numbers["maps"][:, 0])


@pytest.mark.parametrize(
    ("name", "label"),
    [("encoder", ""), ("encoder", "--label <b>cow"), ("mean", "--label 2")],
)
def test_relevance_of_a_class(name, label, shown, drawn):
    numbers = drawn(name, "one.png --method relevance", label)
    model, inputs, _ = shown(name, ("one",))
    run = lambda x: model.forward_head(model(x))  # noqa: E731
    logits = run(inputs)[0].detach()
    chosen = 2 if label else int(logits.argmax())
    prefix = model.num_prefix_tokens
    rows = relevance(model, inputs, chosen, run=run)[0]
    rows = rows - torch.eye(len(rows))
    row = rows[0] if name == "encoder" else rows[prefix:].mean(0)  # what the head reads
    np.testing.assert_allclose(
        numbers["maps"].reshape(-1), row[prefix:] / row.sum(), rtol=1e-3, atol=1e-6
    )
    shown_label = f"one · {CLASSES[chosen]} {float(logits.softmax(-1)[chosen]):.0%}"
    assert numbers["labels"].tolist() == [shown_label]


def test_legrad_of_a_class(shown, drawn):
    numbers = drawn("encoder one.png two.png --method legrad --label 1")
    model, inputs, _ = shown("encoder")
    tokens = legrad(model, inputs, 1)
    shares = (tokens / tokens.sum(1, keepdim=True))[:, model.num_prefix_tokens :]
    np.testing.assert_allclose(numbers["maps"].reshape(2, -1), shares, rtol=1e-4, atol=1e-7)


def test_colours_of_patch_features(shown, drawn):
    numbers = drawn("encoder one.png two.png --method pca")
    model, inputs, _ = shown("encoder")
    colours = pca_colours(model(inputs)[:, model.num_prefix_tokens :])
    np.testing.assert_allclose(numbers["colours"].reshape(2, -1, 3), colours, atol=1e-5)


def test_distances_over_a_data_set(models, shown, drawn):
    numbers = drawn("encoder --data data --count 2 --method distance")
    assert (int(numbers["images"]), numbers["layers"].tolist()) == (2, [0, 1, 2])
    model, _, _ = shown("encoder")
    _, files = list_splits(models / "data", (12, 16)).values()
    paths = [models / "data" / files[i][1] for i in (0, len(files) // 2)]
    inputs = model.origin.normalize(to_float(model.origin.read_images(paths), (12, 16)))
    means = attention_statistics(model, [inputs])
    np.testing.assert_allclose(numbers["distance_pixels"], means.distance, rtol=1e-3)
    np.testing.assert_allclose(numbers["entropy_bits"], means.entropy, rtol=1e-3)


# --- Under a mask --------------------------------------------------------------------------------


def test_relevance_of_filling_in_a_masked_patch(masked, drawn):
    numbers = drawn("mae one.png two.png --method relevance --mask 0.5 --query 1,2")
    model, inputs, _, mask = masked("mae", 0.5, hide=[6])
    targets = model.targets(inputs)
    by_token = relevance(
        model.encoder,
        inputs,
        lambda filled: -(filled - targets).square().mean(-1)[:, 6],
        run=lambda x: model(x, mask),
    )
    # The decoder reads every token, the class token too
    rows = (by_token - torch.eye(by_token.shape[-1])).mean(1)
    shares = rows / rows.sum(-1, keepdim=True)
    np.testing.assert_array_equal(np.isnan(numbers["maps"][:, 0]), numbers["hidden"])
    for image in range(2):
        assert numbers["hidden"][image, 1, 2]
        ids = mask.ids_keep[image]
        visible = numbers["maps"][image].reshape(-1)[ids]
        np.testing.assert_allclose(visible, shares[image, 1:], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("query", ["", "--query 1,2"])
def test_without_a_class_token_the_query_is_a_visible_patch(query, masked, weights_of, drawn):
    numbers = drawn("bare one.png two.png --mask 0.75 --seed 3", query)
    hidden = [6] if query else []
    model, inputs, _, mask = masked("bare", 0.75, hide=hidden, seed=3)
    # the nearest to the middle that is visible
    queries = []
    for image in range(2):
        visible = [divmod(n, 4) for n in range(12) if not mask.mask[image, n]]
        queries.append(min(visible, key=lambda at: (at[0] - 1) ** 2 + (at[1] - 2) ** 2))
    expected = weights_of(model.encoder, inputs, mask).to_grid(-1, queries, mask=mask).maps
    np.testing.assert_allclose(numbers["maps"][:, 1:], expected, atol=1e-6)
    assert (np.isnan(numbers["maps"][:, 0]) == numbers["hidden"]).all()


@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("head", ["all", 1])
def test_the_attention_of_a_decoder_and_its_reconstruction(head, masked, vit):
    line = "mae one.png two.png --mask 0.75 --seed 3 --query 0,1 --head"
    assert vit("attention", line, head)[0] == 0
    numbers = np.load(vit.out / "masked.npz")
    hidden = numbers["hidden"]
    assert hidden.sum((1, 2)).tolist() == [9, 9]
    assert hidden[:, 0, 1].all()
    model, inputs, pixels, mask = masked("mae", 0.75, hide=[1], seed=3)
    with torch.no_grad(), AttentionMaps(model.decoder) as maps:
        model(inputs, mask)
    for layer in range(2):
        rows = maps.weights[layer][:, :, 1 + 1]
        row = rows.mean(1) if head == "all" else rows[:, head]
        np.testing.assert_allclose(numbers["maps"][:, layer].reshape(2, -1), row[:, 1:], atol=1e-6)
        np.testing.assert_allclose(numbers["prefix_mass"][:, layer], row[:, 0], atol=1e-6)
    # what is visible is the image's own
    visible = np.broadcast_to(~hidden.repeat(4, 1).repeat(4, 2)[:, None], pixels.shape)
    expected = pixels.numpy()[visible] / 255
    np.testing.assert_allclose(numbers["filled"][visible], expected, atol=1e-5)


def test_without_a_decoder_a_mask_shows_the_encoder_alone(vit, drawn):
    numbers = drawn("mae one.png --part encoder --mask 0.75 --query 1,1 --head 0")
    assert not numbers["hidden"][0, 1, 1]  # the query patch is visible
    assert not (vit.out / "masked.png").exists()


def test_the_decoder_fills_in_the_masked_patch_nearest_to_the_middle(vit, drawn):
    drawn("mae one.png two.png --mask 0.5")
    numbers = np.load(vit.out / "masked.npz")
    for hidden, (row, column) in zip(numbers["hidden"], numbers["patch"], strict=True):
        distances = [(r - 1) ** 2 + (c - 2) ** 2 for r, c in np.argwhere(hidden)]
        assert hidden[row, column]
        assert (row - 1) ** 2 + (column - 2) ** 2 == min(distances)


# --- Files ---------------------------------------------------------------------------------------


def test_other_formats_and_the_same_files_again(vit):
    def digests():
        assert vit("attention", "encoder one.png --format svg --overwrite")[0] == 0
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in vit.out.iterdir()
        }

    first = digests()
    assert set(first) == {"attention.svg", "attention.npz"}
    assert (vit.out / "attention.svg").read_bytes().startswith(b"<?xml")
    assert digests() == first


def test_existing_files_are_refused_before_anything_is_drawn(vit, refused, monkeypatch):
    monkeypatch.setattr("vit.cli.attention.head_panels", None)  # it would be called
    vit.out.mkdir()
    write_text(vit.out / "masked.svg", "")
    line = "attention mae one.png --mask 0.5 --format svg --out"
    assert "masked.svg already exists" in refused(*line.split(), vit.out)
