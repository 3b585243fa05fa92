"""`vit similar`: the images of a folder that are nearest to another image."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vit.atomic import make_folder, write_text
from vit.cli.options import load, load_options
from vit.cli.outputs import print_json
from vit.commandline import PAGE, output_file
from vit.errors import ConfigError, one_line, plural
from vit.figures.document import SIMILAR, data_uri, render_page
from vit.look.datasets import of_images
from vit.look.predict import embed, nearest
from vit.look.subject import model_caption, photo_of, png_of_input
from vit.mae import Model
from vit.weights import Origin, checkpoint_hash

SIDE = 320
"""Pixels of a neighbour's longer side on the page: twice what most screens show of it."""


def run(options: Namespace) -> None:
    """Find the nearest images, print them, and write the page."""
    # Refuse what cannot be done before anything is computed
    if options.out is not None:
        output_file(options.out, PAGE, overwrite=options.overwrite)
    if options.features is None:
        if os.path.isfile(options.folder):
            raise ConfigError(f"{options.folder!r} is no folder; name the image, then a folder")
        files = of_images([options.folder], options.on_bad_image).files

    # The features of all images, (N, D), and which are nearest
    model = load(options)
    query = embed(model, options.image).pooled[0]  # (D,)
    if options.features is None:
        features = embed(model, files).pooled
    else:
        files, features = read_features(options, model)
    result = nearest(features, query, options.count)
    names = [os.path.relpath(files[number], options.folder) for number in result.numbers.tolist()]
    answer: dict[str, Any] = {
        "image": options.image,
        "folder": options.folder,
        "images": len(files),
        "geometry": result.geometry,
        "median": result.median,
        "neighbours": [
            {"file": name, "similarity": similarity}
            for name, similarity in zip(names, result.similarities.tolist(), strict=True)
        ],
    }

    # The answer: a page, and a table or JSON
    if options.out is not None:
        page = page_of(options, model, answer)
        make_folder(options.out.parent)
        write_text(options.out, page)
    if options.json:
        print_json(answer)
        return
    for near in answer["neighbours"]:
        print(f"{near['similarity']:6.3f}  {one_line(near['file'])}")
    if options.out is not None:
        print(f"page: {one_line(str(options.out))}, {len(page.encode()):,} bytes")


def read_features(options: Namespace, model: Model) -> tuple[list[str], Tensor]:
    """Return the files and features (N, D) that `vit embed` wrote of this folder."""
    with np.load(options.features) as arrays:
        if str(arrays["content_hash"]) != checkpoint_hash(model):
            problem = f"{options.features} is from {arrays['checkpoint']} with other weights"
            raise ConfigError(f"--features: {problem}; write it again with vit embed")
        # features of images of another size or crop are those of other images
        if str(arrays["options"]) != json.dumps(load_options(options)):
            problem = f"{options.features} was written with other options of loading"
            raise ConfigError(f"--features: {problem}; name the same here as for vit embed")
        files = [os.path.join(options.folder, file) for file in arrays["files"].tolist()]
        # those of another folder would be answered with names that are not here
        for file in files:
            if not os.path.exists(file):
                problem = f"{options.features} is of images with {file}, which does not exist"
                raise ConfigError(f"--features: {problem}; write it again with vit embed")
        return files, torch.from_numpy(arrays["pooled"])


def page_of(options: Namespace, model: Model, answer: dict[str, Any]) -> str:
    """Return the page of the nearest images, from what --json prints."""
    # The images as the model takes them, with the pixels that they have
    origin = model.origin
    image_name = os.path.basename(options.image)
    query = shown(image_name, options.image, origin, 2 * SIDE)
    neighbours = []
    for near in answer["neighbours"]:
        name = near["file"]
        path = os.path.join(options.folder, name)
        if os.path.samefile(path, options.image):
            name += " · the image itself"
        neighbours.append(near | shown(name, path, origin, SIDE))

    # What the numbers mean, and where they come from
    folder_name = Path(options.folder).resolve().name
    lede = (
        f"The most similar of {plural(answer['images'], 'image')} in {folder_name}, by the cosine"
        f" similarity of their {answer['geometry']} features (1: the image itself)."
        f" The median of all images is {answer['median']:.2f}."
    )
    rows, columns = origin.image_size
    return render_page(
        SIMILAR,
        images=True,
        query=query,
        model_input=data_uri(png_of_input(options.image, origin)),
        neighbours=neighbours,
        title=f"Images like {image_name}",
        lede=lede,
        caption=f"The model's input: {columns} x {rows} pixels. All images are cropped like this.",
        facts=[
            ("model", model_caption(model)),
            ("images", options.folder),
            ("command", options.command_line),
        ],
    )


def shown(name: str, path: str, origin: Origin, longest: int) -> dict[str, Any]:
    """Return the part of an image file that the model takes, as the page shows it."""
    photo = photo_of(path, origin, longest)
    kind = "jpeg"
    # Where it has no more pixels than the model takes, these are shown as squares
    if not photo:
        photo = png_of_input(path, origin)
        kind = "png"
    return {"name": name, "kind": kind, "uri": data_uri(photo, kind)}
