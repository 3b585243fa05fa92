"""`vit similar`: the images of a folder that are nearest to another image."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from vit.atomic import make_folder, write_text
from vit.checkpoints import load_model
from vit.cli.images import (
    list_images,
    naming_the_option,
    photo_of,
    png_of_input,
    pooled_features,
)
from vit.cli.options import choose_device, load_options
from vit.cli.outputs import PAGE, output_file, print_json
from vit.errors import one_line, plural
from vit.figures.similar import ShownImage, similar_page
from vit.look.predict import embed
from vit.look.similar import Nearest, nearest
from vit.look.subject import model_caption
from vit.mae import Model
from vit.weights import Origin

SIDE = 320
"""Pixels of a neighbour's longer side on the page: twice what most screens show of it."""


def run(options: Namespace) -> int:
    """Find the nearest images, print them, and write the page."""
    # Refuse what cannot be done before anything is computed
    load = load_options(options)
    if options.out is not None:
        output_file(options.out, PAGE, overwrite=options.overwrite)
    files = list_images([options.folder], options.on_bad_image)

    # The features of all images, and which are nearest
    model = load_model(options.checkpoint, strict=True, **load).to(choose_device(options).device)
    query = embed(model, options.image).pooled[0]  # (D,)
    features = pooled_features(model, len(files), lambda start, stop: files[start:stop])  # (N, D)
    found = nearest(features, query, options.count)
    names = [os.path.relpath(files[number], options.folder) for number in found.numbers.tolist()]

    # The answer: a page, and a table or JSON
    if options.out is not None:
        page = page_of(options, model, names, found, len(files))
        make_folder(options.out.parent)
        write_text(options.out, page)
    if options.json:
        rows = zip(names, found.similarities.tolist(), strict=True)
        neighbours = [{"file": name, "similarity": similarity} for name, similarity in rows]
        print_json(
            {
                "image": options.image,
                "folder": options.folder,
                "images": len(files),
                "median": found.median,
                "neighbours": neighbours,
            }
        )
        return 0
    for name, similarity in zip(names, found.similarities.tolist(), strict=True):
        print(f"{similarity:6.3f}  {one_line(name)}")
    if options.out is not None:
        print(f"page: {one_line(str(options.out))}, {len(page.encode()):,} bytes")
    return 0


def page_of(options: Namespace, model: Model, names: list[str], found: Nearest, count: int) -> str:
    """Return the page of the nearest images.

    Args:
        names: of these images, relative to the folder.
        count: of all images in the folder.
    """
    # The images as the model takes them, with the pixels that they have
    origin = model.origin
    image_name = os.path.basename(options.image)
    query = shown(image_name, options.image, origin)
    seen = ShownImage(image_name, png_of_input(options.image, origin), "png")
    neighbours = []
    for name, similarity in zip(names, found.similarities.tolist(), strict=True):
        path = os.path.join(options.folder, name)
        if os.path.samefile(path, options.image):
            name += " · the image itself"
        neighbours.append(shown(name, path, origin, SIDE, similarity))

    # What the numbers mean, and where they come from
    folder_name = Path(options.folder).resolve().name
    lede = f"The nearest of {plural(count, 'image')} in {folder_name}, by the cosine similarity of"
    lede += " their features: 1 for the image itself. Half of all images are below"
    lede += f" {found.median:.2f}."
    rows, columns = origin.image_size
    return similar_page(
        query,
        seen,
        neighbours,
        title=f"Images like {image_name}",
        lede=lede,
        caption=f"What the model sees: {columns} x {rows} pixels. Every image is cropped as here.",
        facts=[
            ("model", model_caption(model)),
            ("images", options.folder),
            ("command", options.command_line),
        ],
    )


def shown(
    name: str, path: str, origin: Origin, longest: int = 2 * SIDE, similarity: float = 1.0
) -> ShownImage:
    """Return the part of an image file that the model takes, as the page shows it."""
    photo = photo_of(path, origin, longest)
    if photo:
        return ShownImage(name, photo, "jpeg", similarity)
    # It has no more pixels than the model takes
    with naming_the_option():
        return ShownImage(name, png_of_input(path, origin), "png", similarity)
