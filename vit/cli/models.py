"""`vit models`: the models that come with the package."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from vit.cli.outputs import aligned, print_json
from vit.metrics import MAIN, MEASURES
from vit.pretrained import shipped, shipped_models

COLUMNS = ("name", "what it is", "parameters", "MB", "trained on", "scores")


def run(options: Namespace) -> None:
    """Print the models, in a table or as JSON."""
    models = [shipped(name) for name in shipped_models()]
    if options.json:
        print_json(models)
        return

    # Parameters and megabytes are numbers
    print(aligned([COLUMNS, *map(row, models)], (2, 3)))
    print("\nImages are resized to the size in the table. For photographs, use a model for larger")
    print("images, e.g. timm/vit_tiny_patch16_224.augreg_in21k.")


def row(model: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells, in the order of COLUMNS, of a model from `vit.pretrained.shipped`."""
    # The architecture in words
    encoder = model["encoder"]
    decoder = model["decoder"]
    parts = [
        f"width {encoder['embed_dim']} x {encoder['depth']} layers",
        "patch {} x {}".format(*encoder["patch_size"]),
        "image {} x {}".format(*encoder["image_size"]),
    ]
    if decoder:
        parts.append(f"decoder {decoder['dim']} x {decoder['depth']}")
    if encoder["num_classes"]:
        parts.append(f"{encoder['num_classes']} classes")

    # Its size and scores
    scores = ", ".join(best_scores(model["figures"], model["data"]))
    megabytes = f"{model['bytes'] / 1e6:.1f}"
    count = f"{model['parameters']:,}"
    return model["name"], ", ".join(parts), count, megabytes, model["data"], scores


def best_scores(figures: dict[str, Any], data: str) -> Iterator[str]:
    """Yield the main scores; of the results of `vit evaluate`, only those on `data`."""
    # Measured by `vit evaluate` first, then at the end of the run
    documents = [results for results in figures["measured"] if results["data"] == data]
    documents.append(figures)
    for method, key in MAIN.items():
        for document in documents:
            usual = document["scores"].get(method, [{}])[0]
            if key not in usual:
                continue
            measure = MEASURES[method, key]
            text = f"{measure.short} {measure.write(usual[key])}"
            if "ratio" in usual:
                text += f" ({usual['ratio']:.0%} masked)"
            # A score on other images than test images names them
            if document["tested_on"] != "test images":
                text += f" on {document['tested_on']}"
            yield text
            break
