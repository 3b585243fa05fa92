"""`vit models`: the models that come with the package."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from vit.cli.options import CommandParser
from vit.errors import one_line
from vit.pretrained import shipped, shipped_models

COLUMNS = ("name", "what it is", "parameters", "MB", "trained on", "figures")
NUMBERS = ("parameters", "MB")


def models_parser() -> argparse.ArgumentParser:
    """The options of `vit models`."""
    parser = CommandParser(
        prog="vit models", allow_abbrev=False,
        description="The models that come with the package: wherever a CHECKPOINT is asked for, and in"
        " vit.checkpoints.load_model, their names will do.",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print all that is known of them as JSON")
    return parser


def run(argv: Sequence[str]) -> int:
    """Print what there is."""
    options = models_parser().parse_args(list(argv))
    known = [shipped(name) for name in shipped_models()]
    if options.json:
        print(json.dumps(known, indent=2))
        return 0
    if not known:
        print("no models come with this installation")
        return 0
    rows = [COLUMNS, *(tuple(one_line(cell) for cell in row(model)) for model in known)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        line = (
            cell.rjust(width) if name in NUMBERS else cell.ljust(width)
            for name, cell, width in zip(COLUMNS, cells, widths, strict=True)
        )  # fmt: skip
        print("  ".join(line).rstrip())
    return 0


def row(model: dict[str, Any]) -> tuple[str, ...]:
    """A model of `vit.pretrained.shipped` in the words of COLUMNS."""
    encoder, decoder = model["encoder"], model["decoder"]
    what = [
        f"width {encoder['embed_dim']} x {encoder['depth']} blocks",
        f"patch {_size(encoder['patch_size'])}",
        f"image {_size(encoder['image_size'])}",
    ]
    if decoder:
        what.append(f"decoder {decoder['dim']} x {decoder['depth']}")
    if encoder["num_classes"]:
        what.append(f"{encoder['num_classes']} classes")
    figures = ", ".join(in_words(model["figures"], model["data"])) or "-"
    size, count = f"{model['bytes'] / 1e6:.1f}", f"{model['parameters']:,}"
    return model["name"], ", ".join(what), count, size, model["data"] or "-", figures


def in_words(figures: dict[str, Any], data: str) -> Iterator[str]:
    """The figures that say most, in a few words each; of what `vit evaluate` measured, those on `data` alone."""
    tested = figures.get("tested_on", "test images")
    where = "" if tested == "test images" else f" on {tested}"
    if "test_accuracy" in figures:
        yield f"accuracy {figures['test_accuracy']:.1%}{where}"
    elif "test_loss" in figures:
        yield f"loss {figures['test_loss']:.3f}{where}"
    measured = [found for found in figures.get("measured", []) if found["data"] == data]
    for method, name in (("linear", "linear probe"), ("knn", "neighbours")):
        for found in measured:
            if method in found:
                aside = "" if found["tested_on"] == "test images" else f" on {found['tested_on']}"
                yield f"{name} {found[method]['accuracy']:.1%}{aside}"
                break
        else:
            if method == "knn" and "neighbours" in figures:
                yield f"{name} {figures['neighbours']['encoder_accuracy']:.1%}{where}"


def _size(size: Sequence[int]) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[0]} x {size[1]}"
