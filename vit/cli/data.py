"""`vit data`: show the images that a configuration would train on, as a sheet or as a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jsonargparse import ArgumentParser

from vit.cli.options import output_file, print_json, require_folder, talk
from vit.config import Config, ConfigError
from vit.errors import one_line
from vit.settings import HELP, config_parser, parse_config, take_flags, take_options

if TYPE_CHECKING:
    from vit.data import Dataset

KINDS = ("jpeg", "png")


class Asked(NamedTuple):
    """What to load, and what to do with it.

    Attributes:
        config: the settings.
        out: the picture to write, if any.
        export: the folder to write, if any; its files are of a `kind` of KINDS, JPEG of this `quality`.
        json: whether to print JSON.
    """

    config: Config
    out: Path | None
    export: Path | None
    kind: str
    quality: int
    json: bool


def command_parser(with_help: bool = False) -> ArgumentParser:
    """Return the parser of the settings; its help lists this command's own options too."""
    what = "Load data by name, folder or configuration; describe it, draw a sheet of it, write it as a folder."
    own = {
        "--out FILE": "picture to write: .png, .svg or .pdf",
        "--overwrite": "replace an existing picture",
        "--export FOLDER": "write the images as train/CLASS/0000.jpg and test/CLASS/0000.jpg, which --data FOLDER reads back",
        "--format jpeg|png": "file format for --export; png is lossless (default: jpeg)",
        "--quality N": "JPEG quality for --export, 1 to 100 (default: 75)",
        "--json": "describe the data as JSON on stdout; everything else goes to stderr",
    }
    return config_parser("vit data", what, own, with_help=with_help)


def parse(argv: Sequence[str]) -> Asked:
    """Read the command line.

    Raises:
        ConfigError: an option cannot be used.
    """
    (overwrite, as_json), rest = take_flags(argv, "--overwrite", "--json")
    (outs, exports, kinds, qualities), rest = take_options(rest, "--out", "--export", "--format", "--quality")
    if rest and not rest[0].startswith("-"):
        rest.insert(0, "--data")
    config = parse_config(command_parser(not HELP.isdisjoint(rest)), rest)
    out = output_file(Path(outs[-1]), overwrite=overwrite) if outs else None

    # The folder to write, and the format of its files
    for option, values in (("--format", kinds), ("--quality", qualities)):
        if values and not exports:
            raise ConfigError(f"{option}: only applies with --export; add it, or leave {option} out")
    kind, quality = (kinds or ["jpeg"])[-1], (qualities or ["75"])[-1]
    if kind not in KINDS:
        raise ConfigError(f"--format: {kind!r} cannot be used; {' or '.join(KINDS)}")
    if kind == "png" and qualities:
        raise ConfigError("--quality: only applies to jpeg; png is lossless")
    if not (quality.isascii() and quality.isdigit() and 1 <= int(quality) <= 100):
        raise ConfigError(f"--quality: {quality!r} cannot be used; a whole number from 1 to 100")
    if exports and not exports[-1]:
        raise ConfigError("--export: '' cannot be used; name a folder to write")
    export = Path(exports[-1]).expanduser() if exports else None
    if export is not None:
        require_folder(export.parent, "--export")
        if os.path.lexists(export):
            raise ConfigError(f"--export: {export} already exists; name another folder, or remove it first")
    return Asked(config, out, export, kind, int(quality), as_json)


def run(argv: Sequence[str]) -> int:
    """Load the data, describe it, and write the sheet and the folder."""
    asked = parse(argv)

    from vit.data import load_data
    from vit.data.export import export_images

    data = load_data(asked.config.data, asked.config.model.image_size_2d)
    made = {}
    with talk(asked.json):
        for line in (data.description, data.warning or "", *data.notes):
            if line:
                print(one_line(line))
        if asked.out:
            draw_sheet(data, asked.out)
            print(one_line(f"sheet: {asked.out}"))
            made["sheet"] = str(asked.out)
        if asked.export:
            count = export_images(data, asked.export, asked.kind, asked.quality)
            print(one_line(f"folder: {asked.export}, {count:,} files"))
            made["folder"] = str(asked.export)
    if asked.json:
        classes = {name: int((data.train.labels == i).sum()) for i, name in enumerate(data.train.class_names)}
        print_json(data.facts | {"train_classes": classes, "notes": list(data.notes)} | made)
    return 0


def draw_sheet(data: Dataset, out: Path) -> None:
    """Draw some training images, equally many of each class; for Scenes, their parts too."""
    from vit.data import SCENES_SEED
    from vit.data.scenes import PART_NAMES, draw_scenes, scene_indices
    from vit.figures import save_figure, sheet_figure

    columns = 5 if data.source == "scenes" else 10
    chosen = data.train.showcase(10 * columns)  # ten rows: one per class, if there are ten
    some = data.train.subset(chosen)
    subtitle, parts = data.description, None
    if data.source == "scenes" and data.content_hash == data.whole_content_hash:  # else their numbers are unknown
        parts = draw_scenes(scene_indices(len(data.train), "train")[chosen], SCENES_SEED)[2]
        subtitle += " · right: the part each pixel belongs to"
    save_figure(sheet_figure(some.images, some.label_names, data.name, subtitle, columns, parts, PART_NAMES), out)
