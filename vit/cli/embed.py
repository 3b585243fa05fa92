"""`vit embed`: the pooled features of images, in a file that NumPy or a spreadsheet reads."""

from __future__ import annotations

import json
from argparse import Namespace

import numpy as np

from vit.atomic import make_folder, replacing
from vit.cli.options import data_of, load_options, load_with_images
from vit.cli.outputs import write_csv
from vit.commandline import output_file
from vit.errors import one_line, plural
from vit.look.predict import embed
from vit.weights import checkpoint_hash


def run(options: Namespace) -> None:
    """Embed all images, batch by batch, then write the file."""
    # Refuse what cannot be done before the model is loaded
    output_file(options.out, (".npz", ".csv"), overwrite=options.overwrite)
    data = data_of(options)
    model, collection = load_with_images(options, options.limit, both_splits=True)
    pooled = embed(model, collection.images).pooled.numpy()  # (N, D)

    if options.out.suffix == ".csv":
        # -1, for no class, is the last
        names = [*collection.class_names, ""]
        rows = [["file", "split", "class", *range(pooled.shape[1])]]
        columns = (collection.files, collection.splits, collection.labels, pooled.tolist())
        for file, split, label, values in zip(*columns, strict=True):
            rows.append([file, split, names[label], *values])
        write_csv(options.out, rows)
    else:
        # Without its type, an empty list would become an array of numbers
        arrays = {
            "pooled": pooled,
            "files": collection.files,
            "splits": collection.splits,
            "labels": collection.labels,
            "class_names": np.asarray(collection.class_names, dtype=str),
            "checkpoint": model.origin.source,
            "content_hash": checkpoint_hash(model),
            "data": data or "image files",
            "options": json.dumps(load_options(options)),
        }
        make_folder(options.out.parent)
        with replacing(options.out) as partial:
            np.savez(partial, **arrays)

    count, width = pooled.shape
    size = f"{count} x {width}"
    print(f"features of {plural(count, 'image')}: {size}; in {one_line(str(options.out))}")
