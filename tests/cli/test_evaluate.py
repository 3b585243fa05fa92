"""`vit evaluate` writes the scores that each method computes by itself."""

import json
import re
import shutil
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import NORMALIZE, RECONSTRUCT, autoencoder, encoder, randomize, save_images
from torchvision.transforms.v2.functional import rgb_to_grayscale

from vit.checkpoints import load_model, save_model
from vit.checkpoints.convert import convert_model
from vit.config import DataConfig, changed
from vit.data.draws import seeded_weights
from vit.data.images import evenly_spaced, spread_over_classes
from vit.data.sources import load_data
from vit.device import Compute
from vit.encoder import VisionTransformer
from vit.evaluation.features import encoder_features, knn_accuracy, pixel_features
from vit.evaluation.reconstruction import score_reconstruction
from vit.figures import save_figure
from vit.inputs import Normalization, to_float
from vit.train import measure
from vit.training.loop import train_steps
from vit.training.run import setup
from vit.weights import weights_hash

SIZES = dict(image_size=(8, 8), depth=3)
CPU = Compute(torch.device("cpu"))
TRAIN, TEST = 24, 10  # of each class


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An autoencoder, a classifier, and three classes of images that differ in colour."""
    place = tmp_path_factory.mktemp("evaluate")
    generator = np.random.default_rng(0)
    for split, count in (("train", TRAIN), ("test", TEST)):
        for label, name in enumerate(("blue", "green", "red")):
            pixels = generator.integers(0, 120, (count, 8, 8, 3))
            pixels[..., 2 - label] += generator.integers(20, 110, (count, 1, 1))
            save_images(place / "images" / split / name, pixels.astype(np.uint8))
    torch.manual_seed(0)
    for name, model in (
        ("mae", autoencoder(**SIZES)),
        ("classifier", encoder(**SIZES, num_classes=3)),
        ("other", encoder(**SIZES, num_classes=5)),
        ("strange", encoder(**SIZES, num_classes=3)),
    ):
        names = ("red", "green", "brown") if name == "strange" else ()
        save_model(place / name, randomize(model, 0.3), NORMALIZE, names)
    # the classifier, with its classes in another order
    turned = load_model(place / "classifier")
    for parameter in turned.head.parameters():
        parameter.data = parameter.data.flip(0)
    save_model(place / "turned", turned, NORMALIZE, ("red", "green", "blue"))
    return place


@pytest.fixture
def vit(place, tmp_path, monkeypatch, called):
    """`vit(*argv)`: exit code, stdout and stderr of `vit evaluate argv`, whose probes need not converge."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(tmp_path))  # the folder cache
    monkeypatch.setattr("vit.evaluation.probe.MOST_STEPS", 20)
    return lambda *argv: called("evaluate", *argv)


@pytest.fixture
def measured(vit, unpainted, tmp_path):
    """`measured(checkpoint, *options)`: results.json on the three classes of images, with what was printed as "said"."""

    def run(checkpoint, *options):
        code, said, error = vit(
            checkpoint, "--data", "images", *options, "--out", tmp_path / "out", "--overwrite"
        )
        assert (code, error) == (0, "")
        assert "nan" not in said
        results = json.loads((tmp_path / "out" / "results.json").read_text())
        usual = {method: rows[0] for method, rows in results["scores"].items()}
        return results | usual | {"said": said}

    return run


def images(place, split):
    return getattr(
        load_data(DataConfig(source="folder", root=str(place / "images")), (8, 8)), split
    )


def prepare(batch):
    return NORMALIZE(to_float(batch, (8, 8)))


def features(place, *parts):
    model = load_model(place / "mae").encoder
    return [encoder_features(model, part, prepare, CPU)[0] for part in parts]


