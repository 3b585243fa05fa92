"""The options of every command, a line each. Nothing here imports torch, so that `--help` answers.

An option's value has its name, with underscores: `--on-bad-image` becomes `options.on_bad_image`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from vit.config import (
    BUILT_IN,
    SYNONYMS,
    BelowOne,
    Config,
    NonNegative,
    Positive,
    Probability,
    Share,
    Whole,
    reason,
    several,
    spelled,
)
from vit.errors import ConfigError, did_you_mean, one_line
from vit.load_options import LoadOptions
from vit.runs import QUICKSTART, TrainCommand, train_command

Numbers = Annotated[tuple[Whole, ...], Field(min_length=1), BeforeValidator(several)]
Seeds = Annotated[tuple[NonNegative, ...], Field(min_length=1), BeforeValidator(several)]


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


class Parser(OneLineParser):
    """A parser of a command of `vit`, which says what was probably meant."""

    def __init__(self, prog: str, arguments: str, purpose: str):
        usage = f"{prog} {arguments}"
        super().__init__(prog, usage=usage, description=purpose, allow_abbrev=False)
        # "-1,0" is a value, as "-1" is
        self._negative_number_matcher = re.compile(r"-[\d.][\d.,e+-]*$")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the options, and with them what functions of several commands ask.

        `given` holds the names of those that differ from their defaults, `program` what the user
        calls the command, `command_line` all words.

        Raises:
            ConfigError: the command line cannot be used.
            SystemExit: after `--help`.
        """
        options, unknown = self.parse_known_intermixed_args(argv)
        if unknown:
            self.refuse(unknown[0].partition("=")[0])

        # What functions of several commands ask
        values = vars(options).items()
        options.given = {name for name, value in values if value != self.get_default(name)}
        options.program = self.prog
        options.command_line = f"{self.prog} {shlex.join(argv)}"
        return options

    def refuse(self, name: str) -> NoReturn:
        """Refuse an option that does not exist, with the one that may be meant."""
        near = did_you_mean(name, self._option_string_actions)
        meant = SYNONYMS.get(name.removeprefix("--"))
        if meant is not None and self.get_default("config") is not None:
            near = f"; did you mean --{meant}?"
        self.error(f"unrecognized arguments: {name}{near}")

    def error(self, message: str) -> NoReturn:
        line = one_line(message.removeprefix("argument "))
        raise ConfigError(f"{self.prog}: {line}; see --help")


# --- What an option takes ----------------------------------------------------------------------


def typed(kind: Any) -> Callable[[str], Any]:
    """Return the function that reads an option's value as a type of `vit.config`."""

    def read(text: str) -> Any:
        try:
            return TypeAdapter(kind).validate_python(text)
        except ValidationError as error:
            message = f"{text[:40]!r} cannot be used; {reason(error.errors())}"
            raise argparse.ArgumentTypeError(message) from error

    return read


def placeholder(kind: Any) -> str:
    """Return what stands for a value in `--help`: a|b for a choice, N, X, TEXT."""
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if get_origin(kind) is tuple:
        return f"{placeholder(get_args(kind)[0])},..."
    plain = {bool: "true|false", int: "N", float: "X", str: "TEXT"}
    return plain.get(kind) or placeholder(get_args(kind)[0])


