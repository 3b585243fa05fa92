"""Dataclasses as options: each way to write a value, and one line for what cannot be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from vit.cli import main
from vit.cli.options import POSITIONAL, ShownImages, read_options
from vit.config import Probability, Section
from vit.errors import ConfigError
from vit.load_options import LoadOptions
from vit.settings import split_settings


@dataclass(frozen=True)
class Draw(Section):
    """Draw something."""

    checkpoint: str = field(metadata=POSITIONAL)
    """run folder"""
    out: Path
    """folder for the pictures: 100% of them"""
    layer: int | Literal["all"] = -1
    """from 0"""
    query: tuple[int, int] | str = "auto"
    """row and column, or a word"""
    keep: Probability | None = None
    """share"""
    film: bool = False
    """a film too"""
    sizes: list[int] = field(default_factory=lambda: [4])
    """pixels"""
    peers: list[Literal["a", "b"]] | None = None
    """some of them; all by default"""


def read(line: str) -> tuple[Draw, ShownImages, LoadOptions]:
    return read_options("vit draw", line.split(), Draw, ShownImages, LoadOptions)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("", {"layer": -1, "query": "auto", "keep": None, "film": False, "sizes": (4,), "peers": None}),
        ("--layer -2", {"layer": -2}),
        ("--layer=all --film", {"layer": "all", "film": True}),
        ("--query 3,4", {"query": (3, 4)}),
        ("--query=cls", {"query": "cls"}),
        ("--sizes 2 4", {"sizes": (2, 4)}),
        ("--sizes=2,4 --sizes -1", {"sizes": (2, 4, -1)}),
        ("--peers", {"peers": ()}),
        ("--keep 0.5 --keep 0.6", {"keep": 0.6}),
        ("--image_size 32 --grid-size 3,4 --class-token false", {"image_size": 32, "grid_size": (3, 4), "class_token": False}),
        ("--mean 0.5,0.5,0.5 --std 0.2 0.2 0.2", {"mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2)}),
        ("--allow head.* --allow a,b", {"allow": ("head.*", "a,b")}),
        ("a.jpg b.jpg", {"images": ("a.jpg", "b.jpg")}),
    ],
)  # fmt: skip
def test_each_way_to_write_a_value(line, values):
    draw, shown, load = read(f"RUN --out look {line}")
    assert (draw.checkpoint, draw.out) == ("RUN", Path("look"))
    assert {name: (vars(draw) | vars(shown) | vars(load))[name] for name in values} == values


def test_a_home_that_the_shell_leaves_as_it_is_becomes_the_users(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    draw, shown, _ = read("RUN --out=~/look --data scenes --root=~/data --query=~")
    assert (draw.out, shown.root, draw.query) == (Path("/home/me/look"), Path("/home/me/data"), "~")


@pytest.mark.parametrize(
    ("line", "images"),
    [
        ("run --out x -- -dash.jpg --layer --out=y", ("-dash.jpg", "--layer", "--out=y")),
        ("run a.jpg --out x --film -- -b.jpg", ("a.jpg", "-b.jpg")),
        ("--out x --sizes 2 4 -- run a.jpg", ("a.jpg",)),
        ("run a.jpg --out x --", ("a.jpg",)),
        ("--checkpoint run --out x -- -a.jpg", ("-a.jpg",)),
    ],
)
def test_two_dashes_end_the_options(line, images):
    draw, shown, _ = read(line)
    assert (draw.checkpoint, draw.out, draw.layer, shown.images) == ("run", Path("x"), -1, images)


def test_settings_are_told_from_a_commands_own_options():
    line = "scenes --out a.png --data.limit 3 --config=a.yaml --json --data.root= --print_config more --data here"
    settings, rest = split_settings(line.split())
    assert settings == ["--data.limit", "3", "--config=a.yaml", "--data.root=", "--data", "here"]
    assert rest == ["scenes", "--out", "a.png", "--json", "--print_config", "more"]


@dataclass(frozen=True)
class Look(Section):
    """Look at something."""

    name: str = field(default="anything", metadata=POSITIONAL)
    """what to look at"""
    closely: bool = False
    """take time"""


def test_a_place_with_a_default_may_be_left_out():
    for line, found in (
        ("", ("anything", False)),
        ("--closely", ("anything", True)),
        ("--closely it", ("it", True)),
    ):
        (look,) = read_options("vit look", line.split(), Look)
        assert (look.name, look.closely) == found


def test_places_may_stand_between_options():
    draw, shown, _ = read("--film RUN --out look a.jpg --layer 0 b.jpg")
    assert (draw.checkpoint, draw.layer, shown.images) == ("RUN", 0, ("a.jpg", "b.jpg"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--out look", "checkpoint: required"),
        ("RUN", r"--out: required \(folder"),
        ("RUN --out", "--out: expected one argument"),
        ("RUN --out look --fly 3", "unrecognized arguments: --fly"),
        ("RUN --out look --fly 3 -- -a.jpg", "unrecognized arguments: --fly"),
        ("RUN -- -a.jpg", "--out: required"),
        ("RUN --out look --film=3", "--film: .*'3'"),
        ("RUN --out look --layer last", "--layer: 'last' cannot be used; a whole number or all"),
        ("RUN --out look --peers c", "--peers: 'c' cannot be used; a or b"),
        ("RUN --out look --sizes 3 x", "--sizes: 'x' cannot be used; a whole number"),
        (
            "RUN --out look --image-size 3,4,5",
            "--image-size: .* cannot be used; a whole number or a pair as 32,48",
        ),
        ("RUN --out look --keep 3", "--keep: 3.0 cannot be used; a number from 0 to 1"),
        ("RUN --out look --keep nan", "--keep: 'nan' cannot be used"),
        ("RUN --out look --seed 1", "--seed: only applies with --mask"),
        ("RUN --out look --count 9", "--count: only applies with --data"),
    ],
)
def test_what_cannot_be_read_is_one_line(line, said):
    with pytest.raises(ConfigError, match=f"^(vit draw: )?{said}"):
        read(line)


def test_help_has_each_option_with_its_docstring(capsys):
    with pytest.raises(SystemExit):
        read("--help")
    text = " ".join(capsys.readouterr().out.split())
    for said in ("vit draw CHECKPOINT IMAGES ...", "Draw something.", "--layer N|all from 0 (default: -1)", "100% of them",
                 "What the model is shown:", "--class-token true|false"):  # fmt: skip
        assert said in text


@pytest.mark.parametrize("command", ["attention", "evaluate"])
def test_a_part_of_an_option_is_answered_in_words(command, capsys):
    """`--data folder --data.root X` is how train.py is told; jsonargparse would read a part of --data."""
    for words in (
        ["--data.root", "X"],
        ["--data", "folder", "--data.root", "X"],
        ["--out.name=x"],
        ["--nosuch.part=1"],
    ):
        assert main([command, "vit-tiny-p4-cifar10", *words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert (
            f"unrecognized arguments: {words[-2] if words[-1] == 'X' else words[0].partition('=')[0]}"
            in error
        )
        assert "NestedArg" not in error
