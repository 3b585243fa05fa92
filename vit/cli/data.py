"""`vit data`: show the images that a configuration would train on, as a sheet or as a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from vit.cli.options import (
    DATA,
    FOLDER,
    POSITIONAL,
    PrintsFigures,
    WritesFiles,
    output_file,
    print_json,
    read_options,
    refuse_given,
    require_folder,
    talk,
)
from vit.config import Config, ConfigError, Range
from vit.errors import one_line
from vit.settings import SECTIONS, build_config, read_words, split_settings

if TYPE_CHECKING:
    from vit.data import Dataset


@dataclass(frozen=True)
class DataOptions(PrintsFigures, WritesFiles):
    """Load data by name, folder or configuration; describe it, draw a sheet of it, write it as a folder."""

    data: str | None = field(default=None, metadata=POSITIONAL | DATA)
    """as for --data"""
    out: Path | None = None
    """picture to write: .png, .svg or .pdf"""
    export: Path | None = field(default=None, metadata=FOLDER)
    """write the images as train/CLASS/0000.jpg and test/CLASS/0000.jpg, which --data FOLDER reads back"""
    format: Literal["jpeg", "png"] | None = None
    """file format for --export; png is lossless (default: jpeg)"""
    quality: Annotated[int, Range("a whole number from 1 to 100", lambda n: 1 <= n <= 100)] | None = None
    """JPEG quality for --export, 1 to 100 (default: 75)"""

    def check_output(self) -> None:
        """Refuse what cannot be written."""
        if self.export is None:
            refuse_given(self, ("format", "quality"), "only applies with --export; add it, or leave this out")
        if self.format == "png":
            refuse_given(self, ("quality",), "only applies to jpeg; png is lossless")
        if self.out is not None:
            output_file(self.out, overwrite=self.overwrite)
        if self.export is not None:
            require_folder(self.export.parent, "--export")
            if os.path.lexists(self.export):
                raise ConfigError(f"--export: {self.export} already exists; name another folder, or remove it first")


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
    options.check_output()
    return config, options


def run(argv: Sequence[str]) -> int:
    """Load the data, describe it, and write the sheet and the folder."""
    config, options = parse(argv)

    from vit.data import load_data
    from vit.data.export import export_images

    data = load_data(config.data, config.model.image_size_2d)
    made = {}
    with talk(options.json):
        for line in (data.description, data.warning or "", *data.notes):
            if line:
                print(one_line(line))
        if options.out:
            draw_sheet(data, options.out)
            print(one_line(f"sheet: {options.out}"))
            made["sheet"] = str(options.out)
        if options.export:
            count = export_images(data, options.export, options.format or "jpeg", options.quality or 75)
            print(one_line(f"folder: {options.export}, {count:,} files"))
            made["folder"] = str(options.export)
    if options.json:
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
