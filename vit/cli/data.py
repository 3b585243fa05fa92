"""`vit data`: describe the images that a configuration would train on, and draw a sheet of them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from vit.cli.outputs import output_file, print_json, talk
from vit.config import Config
from vit.errors import ConfigError, one_line
from vit.settings import build_config, given_settings

if TYPE_CHECKING:
    from vit.data import Dataset


def read_config(options: Namespace) -> Config:
    """Return the settings, which must say what to load.

    Raises:
        ConfigError: a setting cannot be used.
    """
    settings = given_settings(options)
    if not options.config and not settings:
        raise ConfigError("data: required, or a --config that says what to load; see --help")
    return build_config(options.config, settings)[0]


def run(options: Namespace) -> int:
    """Load the data, describe it, and draw the sheet."""
    config = read_config(options)
    if options.out is not None:
        output_file(options.out, overwrite=options.overwrite)

    from vit.data.sources import load_data

    data = load_data(config.data, config.model.image_size_2d)
    with talk(options.json):
        for line in (data.description, data.warning or "", *data.notes):
            if line:
                print(one_line(line))
        if options.out:
            draw_sheet(data, options.out)
            print(one_line(f"sheet: {options.out}"))
    if options.json:
        labels = data.train.labels
        classes = {name: int((labels == i).sum()) for i, name in enumerate(data.train.class_names)}
        values = data.facts | {"train_classes": classes, "notes": data.notes}
        if options.out:
            values["sheet"] = str(options.out)
        print_json(values)
    return 0


def draw_sheet(data: Dataset, out: Path) -> None:
    """Draw some training images, equally many of each class; for Scenes, their parts too."""
    from vit.data.sources import SCENES_SEED
    from vit.figures import save_figure, sheet_figure
    from vit.scenes import PART_NAMES, draw_scenes, scene_indices

    columns = 5 if data.source == "scenes" else 10
    chosen = data.train.showcase(10 * columns)  # ten rows: one per class, if there are ten
    some = data.train.subset(chosen)
    subtitle, parts = data.description, None
    if (
        data.source == "scenes" and data.content_hash == data.whole_content_hash
    ):  # else their numbers are unknown
        parts = draw_scenes(scene_indices(len(data.train), "train")[chosen], SCENES_SEED)[2]
        subtitle += " · right: the part each pixel belongs to"
    save_figure(
        sheet_figure(
            some.images[:], some.label_names, data.name, subtitle, columns, parts, PART_NAMES
        ),
        out,
    )
