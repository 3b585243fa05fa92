"""`vit predict`: what images show, by a classifier's own head."""

from __future__ import annotations

import csv
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit.atomic import make_folder, replacing
from vit.checkpoints import load_model
from vit.cli.images import BATCH, list_images, naming_the_option
from vit.cli.options import choose_device, load_options
from vit.cli.outputs import output_file, print_json
from vit.errors import one_line
from vit.look.predict import predict, require_head
from vit.mae import Model
from vit.metrics import aligned
from vit.progress import track


def run(options: Namespace) -> int:
    """Predict all images, then print a table or JSON."""
    # Refuse what cannot be done before anything is computed
    load = load_options(options)
    if options.csv is not None:
        output_file(options.csv, (".csv",), "--csv", options.overwrite)

    # The images, and a model that can name them
    files = list_images(options.images, options.on_bad_image)
    model = load_model(options.checkpoint, strict=True, **load)
    require_head(model)
    model = model.to(choose_device(options).device)

    # The answer: a file, and a table or JSON
    predictions = predict_files(model, files, options.top)
    if options.csv is not None:
        write_table(options.csv, predictions)
    if options.json:
        print_json(predictions)
    else:
        print("\n".join(table_lines(predictions)))
    return 0


def predict_files(model: Model, files: Sequence[str], top: int) -> list[dict[str, Any]]:
    """Return each file with its most probable classes: their names and probabilities."""
    count = model.encoder.config.num_classes
    # A checkpoint need not name its classes
    class_names = model.origin.class_names or [f"class {number}" for number in range(count)]
    predictions: list[dict[str, Any]] = []
    for start in track(range(0, len(files), BATCH), "predicting", unit=" batches"):
        batch = files[start : start + BATCH]
        with naming_the_option():
            best = predict(model, batch, BATCH).topk(min(top, count))  # both (B, top)

        # Image by image
        rows = zip(batch, best.values.tolist(), best.indices.tolist(), strict=True)
        for file, probabilities, numbers in rows:
            classes = []
            for number, probability in zip(numbers, probabilities, strict=True):
                classes.append({"class": class_names[number], "probability": probability})
            predictions.append({"file": file, "classes": classes})
    return predictions


def write_table(path: Path, predictions: Sequence[dict[str, Any]]) -> None:
    """Write predictions as CSV, a row per image and class."""
    # Names may hold any bytes
    text: dict[str, Any] = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}
    make_folder(path.parent)
    with replacing(path) as partial, partial.open("w", **text) as file:
        writer = csv.writer(file)
        writer.writerow(("file", "rank", "class", "probability"))
        for prediction in predictions:
            for rank, entry in enumerate(prediction["classes"], 1):
                writer.writerow((prediction["file"], rank, entry["class"], entry["probability"]))


def table_lines(predictions: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line per image: its file, and the classes with their probabilities, aligned."""
    table = []
    for prediction in predictions:
        cells = [one_line(prediction["file"])]
        for entry in prediction["classes"]:
            cells += [one_line(entry["class"]), f"{entry['probability']:.1%}"]
        table.append(cells)
    return aligned(table, range(2, len(table[0]), 2))