class Once(argparse.Action):
    """Stores what may be named in its place or by an option, but not twice."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        if before is not None:
            parser.error(f"{self.dest}: {before!r} and {values!r} are two; name one")
        setattr(namespace, self.dest, values)


def path(text: str) -> Path:
    """Return a path; the shell leaves the ~ of --out=~/page.html as it is."""
    if not text:
        raise argparse.ArgumentTypeError("'' cannot be used; name a file or a folder")
    return Path(os.path.expanduser(text))


def query(text: str) -> tuple[int, int] | str:
    """Return a query token: (row, column) of a patch, or a word."""
    # A patch
    if re.fullmatch(r"\d{1,9},\d{1,9}", text):
        row, column = text.split(",")
        return int(row), int(column)

    # The class token, a register, or the mean over patches
    if not re.fullmatch(r"auto|cls|mean|register \d{1,4}", text):
        allowed = "auto, cls, mean, 'register N', or ROW,COLUMN"
        raise argparse.ArgumentTypeError(f"{text[:40]!r} cannot be used; {allowed}")
    return text


# --- Settings ----------------------------------------------------------------------------------


def sentence(field: FieldInfo) -> str:
    """Return the help of a setting: the sentence below it."""
    return " ".join((field.description or "").split()).replace("%", "%%")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add `--config`, and an option for every setting, `--SECTION.FIELD VALUE`."""
    files = "YAML file with settings, or the name of one of the package; of several, the later wins"
    parser.add_argument("--config", action="append", default=[], metavar="FILE", help=files)
    data = "cifar10, cifar100, scenes or a folder of images: data.source and data.root in one"
    parser.add_argument("--data", metavar="NAME|FOLDER", help=data)

    # Without a value, a setting stays out of the options: a file or its default decides
    for name, section in Config():
        group = parser.add_argument_group((section.__doc__ or name).rstrip("."))
        for key, field in type(section).model_fields.items():
            group.add_argument(
                f"--{name}.{key}",
                default=argparse.SUPPRESS,
                metavar=placeholder(field.annotation),
                help=f"{sentence(field)} (default: {spelled(field.default)})",
            )


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a command line by "section.key", as texts that `Config` reads.

    `--data NAME|FOLDER` stands for data.source and data.root, which win over it.

    Raises:
        ConfigError: `--data` is neither a name nor a folder.
    """
    settings: dict[str, Any] = {}
    if options.data is not None:
        tell_apart(options.data)
        for key, value in named_data(options.data).items():
            settings[f"data.{key}"] = value
    for key, text in vars(options).items():
        if "." in key:
            settings[key] = None if text == "null" else text
    return settings


def named_data(data: str, root: str = "data") -> dict[str, Any]:
    """Return `DataConfig`'s source and root for a command's --data.

    Args:
        data: a name in BUILT_IN, or a folder of images.
        root: folder that holds (or receives) the archive of a built-in data set.

    Raises:
        ConfigError: `data` is none of these.
    """
    if data in BUILT_IN:
        return {"source": data, "root": root}
    folder = os.path.expanduser(data)
    if os.path.isfile(folder):
        raise ConfigError("--data", f"{data!r} is a file; name the folder that it is in")
    if not os.path.isdir(folder):
        names = ", ".join(BUILT_IN)
        raise ConfigError("--data", f"{data!r} is neither {names} nor a folder of images")
    return {"source": "folder", "root": data}


def tell_apart(data: str) -> None:
    """Warn if a folder here has the name of built-in data, which --data takes it for."""
    if data in BUILT_IN and os.path.isdir(data):
        warnings.warn(
            f"{data} is the built-in data, not the folder {data} here: that is ./{data}",
            stacklevel=2,
        )


# --- Options of several commands ---------------------------------------------------------------

OPTIONS = "[--option VALUE ...]"
CHECKPOINT = (
    "run folder, other folder, file, a name that `vit models` lists, timm/NAME or"
    " hf/ORGANISATION/NAME"
)
BAD_IMAGE = "unreadable images: stop and name the first, or leave them out and warn"


def add_json_option(parser: Parser) -> None:
    """Add `--json`."""
    text = "print the results as JSON on stdout; everything else goes to stderr"
    parser.add_argument("--json", action="store_true", help=text)


def add_overwrite_option(parser: Parser) -> None:
    """Add `--overwrite`."""
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")


def add_device_option(parser: Parser) -> None:
    """Add `--device`."""
    choices = ("auto", "cpu", "cuda", "mps")
    parser.add_argument("--device", choices=choices, default="auto", help="where to run")


def add_checkpoint_options(parser: Parser) -> None:
    """Add the checkpoint, and the fields of `LoadOptions`."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=CHECKPOINT)

    # How it is read: an option for each field, whose text `LoadOptions` reads
    group = parser.add_argument_group("how the checkpoint is read; by default as it is")
    for name, field in LoadOptions.model_fields.items():
        several: dict[str, Any] = {}
        if name == "allow":
            several = {"nargs": "+", "action": "extend"}
        group.add_argument(
            f"--{name.replace('_', '-')}",
            default=argparse.SUPPRESS,
            metavar=placeholder(field.annotation),
            help=sentence(field),
            **several,
        )


