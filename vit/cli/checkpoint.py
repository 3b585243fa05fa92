"""`vit checkpoint inspect` and `convert`: pretrained models, ours and those of others."""

from __future__ import annotations

import warnings
from argparse import Namespace

from vit.checkpoints import load_model
from vit.checkpoints.convert import convert_model
from vit.checkpoints.inspection import describe, facts
from vit.checkpoints.loading import find, read_network
from vit.cli.options import load_options
from vit.cli.outputs import print_json
from vit.commandline import require_folder
from vit.errors import one_line
from vit.load_options import LoadOptions


def inspect(options: Namespace) -> int:
    """Print what a checkpoint is; return 2 if it cannot be loaded with these options."""
    load = LoadOptions(**load_options(options))
    network = read_network(find(options.checkpoint), load)
    properties = facts(network)
    if options.json:
        print_json(properties)
    else:
        print(describe(properties, network.report))

    # With these options it cannot be loaded: a wrong request
    if properties["problems"]:
        return 2
    return 0


def convert(options: Namespace) -> None:
    """Load a checkpoint, write it, and print what became of each tensor."""
    require_folder(options.out.parent)
    with warnings.catch_warnings(action="ignore"):
        model = load_model(options.checkpoint, **load_options(options))
        notes = convert_model(model, options.to, options.out, options.half)
    print(f"{options.out}: {model.origin.format} as {options.to}\n{model.origin.report}")
    for note in notes:
        print(f"note: {one_line(note)}")
