"""A note where photographs meet a model of small pictures; this module reads no folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from vit.data.images import evenly_spaced
from vit.errors import one_line
from vit.inputs import size_of
from vit.look.subject import short_name
from vit.mae import Model

PHOTO_SIDE = 128
"""From this side in pixels on, an image shows what a photograph does."""
MUCH_LARGER = 3
"""From this many times the input's sides on, an image loses most of what it shows."""
LARGE_MODEL = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
"""A small classifier of photographs."""
MEASURED = 16
"""Images whose sizes are read, of many."""
NAMED = 10
"""Most classes that a note names."""


def note_small_input(model: Model, paths: Sequence[str | Path]) -> None:
    """Say on stderr that a model shrinks photographs to a few pixels, and which models do not.

    Args:
        model: from `load_model`.
        paths: the images that it is shown; some of them are measured.
    """
    rows, columns = model.origin.image_size
    if max(rows, columns) >= PHOTO_SIDE:
        return

    # Whether an image is much larger, by the sizes of some of them
    for number in evenly_spaced(len(paths), MEASURED).tolist():
        width, height = size_of(str(paths[number])) or (0, 0)
        is_photo = min(width, height) >= PHOTO_SIDE
        if is_photo and min(width / columns, height / rows) >= MUCH_LARGER:
            break
    else:
        return

    # A classifier also names one of its classes whatever an image shows
    image = os.path.basename(paths[number])
    note = f"{short_name(model.origin.source)} sees {columns} x {rows} pixels ({image} has"
    note += f" {width} x {height})"
    classes = model.encoder.config.num_classes
    if classes:
        note += f" and chooses among {classes} classes, whatever an image shows"
        if 0 < len(model.origin.class_names) <= NAMED:
            note += f": {', '.join(model.origin.class_names)}"
    advice = f"for photographs, name a model of 224 x 224, as {LARGE_MODEL}, or train one with"
    advice += " --model.image_size 224 --model.patch_size 16"
    print(f"note: {one_line(note)}; {advice}", file=sys.stderr)