def add_data_place(parser: Parser, text: str) -> None:
    """Add the place of the data, beside the option of the same name."""
    parser.add_argument(
        "data", nargs="?", default=argparse.SUPPRESS, action=Once, metavar="DATA", help=text
    )


def add_data_options(parser: Parser) -> None:
    """Add the data, which may be named in its place or by `--data`, and how it is read."""
    text = "cifar10, cifar100, scenes, or a folder of images; --data is the same"
    add_data_place(parser, text)
    parser.add_argument("--data", action=Once, metavar="NAME|FOLDER", help=argparse.SUPPRESS)

    # How it is read
    root = "where CIFAR's archive is (default: data)"
    parser.add_argument("--root", type=path, default=Path("data"), metavar="FOLDER", help=root)
    choices = ("stop", "skip")
    parser.add_argument("--on-bad-image", choices=choices, default="stop", help=BAD_IMAGE)


def add_shown_images_options(parser: Parser) -> None:
    """Add the images that the model is shown: files or a data set, whole or masked."""
    files = "image files, prepared as in training; or what --data takes"
    parser.add_argument("images", nargs="*", metavar="IMAGE", help=files)

    # Images of a data set
    add = parser.add_argument_group("what the model is shown").add_argument
    data = "instead of files: cifar10, cifar100, scenes, or a folder of images"
    add("--data", metavar="NAME|FOLDER", help=data)
    root = "where CIFAR's archive is (default: data)"
    add("--root", type=path, default=Path("data"), metavar="FOLDER", help=root)
    count = "number of test images from --data; of a folder without any, of images (default: 8)"
    add("--count", type=typed(Positive), default=8, metavar="N", help=count)

    # How they are read and masked
    mask = "for masked models: mask this share of the patches, e.g. 0.75"
    add("--mask", type=typed(Probability), metavar="X", help=mask)
    add("--seed", type=typed(NonNegative), default=0, metavar="N", help="seed of the mask")
    add("--on-bad-image", choices=("stop", "skip"), default="stop", help=BAD_IMAGE)


# --- The commands ------------------------------------------------------------------------------


def train_parser(prog: str = "vit train") -> Parser:
    """Return the parser of `vit train` and train.py."""
    purpose = "Pretrain by filling in masked patches, or train a classifier."
    purpose += f" Without --config: {QUICKSTART.name}."
    arguments = "[--config FILE] [--SECTION.FIELD VALUE ...] [--out FOLDER] [--resume]"
    parser = Parser(prog, arguments, purpose)

    # The run, and its settings
    out = "run folder; by default runs/ and the configuration's name"
    parser.add_argument("--out", type=path, metavar="FOLDER", help=out)
    resume = "continue the run from its last saved state"
    parser.add_argument("--resume", action="store_true", help=resume)
    show = "print all settings as a configuration file, and end"
    parser.add_argument("--print_config", action="store_true", help=show)
    add_settings(parser)
    return parser


def settings_parser(prog: str) -> Parser:
    """Return a parser of settings alone."""
    parser = Parser(prog, "[--SECTION.FIELD VALUE ...]", "")
    add_settings(parser)
    return parser


def data_parser() -> Parser:
    """Return the parser of `vit data`."""
    purpose = "Load data by name, folder or configuration; describe it, draw some of its images."
    parser = Parser("vit data", "[DATA] [--SECTION.FIELD VALUE ...]", purpose)

    # What is loaded and drawn, by which settings
    data = "cifar10, cifar100, scenes or a folder of images; --data is the same"
    add_data_place(parser, data)
    out = "picture to write: .png, .svg or .pdf"
    parser.add_argument("--out", type=path, metavar="FILE", help=out)
    add_json_option(parser)
    add_overwrite_option(parser)
    add_settings(parser)
    return parser


def inspect_parser() -> Parser:
    """Return the parser of `vit checkpoint inspect`."""
    purpose = "Say what a checkpoint is, and what becomes of each of its tensors."
    parser = Parser("vit checkpoint inspect", f"CHECKPOINT {OPTIONS}", purpose)
    parser.set_defaults(work="inspect")
    add_json_option(parser)
    add_checkpoint_options(parser)
    return parser


