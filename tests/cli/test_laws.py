"""Every command that has --json prints JSON alone; every one that writes files replaces none."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from PIL import Image
from tiny import without_pictures

from vit.cli import COMMANDS, main, parse
from vit.cli.options import images_or_data
from vit.cli.outputs import refuse_among_images
from vit.cli.parsers import JSON
from vit.commandline import given_settings, named_data
from vit.config import Config, DataConfig, read_settings
from vit.errors import ConfigError

SMALL = (
    "--data scenes --data.limit 40 --model.image_size 16 --model.patch_size 4"
    " --model.embed_dim 16 --model.depth 1 --model.num_heads 2 --model.decoder_dim 16"
    " --model.decoder_depth 1 --model.decoder_heads 2 --train.batch_size 20"
    " --train.epochs 1 --train.precision fp32 --run.device cpu"
)
LINES = {
    "data": "scenes --data.limit 20 --out sheet.png",
    "checkpoint inspect": "run",
    "models": "",
    "predict": "vit-tiny-p4-cifar10-finetuned photo.png",
    "similar": "run photo.png photos",
    "evaluate": "run scenes --limit 20 --method knn",
    "report": "run --out page.html",
    "compare": "run",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a finished run and a photograph."""
    place = tmp_path_factory.mktemp("json")
    with without_pictures():
        assert main(["train", *SMALL.split(), "--out", str(place / "run")]) == 0
    (place / "photos").mkdir()
    for photo in ("photo.png", "photos/photo.png"):
        Image.radial_gradient("L").convert("RGB").save(place / photo)
    return place


WRITERS = {
    "data scenes --data.limit 20 --out {}": "there.png",
    "predict vit-tiny-p4-cifar10-finetuned photo.png --csv {}": "there.csv",
    "embed run scenes --limit 5 --out {}": "there.npz",
    "similar run photo.png photos --out {}": "there.html",
    "explore run photo.png --out {}": "there.html",
    "explore run photo.png --numbers --out there/page.html": "there/page.npz",
    "evaluate run scenes --limit 20 --method knn --out there": "there/results.json",
    "evaluate run scenes --limit 20 --out there": "there/confusion.png",
    "attention run photo.png --out there": "there/attention.npz",
}
"""Commands, and a file that each would write."""
OUTPUTS = [line for line in WRITERS if "{}" in line] + ["report run --out {}"]


def refuse(constant: str):
    raise AssertionError(f"{constant} is no JSON")


@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[pytest.mark.slow] * (name == "report")) for name in LINES]
)
def test_stdout_is_json_alone(command, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    capsys.readouterr()
    assert main([*command.split(), *LINES[command].split(), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out, parse_constant=refuse)


def test_every_command_that_has_it_is_here():
    assert {name for name, (*_, options) in COMMANDS.items() if JSON in options} == {*LINES}


@pytest.mark.parametrize("line", WRITERS)
def test_what_is_there_is_replaced_only_where_that_is_asked_for(line, place, refused, monkeypatch):
    monkeypatch.chdir(place)
    file = Path(WRITERS[line])
    file.parent.mkdir(exist_ok=True)
    file.write_text("somebody's own")
    before = sorted(place.rglob("*"))
    argv = line.format(file).split()
    error = refused(*argv)
    assert f"{file} already exists; name another file, remove it first, or add --overwrite" in error
    assert file.read_text() == "somebody's own"
    assert sorted(place.rglob("*")) == before
    file.unlink()


@pytest.mark.parametrize("line", OUTPUTS)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_computed(
    line, place, refused, monkeypatch
):
    monkeypatch.chdir(place)
    suffix = Path(WRITERS.get(line, "page.html")).suffix
    before = sorted(place.rglob("*"))
    for file, said in (
        ("there.odd", "name a file that ends in "),
        ("x" * 300 + suffix, "File name too long"),
        (f"photo.png/there{suffix}", "not a folder to write to"),
    ):
        assert said in refused(*line.format(file).split())
    assert sorted(place.rglob("*")) == before


def test_no_picture_is_written_where_it_would_be_an_image_of_the_data(place, refused, monkeypatch):
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    for line in (
        "data photos --out photos/sheet.png",
        "evaluate vit-tiny-p4-cifar10 photos --out photos/look",
        "attention vit-tiny-p4-cifar10 photos --out run/../photos/look",
    ):
        assert "is within the folder of the images" in refused(*line.split())
    assert sorted(place.rglob("*")) == before


def test_pictures_may_lie_in_a_run_among_the_images(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "showcase.safetensors").touch()
    refuse_among_images(tmp_path / "run" / "evaluation", str(tmp_path))
    refuse_among_images(tmp_path.parent, str(tmp_path))


def data_of(command, words):
    """The data section that a command line asks for."""
    _, options = parse([command, *["run"] * (command not in OF_SETTINGS), *words, "--out", "x.npz"])
    if command in OF_SETTINGS:
        return Config.of(read_settings(*options.config), given_settings(options)).data
    data = options.data
    if command != "evaluate":
        data = images_or_data(options)[1]
    return DataConfig(**named_data(data))


OF_SETTINGS = ("train", "data")


@pytest.mark.parametrize("command", [*OF_SETTINGS, "evaluate", "embed", "attention", "explore"])
def test_data_is_named_alike_everywhere(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    for name, meant in (("cifar100", ("cifar100", "data")), ("pictures", ("folder", "pictures"))):
        for words in [["--data", name]] + [[name]] * (command != "train"):
            found = data_of(command, words)
            assert (found.source, found.root) == meant
    with pytest.raises(ConfigError, match="--data: 'gone' is neither cifar10, cifar100, scenes"):
        data_of(command, ["--data", "gone"])


@pytest.mark.parametrize("command", ["train", "evaluate", "embed"])
def test_a_folder_that_is_called_as_built_in_data_is_told_apart(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenes").mkdir()
    with pytest.warns(UserWarning, match=r"not the folder scenes here: that is \./scenes$"):
        assert data_of(command, ["--data", "scenes"]).source == "scenes"
    with warnings.catch_warnings(action="error"):
        data = data_of(command, ["--data", "./scenes"])
    assert (data.source, data.root) == ("folder", "./scenes")


def test_settings_win_over_the_data_that_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("data: {source: folder, root: mine}")
    for argv, root in (
        (["--data", "cifar10"], "data"),
        (["--data.root", "there", "--data", "cifar10"], "there"),
    ):
        data = data_of("train", ["--config", "mine.yaml", *argv])
        assert (data.source, data.root) == ("cifar10", root)
