"""The command `vit` answers help and mistakes without torch, a mistake in one line."""

from __future__ import annotations

import pytest

import vit
from vit.cli import COMMANDS


@pytest.fixture
def vit_command(weighed):
    """`vit_command(*argv)`: `vit argv`, weighed."""
    return lambda *argv: weighed(f"from vit.cli import main; sys.exit(main({list(argv)!r}))")


@pytest.mark.parametrize("line", ["--help", "", *(f"{name} -h" for name in COMMANDS)])
def test_vit_answers_without_heavy_imports(line, vit_command):
    done = vit_command(*line.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: vit ")
    assert done.stdout.endswith("imported:\n")
    assert not done.stderr


def test_package_is_the_command_too(shell):
    done = shell("-m", "vit", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"vit {vit.__version__}\n", "")
    assert shell("train.py", "-h").stdout.startswith("usage: python train.py [--config FILE]")


@pytest.mark.parametrize(
    "line",
    ["fly", "--fly", "data --fly", "train --lr 3", "attention --layer x", "embed run scenes"],
)
def test_a_wrong_command_or_option_is_refused_without_heavy_imports(line, vit_command):
    done = vit_command(*line.split())
    assert done.returncode == 2
    assert done.stderr.startswith("vit: error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == "imported:\n"


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


def test_a_model_is_loaded_and_trained_without_the_libraries_of_others(shell):
    program = "import sys, vit.train; from vit.checkpoints import load_model"
    program += "; load_model('vit-tiny-p4-cifar10')"
    others = "{'torchvision', 'timm', 'huggingface_hub', 'matplotlib', 'torch._dynamo'}"
    assert shell("-c", f"{program}; print({others} & set(sys.modules))").stdout == "set()\n"
