"""`vit checkpoint inspect`, `convert`, `export` and `push`: their options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from vit.cli.old_options import CommandParser, loading_arguments, loading_parser
from vit.config import ConfigError


def checkpoint_parser() -> argparse.ArgumentParser:
    """The options of `vit checkpoint`."""
    parser = CommandParser(
        prog="vit checkpoint", allow_abbrev=False,
        description="Pretrained models: ours, timm's, MAE's, DINO's, Hugging Face's, torchvision's.",
    )  # fmt: skip
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    loading = loading_parser()
    inspect = commands.add_parser("inspect", parents=[loading], help="say what it is and what becomes of each tensor")
    inspect.add_argument("--tensors", action="store_true", help="list every tensor")
    inspect.add_argument("--json", action="store_true", help="print all of it as JSON")
    for name, formats, what in (
        ("convert", ["timm", "mae", "huggingface", "safetensors"], "write it in another format"),
        ("export", ["onnx", "torch-export"], "write it as a program that runs without this package"),
    ):
        command = commands.add_parser(name, parents=[loading], help=what)
        command.add_argument("--to", choices=formats, required=True, help="format")
        command.add_argument("--out", required=True, metavar="PATH", help="file or folder to write")
        if name == "convert":
            own = command.add_argument_group("for --to safetensors")
            own.add_argument("--half", action="store_true", help="weights in half precision; they load as float32")
            own.add_argument(
                "--card", action="store_true", help="of a finished run: a model card too, with its figures"
            )
            own.add_argument(
                "--results", nargs="+", default=[], metavar="DIR", help="for the card: of `vit evaluate --out`"
            )
            own.add_argument("--note", default="", metavar="TEXT", help="for the card: a sentence on the data")
    push = commands.add_parser("push", help="publish a run folder on a model hub, with a model card")
    push.add_argument("folder", help="run folder, or a folder that `convert --to safetensors` wrote")
    push.add_argument("repository", metavar="ORGANISATION/NAME", help="made where it does not exist")
    push.add_argument("--private", action="store_true", help="not for everybody to see")
    return parser


def run(argv: Sequence[str]) -> int:
    """Do what `inspect`, `convert`, `export` or `push` is asked for."""
    options = checkpoint_parser().parse_args(list(argv))
    if options.command == "push":
        from vit.checkpoints.hub import push_to_hub

        print(push_to_hub(Path(options.folder), options.repository, options.private))
        return 0

    given = {key: value for key in ("half", "card", "results", "note") if (value := getattr(options, key, None))}
    for key in given:
        if options.to != "safetensors":
            raise ConfigError(f"--{key}: is for --to safetensors; leave it out")
        if key in ("results", "note") and not options.card:
            raise ConfigError(f"--{key}: is for the card; add --card, or leave it out")

    import warnings

    from vit.checkpoints import commands

    asked = loading_arguments(options)
    with warnings.catch_warnings(action="ignore"):  # what stays untrained, the commands say themselves
        if options.command == "inspect":
            return commands.inspect(options.checkpoint, asked, options.tensors, options.json)
        beside = commands.Beside(**given)
        return commands.write(options.checkpoint, asked, options.command, options.to, Path(options.out), beside)