def test_all_that_applies_to_an_autoencoder(place, measured):
    results = measured("mae", "--holdout", 12)
    assert results["command"].startswith("vit evaluate mae --data images --holdout 12")
    train, test = images(place, "train"), images(place, "test")
    bank, queries = features(place, train.images, test.images)
    assert results["knn"]["accuracy"] == knn_accuracy(bank, train.labels, queries, test.labels)
    pixels = [pixel_features(part.images) for part in (train, test)]
    with seeded_weights(0):
        untrained = VisionTransformer(load_model(place / "mae").encoder.config)
    first = [encoder_features(untrained, part.images, prepare, CPU)[0] for part in (train, test)]
    for name, (bank, queries) in {"raw_pixels": pixels, "untrained": first}.items():
        expected = knn_accuracy(bank, train.labels, queries, test.labels)
        assert results["knn"]["baselines"][name] == expected
    assert results["linear"]["accuracy"] > 0.6  # the classes differ in colour
    assert results["linear"]["held_out"] == 12
    assert np.sum(results["linear"]["confusion"]) == 3 * TEST
    assert np.trace(results["linear"]["confusion"]) / (3 * TEST) == pytest.approx(
        results["linear"]["accuracy"]
    )
    rows = {(row["mask"], row["ratio"]): row for row in results["scores"]["reconstruction"]}
    # of four patches
    assert set(rows) == set(product(("random", "block", "grid"), (0.5, 0.75)))
    assert results["linear"]["layer"] == 2
    scores = score_reconstruction(
        load_model(place / "mae"), test.images, prepare, "random", 0.75, CPU
    )
    row = rows["random", 0.75]
    assert {"loss": row["loss"], **row["baselines"]} == scores
    assert "head" not in results
    for part in ("nearest-neighbour accuracy", "linear probe", "masked patches", "30 test images"):
        assert part in results["said"]


def test_the_models_own_head_also_on_mirror_images(place, measured):
    results = measured("classifier", "--method", "head", "--flip")
    model, test = load_model(place / "classifier"), images(place, "test")
    with torch.no_grad():
        logits = [
            model.forward_head(model(given))
            for given in (prepare(test.images), prepare(test.images).flip(-1))
        ]
    right = [
        float((given.argmax(1) == test.labels).float().mean()) for given in (logits[0], sum(logits))
    ]
    rows = results["scores"]["head"]
    assert [row["accuracy"] for row in rows] == pytest.approx(right)
    assert re.search(rf"{right[1]:.0%} .*with mirror images", results["said"])
    assert {"knn", "linear", "reconstruction"}.isdisjoint(results)
    # the surest mistakes first, each of them a mistake
    mistakes = rows[0]["mistakes"]
    shares = logits[0].softmax(1)
    for mistake in mistakes:
        image = mistake["image"]
        assert mistake["file"] == test.files[image]
        assert mistake["file"].startswith(f"test/{mistake['class']}/")
        assert mistake["class"] == test.class_names[test.labels[image]] != mistake["predicted"]
        assert mistake["confidence"] == pytest.approx(float(shares[image].max()), abs=1e-5)
    sureness = [mistake["confidence"] for mistake in mistakes]
    assert sureness == sorted(sureness, reverse=True)
    assert len(mistakes) == min(12, round((1 - right[0]) * 3 * TEST))


def test_classes_in_another_order_are_measured_by_their_names(measured):
    options = ("--method", "head", "--flip")
    expected = measured("classifier", *options)
    turned = measured("turned", *options)
    for row, other in zip(expected["scores"]["head"], turned["scores"]["head"], strict=True):
        assert row["accuracy"] == other["accuracy"]
    assert expected["head"]["confusion"] == turned["head"]["confusion"]
    assert "no names" in expected["said"]
    assert "no names" not in turned["said"]


def test_settings_are_chosen_on_training_images_that_are_held_out(place, measured):
    results = measured("mae", "--method", "knn", "--val-size", 12)
    assert "60 training and 12 held-out training images" in results["said"]
    train = images(place, "train")
    aside = spread_over_classes(train.labels, 12, 0, "holdout")
    bank, queries = features(place, train.images[~aside], train.images[aside])
    expected = knn_accuracy(bank, train.labels[~aside], queries, train.labels[aside])
    assert results["knn"]["accuracy"] == expected
    assert (
        results["data"]["content_hash"]
        == f"{train.subset(~aside).content_hash}-{train.subset(aside).content_hash}"
    )


@pytest.mark.parametrize(
    "name", ["summary.json", "config.yaml"]
)  # of a finished run, of one that is training
def test_pictures_of_a_run_are_not_written_over(name, vit, tmp_path):
    (tmp_path / name).write_text("{}")
    code, _, error = vit("mae", "--data", "images", "--out", tmp_path)
    assert code == 2
    assert str(tmp_path / "evaluation") in error


