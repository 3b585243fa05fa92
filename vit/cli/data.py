"""`vit data`: the images that a configuration would train on, drawn as a sheet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from vit.cli.options import output_file, print_json, talk
from vit.config import Config, ConfigError
from vit.errors import one_line
from vit.settings import HELP, config_parser, parse_config, take_flags, take_options


def command_parser(with_help: bool = False) -> ArgumentParser:
    """Return the parser of the settings; for its help, of a name for the sheet too."""
    what = "Load data, by its place or by a configuration, say what it is, and draw a sheet of it."
    own = {
        "--out FILE": "picture to write: .png, .svg or .pdf",
        "--overwrite": "replace a picture that is there already",
        "--json": "print what the data is as JSON, alone on stdout; what else there is to say goes to stderr",
    }
    return config_parser("vit data", what, own, with_help=with_help)


def parse(argv: Sequence[str]) -> tuple[Config, Path, bool]:
    """Return the settings, the picture to write, and whether JSON is asked for."""
    (overwrite, as_json), rest = take_flags(argv, "--overwrite", "--json")
    (outs,), rest = take_options(rest, "--out")
    if rest and not rest[0].startswith("-"):
        rest.insert(0, "--data")
    config = parse_config(command_parser(not HELP.isdisjoint(rest)), rest)
    if not outs:
        raise ConfigError("--out: name a picture to write, one that ends in .png, .svg or .pdf")
    return config, output_file(Path(outs[-1]), overwrite=overwrite), as_json


def run(argv: Sequence[str]) -> int:
    """Load the data, say what it is, and write the sheet."""
    config, out, as_json = parse(argv)

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
    with talk(as_json):
        print("\n".join([*map(one_line, lines), f"sheet: {out}"]))
    if as_json:
        classes = {name: int((data.train.labels == i).sum()) for i, name in enumerate(data.train.class_names)}
        print_json(data.facts | {"train_classes": classes, "notes": list(data.notes), "sheet": str(out)})
    return 0
