"""Each way to write an option gives one value, and one line says what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from vit.cli import COMMANDS, parse
from vit.cli.options import images_or_data, load_options
from vit.cli.parsers import PARSERS
from vit.errors import ConfigError
from vit.load_options import LoadOptions


def read(line: str, command: str = "attention"):
    return PARSERS[command]().read(line.split())


# --- What an option takes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("", {"layer": None, "head": "all", "query": "auto", "keep": None}),
        ("--layer -2 --head 1", {"layer": -2, "head": 1}),
        ("--layer=all", {"layer": "all"}),
        ("--query 3,4", {"query": (3, 4)}),
        ("--query=cls", {"query": "cls"}),
        ("--keep 0.5 --keep 1", {"keep": 1.0}),
        ("--allow head.* a --allow b,c", {"allow": ["head.*", "a", "b,c"]}),
        ("a.jpg --seed 3 b.jpg", {"images": ["a.jpg", "b.jpg"], "seed": 3}),
        ("-- -a.jpg --layer", {"images": ["-a.jpg", "--layer"], "layer": None}),
    ],
)
def test_each_way_to_write_a_value(line, values):
    options = read(f"RUN --out look {line}")
    assert (options.checkpoint, options.out) == ("RUN", Path("look"))
    assert {name: getattr(options, name) for name in values} == values


def test_several_numbers_are_one_word():
    assert read("RUN --out x.html --layers 0,5,-1", "explore").layers == (0, 5, -1)
    for words, seeds in (("", (0,)), ("--seeds 3", (3,)), ("--seeds 0,1,2", (0, 1, 2))):
        assert read(f"RUN scenes {words}", "evaluate").seeds == seeds


def test_a_home_that_the_shell_leaves_as_it_is_becomes_the_users(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    options = read("RUN --out=~/look --data scenes --root=~/data --branch=~")
    assert (options.out, options.root) == (Path("/home/me/look"), Path("/home/me/data"))
    assert options.branch == "~"


def test_the_options_that_differ_from_their_defaults_are_known():
    options = read("RUN --out look --count 9 --seed 0")
    assert options.given >= {"checkpoint", "out", "count"}
    assert not options.given & {"seed", "mask", "layer"}
    assert options.program == "vit attention"
    assert options.command_line == "vit attention RUN --out look --count 9 --seed 0"


def test_every_field_of_the_loading_options_is_an_option_with_its_sentence():
    """And nothing given leaves each at its default."""
    text = " ".join(PARSERS["checkpoint inspect"]().format_help().split())
    for name, field in LoadOptions.model_fields.items():
        assert f"--{name.replace('_', '-')} " in text
        assert " ".join(field.description.split()) in text
    assert LoadOptions(**load_options(read("RUN", "checkpoint inspect"))) == LoadOptions()


def test_the_loading_options_read_their_words():
    line = "--image-size 32 --patch-size 4,2 --norm-pix-loss false --mean 0.5,0.5 --std 1,1e-1"
    words = f"RUN {line} --allow head.* a --allow b,c --out look"
    assert LoadOptions(**load_options(read(words))) == LoadOptions(
        image_size=32,
        patch_size=(4, 2),
        norm_pix_loss=False,
        mean=(0.5, 0.5),
        std=(1, 0.1),
        allow=("head.*", "a", "b,c"),
    )


def test_a_setting_that_an_option_stands_for_is_called_by_the_option(refused):
    shipped = ["vit-tiny-p4-cifar10"]
    heads = ["attention", *shipped, "--data", "scenes", "--out", "x", "--num-heads=x"]
    for words, name in (
        (heads, "--num-heads"),
        (["evaluate", *shipped, "scenes", "--threads", "900000"], "--threads"),
    ):
        assert f"error: {name}: " in refused(*words)


def test_data_may_stand_in_place_of_an_option():
    for words in ("scenes", "--data scenes", "--data=scenes"):
        assert read(f"RUN {words}", "evaluate").data == "scenes"
        assert images_or_data(read(f"RUN {words} --out x")) == ([], "scenes")
        assert read(words, "data").data == "scenes"
    assert images_or_data(read("RUN a.jpg --out x")) == (["a.jpg"], None)


# --- What cannot be read -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("RUN", "the following arguments are required: --out"),
        ("--out look", "the following arguments are required: CHECKPOINT"),
        ("RUN --out", "--out: expected one argument"),
        ("RUN --out=", "--out: '' cannot be used; name a file or a folder"),
        ("RUN --out look --kep 0.5", "unrecognized arguments: --kep; did you mean --keep?"),
        ("RUN --out look --data.root x", "unrecognized arguments: --data.root"),
        ("RUN --out look --layer last", "'last' cannot be used; input should be a valid integer"),
        ("RUN --out look --format gif", "--format: invalid choice: 'gif'"),
        ("RUN --out look --mask 3", "--mask: '3' cannot be used; input should be less than or"),
        ("RUN --out look --query 3x4", "--query: '3x4' cannot be used; auto, cls, mean"),
    ],
)
def test_what_cannot_be_read_is_one_line(line, message):
    with pytest.raises(ConfigError) as caught:
        read(line)
    refused = str(caught.value)
    assert refused.startswith("vit attention: ")
    assert message in refused
    assert refused.endswith("; see --help")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("atention RUN", "attention"),
        ("checkpoint inspekt RUN", "inspect"),
        ("attention RUN --out look --kep 0.5", "--keep"),
        ("train --train.epoch 3", "--train.epochs"),
        ("train --epoch 3", "--train.epochs"),
        ("data scenes --lr 3", "--optim.blr"),
    ],
)
def test_what_is_misspelt_is_answered_with_what_was_meant(line, meant):
    with pytest.raises(ConfigError, match=f"; did you mean {meant}"):
        parse(line.split())


def test_every_command_has_a_parser():
    assert {name.partition(" ")[0] for name in PARSERS} == {*COMMANDS}
    for name, parser in PARSERS.items():
        assert parser().prog == f"vit {name}"
