"""`--json`: of every command that has it, stdout is one JSON document, and all else goes to stderr."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from PIL import Image

from vit.cli import COMMANDS, main

SMALL = (
    "--data scenes --data.limit 40 --model.image_size 16 --model.patch_size 4 --model.embed_dim 16 --model.depth 1"
    " --model.num_heads 2 --model.decoder_dim 16 --model.decoder_depth 1 --model.decoder_heads 2 --train.batch_size 20"
    " --train.epochs 1 --train.precision fp32 --run.device cpu"
)
JOB = "--preset micro --decoder-dim 16 --decoder-depth 1 --decoder-heads 2 --batch 4 --rounds 1 --precision fp32"
LINES = {
    "data": "scenes --data.limit 20 --out sheet.png",
    "bench": JOB,
    "checkpoint inspect": "run",
    "models": "",
    "predict": "vit-tiny-p4-cifar10-finetuned photo.png",
    "evaluate": "run scenes --limit 20 --method knn",
    "report": "run --out page.html",
    "study": "one-hot --quick --data scenes --data.limit 40 --study.checkpoint run --out studies",
    "compare": "run --plot runs.png",
}
KNOWN = {
    "data": {"train_images": 20, "sheet": "sheet.png"},
    "checkpoint inspect": {"problems": []},
    "evaluate": {"checkpoint": "run"},
    "report": {"report": "page.html"},
}
"""Some of what each says."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a finished run and a photograph."""
    place = tmp_path_factory.mktemp("json")
    with pytest.MonkeyPatch.context() as patch:  # pictures take longer than all else
        patch.setattr("vit.report.pictures.draw_pictures", lambda *_: None)
        patch.setattr("vit.report.page.write_report", lambda *_: None)
        assert main(["train", *SMALL.split(), "--out", str(place / "run")]) == 0
    Image.radial_gradient("L").convert("RGB").save(place / "photo.png")
    return place


def refuse(constant: str):
    raise AssertionError(f"{constant} is no JSON")


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("bench", "report"))) for name in LINES]
)
def test_stdout_is_json_alone(command, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    capsys.readouterr()
    assert main([*command.split(), *LINES[command].split(), "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out, parse_constant=refuse)
    assert found
    assert {key: found[key] for key in KNOWN.get(command, ())} == KNOWN.get(command, {})


def test_every_command_that_has_it_is_here(capsys):
    found = set()
    for name in [*COMMANDS, "checkpoint inspect"]:
        with suppress(SystemExit):
            main([*name.split(), "--help"])
        if "  --json" in capsys.readouterr().out:
            found.add(name)
    assert found == set(LINES)
