"""`vit embed`: the features of images, in a file that NumPy or a data frame reads."""

from __future__ import annotations

import importlib
import math
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.atomic import replacing
from vit.cli.options import (
    DATA,
    FOLDER,
    POSITIONAL,
    ReadsCheckpoint,
    RunsModel,
    WritesFiles,
    output_file,
    read_options,
    refuse_given,
)
from vit.cli.predict import naming_the_way_out
from vit.config import BUILT_IN, ConfigError, DataConfig, NonNegative, named_data
from vit.errors import one_line
from vit.load_options import LoadOptions
from vit.progress import track

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 64
"""Images at a time: read, shown to the model, and written."""


@dataclass(frozen=True)
class EmbedOptions(ReadsCheckpoint, RunsModel, WritesFiles):
    """Write the features of images from a model's last layer: pooled as its head reads them, and the token of each patch, with
    file names and any labels. Images of a folder are read as `vit attention` reads them."""

    data: str = field(metadata=POSITIONAL | DATA)
    """cifar10, cifar100, scenes, or a folder of images; --data is the same"""
    out: Path
    """file to write: .npz, or .parquet (pip install pyarrow)"""
    pooled: bool = False
    """leave out the patch tokens, which are most of the file"""
    root: str = field(default="data", metadata=FOLDER)
    """where CIFAR's archive is"""
    limit: NonNegative = 0
    """use only this many images per split, evenly spaced; 0: all"""

    def __post_init__(self) -> None:
        super().__post_init__()
        output_file(self.out, (".npz", ".parquet"), overwrite=self.overwrite)
        if self.data in BUILT_IN:
            refuse_given(self, ("on_bad_image",), "only applies to a folder of images; leave it out")
        else:
            refuse_given(self, ("root",), "only applies to CIFAR; leave it out")
        if self.out.suffix == ".parquet":
            try:
                importlib.import_module("pyarrow")
            except ImportError as error:
                raise ConfigError("--out: .parquet needs pyarrow: pip install pyarrow") from error


OPTIONS = (EmbedOptions, LoadOptions)


@dataclass(frozen=True)
class Listed:
    """Images known by name, and read batch by batch.

    Attributes:
        names: files, relative to the folder; for a data set, split and number.
        splits: per image, "train", "test", "val", or "" without a split.
        labels: per image, an index of `class_names`; -1 without a label.
        read: a slice of the images -> what `vit.look.predict.embed` takes.
    """

    names: list[str]
    splits: list[str]
    labels: list[int]
    class_names: tuple[str, ...]
    read: Callable[[slice], Any]


def run(argv: Sequence[str]) -> int:
    """Embed all images into the file, batch by batch."""
    options, load = read_options("vit embed", argv, *OPTIONS)
    if named_data(options.data)["source"] == "hf":
        way = 'of a Hugging Face data set, in Python: vit.look.predict.embed(model, DATASET["image"])'
        raise ConfigError(f"--data: {options.data!r} is no folder of images; {way}")

    from vit.checkpoints import load_trained
    from vit.look.predict import embed

    model = load_trained(options.checkpoint, load)
    listed = (list_data if options.data in BUILT_IN else list_images)(options, model.origin.image_size)
    model = model.to(options.compute().device)

    # The shapes per image; then a batch at a time, none of which is kept
    encoder = model.encoder
    grid = encoder.patch_embed.grid_size
    shapes = {"pooled": (encoder.config.embed_dim,), "patches": (math.prod(grid), encoder.config.embed_dim)}
    if options.pooled:
        del shapes["patches"]
    facts = {"checkpoint": model.origin.source, "data": options.data, "grid": grid}
    writer = parquet_writer if options.out.suffix == ".parquet" else npz_writer
    with writer(options.out, listed, shapes, facts) as write:
        for start in track(range(0, len(listed.names), BATCH), "embedding", unit=" batches"):
            some = slice(start, start + BATCH)
            with naming_the_way_out():
                found = embed(model, listed.read(some), BATCH)
            write(some, found._asdict())
    count = len(listed.names)
    sizes = ", ".join(f"{name} {' x '.join(map(str, (count, *shape)))}" for name, shape in shapes.items())
    print(f"features of {count:,} image{'' if count == 1 else 's'}: {sizes}; in {one_line(str(options.out))}")
    return 0


def list_data(options: EmbedOptions, image_size: tuple[int, int]) -> Listed:
    """Return a built-in data set, training images first."""
    import torch

    from vit.data import load_data
    from vit.data.images import evenly_spaced

    drawn = options.limit if options.data == "scenes" else 0  # its first ones; of a file, all have to be numbered
    data = load_data(DataConfig(source=options.data, root=options.root, limit=drawn), image_size)  # type: ignore[arg-type]
    parts = {"train": data.train, "test": data.test}
    kept = {name: evenly_spaced(len(part), options.limit) for name, part in parts.items()}
    names = [f"{name}/{i:05d}" for name in parts for i in kept[name].tolist()]
    splits = [name for name in parts for _ in kept[name]]
    labels = torch.cat([part.labels[kept[name]] for name, part in parts.items()]).tolist()

    def read(some: slice) -> Tensor:
        start, stop = (max(0, place - len(kept["train"])) for place in (some.start, some.stop))
        return torch.cat([data.train.images[kept["train"][some]], data.test.images[kept["test"][start:stop]]])

    return Listed(names, splits, labels, data.train.class_names, read)


