"""`vit evaluate` writes the scores that each method computes by itself."""

import json
import shutil

import numpy as np
import pytest
import torch
from tiny import (
    CLASSIFY,
    CPU,
    NORMALIZE,
    RECONSTRUCT,
    autoencoder,
    encoder,
    names,
    randomize,
    save,
    save_images,
)

from vit.checkpoints import load_model
from vit.config import DataConfig, changed
from vit.data.draws import seeded_weights
from vit.data.images import hold_out, in_folds, lowest_of_classes, spread
from vit.data.sources import load_data
from vit.encoder import VisionTransformer
from vit.evaluation.features import encoder_features, knn_accuracy, pixel_features
from vit.evaluation.reconstruction import score_reconstruction
from vit.inputs import to_float
from vit.metrics import MAIN
from vit.train import fit
from vit.weights import weights_hash

SIZES = dict(image_size=(8, 8), depth=3)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An autoencoder, classifiers, and three classes of images that differ in colour."""
    place = tmp_path_factory.mktemp("evaluate")
    generator = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 10)):
        for label, name in enumerate(("blue", "green", "red")):
            pixels = generator.integers(0, 120, (count, 8, 8, 3))
            pixels[..., 2 - label] += generator.integers(20, 110, (count, 1, 1))
            save_images(place / "images" / split / name, pixels.astype(np.uint8))
    torch.manual_seed(0)
    save(place / "mae", randomize(autoencoder(**SIZES), 0.3))
    classifier = randomize(encoder(**SIZES, num_classes=3), 0.3)
    save(place / "classifier", classifier)

    # the classifier, with its classes in another order
    for parameter in classifier.head.parameters():
        parameter.data = parameter.data.flip(0)
    save(place / "turned", classifier, NORMALIZE, ("red", "green", "blue"))
    return place


@pytest.fixture
def measured(place, unpainted, tmp_path, monkeypatch, called):
    """`measured(line)`: results.json of `vit evaluate line`, with the usual scores and what was "said".

    Its probes need not converge.
    """
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(tmp_path))  # the folder cache
    monkeypatch.setattr("vit.evaluation.probe.MOST_STEPS", 20)

    def run(line):
        data = "" if "scenes" in line or "--data" in line else "images"
        code, said, error = called("evaluate", line, data, "--overwrite --out", tmp_path / "out")
        assert (code, error) == (0, "")
        assert "nan" not in said
        results = json.loads((tmp_path / "out" / "results.json").read_text())
        usual = {method: rows[0] for method, rows in results["scores"].items()}
        # what a page shows of each
        for method, row in usual.items():
            assert {"protocol", "images", "baselines", MAIN[method]} <= row.keys()
        return results | usual | {"said": said}

    return run


@pytest.fixture(scope="module")
def data(place):
    return load_data(DataConfig(source="folder", root=str(place / "images")), (8, 8))


def prepare(batch):
    return NORMALIZE(to_float(batch, (8, 8)))


def neighbours(model, train, test):
    """The accuracy of an encoder's features."""
    bank, queries = (
        encoder_features(model, part.images, prepare, CPU, [-1])[0] for part in (train, test)
    )
    return knn_accuracy(bank, train.labels, queries, test.labels, "standardised")


def test_all_that_applies_to_an_autoencoder(data, measured):
    results = measured("mae --holdout 12")
    model = load_model("mae")
    assert results["content_hash"] == weights_hash(model)
    with seeded_weights(0):
        untrained = VisionTransformer(model.encoder.config)
    pixels = [pixel_features(part.images) for part in (data.train, data.test)]
    knn = results["knn"]
    assert knn["accuracy"] == neighbours(model.encoder, data.train, data.test)
    assert knn["baselines"]["untrained"] == neighbours(untrained, data.train, data.test)
    assert knn["baselines"]["raw_pixels"] == knn_accuracy(
        pixels[0], data.train.labels, pixels[1], data.test.labels, "standardised"
    )
    linear = results["linear"]
    assert linear["accuracy"] > 0.6  # the classes differ in colour
    assert linear["fits"][0]["layers"] in ("layer 2", "layers 0 to 2 side by side")
    rows = {(row["mask"], row["ratio"]): row for row in results["scores"]["reconstruction"]}
    assert len(rows) == 6  # of four patches, half and three are hidden, in three ways
    row = rows["random", 0.75]
    scores = score_reconstruction(model, data.test.images, prepare, "random", 0.75, CPU)
    assert {"loss": row["loss"], **row["baselines"]} == scores
    assert "head" not in results


