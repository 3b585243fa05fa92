"""`vit data`: the images that a configuration would train on, drawn as a sheet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from vit.cli.options import output_file
from vit.config import ConfigError
from vit.errors import one_line
from vit.settings import HELP, config_parser, parse_config, take_options


def data_parser(with_help: bool = False) -> ArgumentParser:
    """Return the parser of the settings, and of a name for the sheet."""
    what = "Load the data of a configuration, say what it is, and draw a sheet of it."
    return config_parser(
        "vit data", what, {"--out SHEET.png": "picture to write: .png, .svg or .pdf"}, with_help=with_help
    )


def run(argv: Sequence[str]) -> int:
    """Load the data, say what it is, and write the sheet."""
    (outs,), argv = take_options(argv, "--out")
    config = parse_config(data_parser(not HELP.isdisjoint(argv)), argv)
    if not outs:
        raise ConfigError("--out: name a picture to write, one that ends in .png, .svg or .pdf")
    out = output_file(Path(outs[-1]))

    from vit.data import SCENES_SEED, load_data
    from vit.data.scenes import PART_NAMES, draw_scenes, scene_indices
    from vit.figures import save_figure, sheet_figure

    # Some of the training images, as many of each class
    data = load_data(config.data, config.model.image_size_2d)
    columns = 5 if data.source == "scenes" else 10
    chosen = data.train.showcase(10 * columns)  # ten rows; with ten classes, a row a class
    some = data.train.subset(chosen)
    subtitle, parts = data.description, None
    if data.source == "scenes":
        parts = draw_scenes(scene_indices(len(data.train), "train")[chosen], SCENES_SEED)[2]
        subtitle += " · right: the part each pixel belongs to"

    # What they are, and the sheet
    lines = [data.description, *([data.warning] if data.warning else [])]
    lines += data.notes
    figure = sheet_figure(some.images, some.label_names, data.name, subtitle, columns, parts, PART_NAMES)
    save_figure(figure, out)
    print("\n".join([*map(one_line, lines), f"sheet: {out}"]))
    return 0
