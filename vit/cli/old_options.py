"""The parser that commands read their options with, and the options and types of values that several of them share."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from vit.config import ConfigError


class CommandParser(argparse.ArgumentParser):
    """Says in one line what is wrong with a command line, instead of with its usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message.removeprefix('argument ')}; --help says more")


def loading_parser() -> CommandParser:
    """What names a checkpoint and says how it is read."""
    loading = CommandParser(add_help=False)
    loading.add_argument(
        "checkpoint", help="run folder, other folder, file, a name that `vit models` lists, timm/NAME or hf/ORGANISATION/NAME"
    )  # fmt: skip
    group = loading.add_argument_group("how it is read; by default as it is")
    group.add_argument("--part", choices=["encoder"], help="leave a decoder out")
    group.add_argument("--image-size", type=_sizes, metavar="H[,W]", help="pixels: resize the position table")
    group.add_argument("--patch-size", type=_sizes, metavar="P[,Q]", help="pixels: resize the patch kernels")
    group.add_argument("--channels", type=int, metavar="N", help="of the images: adapt the patch kernels")
    group.add_argument("--num-classes", type=int, metavar="N", help="of the head; 0 leaves it out")
    group.add_argument("--class-token", type=_yes, metavar="true|false", help="whether it has one; false leaves it out")
    group.add_argument("--global-pool", choices=["token", "avg"], help="what the head reads")
    group.add_argument("--fc-norm", type=_yes, metavar="true|false", help="whether the last norm follows the pooling")
    group.add_argument("--num-heads", type=int, metavar="N", help="where nothing says so")
    group.add_argument("--decoder-heads", type=int, metavar="N", help="where nothing says so")
    group.add_argument(
        "--grid-size", type=_sizes, metavar="R,C", help="rows and columns of its position table, likewise"
    )
    group.add_argument(
        "--norm-pix-loss", type=_yes, metavar="true|false", help="whether a decoder predicts normalised patches"
    )
    group.add_argument("--norm-eps", type=float, metavar="EPS", help="of all norms, where nothing says so")
    group.add_argument(
        "--branch", metavar="KEY", help="of several copies of the network: student, teacher, model_ema, ..."
    )
    group.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="NAME",
        help="a tensor, or a pattern, that may be missing or unexpected or hold nan; may be repeated",
    )
    return loading


def loading_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `load_model` that stand in `loading_parser`'s options."""
    from vit.load_options import LoadOptions

    return {field.name: getattr(options, field.name) for field in fields(LoadOptions)}


def shown_parser() -> CommandParser:
    """What a model is shown."""
    shown = CommandParser(add_help=False)
    shown.add_argument("images", nargs="*", metavar="IMAGE", help="image files; prepared as the model was trained")
    group = shown.add_argument_group("images of a data set instead")
    group.add_argument("--data", metavar="NAME", help="cifar10, cifar100, scenes, or a folder of images")
    group.add_argument("--root", default="data", metavar="DIR", help="where CIFAR's archive lies (default: data)")
    group.add_argument("--count", type=count, default=8, metavar="N", help="how many test images (default: 8)")
    group = shown.add_argument_group("hiding patches, for masked models")
    group.add_argument("--mask", type=float, metavar="SHARE", help="hide this share of the patches, 0.75 say")
    group.add_argument("--seed", type=natural, default=0, metavar="N", help="of the mask (default: 0)")
    return shown


def refuse_idle_options(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Refuse options that would do nothing."""
    if options.mask is None and options.seed != parser.get_default("seed"):
        raise ConfigError("--seed: is of the mask; add --mask, or leave it out")
    for name in ("root", "count"):
        if options.data is None and getattr(options, name) != parser.get_default(name):
            raise ConfigError(f"--{name}: is about a data set; add --data, or leave it out")


def require_folder(folder: Path, option: str = "--out") -> None:
    """Refuse a folder, named by `option`, that cannot be written to, before anything is computed."""
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    except OSError as error:  # a name that is too long
        raise ConfigError(f"{option}: {folder}: {error.strerror}") from error
    if not there.is_dir():
        raise ConfigError(f"{option}: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}: {there} cannot be written to; name another folder")


def page_path(text: str) -> Path:
    """The page that `--out` names, before anything is computed for it.

    Raises:
        ConfigError: it cannot be one, or cannot be written.
    """
    return _file_path("--out", text, (".html", ".htm"), "a page that ends in .html")


def picture_path(option: str, text: str) -> Path:
    """The picture that `option` names, before anything is computed for it.

    Raises:
        ConfigError: it cannot be one, or cannot be written.
    """
    return _file_path(option, text, (".png", ".svg", ".pdf"), "a picture that ends in .png, .svg or .pdf")


def _file_path(option: str, text: str, suffixes: tuple[str, ...], what: str) -> Path:
    out = Path(text)
    if out.suffix not in suffixes or os.path.isdir(out):
        raise ConfigError(f"{option}: {text!r} cannot be used; name {what}")
    if len(os.fsencode(out.name)) > 240:  # beside it, a temporary file needs a name too
        raise ConfigError(f"{option}: {out.name[:40]}...: File name too long")
    require_folder(out.parent, option)
    return out


def whole(text: str) -> int:
    """A whole number, for options that take words too."""
    try:
        return int(text)
    except ValueError:
        shown = text[:40]
        raise argparse.ArgumentTypeError(f"{shown!r} cannot be used; a number, or a word that --help names") from None


def count(text: str) -> int:
    """A number from 1."""
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} cannot be used; a number from 1 to below 10^18")
    return int(text)


def natural(text: str) -> int:
    """A number from 0."""
    if not text.isdecimal() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} cannot be used; a number from 0 to below 10^18")
    return int(text)


def share(text: str) -> float:
    """A share of something, above 0 and at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used; a share above 0 and at most 1")
    return value


def _yes(text: str) -> bool:
    """ "true" or "false"."""
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used; true or false")
    return text == "true"


def _sizes(text: str) -> tuple[int, int]:
    """ "32" or "32,48" as (height, width)."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used; one number, or HEIGHT,WIDTH")
    return numbers[0], numbers[-1]