def test_the_models_own_head_also_on_mirror_images(data, measured):
    results = measured("classifier --method head --views 2")
    model, test = load_model("classifier"), data.test
    inputs = prepare(test.images)
    with torch.no_grad():
        plain, mirrored = (model.forward_head(model(given)) for given in (inputs, inputs.flip(-1)))
    rows = results["scores"]["head"]
    for row, logits in zip(rows, (plain, plain + mirrored), strict=True):
        right = (logits.argmax(1) == test.labels).float().mean()
        assert row["accuracy"] == pytest.approx(float(right))
    assert results["scores"].keys() == {"head"}

    # the surest mistakes first, each of them a mistake
    mistakes = rows[0]["mistakes"]
    sureness = plain.softmax(1).amax(1)
    for mistake in mistakes:
        image = mistake["image"]
        assert mistake["file"] == test.files[image]
        assert mistake["class"] == test.class_names[test.labels[image]] != mistake["predicted"]
        assert mistake["confidence"] == pytest.approx(float(sureness[image]), abs=1e-5)
    shown = [mistake["confidence"] for mistake in mistakes]
    assert shown == sorted(shown, reverse=True)
    assert len(mistakes) == min(12, round((1 - rows[0]["accuracy"]) * 30))

    # classes in another order are measured by their names
    turned = measured("turned --method head")["head"]
    assert turned["confusion"] == rows[0]["confusion"]


def test_few_labels_and_images_of_training_that_are_held_out(data, measured):
    hashes, labels = data.train.image_hashes, data.train.labels
    half, quarter = (
        data.train.subset(lowest_of_classes(hashes, labels, count, "labels", seed))
        for count, seed in ((36, 0), (18, 1))
    )
    aside = hold_out(hashes, labels, 12 / 72, "val_size")
    halved = hold_out(half.image_hashes, half.labels, 0.5, "holdout")
    for options, train, test in (
        ("--every-layer --labels 0.5", half, data.test),
        ("--method knn --labels 0.25 --seeds 1", quarter, data.test),
        ("--method knn --knn-images 10", data.train.subset(spread(72, 10)), data.test),
        ("--method knn --val-size 12", data.train.subset(~aside), data.train.subset(aside)),
    ):
        results = measured(f"mae {options}")
        found = results["knn"]  # neighbours are of the last layer all the same
        assert (found["bank"], found["k"]) == (len(train), min(20, len(train)))
        assert found["accuracy"] == neighbours(load_model("mae").encoder, train, test)
        if linear := results.get("linear"):
            # half of the labels at most choose
            (fit,) = linear["fits"]
            assert (fit["labels"], fit["held_out"]) == (36, int(halved.sum()))
            accuracies = fit["held_out_accuracy"]
            assert accuracies[fit["layers"]] == max(accuracies.values())


def test_images_that_a_model_was_trained_on_are_no_test_and_said(data, place, measured, refused):
    model = load_model("mae")
    trained_on = torch.cat([data.train.image_hashes[12:], data.test.image_hashes[:7]])
    save(place / "taught", model, trained_on=trained_on)
    assert load_model("taught").origin.trained_on.tolist() == trained_on.sort().values.tolist()
    found = measured("taught --method knn")
    assert found["note"].startswith("7 of the 30 test images")
    assert f"note: {found['note']}" in found["said"]
    # it may be tested on what it has not seen
    found = measured("taught --method knn --val-size 30")
    assert (found["note"], found["data"]["test_images"]) == ("", 12)
    assert found["data"]["train_images"] == 60
    # one image that it knows does not turn the choice about
    save(place / "knows-one", model, trained_on=data.train.image_hashes[:1])
    assert measured("knows-one --method knn --val-size 12")["data"]["test_images"] < 25
    save(place / "knows-all", model, trained_on=data.train.image_hashes)
    assert "on all" in refused("evaluate knows-all images --val-size 5")
    (place / "knows-all" / "trained_on.npy").write_text("text")
    assert "trained_on.npy is damaged" in refused("evaluate knows-all images")
    # of one that does not say, nothing is certain
    assert "nothing says" in measured("classifier --method head --val-size 5")["note"]
    assert measured("classifier --method head")["note"] == ""