def convert_parser() -> Parser:
    """Return the parser of `vit checkpoint convert`."""
    purpose = "Write a checkpoint in another format."
    arguments = "CHECKPOINT --to FORMAT --out FOLDER"
    parser = Parser("vit checkpoint convert", f"{arguments} {OPTIONS}", purpose)
    parser.set_defaults(work="convert")

    # The new files
    formats = ("timm", "huggingface", "safetensors")
    text = "format; safetensors is the project's own"
    parser.add_argument("--to", required=True, choices=formats, help=text)
    out = "a new or empty folder"
    parser.add_argument("--out", required=True, type=path, metavar="FOLDER", help=out)
    half = "--to safetensors: weights in half precision; they load as float32"
    parser.add_argument("--half", action="store_true", help=half)
    add_checkpoint_options(parser)
    return parser


def models_parser() -> Parser:
    """Return the parser of `vit models`."""
    purpose = (
        "List the models that come with the package; their names work as CHECKPOINT, and in"
        " load_model."
    )
    parser = Parser("vit models", "[--json]", purpose)
    add_json_option(parser)
    return parser


def predict_parser() -> Parser:
    """Return the parser of `vit predict`."""
    purpose = (
        "Classify images by a classifier: the most probable classes, with their probabilities."
    )
    parser = Parser("vit predict", f"CHECKPOINT IMAGE ... {OPTIONS}", purpose)
    add = parser.add_argument
    add_checkpoint_options(parser)

    # The images
    images = "image files, or folders of images; prepared as in training"
    add("images", nargs="+", metavar="IMAGE", help=images)

    # The answer
    top = "classes per image, the most probable first (default: 3)"
    add("--top", type=typed(Positive), default=3, metavar="N", help=top)
    table = "also write them to this file, one row per image and class"
    add("--csv", type=path, metavar="FILE", help=table)
    add("--on-bad-image", choices=("stop", "skip"), default="stop", help=BAD_IMAGE)
    add_device_option(parser)
    add_json_option(parser)
    add_overwrite_option(parser)
    return parser


def embed_parser() -> Parser:
    """Return the parser of `vit embed`."""
    purpose = (
        "Write the features of images, pooled as the model's head reads them, with file names,"
        " splits and any labels."
    )
    arguments = "CHECKPOINT IMAGE ... --out FILE"
    parser = Parser("vit embed", f"{arguments} {OPTIONS}", purpose)
    add_checkpoint_options(parser)

    # The images, and how they are read
    add = parser.add_argument
    add("images", nargs="*", metavar="IMAGE", help="image files; or what --data takes")
    data = "cifar10, cifar100, scenes, or a folder of images, with its splits and classes"
    add("--data", metavar="NAME|FOLDER", help=data)
    root = "where CIFAR's archive is (default: data)"
    add("--root", type=path, default=Path("data"), metavar="FOLDER", help=root)
    add("--on-bad-image", choices=("stop", "skip"), default="stop", help=BAD_IMAGE)

    # How many, and where to
    out = "file to write, .npz or .csv"
    add("--out", required=True, type=path, metavar="FILE", help=out)
    limit = "use only this many images per split, evenly spaced; 0: all"
    add("--limit", type=typed(NonNegative), default=0, metavar="N", help=limit)
    add_device_option(parser)
    add_overwrite_option(parser)
    return parser


def similar_parser() -> Parser:
    """Return the parser of `vit similar`."""
    purpose = (
        "Find the images of a folder that are nearest to an image, by the cosine similarity of"
        " their features: a table, and a page that opens from disk."
    )
    arguments = "CHECKPOINT IMAGE FOLDER [--out FILE]"
    parser = Parser("vit similar", f"{arguments} {OPTIONS}", purpose)
    add_checkpoint_options(parser)

    # The image, and where to search
    add = parser.add_argument
    add("image", metavar="IMAGE", help="image file; prepared as in training")
    add("folder", metavar="FOLDER", help="folder of images, searched with its subfolders")
    count = "number of images to find, the nearest first (default: 12)"
    add("--count", type=typed(Positive), default=12, metavar="N", help=count)
    add("--on-bad-image", choices=("stop", "skip"), default="stop", help=BAD_IMAGE)

    features = "their features, as vit embed wrote them of FOLDER to a .npz; else computed anew"
    add("--features", type=path, metavar="FILE", help=features)

    # The answer
    add("--out", type=path, metavar="FILE", help="page to write, .html")
    add_device_option(parser)
    add_json_option(parser)
    add_overwrite_option(parser)
    return parser


