"""`vit checkpoint inspect` and `convert`: pretrained models, ours and those of others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from vit.cli.options import (
    PrintsFigures,
    ReadsCheckpoint,
    choose_command,
    print_json,
    read_options,
    refuse_given,
)
from vit.errors import one_line
from vit.load_options import LoadOptions
from vit.pretrained import located


@dataclass(frozen=True)
class Inspect(ReadsCheckpoint, PrintsFigures):
    """Say what a checkpoint is, and what becomes of each of its tensors."""


@dataclass(frozen=True)
class Convert(ReadsCheckpoint):
    """Write a checkpoint in another format."""

    to: Literal["timm", "huggingface", "safetensors"]
    """format; safetensors is the project's own"""
    out: Path = field(metadata={"metavar": "FOLDER"})
    """a new or empty folder"""
    half: bool = False
    """--to safetensors: weights in half precision; they load as float32"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to != "safetensors":
            refuse_given(self, ("half",), "only applies to --to safetensors; leave it out")


def inspect(options: Inspect, load: LoadOptions) -> int:
    """Print what a checkpoint is; return 2 if it cannot be loaded with these options."""
    located(options.checkpoint)

    from vit.checkpoints.inspection import describe, facts
    from vit.checkpoints.loading import find, read_network

    network = read_network(find(options.checkpoint), load)
    known = facts(network)
    if options.json:
        print_json(known)
    else:
        print(describe(known, network.report))
    return 2 if known["problems"] else 0


def convert(options: Convert, load: LoadOptions) -> int:
    """Load a checkpoint, write it, and print what became of each tensor."""
    located(options.checkpoint)

    from vit.checkpoints import load_model
    from vit.checkpoints.convert import convert_model

    model = load_model(options.checkpoint, load)
    notes = convert_model(model, options.to, options.out, options.half)
    print(f"{options.out}: {model.origin.format} as {options.to}\n{model.origin.report}")
    for note in notes:
        print(f"note: {one_line(note)}")
    return 0


class Command(NamedTuple):
    """A command of `vit checkpoint`: its function, and the dataclasses of its options."""

    work: Callable[..., int]
    OPTIONS: tuple[type, ...]


COMMANDS = {
    "inspect": Command(inspect, (Inspect, LoadOptions)),
    "convert": Command(convert, (Convert, LoadOptions)),
}


def run(argv: Sequence[str]) -> int:
    """Run `inspect` or `convert`."""
    what = "Pretrained models: ours, timm's, MAE's, DINO's, Hugging Face's, torchvision's."
    purposes = {name: str(command.OPTIONS[0].__doc__) for name, command in COMMANDS.items()}
    name, rest = choose_command("vit checkpoint", what, purposes, argv)
    work, groups = COMMANDS[name]
    options = read_options(f"vit checkpoint {name}", rest, *groups)
    with warnings.catch_warnings(
        action="ignore"
    ):  # the commands report untrained tensors themselves
        return work(*options)
