"""`vit predict`: the classes of images, from a classifier."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from vit.cli.options import load
from vit.cli.outputs import aligned, print_json, write_csv
from vit.commandline import output_file
from vit.look.datasets import of_images
from vit.look.predict import predict
from vit.look.subject import class_names_of
from vit.weights import class_key


def run(options: Namespace) -> None:
    """Predict all images, then print a table or JSON."""
    # Refuse what cannot be done before anything is computed
    if options.csv is not None:
        output_file(options.csv, (".csv",), "--csv", options.overwrite)

    # The images, and a model that can name them
    files = of_images(options.images, options.on_bad_image).files
    model = load(options)
    probabilities = predict(model, files, views=options.views)
    class_names = class_names_of(model)
    best = probabilities.topk(min(options.top, len(class_names)))  # both (N, top)

    # Image by image; an image in a folder of a class's name is of that class
    class_of = {class_key(name): name for name in class_names}
    predictions: list[dict[str, Any]] = []
    table: list[tuple[Any, ...]] = [("file", "true_class", "rank", "class", "probability")]
    lines = []
    rows = zip(files, best.values.tolist(), best.indices.tolist(), strict=True)
    for file, probabilities, numbers in rows:
        folder = Path(file).absolute().parent.name
        true_class = class_of.get(class_key(folder), "")
        classes = []
        cells = [file]
        for rank, (number, probability) in enumerate(zip(numbers, probabilities, strict=True), 1):
            name = class_names[number]
            classes.append({"class": name, "probability": probability})
            table.append((file, true_class, rank, name, probability))
            cells += [name, f"{probability:.1%}"]
        predictions.append({"file": file, "true_class": true_class, "classes": classes})
        lines.append(cells)

    # The answer: a file, and a table or JSON
    if options.csv is not None:
        write_csv(options.csv, table)
    if options.json:
        print_json(predictions)
    else:
        print(aligned(lines, range(2, len(lines[0]), 2)))
