"""`vit data`: describe the images that a configuration would train on, and draw a sheet of them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from vit.atomic import make_folder
from vit.cli.outputs import messages_to_stderr, print_json
from vit.commandline import given_settings, output_file, refuse_among_images
from vit.data import Dataset
from vit.data.sources import SCENES_SEED, load_data
from vit.errors import one_line
from vit.figures import style
from vit.figures.images import sheet_figure
from vit.runs import train_command
from vit.scenes import PART_NAMES, draw_scenes, scene_indices


def run(options: Namespace) -> None:
    """Load the data, describe it, and draw the sheet."""
    config = train_command(options.config, given_settings(options)).config
    if options.out is not None:
        output_file(options.out, overwrite=options.overwrite)
        if config.data.source == "folder":
            refuse_among_images(options.out.parent, config.data.root)

    # With --json, all but the JSON goes to stderr
    data = load_data(config.data, config.model.image_size)
    with messages_to_stderr(options.json):
        for line in (data.description, *data.notes):
            print(one_line(line))
        if options.out:
            draw_sheet(data, options.out)
            print(one_line(f"figure: {options.out}"))

    # The same for a program
    if options.json:
        classes = {
            name: int((data.train.labels == number).sum())
            for number, name in enumerate(data.train.class_names)
        }
        print_json(data.facts | {"train_classes": classes, "notes": data.notes})


def draw_sheet(data: Dataset, out: Path) -> None:
    """Draw some training images, equally many of each class; for Scenes, their parts too."""
    # Ten rows: one per class, if there are ten
    columns = 5 if data.source == "scenes" else 10
    chosen = data.train.showcase(10 * columns)
    images = data.train.subset(chosen)

    # Parts are drawn again; if images are left out, the numbers of the others are unknown
    subtitle = data.description
    parts = None
    if data.source == "scenes" and data.content_hash == data.whole_content_hash:
        indices = scene_indices(len(data.train), "train")[chosen]
        parts = draw_scenes(indices, SCENES_SEED)[2]
        subtitle += " · right: the part each pixel belongs to"
    figure = sheet_figure(
        images.images[:], images.label_names, data.name, subtitle, columns, parts, PART_NAMES
    )
    make_folder(out.parent)
    style.save_figure(figure, out)