def attention_parser() -> Parser:
    """Return the parser of `vit attention`."""
    purpose = "Draw a model's attention, and write the numbers beside each picture as .npz."
    arguments = "CHECKPOINT IMAGE ... --out FOLDER"
    parser = Parser("vit attention", f"{arguments} {OPTIONS}", purpose)
    add_checkpoint_options(parser)
    add = parser.add_argument
    add("--out", required=True, type=path, metavar="FOLDER", help="folder for the pictures")

    # Which maps
    methods = ("weights", "rollout", "relevance", "legrad", "pca", "distance")
    method = (
        "the weights, what arrives through all layers, what a class depends on (relevance or"
        " LeGrad), patch features as colours, or how far each head attends (default: weights)"
    )
    add("--method", choices=methods, default="weights", help=method)
    layer = "from 0, -1 is the last; all: one map per layer (default: -1; all for distance)"
    add("--layer", type=typed(Whole | Literal["all"]), metavar="N|all", help=layer)
    head = "from 0; all: the mean and every head (default: all)"
    numbers = typed(Whole | Literal["mean", "all"])
    add("--head", type=numbers, default="all", metavar="N|mean|all", help=head)
    token = (
        "the query token: cls, a patch as ROW,COLUMN, mean (over all patches) or 'register N';"
        " auto: mean for a classifier that averages the patches, else the class token, or without"
        " one the middle patch (default: auto)"
    )
    add("--query", type=query, default="auto", metavar="R,C|cls|mean", help=token)

    # What some of the methods take
    keep = "also draw the fewest patches that hold this share, e.g. 0.6 as in DINO"
    add("--keep", type=typed(Share), metavar="X", help=keep)
    label = "relevance, legrad: the class, a number or a name (default: the predicted one)"
    add("--label", metavar="CLASS", help=label)
    discard = "rollout: share of the weights to leave out, the smallest"
    add("--discard", type=typed(BelowOne), default=0.0, metavar="X", help=discard)

    # The pictures
    scale = "range of the colours (default: shared)"
    add("--scale", choices=("shared", "row", "log"), default="shared", help=scale)
    add("--overlay", action="store_true", help="lay the maps over the images")
    formats = ("png", "svg", "pdf")
    add("--format", choices=formats, default="png", help="of the pictures (default: png)")
    add_overwrite_option(parser)
    add_shown_images_options(parser)
    return parser


def explore_parser() -> Parser:
    """Return the parser of `vit explore`."""
    purpose = (
        "Write one page for exploring a model's attention; it opens from disk, without a server or"
        " a network."
    )
    arguments = "CHECKPOINT IMAGE ... --out FILE"
    parser = Parser("vit explore", f"{arguments} {OPTIONS}", purpose)
    add_checkpoint_options(parser)

    # The page
    add = parser.add_argument
    add("--out", required=True, type=path, metavar="FILE", help="page to write, .html")
    layers = "only these, e.g. 0,5,-1; -1 is the last (default: all)"
    add("--layers", type=typed(Numbers), metavar="N,...", help=layers)
    add("--snapshots", action="store_true", help="a slider over a run's snapshots")
    numbers = "write the weights beside the page, as .npz"
    add("--numbers", action="store_true", help=numbers)
    add_overwrite_option(parser)
    add_shown_images_options(parser)
    return parser


