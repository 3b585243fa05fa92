"""`vit models`: the models that come with the package."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from vit.cli.old_options import CommandParser
from vit.errors import one_line
from vit.pretrained import shipped, shipped_models
from vit.runs import FIGURES

COLUMNS = ("name", "what it is", "parameters", "MB", "trained on", "figures")
SHOWN = ("accuracy", "masked_loss", "linear_probe", "knn_accuracy")
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
    figures = ", ".join(best_figures(model["figures"], model["data"])) or "-"
    size, count = f"{model['bytes'] / 1e6:.1f}", f"{model['parameters']:,}"
    return model["name"], ", ".join(what), count, size, model["data"] or "-", figures


def best_figures(figures: dict[str, Any], data: str) -> Iterator[str]:
    """Yield the most telling figures; of what `vit evaluate` measured, only those on `data`."""
    measured = [found for found in figures.get("measured", []) if found["data"] == data]
    for key in SHOWN:
        figure = FIGURES[key]
        method, name = figure.in_results
        places = [(found[method][name], found) for found in measured if isinstance(found.get(method), dict)]
        if (value := figure.of_summary(figures)) is not None:
            places.append((value, figures))
        if places:
            value, found = places[0]
            tested = found.get("tested_on", "test images")
            yield f"{figure.short} {figure.write_brief(value)}{'' if tested == 'test images' else f' on {tested}'}"


def _size(size: Sequence[int]) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[0]} x {size[1]}"
