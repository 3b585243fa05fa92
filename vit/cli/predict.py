"""`vit predict`: what images show, by a classifier's own head."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vit.cli.options import load, naming_the_option
from vit.cli.outputs import aligned, print_json, write_csv
from vit.commandline import output_file
from vit.errors import one_line
from vit.look.datasets import of_images
from vit.look.predict import predict, require_head
from vit.look.subject import class_names_of
from vit.weights import class_key


def run(options: Namespace) -> int:
    """Predict all images, then print a table or JSON."""
    # Refuse what cannot be done before anything is computed
    if options.csv is not None:
        output_file(options.csv, (".csv",), "--csv", options.overwrite)

    # The images, and a model that can name them
    files = of_images(options.images, options.on_bad_image).files
    model = load(options)
    require_head(model)
    class_names = class_names_of(model)
    with naming_the_option():
        best = predict(model, files).topk(min(options.top, len(class_names)))  # both (N, top)

    # Image by image; an image in a folder of a class's name is of that class
    class_of = {class_key(name): name for name in class_names}
    predictions: list[dict[str, Any]] = []
    rows = zip(files, best.values.tolist(), best.indices.tolist(), strict=True)
    for file, probabilities, numbers in rows:
        classes = []
        for number, probability in zip(numbers, probabilities, strict=True):
            classes.append({"class": class_names[number], "probability": probability})
        folder = Path(file).absolute().parent.name
        true_class = class_of.get(class_key(folder), "")
        predictions.append({"file": file, "true_class": true_class, "classes": classes})

    # The answer: a file, and a table or JSON
    if options.csv is not None:
        write_csv(options.csv, table_rows(predictions))
    if options.json:
        print_json(predictions)
    else:
        print("\n".join(table_lines(predictions)))
    return 0


def table_rows(predictions: Sequence[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield a head, and a row per image and class."""
    yield "file", "true_class", "rank", "class", "probability"
    for image in predictions:
        for rank, entry in enumerate(image["classes"], 1):
            yield image["file"], image["true_class"], rank, entry["class"], entry["probability"]


def table_lines(predictions: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line per image: its file, and the classes with their probabilities, aligned."""
    table = []
    for prediction in predictions:
        cells = [one_line(prediction["file"])]
        for entry in prediction["classes"]:
            cells += [one_line(entry["class"]), f"{entry['probability']:.1%}"]
        table.append(cells)
    return aligned(table, range(2, len(table[0]), 2))