def evaluate_parser() -> Parser:
    """Return the parser of `vit evaluate`."""
    purpose = (
        "Measure a pretrained model without training it further. The test images are used once;"
        " every choice is made on training images."
    )
    parser = Parser("vit evaluate", f"CHECKPOINT DATA {OPTIONS}", purpose)
    add_checkpoint_options(parser)
    add_data_options(parser)

    # The images, and how they are measured
    add = parser.add_argument
    add("--name", default="", metavar="TEXT", help="name of the data in outputs")
    count = typed(NonNegative)
    limit = "use only this many images per split; 0: all"
    add("--limit", type=count, default=0, metavar="N", help=limit)
    methods = ("all", "knn", "linear", "reconstruction", "head")
    method = (
        "nearest neighbours, a linear probe, filling in masked patches, the model's own head;"
        " all: those that apply (default: all)"
    )
    add("--method", choices=methods, default="all", help=method)
    layers = "probe each layer, choose on held-out training images"
    add("--every-layer", action="store_true", help=layers)

    # What some of the methods take
    labels = "share of the training labels to use (default: 1)"
    add("--labels", type=typed(Share), default=1.0, metavar="X", help=labels)
    holdout = (
        "training images held out to choose the probe's layer and regularisation (default: 5000)"
    )
    add("--holdout", type=typed(Positive), default=5000, metavar="N", help=holdout)
    val_size = (
        "for choosing settings: measure on this many held-out training images, not on the test"
        " images"
    )
    add("--val-size", type=count, default=0, metavar="N", help=val_size)
    flip = "also measure its head on images and mirror images together"
    add("--flip", action="store_true", help=flip)
    knn = "training images searched for nearest neighbours; 0: all"
    add("--knn-images", type=count, default=0, metavar="N", help=knn)
    seeds = (
        "of the label subset and the images that --holdout takes; several, as 0,1,2, give the mean"
        " and the spread (default: 0)"
    )
    add("--seeds", type=typed(Seeds), default=(0,), metavar="N,...", help=seeds)

    # Where it runs, and what it writes
    threads = "CPU threads; 0: torch's choice"
    add("--threads", type=count, default=0, metavar="N", help=threads)
    out = "folder for results.json, confusion.png and reliability.png"
    add("--out", type=path, metavar="FOLDER", help=out)
    add_device_option(parser)
    add_json_option(parser)
    add_overwrite_option(parser)
    return parser


def report_parser() -> Parser:
    """Return the parser of `vit report`."""
    purpose = (
        "Write one self-contained page about a run, finished or not: its results beside their"
        " baselines, the pictures in its folder, data and settings. It opens from disk, without a"
        " network or scripts, and includes what `vit evaluate RUN DATA --out RUN/NAME` measured."
    )
    parser = Parser("vit report", f"RUN {OPTIONS}", purpose)
    parser.add_argument("run", type=path, metavar="RUN", help="run folder")
    out = "page to write, .html; replaces an earlier report (default: RUN/report.html)"
    parser.add_argument("--out", type=path, metavar="FILE", help=out)
    add_json_option(parser)
    return parser


def compare_parser() -> Parser:
    """Return the parser of `vit compare`."""
    purpose = (
        "Print finished runs side by side: the settings that differ, and what the runs measured."
        " Runs that differ only in the seed share a row, with mean and standard deviation. A"
        " linear probe is shown if `vit evaluate RUN DATA --out RUN/NAME` has left its results in"
        " the run's folder."
    )
    parser = Parser("vit compare", f"RUN ... {OPTIONS}", purpose)
    parser.add_argument("runs", nargs="+", type=path, metavar="RUN", help="run folders")
    add_json_option(parser)
    return parser


PARSERS: dict[str, Callable[[], Parser]] = {
    "train": train_parser,
    "data": data_parser,
    "checkpoint inspect": inspect_parser,
    "checkpoint convert": convert_parser,
    "models": models_parser,
    "predict": predict_parser,
    "embed": embed_parser,
    "similar": similar_parser,
    "attention": attention_parser,
    "explore": explore_parser,
    "evaluate": evaluate_parser,
    "report": report_parser,
    "compare": compare_parser,
}


def command_of(options: argparse.Namespace) -> TrainCommand:
    """Return the training run that options of `train_parser` ask for.

    Raises:
        ConfigError: a setting cannot be used.
    """
    settings = given_settings(options)
    return train_command(options.config, settings, options.out, options.resume, options.program)


def parse_train_command(argv: Sequence[str]) -> TrainCommand:
    """Return the training run that the words after `python train.py` ask for.

    Raises:
        ConfigError: the command line cannot be used.
        SystemExit: after `--help`.
    """
    return command_of(train_parser("python train.py").read(argv))
