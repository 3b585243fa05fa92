"""The options of the commands: dataclasses, whose fields argparse reads."""

from __future__ import annotations

import os
import re
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from docstring_parser import parse_from_object  # the docstrings of attributes

from vit.config import ConfigError, NonNegative, Positive, Probability, Section
from vit.errors import one_line

POSITIONAL = {"positional": True}
"""Metadata of a field that is given by its place instead of as `--name`."""
NAMES = {
    int: ("N", "a whole number"),
    float: ("X", "a number"),
    bool: ("true|false", "true or false"),
    tuple: ("N,N", "a pair as 32,48"),
    str: ("", "a text"),
    Path: ("", "a path"),
}
"""How help writes a value of a type, the option's own name if empty; and what an error calls it."""
PAGE, PICTURE = (".html", ".htm"), (".png", ".svg", ".pdf")
"""How the names of files end that are written."""


# ---- Reading -----------------------------------------------------------------------------------------------------------


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = re.sub(
            "the following arguments are required: (.*)", r"\1: is needed", message.removeprefix("argument ")
        )
        raise ConfigError(f"{self.prog}: {one_line(message)}; --help says more")


def read_options(program: str, argv: Sequence[str], *groups: type) -> tuple[Any, ...]:
    """Read a command line into one instance of each dataclass of `groups`.

    A field is the option of its name, with dashes or underscores. Without a default it is required; False by default, it is a
    flag. A list takes several values, `--seeds 0 1 2` or `--seeds 0,1,2`, and may be repeated; it is read as a tuple. A pair is
    written `32,48`. Fields with the metadata POSITIONAL are given by their place, wherever that is between the options.

    Args:
        program: as the user calls it, "vit attention".
        argv: without it.
        groups: the first one's docstring describes the command; the others are groups of options. The docstrings of the fields
            are the help texts.

    Raises:
        ConfigError: an option or a value that cannot be used, in one line.
        SystemExit: after `--help`.
    """
    parser = _Parser(prog=program, description=groups[0].__doc__, argument_default=SUPPRESS, allow_abbrev=False)
    parser.usage = f"{program} [--option VALUE ...]"
    for group in groups:
        hints = get_type_hints(group)
        helps = {
            entry.arg_name: " ".join((entry.description or "").split()) for entry in parse_from_object(group).params
        }
        where = (
            parser
            if group is groups[0]
            else parser.add_argument_group((group.__doc__ or "").partition("\n")[0].rstrip("."))
        )
        for item in fields(group):
            _add_option(where, item, hints[item.name], helps.get(item.name, ""))
            if item.metadata == POSITIONAL:
                place = item.name.upper() + (" ..." if get_origin(hints[item.name]) is list else "")
                parser.usage = parser.usage.replace(" [--", f" {place} [--")

    # Underscores become dashes, and a negative number is no option
    words = []
    for word in argv:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-") + equals + value if word.startswith("--") else word
        words.append(f" {word}" if re.match(r"-\d", word) else dashed)
    given = vars(parser.parse_intermixed_args(words))
    return tuple(
        group(**{item.name: given.get(item.name, default_of(item)) for item in fields(group)}) for group in groups
    )


def _add_option(parser: Any, item: Field, hint: Any, help_text: str) -> None:
    """Add a field of a dataclass to a parser, or to a group of its options."""
    types = (
        [kind for kind in get_args(hint) if kind is not NoneType] if get_origin(hint) in (Union, UnionType) else [hint]
    )
    many = get_origin(types[0]) in (list, Sequence)
    types = list(get_args(types[0])) if many else types
    default = default_of(item)
    if default not in (None, False, "", (), MISSING) and "default" not in help_text:
        help_text += f" (default: {', '.join(map(str, default)) if isinstance(default, tuple) else default})"
    how: dict[str, Any] = {"help": help_text.replace("%", "%%")}
    if types == [bool] and default is False:
        how["action"] = "store_true"
    else:
        shown = [NAMES[kind][0] or item.name.upper() if kind in NAMES else kind for kind in _kinds(types)]
        how |= {"type": _converter(types, many), "metavar": "|".join(shown)}
    if many:
        how |= {"action": _Extend, "nargs": "+" if default else "*", "default": SUPPRESS}
    if item.metadata == POSITIONAL:
        parser.add_argument(item.name, **how)
    else:
        parser.add_argument(f"--{item.name.replace('_', '-')}", dest=item.name, required=default is MISSING, **how)


def _kinds(types: Collection[Any]) -> list[Any]:
    """Return plain types, and in place of a Literal its choices."""
    kinds: list[Any] = []
    for kind in types:
        kinds += map(str, get_args(kind)) if get_origin(kind) is Literal else [get_origin(kind) or kind]
    return kinds


