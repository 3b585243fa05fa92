"""`vit models`: the models that come with the package."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from vit.cli.outputs import print_json
from vit.errors import one_line
from vit.metrics import METRICS
from vit.pretrained import shipped, shipped_models

COLUMNS = ("name", "what it is", "parameters", "MB", "trained on", "figures")
NUMBERS = ("parameters", "MB")
BEST = ("accuracy", "masked_loss", "linear_probe", "knn_accuracy")


def run(options: Namespace) -> int:
    """Print the models, in a table or as JSON."""
    known = [shipped(name) for name in shipped_models()]
    if options.json:
        print_json(known)
        return 0
    if not known:
        print("no models come with this installation")
        return 0
    rows = [COLUMNS, *(tuple(one_line(cell) for cell in row(model)) for model in known)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        columns = zip(COLUMNS, cells, widths, strict=True)
        print(
            "  ".join(
                f"{cell:{'>' if name in NUMBERS else '<'}{width}}" for name, cell, width in columns
            ).rstrip()
        )
    return 0


def row(model: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells, in the order of COLUMNS, of a model from `vit.pretrained.shipped`."""
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
    for key in BEST:
        metric = METRICS[key]
        method, name = metric.in_results
        values = [
            (found[method][name], found)
            for found in measured
            if isinstance(found.get(method), dict)
        ]
        if (value := metric.of_summary(figures)) is not None:
            values.append((value, figures))
        for value, found in values[:1]:
            tested = found.get("tested_on", "test images")
            yield f"{metric.short} {metric.write(value, brief=True)}{'' if tested == 'test images' else f' on {tested}'}"


def _size(size: Sequence[int]) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[0]} x {size[1]}"
