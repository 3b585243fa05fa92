"""Law: the arrays beside each picture of `vit attention` are the model's own attention.

Oracle: `AttentionMaps`, rollout, relevance and statistics, called on the same images and mask.
"""

import re

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from tiny import captured

from vit.data.folder import list_folder
from vit.data.images import spread
from vit.inputs import to_float
from vit.interpret import (
    attention_rollout,
    attention_statistics,
    legrad,
    relevance,
    top_mass_mask,
)
from vit.look.features import pca_colours

CLASSES = ("cat", "dog", "<b>cow")


@pytest.fixture
def drawn(vit, unpainted, monkeypatch):
    """`drawn(line, name)`: the arrays beside a picture of `vit attention`, or the first, which is not drawn."""
    figures = ("attention_figure", "masked_figure", "strongest_figure", "patch_colours_figure")
    for name in figures:
        monkeypatch.setattr(f"vit.cli.attention.{name}", lambda *_, **__: None)

    def drawn(line, name=""):
        code, output, error = vit("attention", line, "--overwrite")
        assert (code, error) == (0, "")
        return np.load(vit.out / (name or re.search(r"its numbers: (\S+)", output)[1]))

    return drawn


def test_heads_of_the_last_layer(shown, drawn):
    numbers = drawn("encoder one.png two.png")
    model, inputs, pixels, _ = shown("encoder")
    maps, mass = captured(model, inputs).to_grid(-1, "cls")
    assert numbers["panels"].tolist() == ["mean of heads", "head 0", "head 1"]
    assert numbers["names"].tolist() == ["one", "two"]
    assert_array_equal(numbers["images"], pixels)
    assert_array_equal(numbers["maps"][:, 1:], maps)
    assert_allclose(numbers["maps"][:, 0], maps.mean(1), atol=1e-7)
    assert_array_equal(numbers["prefix_mass"][:, 1:], mass)
    assert_allclose(numbers["maps"].sum((-2, -1)) + numbers["prefix_mass"], 1, atol=1e-5)


@pytest.mark.parametrize(
    ("line", "layer", "query", "head"),
    [
        ("encoder one.png --layer 0 --query 2,3 --head 1", 0, (2, 3), 1),
        ("encoder one.png --layer -2 --query 'register 1' --head 0", -2, "register 1", 0),
        ("mean one.png --layer 1 --head mean", 1, "mean", slice(None)),  # what its head reads
    ],
)
def test_one_head_one_layer_any_query(line, layer, query, head, shown, drawn):
    maps = captured(*shown(line.split()[0], "one")[:2]).to_grid(layer, query).maps
    expected = maps[:, head].view(1, -1, 3, 4).mean(1)
    assert_allclose(drawn(line)["maps"][:, 0], expected, atol=1e-7)


def test_all_layers_and_the_fewest_patches_that_hold_a_share(shown, drawn):
    line = "plain one.png --layer all --head 1 --keep 0.6"
    numbers, strongest = drawn(line, "layers.npz"), drawn(line, "strongest.npz")
    maps = captured(*shown("plain", "one")[:2])
    assert numbers["panels"].tolist() == ["layer 0", "layer 1", "layer 2"]
    for layer in range(3):  # without a class token, the query is the patch in the middle
        expected = maps.to_grid(layer, (1, 2)).maps[:, 1]
        assert_array_equal(numbers["maps"][:, layer], expected)
    kept = top_mass_mask(torch.from_numpy(numbers["maps"]), 0.6)
    assert_array_equal(strongest["kept"], kept)


def test_rollout(shown, drawn):
    numbers = drawn("encoder one.png --method rollout --layer 1")
    weights = captured(*shown("encoder", "one")[:2]).weights
    rolled = attention_rollout([weights[0], weights[1]], num_prefix_tokens=3)
    assert_allclose(numbers["maps"].reshape(-1), rolled[0, 0, 3:], atol=1e-6)
    every = drawn("encoder one.png --method rollout --layer all")
    assert_array_equal(every["maps"][:, 1], numbers["maps"][:, 0])


@pytest.mark.parametrize(
    ("name", "label"),
    [("encoder", ""), ("encoder", "--label <b>cow"), ("mean", "--label 2")],
)
def test_relevance_of_a_class(name, label, shown, drawn):
    numbers = drawn(f"{name} one.png --method relevance {label}")
    model, inputs, *_ = shown(name, "one")
    run = lambda x: model.forward_head(model(x))  # noqa: E731
    logits = run(inputs)[0].detach()
    chosen = 2 if label else int(logits.argmax())
    prefix = model.num_prefix_tokens
    rows = relevance(model, inputs, chosen, run=run)[0]
    rows = rows - torch.eye(len(rows))
    row = rows[0] if name == "encoder" else rows[prefix:].mean(0)  # what the head reads
    assert_allclose(numbers["maps"].reshape(-1), row[prefix:] / row.sum(), rtol=1e-3, atol=1e-6)
    shown_label = f"one · {CLASSES[chosen]} {float(logits.softmax(-1)[chosen]):.0%}"
    assert numbers["labels"].tolist() == [shown_label]


