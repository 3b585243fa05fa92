"""The command `vit`. Imports stay light: a command's module loads when called, heavy libraries where they are used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from vit.cli.options import choose_command
from vit.cli.startup import start
from vit.version import __version__

COMMANDS = {
    "train": "pretrain or fine-tune a model, as train.py does",
    "data": "show the images that a configuration would train on",
    "checkpoint": "inspect, convert, export or publish a pretrained model",
    "models": "list the models that come with the package",
    "predict": "classify images by a model's own head",
    "embed": "write image features to a file",
    "attention": "draw where a model's attention looks",
    "explore": "write a page for exploring a model's attention",
    "evaluate": "measure a pretrained model: k-NN, probe, reconstruction, head",
    "report": "write a one-page report on a run",
    "compare": "compare finished runs side by side, averaged over seeds",
}
"""What each command is for. Each has a module of the same name here, with a function `run`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    return start("vit", lambda: _run(argv))


def _run(argv: Sequence[str]) -> int:
    if argv[:1] == ["--version"]:
        print(f"vit {__version__}")
        return 0
    argv = argv or ["--help"]
    what = "Train small vision transformers and see what they learned. Each command has its own --help."
    name, rest = choose_command("vit", what, COMMANDS, argv)

    from vit.training.process import Stopped, StopRequests

    try:
        with StopRequests():
            return import_module(f"vit.cli.{name}").run(rest)
    except Stopped as stopped:
        print(f"vit: stopped by {stopped}", file=sys.stderr)
        return stopped.exit_code
