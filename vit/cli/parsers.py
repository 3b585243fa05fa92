"""The commands of `vit` and the options of each, a row an option.

Nothing here imports torch, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

from vit.commandline import (
    SECTIONS,
    SETTINGS,
    Numbers,
    Option,
    Parser,
    Patch,
    Place,
    Register,
    Seeds,
    given_settings,
)
from vit.config import (
    BelowOne,
    Device,
    NonNegative,
    OnBadImage,
    Positive,
    Probability,
    Settings,
    Share,
    Whole,
)
from vit.load_options import LoadOptions
from vit.runs import QUICKSTART, TrainCommand, train_command

# --- The options of each command -----------------------------------------------------------------

Command = tuple[str, str, str, tuple[type[Settings], ...], tuple[Option, ...]]
"""What a command is for, in a line and in full; its usage; models of which every field is an option
too; and its own options."""

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
                "use only this many images per split, spread over all; 0: all",
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
                "for choosing settings: measure on about N held-out training images, not on the"
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


def command_parser(name: str, prog: str = "") -> Parser:
    """Return the parser of a command; `prog` is the program, if that is another than `vit`."""
    _, purpose, usage, models, options = COMMANDS[name]
    return Parser(prog or f"vit {name}", usage, purpose, models, options)


def command_of(options: argparse.Namespace) -> TrainCommand:
    """Return the training run that the options of `train` ask for."""
    settings = given_settings(options)
    return train_command(options.config, settings, options.out, options.resume, options.program)
