"""`vit data`: describe the images that a configuration would train on, and draw a sheet of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vit.cli.options import (
    DATA,
    POSITIONAL,
    PrintsFigures,
    WritesFiles,
    output_file,
    print_json,
    read_options,
    talk,
)
from vit.config import Config
from vit.errors import ConfigError, one_line
from vit.settings import SECTIONS, build_config, read_words, split_settings

if TYPE_CHECKING:
    from vit.data import Dataset


@dataclass(frozen=True)
class DataOptions(PrintsFigures, WritesFiles):
    """Load data by name, folder or configuration; describe it, draw a sheet of it."""

    data: str | None = field(default=None, metadata=POSITIONAL | DATA)
    """as for --data"""
    out: Path | None = None
    """picture to write: .png, .svg or .pdf"""


OPTIONS, SETTINGS = (DataOptions,), SECTIONS


def parse(argv: Sequence[str]) -> tuple[Config, DataOptions]:
    """Read the command line.

    Raises:
        ConfigError: an option cannot be used.
    """
    settings, rest = split_settings(argv)
    (options,) = read_options("vit data", rest, *OPTIONS, sections=SETTINGS)
    if options.data is None and not settings:
        raise ConfigError("data: required, or a --config that says what to load; see --help")
    named = ["--data", options.data] if options.data is not None else []
    config, _ = build_config(*read_words([*named, *settings]))
    if options.out is not None:
        output_file(options.out, overwrite=options.overwrite)
    return config, options


def run(argv: Sequence[str]) -> int:
    """Load the data, describe it, and draw the sheet."""
    config, options = parse(argv)

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
