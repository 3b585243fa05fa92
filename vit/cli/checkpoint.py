"""`vit checkpoint inspect`, `convert`, `export` and `push`: pretrained models, ours and those of others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from vit.cli.options import (
    FOLDER,
    POSITIONAL,
    PrintsFigures,
    ReadsCheckpoint,
    WritesFiles,
    choose_command,
    print_json,
    read_options,
    refuse_given,
    require_free,
)
from vit.config import Section
from vit.errors import one_line
from vit.load_options import LoadOptions
from vit.pretrained import located
from vit.report.record import read_to_publish


@dataclass(frozen=True)
class Inspect(ReadsCheckpoint, PrintsFigures):
    """Say what a checkpoint is, and what becomes of each of its tensors."""

    tensors: bool = False
    """list every tensor"""


@dataclass(frozen=True)
class Convert(ReadsCheckpoint):
    """Write a checkpoint in another format."""

    to: Literal["timm", "mae", "huggingface", "safetensors"]
    """format; safetensors is the project's own"""
    out: Path = field(metadata={"metavar": "FILE|FOLDER"})
    """a new .pth file for mae, else a new or empty folder"""
    half: bool = False
    """--to safetensors: weights in half precision; they load as float32"""
    card: bool = False
    """--to safetensors, from a finished run: also write a model card with its figures"""
    results: list[Path] = field(default_factory=list, metadata=FOLDER)
    """for the card: folders that `vit evaluate --out` wrote"""
    note: str = ""
    """for the card: a sentence about the data"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to != "safetensors":
            refuse_given(self, ("half", "card", "results", "note"), "only applies to --to safetensors; leave it out")
        if not self.card:
            refuse_given(self, ("results", "note"), "only applies with --card; add it, or leave this out")


@dataclass(frozen=True)
class Export(ReadsCheckpoint, WritesFiles):
    """Write an encoder as a program that runs without this package."""

    to: Literal["onnx", "torch-export"]
    """format"""
    out: Path
    """file to write: .onnx, or .pt2 for torch-export"""


@dataclass(frozen=True)
class Push(Section):
    """Publish a run folder on a model hub, with a model card."""

    folder: Path = field(metadata=POSITIONAL)
    """run folder, or a folder that `convert --to safetensors` wrote"""
    repository: str = field(metadata=POSITIONAL)
    """ORGANISATION/NAME; made if it does not exist"""
    private: bool = False
    """visible only to you and your organisation"""


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
        print(describe(network, known, options.tensors))
    return 2 if known["problems"] else 0


def convert(options: Convert, load: LoadOptions) -> int:
    """Load a checkpoint, write it, and print what became of each tensor."""
    located(options.checkpoint)

    from vit.checkpoints import convert_model, load_model

    run = read_to_publish(Path(options.checkpoint), options.results) if options.card else None
    model = load_model(options.checkpoint, load)
    notes = convert_model(model, options.to, options.out, options.half, run, options.note)
    print(f"{options.out}: {model.origin.format} as {options.to}\n{model.origin.report}")
    for note in notes:
        print(f"note: {one_line(note)}")
    return 0


def export(options: Export, load: LoadOptions) -> int:
    """Load a checkpoint, write it as a program, and print how far the program differs from the model."""
    located(options.checkpoint)
    require_free([options.out], options.overwrite)

    from vit.checkpoints import load_model
    from vit.checkpoints.export import export_program

    model = load_model(options.checkpoint, load)
    normalize = {"mean": str(model.origin.normalize.mean), "std": str(model.origin.normalize.std)}
    difference = export_program(model, options.out, options.to, normalize)
    print(f"{options.out}: {model.origin.format} as {options.to}\n{model.origin.report}")
    print(f"note: run again, the program differs from the model by at most {difference:.1e}")
    return 0


def push(options: Push) -> int:
    """Publish a folder, and print where."""
    from vit.checkpoints.hub import push_to_hub

    print(push_to_hub(options.folder, options.repository, options.private))
    return 0


class Command(NamedTuple):
    """A command of `vit checkpoint`: its function, and the dataclasses of its options."""

    work: Callable[..., int]
    OPTIONS: tuple[type, ...]


COMMANDS = {
    "inspect": Command(inspect, (Inspect, LoadOptions)),
    "convert": Command(convert, (Convert, LoadOptions)),
    "export": Command(export, (Export, LoadOptions)),
    "push": Command(push, (Push,)),
}


def run(argv: Sequence[str]) -> int:
    """Run `inspect`, `convert`, `export` or `push`."""
    what = "Pretrained models: ours, timm's, MAE's, DINO's, Hugging Face's, torchvision's."
    purposes = {name: str(command.OPTIONS[0].__doc__) for name, command in COMMANDS.items()}
    name, rest = choose_command("vit checkpoint", what, purposes, argv)
    work, groups = COMMANDS[name]
    options = read_options(f"vit checkpoint {name}", rest, *groups)
    with warnings.catch_warnings(action="ignore"):  # the commands report untrained tensors themselves
        return work(*options)
