"""The command `vit` answers help and mistakes without torch, a mistake in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from forks import Forks
from small import change
from tiny import NORMALIZE, autoencoder, encoder

from vit.checkpoints import save_model
from vit.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "torchvision", "matplotlib", "timm", "PIL")


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """`light(line, before)`: `vit line`, after a statement, in an empty folder; nothing heavy is imported."""
    place = tmp_path_factory.mktemp("forks")
    with Forks(place, "import vit.cli") as forks:

        def light(line, before="pass"):
            code = f"import sys; from vit.cli import main; {before}"
            work = f"    sys.exit(main({line.split()!r}))"
            said = f"    print('imported:', *[name for name in {HEAVY!r} if name in sys.modules])"
            done = forks(place, f"{code}\ntry:\n{work}\nfinally:\n{said}")
            assert done.stdout.endswith("imported:\n")
            done.stdout = done.stdout.removesuffix("imported:\n")
            return done

        yield light


@pytest.mark.parametrize("line", ["--help", "", *(f"{name} -h" for name in COMMANDS)])
def test_vit_answers_without_heavy_imports(line, light):
    done = light(line)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: vit ")


@pytest.mark.parametrize(
    "line",
    ["fly", "--fly", "data --fly", "train --lr 3", "attention --layer x", "similar run"],
)
def test_a_wrong_command_or_option_is_refused_without_heavy_imports(line, light):
    done = light(line)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("vit: error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        "train --config gone.yaml",
        "train --model.init gone",
        "attention gone photo.png --out look",
        "explore vit-tiny-p4-cifar10 gone.png --out page.html",
        "similar vit-tiny-p4-cifar10 photo.jpg gone",
        "evaluate vit-tiny-p4-cifar10 --data gone",
        "report gone",
    ],
)
def test_what_does_not_exist_is_refused_by_its_name(line, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "gone" in refused(*line.split())
    assert not [*tmp_path.iterdir()]


def test_a_model_is_loaded_and_trained_without_the_libraries_of_others():
    program = "import sys, vit.interpret, vit.train; from vit.checkpoints import load_model; "
    program += "load_model('vit-tiny-p4-cifar10'); "
    others = "{'torchvision', 'timm', 'huggingface_hub', 'matplotlib', 'torch._dynamo'}"
    program += f"assert not {others} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


PROBED = {"linear": [{"accuracy": 0.612}], "knn": [{"accuracy": 0.5}]}


def test_models_says_what_comes_with_the_package(tmp_path, monkeypatch, called, light):
    save_model(tmp_path / "a", autoencoder(), NORMALIZE, (), "noise")
    better = PROBED | {"linear": [{"accuracy": 0.99}]}
    measured = [{"scores": better, "data": "other images"}, {"scores": PROBED, "data": "noise"}]
    figures = {"scores": {"reconstruction": [{"loss": 0.50219}]}, "measured": measured}
    change(tmp_path / "a", figures=figures)
    save_model(tmp_path / "b", encoder(num_classes=3), NORMALIZE, (), "odd\n\x1b[2Jname")
    head = [{"protocol": "", "images": 9999, "accuracy": 0.9312, "baselines": {}}]
    figures = {"scores": {"head": head}, "tested_on": "held-out training images"}
    change(tmp_path / "b", figures=figures)

    done = light(
        "models", f"import pathlib, vit.pretrained as p; p.FOLDER = pathlib.Path('{tmp_path}')"
    )
    mae, classifier = done.stdout.splitlines()[1:3]
    assert "loss 0.5022, linear probe 61.20%, k-NN 50.00%" in mae
    assert "odd \\x1b[2Jname" in classifier
    assert "93.12% on held-out training images" in classifier

    monkeypatch.setattr("vit.pretrained.FOLDER", tmp_path)
    known = json.loads(called("models --json")[1])
    assert [model["name"] for model in known] == ["a", "b"]
    files = (tmp_path / "a").iterdir()
    assert known[0]["bytes"] == sum(path.stat().st_size for path in files)
