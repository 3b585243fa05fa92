"""`vit predict`: what images show, by a classifier's own head."""

from __future__ import annotations

import csv
import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from typing import Any

from vit.atomic import replacing
from vit.cli.common import choose_device, load_options
from vit.cli.outputs import output_file, print_json
from vit.errors import ConfigError, UnreadableImage, one_line
from vit.progress import track

BATCH = 64
"""Images at a time: read, and shown to the model."""


@contextmanager
def naming_the_way_out() -> Iterator[None]:
    """Add the option that leaves out unreadable files to the message about one."""
    try:
        yield
    except UnreadableImage as error:
        raise ConfigError(f"{error}; --on-bad-image skip leaves out all such files") from error


def run(options: Namespace) -> int:
    """Predict all images, then print a table or JSON."""
    load = load_options(options)
    if options.csv is not None:
        output_file(options.csv, (".csv",), "--csv", options.overwrite)
    for name in options.images:
        if not os.path.exists(name):
            raise ConfigError(f"images: {name!r} is neither a file nor a folder")

    from vit.checkpoints import load_trained
    from vit.data.folder import list_files, readable
    from vit.look.predict import predict, require_head

    # The images, and a model that can name them
    files = [
        str(file)
        for name in options.images
        for file in (list_files(Path(name)) if os.path.isdir(name) else [name])
    ]
    if options.on_bad_image == "skip":
        files = [*compress(files, readable(files))]
    model = load_trained(options.checkpoint, load)
    require_head(model)
    model = model.to(choose_device(options).device)

    # The likeliest classes of each
    known, classes = model.origin.class_names, model.encoder.config.num_classes
    names = known or [f"class {number}" for number in range(classes)]
    predictions: list[dict[str, Any]] = []
    for start in track(range(0, len(files), BATCH), "predicting", unit=" batches"):
        some = files[start : start + BATCH]
        with naming_the_way_out():
            best = predict(model, some, BATCH).topk(min(options.top, classes))
        for file, values, numbers in zip(
            some, best.values.tolist(), best.indices.tolist(), strict=True
        ):
            found = [
                {"class": names[i], "probability": value}
                for value, i in zip(values, numbers, strict=True)
            ]
            predictions.append({"file": file, "classes": found})

    if options.csv is not None:
        with (
            replacing(options.csv) as partial,
            partial.open(
                "w", newline="", encoding="utf-8", errors="backslashreplace"
            ) as out,  # names may be any bytes
        ):
            writer = csv.writer(out)
            writer.writerow(("file", "rank", "class", "probability"))
            for row in predictions:
                ranked = enumerate(row["classes"], 1)
                writer.writerows(
                    (row["file"], rank, one["class"], one["probability"]) for rank, one in ranked
                )
    if options.json:
        print_json(predictions)
    else:
        print("\n".join(table(predictions)))
    return 0


def table(predictions: list[dict[str, Any]]) -> list[str]:
    """Return a line per image with aligned columns: its file, and the classes with their probabilities."""
    files = [one_line(row["file"]) for row in predictions]
    cells = [
        [(one_line(one["class"]), one["probability"]) for one in row["classes"]]
        for row in predictions
    ]
    wide, widths = (
        max(map(len, files)),
        [max(len(name) for name, _ in column) for column in zip(*cells, strict=True)],
    )
    return [
        "  ".join(
            [
                f"{file:<{wide}}",
                *(
                    f"{name:<{width}} {value:6.1%}"
                    for (name, value), width in zip(row, widths, strict=True)
                ),
            ]
        )
        for file, row in zip(files, cells, strict=True)
    ]