def test_legrad_and_colours_of_patch_features(shown, drawn):
    model, inputs, *_ = shown("encoder")
    prefix = model.num_prefix_tokens
    numbers = drawn("encoder one.png two.png --method legrad --label 1")
    tokens = legrad(model, inputs, 1)
    shares = (tokens / tokens.sum(1, keepdim=True))[:, prefix:]
    assert_allclose(numbers["maps"].reshape(2, -1), shares, rtol=1e-4, atol=1e-7)
    numbers = drawn("encoder one.png two.png --method pca")
    colours = pca_colours(model(inputs)[:, prefix:])
    assert_allclose(numbers["colours"].reshape(2, -1, 3), colours, atol=1e-5)


def test_distances_over_a_data_set(models, shown, drawn):
    numbers = drawn("encoder --data data --count 2 --method distance")
    assert (int(numbers["images"]), numbers["layers"].tolist()) == (2, [0, 1, 2])
    model, *_ = shown("encoder")
    (files,) = list_folder(models / "data")[0].values()
    paths = [models / "data" / files[number][1] for number in spread(len(files), 2)]
    inputs = model.origin.normalize(to_float(model.origin.read_images(paths), (12, 16)))
    means = attention_statistics(model, [inputs])
    assert_allclose(numbers["distance_pixels"], means.distance, rtol=1e-3)
    assert_allclose(numbers["entropy_bits"], means.entropy, rtol=1e-3)


# --- Under a mask --------------------------------------------------------------------------------


def test_colours_of_whole_images_name_no_mask(drawn):
    whole, masked = (drawn(f"encoder one.png --method pca {mask}") for mask in ("", "--mask 0.5"))
    assert_array_equal(masked["colours"], whole["colours"])
    assert masked["caption"] == whole["caption"]


def test_relevance_of_filling_in_a_masked_patch(shown, drawn):
    numbers = drawn("mae one.png two.png --method relevance --mask 0.5 --query 1,2")
    model, inputs, _, mask = shown("mae", ratio=0.5, hide=[6])
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
    assert_array_equal(np.isnan(numbers["maps"][:, 0]), numbers["hidden"])
    assert numbers["hidden"][:, 1, 2].all()
    for maps, ids, expected in zip(numbers["maps"], mask.ids_keep, shares, strict=True):
        assert_allclose(maps.reshape(-1)[ids], expected[1:], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("query", ["", "--query 1,2"])
def test_without_a_class_token_the_query_is_a_visible_patch(query, shown, drawn):
    numbers = drawn(f"bare one.png two.png --mask 0.75 --seed 3 {query}")
    model, inputs, _, mask = shown("bare", ratio=0.75, hide=[6] if query else [], seed=3)
    # the nearest to the middle that is visible
    queries = []
    for hidden in mask.mask:
        visible = [divmod(n, 4) for n in range(12) if not hidden[n]]
        queries.append(min(visible, key=lambda at: (at[0] - 1) ** 2 + (at[1] - 2) ** 2))
    expected = captured(model.encoder, inputs, mask).to_grid(-1, queries, mask=mask).maps
    assert_allclose(numbers["maps"][:, 1:], expected, atol=1e-6)
    assert (np.isnan(numbers["maps"][:, 0]) == numbers["hidden"]).all()


@pytest.mark.parametrize("head", ["all", 1])
def test_the_attention_of_a_decoder(head, shown, drawn):
    line = f"mae one.png two.png --mask 0.75 --seed 3 --query 0,1 --head {head}"
    numbers = drawn(line, "masked.npz")
    hidden = numbers["hidden"]
    assert hidden.sum((1, 2)).tolist() == [9, 9]
    assert hidden[:, 0, 1].all()
    model, inputs, _, mask = shown("mae", ratio=0.75, hide=[1], seed=3)
    maps = captured(model.decoder, inputs, mask, run=model)
    for layer in range(2):
        rows = maps.weights[layer][:, :, 1 + 1]
        row = rows.mean(1) if head == "all" else rows[:, head]
        assert_allclose(numbers["maps"][:, layer].reshape(2, -1), row[:, 1:], atol=1e-6)
        assert_allclose(numbers["prefix_mass"][:, layer], row[:, 0], atol=1e-6)
