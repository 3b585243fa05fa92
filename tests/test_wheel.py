"""The wheel alone, in an environment without the repository: every command works, with the same configurations."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from vit.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
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
def installed(tmp_path_factory) -> Path:
    """A new environment with nothing but the wheel, which sees this one's libraries; the folder to work in."""
    place = tmp_path_factory.mktemp("wheel")

    # the wheel, of a copy: a build leaves files beside what it builds
    source = place / "source"
    kept = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("vit", "configs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=kept)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", place, source], check=True
    )
    shutil.rmtree(source)

    # the environment
    venv.create(place / "venv", symlinks=os.name != "nt")
    python = place / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    (wheel,) = place.glob("*.whl")
    subprocess.run([*pip, "--python", python, "install", "-q", "--no-deps", wheel], check=True)
    (libraries,) = (place / "venv").glob("**/site-packages")
    libraries.joinpath("borrowed.pth").write_text(
        f"{sysconfig.get_paths()['purelib']}\n{sysconfig.get_paths()['platlib']}\n"
    )
    (place / "work").mkdir()
    return python


def call(python: Path, program: str) -> str:
    """What a program prints, run in the new environment and away from the repository."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    work = python.parents[2] / "work"
    done = subprocess.run(
        [python, "-c", program],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_command_works(installed):
    assert CALLS.keys() == {name.split()[0] for name in COMMANDS}
    assert call(installed, "import vit; print(vit.__file__)").startswith(str(installed.parents[1]))
    lines = [[command, *words.split()] for command, words in CALLS.items()]
    call(
        installed,
        f"from vit.cli import main\nfor argv in {lines}:\n    assert main(argv) == 0, argv",
    )
    work = installed.parents[2] / "work"
    assert json.loads((work / "runs" / "quickstart" / "summary.json").read_text())
    script = installed.with_name("vit.exe" if os.name == "nt" else "vit")
    assert subprocess.run(
        [script, "--version"], capture_output=True, text=True, check=True
    ).stdout.startswith("vit ")


def test_it_has_the_repository_s_configurations(installed):
    where = call(installed, "from vit.config import CONFIGS; print(CONFIGS)").strip()
    packed = {
        str(path.relative_to(where)): path.read_bytes() for path in Path(where).rglob("*.yaml")
    }
    configs = ROOT / "configs"
    assert packed == {
        str(path.relative_to(configs)): path.read_bytes() for path in configs.rglob("*.yaml")
    }