def list_images(options: EmbedOptions, image_size: tuple[int, int]) -> Listed:
    """Return the images of a folder."""
    from vit.data.folder import list_folder, readable
    from vit.data.images import evenly_spaced

    folder = Path(options.data).expanduser()
    parts = list_folder(folder)
    class_names = tuple(sorted({file.class_name for part in parts.values() for file in part} - {""}))
    number = {name: label for label, name in enumerate(class_names)}
    chosen = [
        (split, files[i]) for split, files in parts.items() for i in evenly_spaced(len(files), options.limit).tolist()
    ]
    if options.on_bad_image == "skip":
        chosen = [*compress(chosen, readable([folder / file.name for _, file in chosen]))]
    labels = [number.get(file.class_name, -1) for _, file in chosen]
    splits, names = [split for split, _ in chosen], [file.name for _, file in chosen]
    return Listed(names, splits, labels, class_names, lambda some: [folder / name for name in names[some]])


# ---- The files, both written batch by batch ------------------------------------------------------------------------------

Write = Callable[[slice, Mapping[str, "Tensor"]], None]


@contextmanager
def npz_writer(
    path: Path, listed: Listed, shapes: Mapping[str, tuple[int, ...]], facts: Mapping[str, Any]
) -> Iterator[Write]:
    """Write float32 arrays (N, *shape) by name, row after row, with names, labels and facts beside them.

    A zip is written one member at a time: the largest array goes straight into it, the others wait in temporary files.
    """
    import numpy as np
    from numpy.lib import format as npy

    *waiting, largest = sorted(shapes, key=lambda name: math.prod(shapes[name]))
    with replacing(path) as partial, zipfile.ZipFile(partial, "w") as archive, ExitStack() as stack:

        def member(name: str) -> Any:
            return archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)

        with member(largest) as direct:
            files = {name: stack.enter_context(tempfile.TemporaryFile(dir=path.parent)) for name in waiting}
            files[largest] = direct
            for name, file in files.items():
                header = {"descr": "<f4", "fortran_order": False, "shape": (len(listed.names), *shapes[name])}
                npy.write_array_header_1_0(file, header)

            def write(some: slice, found: Mapping[str, Tensor]) -> None:
                for name, file in files.items():
                    file.write(found[name].numpy().tobytes())

            yield write
        for name in waiting:
            files[name].seek(0)
            with member(name) as copy:
                shutil.copyfileobj(files[name], copy)
        known: dict[str, Any] = {
            "files": listed.names,
            "splits": listed.splits,
            "labels": listed.labels,
            "class_names": listed.class_names,
        }
        for name, value in (known | dict(facts)).items():
            with member(name) as small:
                npy.write_array(small, np.asarray(value, dtype=None if len(value) else "U1"), allow_pickle=False)


@contextmanager
def parquet_writer(
    path: Path, listed: Listed, shapes: Mapping[str, tuple[int, ...]], facts: Mapping[str, Any]
) -> Iterator[Write]:
    """Write a table with a row per image: file, split, label, class, and per array a list of float32, nested for (L, D)."""
    import pyarrow as pa
    from pyarrow import parquet

    def utf8(name: str | None) -> str | None:  # files' names may be any bytes
        return name and name.encode(errors="backslashreplace").decode()

    def column(values: Any, shape: Sequence[int]) -> Any:
        """Return values of any shape as nested lists of fixed sizes."""
        array = pa.array(values.reshape(-1))
        for size in reversed(shape):
            array = pa.FixedSizeListArray.from_arrays(array, size)
        return array

    kinds = {"file": pa.string(), "split": pa.string(), "label": pa.int64(), "class": pa.string()}
    for name, shape in shapes.items():
        kinds[name] = pa.float32()
        for size in reversed(shape):
            kinds[name] = pa.list_(kinds[name], size)
    schema = pa.schema(kinds, {name: str(value) for name, value in facts.items()})
    with replacing(path) as partial, parquet.ParquetWriter(partial, schema, use_dictionary=False) as writer:

        def write(some: slice, found: Mapping[str, Tensor]) -> None:
            labels = [label if label >= 0 else None for label in listed.labels[some]]
            classes = [None if label is None else listed.class_names[label] for label in labels]
            names, splits = listed.names[some], [split or None for split in listed.splits[some]]
            texts = [[*map(utf8, names)], splits, labels, [*map(utf8, classes)]]
            columns = [pa.array(values, kind) for values, kind in zip(texts, schema.types, strict=False)]
            columns += [column(found[name].numpy(), shape) for name, shape in shapes.items()]
            writer.write_batch(pa.record_batch(columns, schema=schema))

        yield write
