"""The commands of `vit` and the options of each, a row an option; and the parser that reads them.

Nothing here imports torch, so that `--help` answers at once.
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

from vit.config import (
    BUILT_IN,
    SYNONYMS,
    BelowOne,
    Config,
    Device,
    NonNegative,
    OnBadImage,
    Positive,
    Probability,
    Settings,
    Share,
    Whole,
    reason,
    several,
    spelled,
)
from vit.errors import ConfigError, did_you_mean, one_line
from vit.load_options import LoadOptions
from vit.runs import QUICKSTART, TrainCommand, train_command

# --- What an option takes ------------------------------------------------------------------------


def path(text: str) -> Path:
    """Return a path; the shell leaves the ~ of --out=~/page.html as it is."""
    if not text:
        raise ValueError("name a file or a folder")
    return Path(os.path.expanduser(text))


Place = Annotated[Path, BeforeValidator(path)]
Numbers = Annotated[tuple[Whole, ...], Field(min_length=1), BeforeValidator(several)]
Seeds = Annotated[tuple[NonNegative, ...], Field(min_length=1), BeforeValidator(several)]
Patch = Annotated[tuple[NonNegative, NonNegative], BeforeValidator(several)]
Register = Annotated[str, Field(pattern=r"^register \d{1,4}$")]


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


# --- The options of each command -----------------------------------------------------------------

Option = tuple[str, Any, Any, str]
"""How it is written, and what stands for its value; its type; its default, ... if it must be given;
and its sentence. Without "--" its place names it.

