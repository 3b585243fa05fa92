"""The command `vit`: find the command, read its options, then import the module that does it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from vit.cli.parsers import COMMANDS, GROUPS, command_parser
from vit.commandline import start
from vit.errors import ConfigError, UserError, did_you_mean, one_line
from vit.runs import __version__

HELP = """usage: vit COMMAND ...

       vit explore vit-tiny-p4-cifar10 --data scenes      # writes page.html
       vit train --config folder --data my_images --out runs/mine

Train small vision transformers, and look inside any of them. `vit COMMAND --help` lists the options
of a command. With --debug, an error shows its traceback. Documentation: docs/README.md."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code."""
    if argv is None:
        argv = sys.argv[1:]
    return start("vit", lambda words: _work(*parse(words)), argv)


def train_main() -> int:
    """The program train.py."""
    parser = command_parser("train", "python train.py")
    return start("train.py", lambda words: _work("train", parser.read(words)), sys.argv[1:])


def _work(name: str, options: argparse.Namespace) -> int:
    """Import a command's module, with all that it needs, and do its work; return its exit code."""
    module, _, work = name.partition(" ")
    try:
        return getattr(import_module(f"vit.cli.{module}"), work or "run")(options) or 0
    except UserError as error:
        # An option may stand for the setting: --val-size for data.val_size
        option = error.key.rpartition(".")[2]
        if option not in options:
            raise
        raise type(error)(f"--{option.replace('_', '-')}", error.text) from error


def parse(argv: Sequence[str]) -> tuple[str, argparse.Namespace]:
    """Return the command at the start of a command line, and its options."""
    # What has the name of a checkpoint's command has two words
    length = 2 if argv[:1] == ["checkpoint"] else 1
    name = " ".join(argv[:length])
    if name in COMMANDS:
        return name, command_parser(name).read(argv[length:])

    # About all commands
    if name == "--version":
        print(f"vit {__version__}")
        raise SystemExit(0)
    if not name or name.endswith(("-h", "--help")):
        print(HELP)
        for title, commands in GROUPS.items():
            print(f"\n{title}:")
            for command in commands:
                print(f"  {command:18}  {COMMANDS[command][0]}")
        raise SystemExit(0)

    # A mistake is answered with the nearest command, or all of them
    advice = did_you_mean(name, COMMANDS) or f"; one of {', '.join(COMMANDS)}"
    raise ConfigError(f"there is no command {one_line(name)!r}{advice}")
