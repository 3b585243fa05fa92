"""Model cards: all that is known of a run, nothing that is not, nothing of the machine, and text stays text."""

import dataclasses
import json
import re
import shlex

import pytest
import yaml
from small_runs import make_run
from tiny import encoder

from vit.atomic import write_json
from vit.checkpoints import load_model, save_model
from vit.checkpoints.card import card_of, model_card
from vit.cli import main
from vit.data.augment import Normalization
from vit.runs import RunFiles, RunRecord, without_paths
from vit.settings import read_config

HOME = "/home/somebody"
SETTINGS = {"data": {"root": f"{HOME}/images", "cache": f"{HOME}/cache"}, "train": {"seed": 7}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A pretraining and its fine-tuning, both finished, and what `vit evaluate` would have left about each."""
    place = tmp_path_factory.mktemp("runs")
    made = dict(names=("one", "other"), data="Noise (JPEG q75)", snapshots=0)
    pre = make_run(place / "pre", settings=SETTINGS, **made)
    tuned = SETTINGS | {"classify": {"label_smoothing": 0.1}, "model": {"init": str(pre)}}
    fine = make_run(place / "fine", "classify", settings=tuned, **made)
    for file in (pre / "config.yaml", fine / "config.yaml"):
        file.write_text(f"# trained on {HOME}\n{file.read_text()}")
    data = {
        "name": "Noise (JPEG q75)",
        "test_images": 12,
        "tested_on": "test images",
        "content_hash": "1-2",
        "warning": HOME,
    }
    knn = {"accuracy": 0.5, "raw_pixel_accuracy": 0.25, "k": 20, "temperature": 0.07, "bank": 24}
    linear = {
        "accuracy": 0.625,
        "spread": 0.0125,
        "seeds": [0, 1],
        "layer": 1,
        "labels": 24,
        "confusion": [[1, 0], [0, 1]],
    }
    rows = [
        {"mask": "block", "ratio": 0.5, "loss": 0.75, "mean_of_visible_patches": 0.875, "nearest_visible_patch": 1.5}
    ]
    command = f"vit evaluate {HOME}/pre --data={HOME}/images --root ~/data --method all --out ../measured"
    found = {"checkpoint": f"{HOME}/pre", "data": data, "knn": knn, "linear": linear, "reconstruction": rows}
    mark = {name: json.loads((place / name / "summary.json").read_text())["content_hash"] for name in ("pre", "fine")}
    write_json(place / "of pre" / "results.json", found | {"command": command, "content_hash": mark["pre"]})
    head = {"accuracy": 0.9375, "expected_calibration_error": 0.0312, "accuracy_with_flip": 0.9444, "confusion": [[1]]}
    write_json(
        place / "of fine" / "results.json",
        {"data": data, "head": head, "command": "vit evaluate fine", "content_hash": mark["fine"]},
    )
    return place


def vit(*argv: object) -> int:
    return main(["checkpoint", "convert", *map(str, argv)])


def block(card: str, language: str) -> str:
    return re.search(rf"^(`{{3,}}){language}\n(.*?)\n\1$", card, re.DOTALL | re.MULTILINE)[2]


def test_the_card_of_a_pretraining_has_its_figures_and_its_recipe(runs, tmp_path):
    out = tmp_path / "tiny"
    note = "Its images are JPEG files, quality 75"
    asked = ["--half", "--card", "--note", note, "--results", runs / "of pre"]
    assert vit(runs / "pre", "--to", "safetensors", *asked, "--out", out) == 0
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    card = (out / "README.md").read_text()
    summary = json.loads((runs / "pre" / "summary.json").read_text())
    neighbours, baselines = summary["neighbours"], summary["test_loss_of_baselines"]
    for part in (
        'load_model("tiny")', "Trained on Noise (JPEG q75).\n" + note + ".\n",
        "24 training and 12 test images", summary["data"]["content_hash"], "Classes: one, other",
        "vit train --config config.yaml --data.root IMAGES\n",
        "On test images, at the end of the run:",
        f"| loss on hidden patches (random mask, 75% hidden) | {summary['test_loss']:.4f} |",
        f"| copying the nearest visible patch | {baselines['nearest_visible_patch']:.4f} |",
        f"| nearest-neighbour accuracy | {neighbours['encoder_accuracy']:.2%} |",
        "| epochs | 2 |", "| steps | 6 |", "| seed | 7 |",
        f"| torch | {summary['versions']['torch']} |",
        "vit evaluate pre --data=images --root data --method all --out measured",
        "| nearest-neighbour accuracy (k 20, 24 training images; by raw pixels 25.00%) | 50.00% |",
        "| linear probe of frozen features (24 labels, layer 1) | 62.50% ± 1.25% over 2 seeds |",
        "| loss on hidden patches (block mask, 50% hidden; visible mean 0.8750; nearest visible 1.5000) | 0.7500 |",
        "before its weights were rounded", "under Apache-2.0",
    ):  # fmt: skip
        assert part in card, part
    config = json.loads((out / "config.json").read_text())
    figures = config["figures"]
    assert (figures["test_loss"], figures["seed"], figures["neighbours"]) == (summary["test_loss"], 7, neighbours)
    assert figures["measured"][0]["linear"]["layer"] == 1
    assert "confusion" not in str(figures)
    for text in (card, str(config)):
        assert HOME not in text
        assert "somebody" not in text
        assert str(runs) not in text
    model = load_model(out)
    assert model.origin.details["figures"] == figures
    assert model.origin.report.notes == []


def test_the_settings_in_a_card_are_the_run_s(runs, tmp_path):
    def parsed(file):
        return read_config(file)

    for name in ("pre", "fine"):
        (tmp_path / f"{name}.yaml").write_text(block(model_card(runs / name, "me/tiny"), "yaml"))
        again, config = parsed(tmp_path / f"{name}.yaml"), parsed(runs / name / "config.yaml")
        assert dataclasses.replace(again.data, root=config.data.root, cache=config.data.cache) == config.data
        assert again.model == dataclasses.replace(config.model, init="pre" if name == "fine" else "")
        assert (again.optim, again.mask) == (config.optim, config.mask)
        assert (again.train, again.classify) == (config.train, config.classify)


def test_the_card_of_a_fine_tuning_has_its_figures(runs, tmp_path):
    out = tmp_path / "tiny-finetuned"
    assert vit(runs / "fine", "--to", "safetensors", "--card", "--results", runs / "of fine", "--out", out) == 0
    card = (out / "README.md").read_text()
    summary = json.loads((runs / "fine" / "summary.json").read_text())
    for part in (
        "pipeline_tag: image-classification", "vit predict tiny-finetuned photo.jpg\nvit attention",
        "--data.root IMAGES --model.init CHECKPOINT\n", "CHECKPOINT is its starting point, pre:",
        "On test images,", f"| classifier accuracy | {summary['test_accuracy']:.2%} |",
        f"| expected calibration error | {summary['test_calibration_error']:.2%} |",
        "| classifier accuracy | 93.75% |", "| expected calibration error | 3.12% |",
        "| classifier accuracy with mirror images | 94.44% |",
    ):  # fmt: skip
        assert part in card, part
    for part in ("half precision", "rounded", "hidden patches", "decoder, which", str(runs), "license:"):
        assert part not in card, part
    assert "The training started from pre: the terms of those weights apply" in card
    figures = load_model(out).origin.details["figures"]
    assert (figures["test_accuracy"], figures["init"]) == (summary["test_accuracy"], "pre")
    assert "test_confusion" not in figures


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["{runs}/pre", "--card", "--image-size", "32"], "its run trained another model"),
        (["{runs}/pre/model.safetensors", "--card"], "is not a finished run"),
        (["{runs}/pre", "--card", "--results", "{runs}/fine"], "no results.json in"),
        (["{runs}/pre", "--card", "--results", "{runs}/of fine"], "was measured on other weights than those of"),
        (["{runs}/pre", "--half", "--to", "timm"], "--half: only applies to --to safetensors"),
    ],
)
def test_a_card_that_cannot_be_written_is_one_line_and_leaves_nothing(argv, said, runs, tmp_path, capsys):
    argv = [part.replace("{runs}", str(runs)) for part in argv]
    to = [] if "--to" in argv else ["--to", "safetensors"]
    assert vit(*argv, *to, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("summary.json", '{"data": {"name": "x"}, "test_loss": 1}'),
        ("results.json", '{"command": "it\'s", "data": {}}'),
    ],
)
def test_damaged_files_make_no_card(file, content, runs, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("model.safetensors", "config.json", "config.yaml", "summary.json"):
        (run / name).write_bytes((runs / "pre" / name).read_bytes())
    (run / "results.json").write_bytes((runs / "of pre" / "results.json").read_bytes())
    mark = json.loads((run / "summary.json").read_text())["content_hash"]
    if file.endswith(".json"):  # still about the same weights
        content = content.replace("{", f'{{"content_hash": "{mark}", ', 1)
    (run / file).write_text(content)
    assert vit(run, "--to", "safetensors", "--card", "--results", run, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert "damaged" in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


ODD = "x\n---\nlicense: other\n# heading | *bold* <b>![i](u)\n```\n~~~\n<script>"


def test_odd_names_stay_text(tmp_path):
    model = encoder()
    save_model(tmp_path, model, Normalization([0.5] * 3, [0.5] * 3), ("a|b", ODD), ODD)
    config = json.loads((tmp_path / "config.json").read_text())
    settings = {"data": {"source": "folder", "name": ODD}, "model": {"init": ODD}, "train": {ODD: [ODD]}}
    summary = {
        "objective": "classify", "test_accuracy": 0.5, "device": ODD, "seed": ODD, "weights": ODD, "versions": {ODD: ODD},
        "data": {"train_images": 1, "test_images": 1, "tested_on": ODD, "content_hash": ODD},
    }  # fmt: skip
    found = {
        "command": f"vit evaluate {shlex.quote(ODD)}",
        "data": {"name": ODD, "test_images": 1, "tested_on": ODD, "content_hash": ODD},
    }
    run = RunRecord(RunFiles(tmp_path), settings, summary, {"": found})
    card = card_of(config, run, ODD.replace("/", ""), note=ODD)
    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "vit-patch-trainer"
    fence = None  # what a reader of Markdown takes for code
    for line in text.splitlines():
        if match := re.match(r" {0,3}(`{3,}|~{3,})", line):
            fence = match[1] if fence is None else None if line.strip() == fence else fence
        elif fence is None:
            assert "<script>" not in line.replace("\\<", "")
            assert "![" not in line
            assert not line.startswith(("---", "~~~", "# heading", "license"))
    assert fence is None
    assert yaml.safe_load(block(card, "yaml")) == settings
    assert run.figures()["device"] == ODD  # data, not text


@pytest.mark.parametrize(
    ("init", "left"),
    [("", ""), ("runs/tiny", "runs/tiny"), ("hf/me/tiny", "hf/me/tiny"), ("/home/somebody/tiny", "tiny"),
     ("~/runs/tiny", "tiny"), ("../somebody/tiny/", "tiny"), ("C:\\Users\\somebody\\tiny", "tiny"), (None, None)],
)  # fmt: skip
def test_only_the_name_of_a_path_stays(init, left):
    settings = {"data": {"root": HOME, "cache": HOME, "flip": 0.5}, "model": {"init": init, "depth": 2}}
    assert without_paths(settings) == {"data": {"flip": 0.5}, "model": {"init": left, "depth": 2}}
    assert without_paths({"init": init, "data": {"warning": HOME}}) == {"init": left, "data": {}}
    assert settings["data"]["root"] == HOME  # what is given is not changed