def test_every_layer_and_few_labels(place, measured):
    train, test = images(place, "train"), images(place, "test")
    bank, queries = features(place, train.images, test.images)
    for options, used in (
        (("--every-layer", "--labels", 0.5), spread_over_classes(train.labels, 36, 0, "labels")),
        (
            ("--method", "knn", "--labels", 0.25, "--seeds", 1),
            spread_over_classes(train.labels, 18, 1, "labels"),
        ),
        (("--method", "knn", "--knn-images", 10), evenly_spaced(72, 10)),
    ):
        results = measured("mae", *options)
        found = results["knn"]  # neighbours are of the last layer all the same
        assert found["bank"] == len(train.labels[used])
        assert found["k"] == min(20, found["bank"])
        assert found["accuracy"] == knn_accuracy(
            bank[used], train.labels[used], queries, test.labels
        )
        if found := results.get("linear"):
            # half of the labels at most choose
            assert (found["labels"], found["held_out"]) == (36, 18)
            assert len(found["held_out_accuracy_by_layer"]) == 3
            best = found["held_out_accuracy_by_layer"]
            assert best[found["layer"]] == max(best)


@pytest.mark.slow
def test_several_seeds_have_a_mean_and_a_spread(measured):
    alone = [measured("mae", "--labels", 0.2, "--seeds", seed) for seed in (0, 4, 5)]
    results = measured("mae", "--labels", 0.2, "--seeds", "0,4,5")
    for method in ("knn", "linear"):
        each = [result[method]["accuracy"] for result in alone]
        assert results[method]["accuracy_by_seed"] == each
        assert results[method]["accuracy"] == pytest.approx(np.mean(each))
        assert results[method]["spread"] == pytest.approx(np.std(each, ddof=1))
        assert results[method]["seeds"] == [0, 4, 5]
    assert results["said"].count("over 3 seeds") == 2
    probes, several = [result["linear"] for result in alone], results["linear"]
    for figure in ("cross_entropy", "expected_calibration_error"):
        assert several[figure] == pytest.approx(np.mean([probe[figure] for probe in probes]))
    assert several["confusion"] == np.sum([probe["confusion"] for probe in probes], axis=0).tolist()
    strengths = [probe["strength"] for probe in probes]
    assert several["strength"] == (strengths if len(set(strengths)) > 1 else strengths[0])
    assert several["layer"] == 2
    pixels = [result["knn"]["baselines"]["raw_pixels"] for result in alone]
    assert results["knn"]["baselines"]["raw_pixels"] == pytest.approx(np.mean(pixels))


def test_neighbours_of_all_labels_have_no_spread(measured):
    results = measured("mae", "--seeds", "0,1", "--holdout", 12)
    assert "spread" not in results["knn"]
    assert results["linear"]["seeds"] == [0, 1]  # of what is held out
    assert results["said"].count("over 2 seeds") == 1


def test_results_say_which_weights_were_measured(measured, place):
    def mark(name, *options):
        return measured(place / name, "--method", "knn", *options)["content_hash"]

    own = weights_hash(load_model(place / "classifier"))
    assert mark("mae") == weights_hash(load_model(place / "mae")) != own
    assert mark("classifier") == own == mark("classifier", "--num-classes", 0)


def test_few_labels_of_a_model_that_was_taught_more_are_remarked(place, vit, tmp_path):
    whole = f"{images(place, 'train').content_hash}-{images(place, 'test').content_hash}"
    save_model(
        tmp_path / "all", encoder(**SIZES, num_classes=3), NORMALIZE, data_content_hash=whole
    )
    convert_model(load_model(place / "classifier"), "timm", tmp_path / "timm")
    save_model(tmp_path / "token", encoder(**SIZES, num_classes=3, global_pool="token"), NORMALIZE)
    convert_model(load_model(tmp_path / "token"), "huggingface", tmp_path / "huggingface")
    few = ["--data", "images", "--labels", 0.5, "--method", "knn"]
    for name, remarked in (
        ("classifier", True),
        (tmp_path / "all", True),
        ("mae", False),
        ("other", False),
    ):
        assert ("taught classes" in vit(name, *few)[1]) == remarked
    assert "taught classes" in vit("classifier", *few, "--num-classes", 0)[1]
    for kind in ("timm", "huggingface"):
        assert "taught classes" in vit(tmp_path / kind, *few, "--num-classes", 0)[1]
    assert "taught classes" not in vit("classifier", "--data", "images", "--method", "knn")[1]
    # its classes are other ones
    assert vit("other", "--data", "images", "--method", "knn", "--val-size", 9)[0] == 0