def test_few_images_without_test_images_are_cross_validated(place, measured, tmp_path):
    root = tmp_path / "small"
    for name in ("blue", "green", "red"):
        shutil.copytree(place / "images" / "train" / name, root / name)
    shutil.copy(root / "red" / "0.png", root / "red" / "copy.png")
    data = load_data(DataConfig(source="folder", root=str(root)), (8, 8))
    images, labels, hashes = (
        torch.cat([getattr(split, name) for split in (data.train, data.test)])
        for name in ("images", "labels", "image_hashes")
    )
    features = encoder_features(load_model("mae").encoder, images, prepare, CPU, [-1])[0]
    found = measured(f"mae --data {root}")
    knn, linear = found["knn"], found["linear"]
    assert knn["accuracy"] == knn_accuracy(
        features, labels, features, labels, "standardised", image_hashes=hashes
    )
    assert knn["images"] == linear["images"] == 73
    assert "cross-validated over all 73" in found["note"]
    # each image is tested once, by a probe of the other folds
    assert [sum(row) for row in linear["confusion"]] == labels.bincount().tolist()
    fitted = [fit["labels"] for fit in linear["fits"]]
    assert fitted == [73 - count for count in in_folds(hashes, labels, 0).bincount()]
    # reconstruction is no choice between models, and has its own test images
    assert found["reconstruction"]["images"] == len(data.test)

    # some of the labels, or a model that may know them: the held-out images
    model = load_model("classifier")
    save(place / "knows", model, trained_on=data.train.image_hashes)
    for line in ("mae --labels 0.5", "mae --val-size 9", "classifier", "knows"):
        assert measured(f"{line} --data {root} --method knn")["knn"]["images"] < 20
    # without their labels, it is told
    save(place / "saw", load_model("mae"), trained_on=hashes[:40])
    note = measured(f"saw --data {root} --method knn")["note"]
    assert "which this model was trained on, without" in note


@pytest.mark.slow
def test_several_seeds_have_a_mean_and_a_spread(measured):
    alone = [measured(f"mae --labels 0.2 --seeds {seed}") for seed in (0, 4)]
    results = measured("mae --labels 0.2 --seeds 0,4")
    for method in ("knn", "linear"):
        each = [result[method]["accuracy"] for result in alone]
        found = results[method]
        assert found["accuracy_by_seed"] == each
        assert found["accuracy"] == pytest.approx(np.mean(each))
        assert found["spread"] == pytest.approx(np.std(each, ddof=1))
        assert found["seeds"] == [0, 4]
    # of all labels, neighbours are one number
    assert "spread" not in measured("mae --seeds 0,1 --method knn")["knn"]


def test_pictures_of_results_that_are_replaced_go_with_them(measured, tmp_path):
    out = tmp_path / "out"
    measured("classifier --method head")
    assert names(out) == {"confusion.png", "mistakes.png", "reliability.png", "results.json"}
    measured("classifier --method knn")
    assert names(out) == {"results.json"}
    # without results, they are somebody's own
    (out / "results.json").unlink()
    (out / "confusion.png").touch()
    measured("classifier --method knn")
    assert "confusion.png" in names(out)


@pytest.mark.parametrize(
    ("config", "size", "methods"),
    [
        (CLASSIFY, (8, 16), ["head"]),
        (changed(RECONSTRUCT, {"mask.ratio": 0.5}), (5, 10), ["reconstruction", "knn"]),
    ],
    ids=["classify", "reconstruct"],
)
def test_a_run_and_vit_evaluate_measure_alike_at_any_size(
    config, size, methods, measured, tmp_path
):
    settings = {
        "data.source": "scenes",
        "data.limit": 40,
        "model.image_size": size,
        "model.patch_size": size[0],
    }
    settings = changed(config, settings)
    expected = fit(settings, tmp_path / "run").summary["scores"]
    for method in methods:
        found = measured(f"{tmp_path / 'run'} scenes --limit 40 --method {method}")
        rows = found["scores"][method]
        row = next(row for row in rows if row.get("mask", "random") == "random")
        for key in {"accuracy", "cross_entropy", "loss"} & row.keys():
            assert row[key] == pytest.approx(expected[method][0][key], abs=1e-6)
