"""The wheel alone, in an environment without the repository: every command works, with the same configurations."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forks import ROOT

from vit.cli import COMMANDS

SMALL = (
    "--data.source scenes --data.limit 64 --train.epochs 1 --train.batch_size 32"
    " --model.embed_dim 16 --model.depth 1 --model.num_heads 2 --model.decoder_dim 16"
    " --model.decoder_depth 1 --model.decoder_heads 2 --optim.warmup_epochs 0"
)
MODEL = "vit-tiny-p4-cifar10"
CALLS = {
    "train": f"--config quickstart {SMALL}",
    "data": f"--config configs/quickstart.yaml {SMALL} --out sheet.png",
    "report": "runs/quickstart",
    "compare": "runs/quickstart",
    "checkpoint": "convert runs/quickstart --to safetensors --out converted",
    "models": "",
    "attention": f"{MODEL} --data scenes --count 1 --out look",
    "explore": "runs/quickstart --data scenes --count 1 --out page.html",
    "evaluate": "runs/quickstart --data scenes --limit 64 --method knn --out measured",
    "predict": "vit-tiny-p4-cifar10-finetuned sheet.png",
    "embed": f"{MODEL} look --out features.npz",
    "similar": f"{MODEL} sheet.png look --out similar.html",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The wheel is installed in `site`, `work` is the folder to work in; neither sees the repository."""
    place = tmp_path_factory.mktemp("wheel")
    (place / "work").mkdir()

    # of a copy: a build leaves files beside what it builds
    kept = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("vit", "configs"):
        shutil.copytree(ROOT / folder, place / "source" / folder, ignore=kept)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, place / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", place, place / "source"]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = place.glob("*.whl")
    install = ["install", "-q", "--no-deps", "--no-compile", "--target", place / "site", wheel]
    subprocess.run([*pip, *install], check=True)
    return place


def call(place: Path, *command: object) -> str:
    """What a program prints that has the wheel."""
    environment = os.environ | {"PYTHONPATH": str(place / "site")}
    return subprocess.run(
        command, cwd=place / "work", env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def test_every_command_works(place):
    assert CALLS.keys() == {name.split()[0] for name in COMMANDS}
    lines = [[command, *words.split()] for command, words in CALLS.items()]
    program = f"import vit.cli\nfor argv in {lines}:\n    assert vit.cli.main(argv) == 0, argv"
    said = call(place, sys.executable, "-c", f"{program}\nprint(vit.__file__)")
    assert said.splitlines()[-1].startswith(str(place / "site"))
    assert (place / "work" / "runs" / "quickstart" / "summary.json").exists()
    assert call(place, place / "site" / "bin" / "vit", "--version").startswith("vit ")