def test_pictures_of_results_that_are_replaced_go_with_them(measured, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr("vit.figures.style.save_figure", save_figure)
    measured("classifier", "--method", "head")
    assert sorted(path.name for path in out.iterdir()) == [
        "confusion.png",
        "mistakes.png",
        "reliability.png",
        "results.json",
    ]
    for name in ("confusion", "mistakes", "reliability"):
        with Image.open(tmp_path / "out" / f"{name}.png") as picture:
            assert len(set(picture.convert("RGB").get_flattened_data())) > 20
    measured("classifier", "--method", "knn")
    assert [path.name for path in out.iterdir()] == ["results.json"]
    (out / "results.json").unlink()
    (out / "confusion.png").write_text("somebody's own")
    measured("classifier", "--method", "knn")
    assert (out / "confusion.png").read_text() == "somebody's own"


@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize(
    ("task", "size"), [("classify", (8, 16)), ("reconstruct", (5, 10))], ids=str
)
def test_a_run_and_vit_evaluate_measure_alike_at_any_size(size, task, vit, tmp_path):
    settings = changed(
        RECONSTRUCT,
        {
            "data.source": "scenes",
            "data.limit": 40,
            "model.image_size": size,
            "model.patch_size": (size[0], size[1] // 2),
            **({"mask.ratio": 0.5} if task == "reconstruct" else {}),
            "train.objective": task,
            "train.epochs": 1,
            "train.batch_size": 20,
        },
    )
    run = setup(settings, load_data(settings.data, size))
    for _ in train_steps(run):
        pass
    save_model(tmp_path / "run", run.result, run.normalize, run.data.train.class_names)
    argv = [
        tmp_path / "run",
        "--data",
        "scenes",
        "--limit",
        40,
        "--out",
        tmp_path / "measured",
        "--overwrite",
    ]
    results, found = {}, measure(run)
    for method in ["head"] if task == "classify" else ["reconstruction", "knn"]:
        assert vit(*argv, "--method", method)[0] == 0
        rows = json.loads((tmp_path / "measured" / "results.json").read_text())["scores"]
        results |= rows
    if task == "classify":
        (row,) = results["head"]
        (expected,) = found["head"]
        assert row["accuracy"] == expected["accuracy"]
        assert row["cross_entropy"] == pytest.approx(expected["cross_entropy"], abs=1e-6)
    else:
        row = next(row for row in results["reconstruction"] if row["mask"] == "random")
        assert row["loss"] == pytest.approx(found["reconstruction"][0]["loss"], abs=1e-6)
        assert results["knn"][0]["accuracy"] == found["knn"][0]["accuracy"]


@pytest.mark.parametrize("options", ["--labels 0.03", "--limit 2"])
def test_hardly_any_labels(options, measured):
    assert np.shape(measured("mae", *options.split())["linear"]["confusion"]) == (3, 3)


def test_a_grey_model_sees_and_fills_in_grey(place, measured, tmp_path):
    model = autoencoder(norm_pix_loss=False, **SIZES, channels=1)
    save_model(tmp_path / "grey", model, Normalization([0.5], [0.2]))
    results = measured(tmp_path / "grey", "--method", "reconstruction")
    origin = load_model(tmp_path / "grey").origin
    row, test = results["reconstruction"], images(place, "test")
    scores = score_reconstruction(
        load_model(tmp_path / "grey"),
        test.images,
        lambda batch: origin.normalize(to_float(rgb_to_grayscale(batch), (8, 8))),
        row["mask"],
        row["ratio"],
        CPU,
    )
    assert row["loss"] == scores["loss"]
    assert "nearest-neighbour accuracy" in measured(tmp_path / "grey", "--method", "knn")["said"]


def test_images_without_labels_have_no_probe(place, vit, tmp_path):
    save_images(tmp_path / "bare", (np.full((8, 8, 3), number, np.uint8) for number in range(12)))
    assert "has no labels" in vit("mae", "--data", tmp_path / "bare", "--method", "knn")[2]
    shutil.copytree(tmp_path / "bare", tmp_path / "album" / "2023")
    assert "has one class" in vit("mae", "--data", tmp_path / "album", "--method", "knn")[2]
    assert "--method all: " in vit("classifier", "--data", tmp_path / "bare")[2]
    assert vit("mae", "--data", tmp_path / "bare", "--method", "all")[0] == 0


def test_an_image_that_cannot_be_read_stops_or_is_left_out_and_listed(
    place, vit, refused, tmp_path
):
    folder = tmp_path / "photos"
    shutil.copytree("images", folder)
    bad = next(folder.glob("test/*/*.png"))
    bad.write_bytes(bad.read_bytes()[:60])
    line = ("evaluate", "mae", folder, "--method", "knn")
    assert "on_bad_image: skip" in refused(*line)
    code, said, _ = vit(*line[1:], "--on-bad-image", "skip")
    assert code == 0
    assert f"note: unreadable, left out: {bad}" in said
