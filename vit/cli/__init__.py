"""The command `vit`: find the command, read its options, then import the module that does it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from vit.cli.parsers import PARSERS, train_parser
from vit.cli.startup import start
from vit.errors import ConfigError, UserError, did_you_mean, one_line
from vit.runs import __version__
from vit.training.process import StopRequests

COMMANDS = {
    "train": "pretrain or fine-tune a model, as train.py does",
    "data": "show the images that a configuration would train on",
    "checkpoint": "inspect or convert a pretrained model",
    "models": "list the models that come with the package",
    "predict": "classify images by a model's own head",
    "embed": "write image features to a file",
    "similar": "find the images of a folder that are nearest to another",
    "attention": "draw a model's attention",
    "explore": "write a page for exploring a model's attention",
    "evaluate": "measure a pretrained model: k-NN, probe, reconstruction, head",
    "report": "write a one-page report on a run",
    "compare": "compare finished runs side by side, averaged over seeds",
}
"""What each command is for. Each has a module of the same name here, with a function `run`."""
CHECKPOINT_COMMANDS = {
    "inspect": "say what a checkpoint is, and what becomes of each of its tensors",
    "convert": "write a checkpoint in another format",
}
PURPOSE = "Train small vision transformers and see what they learned."
CHECKPOINTS = "Pretrained models: ours, timm's, MAE's, DINO's, Hugging Face's, torchvision's."


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code."""
    if argv is None:
        argv = sys.argv[1:]
    return start("vit", _run, argv)


def train_main() -> int:
    """The program train.py."""
    parser = train_parser("python train.py")
    return start("train.py", lambda words: _work("train", parser.read(words)), sys.argv[1:])


def _run(argv: Sequence[str]) -> int:
    if argv[:1] == ["--version"]:
        print(f"vit {__version__}")
        return 0
    return _work(*parse(argv or ["--help"]))


def _work(name: str, options: argparse.Namespace) -> int:
    """Import a command's module, with all that it needs, and do its work."""
    try:
        with StopRequests():
            return import_module(f"vit.cli.{name}").run(options)
    except UserError as error:
        # An option may stand for the setting: --val-size for data.val_size
        option = error.key.rpartition(".")[2]
        if option not in options:
            raise
        raise type(error)(f"--{option.replace('_', '-')}", error.text) from error


def parse(argv: Sequence[str]) -> tuple[str, argparse.Namespace]:
    """Return the command at the start of a command line, and its options.

    Raises:
        ConfigError: there is no such command, or an option cannot be used.
        SystemExit: after `--help`.
    """
    # Two commands share a module
    name, words = choose_command("vit", PURPOSE, COMMANDS, argv)
    if name != "checkpoint":
        return name, PARSERS[name]().read(words)
    work, words = choose_command("vit checkpoint", CHECKPOINTS, CHECKPOINT_COMMANDS, words)
    return name, PARSERS[f"checkpoint {work}"]().read(words)


def choose_command(
    program: str, purpose: str, commands: Mapping[str, str], argv: Sequence[str]
) -> tuple[str, list[str]]:
    """Return the command at the start of a command line, and the words after it.

    Args:
        program: as the user calls it, "vit checkpoint".
        purpose: of the program.
        commands: the purpose of each.
        argv: the words after the program.

    Raises:
        ConfigError: there is no such command, or none is named.
        SystemExit: after `--help`.
    """
    # Its help is a table of the commands
    if argv[:1] in (["-h"], ["--help"]):
        print(f"usage: {program} COMMAND ...\n\n{purpose} Each command has its own --help.\n")
        print("commands:")
        for command in commands:
            print(f"  {command:10}  {commands[command]}")
        print("\n--debug, beside any command, shows where an error arose.")
        raise SystemExit(0)

    # A mistake is answered with the nearest command, or all of them
    if not argv:
        raise ConfigError(f"{program}: a command is missing; one of {', '.join(commands)}")
    name, *words = argv
    if name not in commands:
        advice = did_you_mean(name, commands) or f"; one of {', '.join(commands)}"
        raise ConfigError(f"{program}: there is no command {one_line(name)!r}{advice}")
    return name, words
