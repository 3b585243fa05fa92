"""Each way to write an option gives one value, and one line says what cannot be read."""

import re
from pathlib import Path

import pytest

from vit.cli import COMMANDS, HELP, parse
from vit.cli.options import load_options
from vit.cli.parsers import EXAMPLES, GROUPS, command_parser
from vit.config import USUAL
from vit.errors import ConfigError
from vit.load_options import LoadOptions


def read(line: str, command: str = "attention"):
    return command_parser(command).read(line.split())


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("--layer -2 --head=1 --query 3,4", {"layer": -2, "head": 1, "query": (3, 4)}),
        ("--layer all --overlay", {"layer": "all", "head": "all", "overlay": True}),
        ("--allow head.*,a", {"allow": "head.*,a"}),
        ("a.jpg --seed 3 b.jpg", {"images": ["a.jpg", "b.jpg"], "seed": 3}),
        ("-- -a.jpg --layer", {"images": ["-a.jpg", "--layer"], "layer": None}),
        ("--root=~/data --branch=~", {"root": Path("/home/me/data"), "branch": "~"}),
    ],
)
def test_each_way_to_write_a_value(line, values, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    options = read(f"RUN --out look {line}")
    assert (options.checkpoint, options.out) == ("RUN", Path("look"))
    assert {name: getattr(options, name) for name in values} == values


def test_several_numbers_are_one_word():
    assert read("RUN --out x.html --layers -1,0", "explore").layers == (-1, 0)


def test_the_loading_options_read_their_words():
    words = "--image-size 32 --norm-pix-loss false --std 1,1e-1 --mean 0.5,0.5 --allow a,b"
    expected = dict(
        image_size=32, norm_pix_loss=False, mean=(0.5, 0.5), std=(1, 0.1), allow=("a", "b")
    )
    found = load_options(read(f"RUN {words} --out look"))
    assert LoadOptions(**found) == LoadOptions(**expected)


def test_a_setting_that_an_option_stands_for_is_called_by_the_option(refused):
    said = refused("evaluate vit-tiny-p4-cifar10 scenes --threads 900000")
    assert "error: --threads: " in said


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("checkpoint inspekt RUN", "did you mean checkpoint inspect?"),
        ("train --output_dir look", "--output_dir; did you mean --out?"),
        ("explore --model vit", "--model; did you mean CHECKPOINT, which needs no option?"),
        ("train --foobar 1", "--foobar; see"),
        # an abbreviation would pass the checks of --resume by
        ("train --resu", "--resu"),
        ("train more", "more"),
        ("train --out", "--out"),
        ("attention RUN --out=", "--out: '' cannot be used; string should have at least 1"),
        ("attention RUN --out look --layer last", "--layer: 'last' cannot be used; "),
        ("attention RUN --out look --mask 3", "--mask: '3' cannot be used; input should be less"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_what_may_be_meant(line, message):
    with pytest.raises(ConfigError, match=r"^[^\n]*$") as caught:
        parse(line.split())
    assert message in str(caught.value)


def test_the_examples_in_help_can_be_read():
    examples = re.findall("vit (train|explore) (.*)$", HELP + EXAMPLES, re.MULTILINE)
    assert len(examples) == 4
    for command, line in examples:
        assert read(line.partition("#")[0], command)
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    usual = command_parser("train").format_help().partition("options:")[0]
    assert all(f" --{name} " in usual for name in USUAL)