Its value has its name, with underscores: `--on-bad-image` becomes `options.on_bad_image`.
"""
Command = tuple[str, str, str, tuple[type[Settings], ...], tuple[Option, ...]]
"""What a command is for, in a line and in full; its usage; models of which every field is an option
too; and its own options."""

SECTIONS = tuple(type(section) for _, section in Config())
MORE = "[--option VALUE ...]"
FILE = ("--out FILE", Place, None, "page to write, .html")
PAGE = ("--out FILE", Place, ..., "page to write, .html")
JSON = (
    "--json",
    bool,
    False,
    "print the results as JSON on stdout; everything else goes to stderr",
)
OVERWRITE = ("--overwrite", bool, False, "replace existing files")
DEVICE = ("--device", Device, "auto", "where to run")
BAD_IMAGE = (
    "--on-bad-image",
    OnBadImage,
    "stop",
    "unreadable images: stop and name the first, or leave them out and warn",
)
CHECKPOINT = (
    "checkpoint CHECKPOINT",
    str,
    ...,
    "run folder, other folder, file, a name that `vit models` lists, timm/NAME or"
    " hf/ORGANISATION/NAME",
)
ROOT = ("--root FOLDER", Place, Path("data"), "where CIFAR's archive is")
DATA = (
    "data DATA",
    str,
    None,
    "cifar10, cifar100, scenes, or a folder of images; --data is the same",
)
OR_DATA = (
    "--data NAME|FOLDER",
    str,
    None,
    "instead of files: cifar10, cifar100, scenes, or a folder with its splits and classes",
)
SETTINGS: tuple[Option, ...] = (
    (
        "--config FILE",
        str,
        [],
        "YAML file with settings, or the name of one of the package; of several, the later wins",
    ),
    (
        "--data NAME|FOLDER",
        str,
        None,
        "cifar10, cifar100, scenes or a folder of images: data.source and data.root in one",
    ),
)
SHOWN_IMAGES = (
    ("images IMAGE ...", str, None, "image files, prepared as in training; or what --data takes"),
    OR_DATA,
    ROOT,
    (
        "--count N",
        Positive,
        8,
        "number of test images from --data; of a folder without any, of images",
    ),
    (
        "--mask X",
        Probability,
        None,
        "for masked models: mask this share of the patches, e.g. 0.75",
    ),
    ("--seed N", NonNegative, 0, "seed of the mask"),
    BAD_IMAGE,
)

COMMANDS: dict[str, Command] = {
    "train": (
        "pretrain or fine-tune a model, as train.py does",
        "Pretrain by filling in masked patches, or train a classifier. Without --config:"
        f" {QUICKSTART.name}.",
        "[--config FILE] [--SECTION.FIELD VALUE ...] [--out FOLDER] [--resume]",
        SECTIONS,
        (
            (
                "--out FOLDER",
                Place,
                None,
                "run folder; by default runs/ and the configuration's name",
            ),
            ("--resume", bool, False, "continue the run from its last saved state"),
            (
                "--print_config",
                bool,
                False,
                "print all settings as a configuration file, and end",
            ),
            *SETTINGS,
        ),
    ),
    "data": (
        "show the images that a configuration would train on",
        "Load data by name, folder or configuration; describe it, draw some of its images.",
        "[DATA] [--SECTION.FIELD VALUE ...]",
        SECTIONS,
        (
            DATA,
            ("--out FILE", Place, None, "picture to write: .png, .svg or .pdf"),
            JSON,
            OVERWRITE,
            *SETTINGS,
        ),
    ),
    "checkpoint inspect": (
        "say what a checkpoint is, and what becomes of each of its tensors",
        "Say what a checkpoint is, and what becomes of each of its tensors.",
        f"CHECKPOINT {MORE}",
        (LoadOptions,),
        (CHECKPOINT, JSON),
    ),
    "checkpoint convert": (
        "write a checkpoint in another format",
        "Write a checkpoint in another format.",
        f"CHECKPOINT --to FORMAT --out FOLDER {MORE}",
        (LoadOptions,),
        (
            CHECKPOINT,
            (
                "--to",
                Literal["timm", "huggingface", "safetensors"],
                ...,
                "format; safetensors is the project's own",
            ),
            ("--out FOLDER", Place, ..., "a new or empty folder"),
            (
                "--half",
                bool,
                False,
                "--to safetensors: weights in half precision; they load as float32",
            ),
        ),
    ),
    "models": (
        "list the models that come with the package",
        "List the models that come with the package; their names work as CHECKPOINT, and in"
        " load_model.",
        "[--json]",
        (),
        (JSON,),
    ),
    "predict": (
        "classify images by a model's own head",
        "Classify images by a classifier: the most probable classes, with their probabilities.",
        f"CHECKPOINT IMAGE ... {MORE}",
        (LoadOptions,),
        (
            CHECKPOINT,
            (
                "images IMAGE ...",
                str,
                ...,
                "image files, or folders of images; prepared as in training",
            ),
            ("--top N", Positive, 3, "classes per image, the most probable first"),
            (
                "--csv FILE",
                Place,
                None,
                "also write them to this file, one row per image and class",
            ),
            BAD_IMAGE,
            DEVICE,
            JSON,
            OVERWRITE,
        ),
    ),
    "embed": (
        "write image features to a file",
        "Write the features of images, pooled as the model's head reads them, with file names,"
        " splits and any labels.",
        f"CHECKPOINT IMAGE ... --out FILE {MORE}",
        (LoadOptions,),
        (
            CHECKPOINT,
            ("images IMAGE ...", str, None, "image files; or what --data takes"),
            OR_DATA,
            ROOT,
            BAD_IMAGE,
            ("--out FILE", Place, ..., "file to write, .npz or .csv"),
            (
                "--limit N",
                NonNegative,
                0,
                "use only this many images per split, evenly spaced; 0: all",
            ),
            DEVICE,
            OVERWRITE,
        ),
    ),
    "similar": (
        "find the images of a folder that are nearest to another",
        "Find the images of a folder that are nearest to an image, by the cosine similarity of"
        " their features: a table, and a page that opens from disk.",
        f"CHECKPOINT IMAGE FOLDER [--out FILE] {MORE}",
        (LoadOptions,),
        (
            CHECKPOINT,
            ("image IMAGE", str, ..., "image file; prepared as in training"),
            ("folder FOLDER", str, ..., "folder of images, searched with its subfolders"),
            ("--count N", Positive, 12, "number of images to find, the nearest first"),
            (
                "--features FILE",
                Place,
                None,
                "their features, as vit embed wrote them of FOLDER to a .npz; else computed anew",
            ),
            BAD_IMAGE,
            FILE,
            DEVICE,
            JSON,
            OVERWRITE,
        ),
    ),
    "attention": (
        "draw a model's attention",
        "Draw a model's attention, and write the numbers beside each picture as .npz.",
        f"CHECKPOINT IMAGE ... --out FOLDER {MORE}",
        (LoadOptions,),
        (
            CHECKPOINT,
            ("--out FOLDER", Place, ..., "folder for the pictures"),
            # Which maps
            (
                "--method",
                Literal["weights", "rollout", "relevance", "legrad", "pca", "distance"],
                "weights",
                "the weights, what arrives through all layers, what a class depends on (relevance"
                " or LeGrad), patch features as colours, or how far each head attends",
            ),
            (
                "--layer N|all",
                Whole | Literal["all"],
                None,
                "from 0, -1 is the last; all: one map per layer (default: -1; all for distance)",
            ),
            (
                "--head N|mean|all",
                Whole | Literal["mean", "all"],
                "all",
                "from 0; all: the mean and every head",
            ),
            (
                "--query R,C|cls|mean",
                Literal["auto", "cls", "mean"] | Register | Patch,
                "auto",
                "the query token: cls, a patch as ROW,COLUMN, mean (over all patches) or 'register"
                " N'; auto: mean for a classifier that averages the patches, else the class token,"
                " or without one the middle patch",
            ),
            # What some of the methods take
            (
                "--keep X",
                Share,
                None,
                "also draw the fewest patches that hold this share, e.g. 0.6 as in DINO",
            ),
            (
                "--label CLASS",
                str,
                None,
                "relevance, legrad: the class, a number or a name (default: the predicted one)",
            ),
            (
                "--discard X",
                BelowOne,
                0.0,
                "rollout: share of the weights to leave out, the smallest",
            ),
            # The pictures
            ("--scale", Literal["shared", "row", "log"], "shared", "range of the colours"),
            ("--overlay", bool, False, "lay the maps over the images"),
            ("--format", Literal["png", "svg", "pdf"], "png", "of the pictures"),
            OVERWRITE,
            *SHOWN_IMAGES,
        ),
    ),
    "explore": (
        "write a page for exploring a model's attention",
        "Write one page for exploring a model's attention; it opens from disk, without a server or"
        " a network.",
        f"CHECKPOINT IMAGE ... --out FILE {MORE}",
        (LoadOptions,),
        (
            CHECKPOINT,
            PAGE,
            (
                "--layers N,...",
                Numbers,
                None,
                "only these, e.g. 0,5,-1; -1 is the last (default: all)",
            ),
            ("--snapshots", bool, False, "a slider over a run's snapshots"),
            ("--numbers", bool, False, "write the weights beside the page, as .npz"),
            OVERWRITE,
            *SHOWN_IMAGES,
        ),
    ),
    "evaluate": (
        "measure a pretrained model: k-NN, probe, reconstruction, head",
        "Measure a pretrained model without training it further. The test images are used once;"
        " every choice is made on training images.",
        f"CHECKPOINT DATA {MORE}",
        (LoadOptions,),
        (
            CHECKPOINT,
            DATA,
            ("--data NAME|FOLDER", str, None, argparse.SUPPRESS),
            ROOT,
            BAD_IMAGE,
            ("--name TEXT", str, "", "name of the data in outputs"),
            ("--limit N", NonNegative, 0, "use only this many images per split; 0: all"),
            (
                "--method",
                Literal["all", "knn", "linear", "reconstruction", "head"],
                "all",
                "nearest neighbours, a linear probe, filling in masked patches, the model's own"
                " head; all: those that apply",
            ),
            (
                "--every-layer",
                bool,
                False,
                "probe each layer, choose on held-out training images",
            ),
            # What some of the methods take
            ("--labels X", Share, 1.0, "share of the training labels to use"),
            (
                "--holdout N",
                Positive,
                5000,
                "training images held out to choose the probe's layer and regularisation",
            ),
            (
                "--val-size N",
                NonNegative,
                0,
                "for choosing settings: measure on this many held-out training images, not on the"
                " test images",
            ),
            ("--flip", bool, False, "also measure its head on images and mirror images together"),
            (
                "--knn-images N",
                NonNegative,
                0,
                "training images searched for nearest neighbours; 0: all",
            ),
            (
                "--seeds N,...",
                Seeds,
                "0",
                "of the label subset and the images that --holdout takes; several, as 0,1,2, give"
                " the mean and the spread",
            ),
            # Where it runs, and what it writes
            ("--threads N", NonNegative, 0, "CPU threads; 0: torch's choice"),
            (
                "--out FOLDER",
                Place,
                None,
                "folder for results.json and the pictures of a classifier",
            ),
            DEVICE,
            JSON,
            OVERWRITE,
        ),
    ),
    "report": (
        "write a one-page report on a run",
        "Write one self-contained page about a run, finished or not: its results beside their"
        " baselines, the pictures in its folder, data and settings. It opens from disk, without a"
        " network or scripts, and includes what `vit evaluate RUN DATA --out RUN/NAME` measured.",
        f"RUN {MORE}",
        (),
        (
            ("run RUN", Place, ..., "run folder"),
            (
                "--out FILE",
                Place,
                None,
                "page to write, .html; replaces an earlier report (default: RUN/report.html)",
            ),
            JSON,
        ),
    ),
    "compare": (
        "compare finished runs side by side, averaged over seeds",
        "Print finished runs side by side: the settings that differ, and what the runs measured."
        " Runs that differ only in the seed share a row, with mean and standard deviation. A"
        " linear probe is shown if `vit evaluate RUN DATA --out RUN/NAME` has left its results in"
        " the run's folder.",
        f"RUN ... {MORE}",
        (),
        (("runs RUN ...", Place, ..., "run folders"), JSON),
    ),
}
"""Every command; `vit.cli` has a module of the same name for each, with the function `run`, or with
one for each second word."""


# --- The parser ----------------------------------------------------------------------------------


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{one_line(message.removeprefix('argument '))}; see --help")


class Parser(OneLineParser):
    """A parser of the fields of models and of further options."""

    def __init__(
        self,
        prog: str,
        usage: str = "",
        purpose: str = "",
        models: Sequence[type[Settings]] = SECTIONS,
        options: Sequence[Option] = SETTINGS,
    ):
        super().__init__(prog, f"{prog} {usage}", purpose, allow_abbrev=False)
        # "-1,0" is a value, as "-1" is
        self._negative_number_matcher = re.compile(r"-[\d.][\d.,e+-]*$")
        for option in options:
            self.add_option(*option)

        # Without a value, a field stays out of the options: a file or its default decides
        for model in models:
            group = self.add_argument_group((model.__doc__ or "").partition("\n")[0].rstrip("."))
            for name, field in model.model_fields.items():
                default = field.default if model.section else None
                word = model.key(name) if model.section else name.replace("_", "-")
                words: dict[str, Any] = {}
                if name == "allow":
                    words = {"nargs": "+", "action": "extend"}
                group.add_argument(
                    f"--{word}",
                    default=argparse.SUPPRESS,
                    metavar=placeholder(field.annotation),
                    help=explained(field.description or "", default),
                    **words,
                )

    def add_option(self, words: str, kind: Any, default: Any, sentence: str) -> None:
        """Add a row of the table above."""
        name, _, metavar = words.partition(" ")
        if kind is bool:
            self.add_argument(name, action="store_true", help=sentence)
            return
        details: dict[str, Any] = {
            "type": typed(kind),
            "metavar": metavar.removesuffix(" ...") or placeholder(kind),
            "help": explained(sentence, default),
        }

        # A place may be left empty where an option says the same
        if name.startswith("--"):
            if default is ...:
                details["required"] = True
            else:
                details["default"] = default
            if default == []:
                details["action"] = "append"
        elif metavar.endswith(" ..."):
            details["nargs"] = "+" if default is ... else "*"
        elif default is None:
            details |= {"nargs": "?", "default": argparse.SUPPRESS}
        self.add_argument(name, **details)

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the options, with the program as the user calls it, and all words."""
        options, unknown = self.parse_known_intermixed_args(argv)
        if unknown:
            name = unknown[0].partition("=")[0]
            meant = f"--{SYNONYMS.get(name.removeprefix('--'))}"
            near = did_you_mean(name, self._option_string_actions)
            if meant in self._option_string_actions:
                near = f"; did you mean {meant}?"
            self.error(f"unrecognized arguments: {name}{near}")
        options.program = self.prog
        options.command_line = f"{self.prog} {shlex.join(argv)}"
        return options


