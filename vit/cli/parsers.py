"""The commands of `vit` and the options of each, a row an option.

Nothing here imports torch, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

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
    Device,
    NonNegative,
    OnBadImage,
    Positive,
    Settings,
    Share,
    Whole,
    Within,
)
from vit.load_options import LoadOptions
from vit.runs import QUICKSTART, TrainCommand, train_command

# --- The options of each command -----------------------------------------------------------------

Command = tuple[str, str, str, tuple[Option | type[Settings], ...]]
"""What a command is for, in a line and in full; its usage; and its options: see `Parser`."""

MORE = "[--option VALUE ...]"
EXAMPLES = """

       vit train --config folder --data my_images --out runs/mine
       vit train --config finetune --data my_images --model.init runs/mine --out runs/classes"""
JSON = ("--json", bool, False, "print the results as JSON on stdout, and everything else on stderr")
OVERWRITE = ("--overwrite", bool, False, "replace existing files")
DEVICE = ("--device", Device, "auto", "where to run")
BAD_IMAGE = (
    "--on-bad-image",
    OnBadImage,
    "stop",
    "unreadable images: stop at the first, or skip them with a warning",
)
CHECKPOINT = (
    "checkpoint CHECKPOINT",
    str,
    ...,
    "a run folder, another folder, a file, a name from `vit models`, timm/NAME or"
    " hf/ORGANISATION/NAME",
)
MODEL = (CHECKPOINT, LoadOptions)
ROOT = ("--root FOLDER", Place, Path("data"), "folder of CIFAR's archive")
DATA = (
    "data DATA",
    str,
    None,
    "cifar10, cifar100, scenes, or a folder of images; --data does the same",
)
OR_DATA = (
    "--data NAME|FOLDER",
    str,
    None,
    "instead of files: cifar10, cifar100, scenes, or a folder of images",
)
IMAGES = ("images IMAGE ...", str, None, "image files, or one name or folder as for --data")
LIMIT = ("--limit N", NonNegative, 0, "use only this many images per split; 0: all")
VIEWS = (
    "--views N",
    Annotated[Positive, Field(le=6)],
    1,
    "classify by the mean over N views, N times as slow; 2: an image and its mirror image; 6: also"
    " four shifts by a pixel",
)
SHOWN_IMAGES = (
    IMAGES,
    OR_DATA,
    ROOT,
    ("--count N", Positive, 8, "number of images from --data: test images, if there are any"),
    ("--mask X", Within, None, "mask this fraction of the patches, e.g. 0.75"),
    ("--seed N", NonNegative, 0, "seed of the mask"),
    BAD_IMAGE,
)

GROUPS = {
    "train a model": ("train", "data"),
    "look inside": ("explore", "attention", "similar", "embed"),
    "use and measure a model": ("predict", "evaluate", "report", "compare"),
    "checkpoints": ("models", "checkpoint inspect", "checkpoint convert"),
}
"""The commands in the order of `vit --help`."""
COMMANDS: dict[str, Command] = {
    "train": (
        "pretrain or fine-tune a model, as train.py does",
        "Pretrain a masked autoencoder, or train a classifier. Without --config, the settings are"
        f" those of {QUICKSTART.name}.",
        f"[--config FILE] [--SECTION.FIELD VALUE ...] [--out FOLDER] [--resume]{EXAMPLES}",
        (
            *SETTINGS,
            (
                "--out FOLDER",
                Place,
                None,
                "run folder (default: runs/ and the name of the configuration)",
            ),
            ("--resume", bool, False, "continue the run from its last checkpoint"),
            ("--print_config", bool, False, "print all settings as a configuration file, and exit"),
            *SECTIONS,
        ),
    ),
    "data": (
        "describe and draw the training images",
        "Load data by name, folder or configuration. Describe it, and draw some of its images.",
        "[DATA] [--SECTION.FIELD VALUE ...]",
        (
            DATA,
            ("--out FILE", Place, None, "figure to write, .png, .svg or .pdf"),
            JSON,
            OVERWRITE,
            *SETTINGS,
            *SECTIONS,
        ),
    ),
    "checkpoint inspect": (
        "describe a checkpoint and how each tensor is used",
        "Describe a checkpoint, and how each of its tensors is used.",
        f"CHECKPOINT {MORE}",
        (*MODEL, JSON),
    ),
    "checkpoint convert": (
        "write a checkpoint in another format",
        "Write a checkpoint in another format.",
        f"CHECKPOINT --to FORMAT --out FOLDER {MORE}",
        (
            *MODEL,
            (
                "--to",
                Literal["timm", "huggingface", "safetensors"],
                ...,
                "safetensors: this package's own format (config.json + model.safetensors)",
            ),
            ("--out FOLDER", Place, ..., "a new or empty folder"),
            (
                "--half",
                bool,
                False,
                "with --to safetensors: store the weights in half precision; they load as float32",
            ),
        ),
    ),
    "models": (
        "list the models that come with the package",
        "List the models that come with the package. Their names work as CHECKPOINT and in"
        " load_model.",
        "[--json]",
        (JSON,),
    ),
    "predict": (
        "classify images with a fine-tuned model",
        "Classify images: print the top classes and their probabilities.",
        f"CHECKPOINT IMAGE ... {MORE}",
        (
            *MODEL,
            ("images IMAGE ...", str, ..., "image files, or folders of images"),
            ("--top N", Positive, 3, "number of classes per image"),
            VIEWS,
            ("--csv FILE", Place, None, "write a table with a row per image and class"),
            BAD_IMAGE,
            DEVICE,
            JSON,
            OVERWRITE,
        ),
    ),
    "embed": (
        "write image features to a file",
        "Write image features, pooled as for the model's head, with file names, splits and labels.",
        f"CHECKPOINT IMAGE ... {MORE}",
        (
            *MODEL,
            IMAGES,
            OR_DATA,
            ROOT,
            BAD_IMAGE,
            ("--out FILE", Place, Path("features.npz"), "file to write, .npz or .csv"),
            LIMIT,
            DEVICE,
            OVERWRITE,
        ),
    ),
    "similar": (
        "find the images in a folder that are most similar to an image",
        "Find the images in a folder that are most similar to an image, by the cosine similarity"
        " of their features, whitened or standardised as for k-NN. Print a table; with --out, write"
        " a page that opens from disk.",
        f"CHECKPOINT IMAGE FOLDER [--out FILE] {MORE}",
        (
            *MODEL,
            ("image IMAGE", str, ..., "image file"),
            ("folder FOLDER", str, ..., "folder of images, searched with its subfolders"),
            ("--count N", Positive, 12, "number of images to find"),
            (
                "--features FILE",
                Place,
                None,
                "features of FOLDER, from vit embed (.npz); without it, they are computed",
            ),
            BAD_IMAGE,
            ("--out FILE", Place, None, "page to write, .html"),
            DEVICE,
            JSON,
            OVERWRITE,
        ),
    ),
    "attention": (
        "draw attention maps",
        "Draw a model's attention, and write the numbers of each figure as .npz.",
        f"CHECKPOINT IMAGE ... {MORE}",
        (
            *MODEL,
            ("--out FOLDER", Place, Path("attention"), "folder for the figures"),
            # Which maps
            (
                "--method",
                Literal["weights", "rollout", "relevance", "legrad", "pca", "distance"],
                "weights",
                "attention weights; rollout through all layers; relevance for one class; LeGrad for"
                " one class; PCA of the patch features as colours; mean attention distance per"
                " head",
            ),
            (
                "--layer N|all",
                Whole | Literal["all"],
                None,
                "from 0; -1: the last; all: one map per layer (default: -1; all for distance)",
            ),
            (
                "--head N|mean|all",
                NonNegative | Literal["mean", "all"],
                "all",
                "from 0; all: every head and their mean",
            ),
            (
                "--query R,C|cls|mean",
                Literal["auto", "cls", "mean"] | Register | Patch,
                "auto",
                "query token: a patch as ROW,COLUMN, cls, mean (over all patches) or 'register N';"
                " auto: mean for a classifier with average pooling, else the class token, or"
                " without one the middle patch",
            ),
            # What some of the methods take
            (
                "--keep X",
                Share,
                None,
                "draw the fewest patches with this fraction of the attention on patches, e.g. 0.6"
                " as in DINO",
            ),
            (
                "--label CLASS",
                str,
                None,
                "relevance, legrad: number or name of the class (default: the predicted one)",
            ),
            # The figures
            ("--scale", Literal["shared", "row", "log"], "shared", "colour scale of the maps"),
            ("--overlay", bool, False, "draw the maps over the images"),
            ("--format", Literal["png", "svg", "pdf"], "png", "format of the figures"),
            OVERWRITE,
            *SHOWN_IMAGES,
        ),
    ),
    "explore": (
        "write a page for exploring a model's attention",
        "Write a page for exploring a model's attention. It opens from disk, without a server or a"
        " network.",
        f"CHECKPOINT IMAGE ... {MORE}",
        (
            *MODEL,
            ("--out FILE", Place, Path("page.html"), "page to write, .html"),
            (
                "--layers N,...",
                Numbers,
                None,
                "only these layers, e.g. 0,5,-1; -1: the last (default: all)",
            ),
            ("--snapshots", bool, False, "add a slider over the snapshots of a run"),
            ("--numbers", bool, False, "write the attention weights as .npz, next to the page"),
            OVERWRITE,
            *SHOWN_IMAGES,
        ),
    ),
    "evaluate": (
        "measure a model: k-NN, linear probe, reconstruction, its own head",
        "Measure a model without training it further. Every choice is made on training images, and"
        " the test images are used once.",
        f"CHECKPOINT DATA {MORE}",
        (
            *MODEL,
            DATA,
            ("--data NAME|FOLDER", str, None, argparse.SUPPRESS),
            ROOT,
            BAD_IMAGE,
            ("--name TEXT", str, "", "name of the data in outputs"),
            LIMIT,
            (
                "--method",
                Literal["all", "knn", "linear", "reconstruction", "head"],
                "all",
                "k-NN; linear probe; reconstruction of masked patches; the model's own head;"
                " all: those that apply",
            ),
            (
                "--every-layer",
                bool,
                False,
                "let the probe choose among all layers, on held-out training images, not only"
                " between the last and the last three side by side",
            ),
            # What some of the methods take
            ("--labels X", Share, 1.0, "fraction of the training labels to use"),
            (
                "--holdout N",
                Positive,
                5000,
                "training images held out to choose the layers and the regularisation of the probe",
            ),
            (
                "--val-size N",
                NonNegative,
                0,
                "measure on about N held-out training images instead of the test images, to choose"
                " settings",
            ),
            VIEWS,
            ("--knn-images N", NonNegative, 0, "training images among which k-NN searches; 0: all"),
            (
                "--seeds N,...",
                Seeds,
                "0",
                "seeds of the label subset and of the held-out images; several, e.g. 0,1,2: report"
                " mean and spread",
            ),
            # Where it runs, and what it writes
            ("--threads N", NonNegative, 0, "CPU threads; 0: torch's choice"),
            (
                "--out FOLDER",
                Place,
                None,
                "folder for results.json and the figures of a classifier",
            ),
            DEVICE,
            JSON,
            OVERWRITE,
        ),
    ),
    "report": (
        "write a one-page report on a run",
        "Write one page about a run, finished or not: results and baselines, the figures in its"
        " folder, data and settings. The page opens from disk, without a network or scripts. It"
        " includes the results of `vit evaluate RUN DATA --out RUN/NAME`.",
        f"RUN {MORE}",
        (
            ("run RUN", Place, ..., "run folder"),
            (
                "--out FILE",
                Place,
                None,
                "page to write, .html; an earlier report is replaced (default: RUN/report.html)",
            ),
            JSON,
        ),
    ),
    "compare": (
        "compare finished runs, averaged over seeds",
        "Print finished runs side by side: the settings that differ, and the results. Runs that"
        " differ only in the seed share a row, with mean and standard deviation. A linear probe is"
        " included after `vit evaluate RUN DATA --out RUN/NAME`.",
        f"RUN ... {MORE}",
        (("runs RUN ...", Place, ..., "run folders"), JSON),
    ),
}
"""Every command; `vit.cli` has a module of the same name for each, with the function `run`, or with
one for each second word. It returns the exit code, if that may be another than 0."""


def command_parser(name: str, prog: str = "") -> Parser:
    """Return the parser of a command; `prog` is the program, if that is another than `vit`."""
    _, purpose, usage, options = COMMANDS[name]
    return Parser(prog or f"vit {name}", usage, purpose, options)


def command_of(options: argparse.Namespace) -> TrainCommand:
    """Return the training run that the options of `train` ask for."""
    settings = given_settings(options)
    return train_command(options.config, settings, options.out, options.resume)
