"""The command `vit` answers help and mistakes without torch, a mistake in one line."""

import subprocess
import sys

import pytest
from forks import ROOT, Forks

from vit.cli import COMMANDS
from vit.cli.models import best_scores

HEAVY = ("torch", "torchvision", "matplotlib", "timm", "PIL")


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """`light(line)`: `vit line` in an empty folder; nothing heavy is imported."""
    place = tmp_path_factory.mktemp("forks")
    with Forks(place, "import vit.cli") as forks:

        def light(line):
            code = "import sys; from vit.cli import main"
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
        "attention gone scenes --out look",
        "explore vit-tiny-p4-cifar10 gone.png --out page.html",
        "similar vit-tiny-p4-cifar10 photo.jpg gone",
        "evaluate vit-tiny-p4-cifar10 --data gone",
        "report gone",
    ],
)
def test_what_does_not_exist_is_refused_by_its_name(line, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "gone" in refused(line)
    assert not [*tmp_path.iterdir()]


def test_a_model_is_loaded_and_trained_without_the_libraries_of_others():
    program = "import sys, vit.interpret, vit.train; from vit.checkpoints import load_model; "
    program += "load_model('vit-tiny-p4-cifar10'); "
    others = "{'torchvision', 'timm', 'huggingface_hub', 'matplotlib', 'torch._dynamo'}"
    program += f"assert not {others} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_models_says_what_comes_with_the_package(light):
    assert light("models").stdout.startswith("name ")
    probed = {"linear": [{"accuracy": 0.612}], "knn": [{"accuracy": 0.5}]}
    better = probed | {"linear": [{"accuracy": 0.99}]}
    tested = {"tested_on": "test images"}
    measured = [
        {"scores": better, "data": "other images", **tested},
        {"scores": probed, "data": "noise", **tested},
    ]
    figures = {"scores": {"reconstruction": [{"loss": 0.50219}]}, "measured": measured, **tested}
    words = ["loss 0.5022", "linear probe 61.20%", "k-NN 50.00%"]
    assert [*best_scores(figures, "noise")] == words
    head = {"scores": {"head": [{"accuracy": 0.9312}]}, "tested_on": "held-out training images"}
    (said,) = best_scores(head | {"measured": []}, "noise")
    assert said.endswith("93.12% on held-out training images")