def _converter(types: Sequence[Any], many: bool) -> Callable[[str], Any]:
    """Return what reads a word as the first of `types` that it can be; for a list, as the values between its commas."""
    allowed = " or ".join(NAMES[kind][1] if kind in NAMES else kind for kind in _kinds(types))

    def convert(text: str) -> Any:
        for kind in types:
            try:
                return _convert(text, kind)
            except ValueError:
                continue
        raise ArgumentTypeError(f"{text.strip()!r} cannot be used; {allowed}")

    if not many:
        return convert
    return lambda text: [convert(text)] if {str, Path} & set(types) else [convert(part) for part in text.split(",")]


def _convert(text: str, kind: Any) -> Any:
    """Return the value of one type that a text stands for, or raise ValueError."""
    if get_origin(kind) is tuple:
        pair = tuple(int(part) for part in text.split(","))
        if len(pair) != len(get_args(kind)):
            raise ValueError(text)
        return pair
    if kind is bool or get_origin(kind) is Literal:
        choices = {"true": True, "false": False} if kind is bool else {str(choice): choice for choice in get_args(kind)}
        if text not in choices:
            raise ValueError(text)
        return choices[text]
    if kind is Path and not text:  # which would be the folder one is in
        raise ValueError(text)
    return kind(text)


class _Extend(Action):
    """Gathers the values of a list, each time that it is given."""

    def __call__(self, parser: ArgumentParser, namespace: Any, values: Any, option_string: str | None = None) -> None:
        earlier = getattr(namespace, self.dest, ())
        setattr(namespace, self.dest, (*earlier, *(value for part in values for value in part)))


def default_of(item: Field) -> Any:
    """Return the default of a field, that of a list as a tuple; MISSING if it has none."""
    return item.default if item.default_factory is MISSING else tuple(item.default_factory())


def refuse_given(options: Any, names: Collection[str], why: str) -> None:
    """Refuse the options `names` of a dataclass where they are given, i.e. differ from their defaults.

    Raises:
        ConfigError: with the reason `why`.
    """
    for item in fields(options):
        if item.name in names and getattr(options, item.name) != default_of(item):
            raise ConfigError(f"--{item.name.replace('_', '-')}: {why}")


def choose_command(program: str, what: str, commands: Mapping[str, str], argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command that stands first on a command line, and what follows it.

    Args:
        program: that has the commands.
        what: it is for.
        commands: what each is for.
        argv: without the program.

    Raises:
        ConfigError: there is no such command, or none is named.
        SystemExit: after `--help`.
    """
    name, *rest = argv or [""]
    if name in ("-h", "--help"):
        width = max(map(len, commands))
        lines = [f"  {command:{width}}  {purpose}" for command, purpose in commands.items()]
        print("\n".join([f"usage: {program} COMMAND ...", "", what, "", "commands:", *lines]))
        raise SystemExit(0)
    if name not in commands:
        wrong = f"there is no command {one_line(name)!r}" if name else "a command is missing"
        raise ConfigError(f"{program}: {wrong}; one of {', '.join(commands)}. --help says more")
    return name, rest


# ---- Options of several commands ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShownImages(Section):
    """What the model is shown."""

    images: list[str] = field(default_factory=list, metadata=POSITIONAL)
    """image files; prepared as the model was trained"""
    data: str | None = None
    """instead of files: cifar10, cifar100, scenes, or a folder of images"""
    root: Path = Path("data")
    """where CIFAR's archive lies"""
    count: Positive = 8
    """how many test images of --data"""
    mask: Probability | None = None
    """for masked models: hide this share of the patches, e.g. 0.75"""
    seed: NonNegative = 0
    """of the mask"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask is None:
            refuse_given(self, ("seed",), "is of the mask; add --mask, or leave it out")
        if self.data is None:
            refuse_given(self, ("root", "count"), "is about a data set; add --data, or leave it out")


# ---- Places to write to ------------------------------------------------------------------------------------------------


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


def output_file(path: Path, suffixes: Sequence[str] = PICTURE, option: str = "--out") -> Path:
    """Return the file, named by `option`, that is to be written; its name ends in one of `suffixes`.

    Raises:
        ConfigError: it cannot be one, or cannot be written.
    """
    if path.suffix not in suffixes or os.path.isdir(path):
        raise ConfigError(f"{option}: {str(path)!r} cannot be used; name a file that ends in {' or '.join(suffixes)}")
    if len(os.fsencode(path.name)) > 240:  # beside it, a temporary file needs a name too
        raise ConfigError(f"{option}: {path.name[:40]}...: File name too long")
    require_folder(path.parent, option)
    return path