def explained(sentence: str, default: Any) -> str:
    """Return a sentence for `--help`, on one line, with the default if it is a value."""
    text = " ".join(sentence.split())
    if default not in (None, ..., []):
        text += f" (default: {spelled(default)})"
    return text.replace("%", "%%")


def command_parser(name: str, prog: str = "") -> Parser:
    """Return the parser of a command; `prog` is the program, if that is another than `vit`."""
    _, purpose, usage, models, options = COMMANDS[name]
    return Parser(prog or f"vit {name}", usage, purpose, models, options)


# --- Settings ------------------------------------------------------------------------------------


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a command line by "section.key", as texts that `Config` reads.

    `--data NAME|FOLDER` stands for data.source and data.root, which win over it.
    """
    settings: dict[str, Any] = {}
    if options.data is not None:
        for key, value in named_data(options.data).items():
            settings[f"data.{key}"] = value
    for key, text in vars(options).items():
        if "." in key:
            settings[key] = None if text == "null" else text
    return settings


def named_data(data: str | None, root: str = "data") -> dict[str, Any]:
    """Return `DataConfig`'s source and root for a command's --data.

    Args:
        data: a name in BUILT_IN, or a folder of images.
        root: folder that holds (or receives) the archive of a built-in data set.
    """
    folder = os.path.expanduser(data or "")
    if folder in BUILT_IN:
        # A folder here of that name is another thing, which nobody would notice
        if os.path.isdir(folder):
            warnings.warn(
                f"{data} is the built-in data, not the folder {data} here: that is ./{data}",
                stacklevel=2,
            )
        return {"source": folder, "root": root}
    if not os.path.isdir(folder):
        names = ", ".join(BUILT_IN)
        raise ConfigError("--data", f"{data!r} is neither {names} nor a folder of images")
    return {"source": "folder", "root": data}


def command_of(options: argparse.Namespace) -> TrainCommand:
    """Return the training run that the options of `train` ask for."""
    settings = given_settings(options)
    return train_command(options.config, settings, options.out, options.resume, options.program)
