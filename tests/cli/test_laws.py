"""Every command that has --json prints JSON alone; every one that writes files replaces none."""

import json
import shutil
from pathlib import Path

import pytest
from tiny import without_pictures

from vit.cli import COMMANDS, main
from vit.cli.outputs import aligned
from vit.cli.parsers import JSON
from vit.commandline import named_data, refuse_among_images
from vit.errors import ConfigError

SMALL = (
    "train --data scenes --data.limit 40 --model.image_size 16 --model.patch_size 4"
    " --model.embed_dim 16 --model.depth 1 --model.num_heads 2 --model.decoder_dim 16"
    " --model.decoder_depth 1 --model.decoder_heads 2 --train.batch_size 20"
    " --train.epochs 1 --train.precision fp32 --run.device cpu --out"
)
LINES = {
    "data": "scenes --data.limit 20 --out sheet.png",
    "checkpoint inspect": "run",
    "models": "",
    "predict": "vit-tiny-p4-cifar10-finetuned one.png",
    "similar": "run one.png data",
    "evaluate": "run scenes --limit 20 --method knn",
    "report": "run --out page.html",
    "compare": "run",
}
WRITERS = {
    "data scenes --data.limit 20 --out {}": "there.png",
    "predict vit-tiny-p4-cifar10-finetuned one.png --csv {}": "there.csv",
    "embed run scenes --limit 5 --out {}": "there.npz",
    "similar run one.png data --out {}": "there.html",
    "explore run one.png --out {}": "there.html",
    "explore run one.png --numbers --out there/page.html": "there/page.npz",
    "evaluate run scenes --limit 20 --out there": "there/confusion.png",
    "attention run one.png --out there": "there/attention.npz",
}
"""Commands, and a file that each would write."""


@pytest.fixture
def place(models, tmp_path_factory, monkeypatch):
    """The working folder: a copy of `models`, and a finished run."""
    place = tmp_path_factory.getbasetemp() / "laws"
    if not place.exists():
        shutil.copytree(models, place)
        with without_pictures():
            assert main([*SMALL.split(), str(place / "run")]) == 0
    monkeypatch.chdir(place)
    return place


@pytest.mark.usefixtures("unpainted", "place")
@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[pytest.mark.slow] * (name == "report")) for name in LINES]
)
def test_stdout_is_json_alone(command, capsys):
    assert {name for name, (*_, options) in COMMANDS.items() if JSON in options} == {*LINES}
    capsys.readouterr()
    assert main([*command.split(), *LINES[command].split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("line", WRITERS)
def test_nothing_is_replaced_unasked_nor_computed_where_it_cannot_be_written(line, place, refused):
    file = Path(WRITERS[line])
    file.parent.mkdir(exist_ok=True)
    file.write_text("somebody's own")
    before = sorted(place.rglob("*"))
    error = refused(line.format(file))
    assert f"{file} already exists; name another file, remove it first, or add --overwrite" in error
    assert file.read_text() == "somebody's own"
    for name, said, code in (
        ("there.odd", "name a file that ends in ", 2),
        (f"{'x' * 300}{file.suffix}", "File name too long", 1),
        (f"one.png/there{file.suffix}", "not a folder to write to", 2),
    ):
        if "{}" in line:
            assert said in refused(line.format(name), code=code)
    assert sorted(place.rglob("*")) == before
    file.unlink()


@pytest.mark.parametrize(
    "line",
    [
        "data data --out data/sheet.png",
        "evaluate vit-tiny-p4-cifar10 data --out data/look",
        "attention vit-tiny-p4-cifar10 data --out run/../data/look",
    ],
)
def test_no_picture_is_written_where_it_would_be_an_image_of_the_data(line, place, refused):
    before = sorted(place.rglob("*"))
    assert "is within the folder of the images" in refused(line)
    assert sorted(place.rglob("*")) == before
    # but pictures may lie in a run among the images
    for name in ("config.yaml", "metrics.jsonl"):
        (place / "run" / name).touch()
    refuse_among_images(place / "run" / "evaluation", str(place))


@pytest.mark.parametrize(
    "command",
    ["predict", "similar", "evaluate", "attention --method distance --count 99 --out look"],
)
def test_images_that_cannot_be_read_are_left_out_on_request(
    command, models, tmp_path, called, caplog, unpainted, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(models / "data", tmp_path / "data")
    (tmp_path / "data" / "cat" / "bad.png").write_text("no image")
    image = models / "one.png" if command == "similar" else ""
    code, said, _ = called(command, models / "encoder", image, "data --on-bad-image skip")
    assert code == 0
    assert "bad.png" in said + caplog.text


def test_a_name_in_a_table_controls_no_terminal():
    lines = aligned([("a \x1b[31mred\n\tclass", "1"), ("b", "22")], [1]).splitlines()
    assert lines == ["a \\x1b[31mred class   1", "b" + 20 * " " + "22"]


# --- Which data ----------------------------------------------------------------------------------


def test_data_is_a_name_or_a_folder(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    for name in ("pictures", "scenes"):
        (tmp_path / name).mkdir()
    assert named_data("cifar100") == {"source": "cifar100", "root": "data"}
    for name in ("pictures", "./scenes"):
        assert named_data(name) == {"source": "folder", "root": name}
    with pytest.warns(UserWarning, match=r"not the folder scenes here: that is \./scenes$"):
        assert named_data("scenes")["source"] == "scenes"
    # a command says it once
    with pytest.warns(UserWarning, match="not the folder scenes") as said:
        refused("evaluate vit-tiny-p4-cifar10 scenes --limit 4 --method head")
    assert len(said) == 1
    with pytest.raises(ConfigError, match=r"--data: .picturs. .*; did you mean pictures\?"):
        named_data("picturs")


def test_a_folder_called_like_built_in_data_is_told_once(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scenes").mkdir()
    with pytest.warns(UserWarning, match="not the folder scenes here") as caught:
        refused("evaluate vit-tiny-p4-cifar10 scenes --threads 900000")
    assert len(caught) == 1
