"""The options of the commands: dataclasses, read from the command line by jsonargparse."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from docstring_parser import (
    parse_from_object,  # jsonargparse's own, for the docstrings of attributes
)
from jsonargparse import SUPPRESS, ArgumentError, ArgumentParser, DefaultHelpFormatter

from vit.config import BUILT_IN, NonNegative, Positive, Probability, RunConfig, Section, ranges_of
from vit.errors import ConfigError, UserError, did_you_mean, one_line
from vit.settings import HELP, add_settings

if TYPE_CHECKING:
    from vit.device import Compute

POSITIONAL = {"positional": True}
"""Metadata of a positional field; it may also be given as `--name`."""
FOLDER, DATA = {"metavar": "FOLDER"}, {"metavar": "NAME|FOLDER"}
"""Metadata of a path to a folder (any other is a file), and of a name of data."""
PAGE, PICTURE = (".html", ".htm"), (".png", ".svg", ".pdf")
"""The suffixes of files to write."""
WORDS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path", tuple: "a pair as 32,48",
}  # fmt: skip
METAVARS = {int: "N", float: "X", bool: "true|false", tuple: "N,N"}


def in_words(
    types: Iterable[Any], names: Mapping[Any, str], comma: str = ", ", last: str = " or "
) -> str:
    """Return types in words, the choices of a Literal one by one."""
    words = []
    for kind in types:
        if get_origin(kind) is Literal:
            words += [str(choice) for choice in get_args(kind)]
        else:
            plain = get_origin(kind) or kind
            words.append(names.get(plain, str(plain)))
    if len(words) == 1:
        return words[0]
    return f"{comma.join(words[:-1])}{last}{words[-1]}"


@dataclass(frozen=True)
class Option:
    """A field of a dataclass as an option of a command.

    Attributes:
        types: of its value, or of each value in a list; None is left out.
        many: whether it is a list.
        allowed: the values that it takes, in words.
        help: the docstring of the field.
    """

    field: Field
    types: tuple[Any, ...]
    many: bool
    allowed: str
    help: str

    @property
    def positional(self) -> bool:
        return "positional" in self.field.metadata

    @property
    def spelled(self) -> str:
        """The option as written on the command line."""
        return self.field.name if self.positional else f"--{self.field.name.replace('_', '-')}"

    @property
    def required(self) -> bool:
        return default_of(self.field) is MISSING

    @property
    def flag(self) -> bool:
        """Whether it takes no value."""
        return self.types == (bool,) and self.field.default is False

    def add_to(self, parser: Any) -> None:
        """Add it to a parser or an option group."""
        if self.flag:
            parser.add_argument(self.spelled, action="store_true", help=self.help)
            return
        default = default_of(self.field)
        name = self.field.metadata.get("metavar", self.field.name.upper())
        texts = {str: name, Path: name if self.positional or self.field.metadata else "FILE"}
        how: dict[str, Any] = {"metavar": in_words(self.types, METAVARS | texts, "|", "|")}
        if self.many:
            how["nargs"] = "+" if default else "*"
        elif self.positional and not self.required:
            how["nargs"] = "?"
        if default is not MISSING:
            how["default"] = list(default) if self.many and default is not None else default
        elif not self.positional:
            how["required"] = True
        parser.add_argument(self.spelled, type=Union[self.types], help=self.help, **how)  # noqa: UP007


def options_of(group: type, with_help: bool = True) -> list[Option]:
    """Return the fields of a dataclass as options; reading their help texts takes as long as everything else."""
    hints, ranged = get_type_hints(group), get_type_hints(group, include_extras=True)
    kinds = [kind for kind in reversed(group.__mro__) if is_dataclass(kind)] if with_help else []
    entries = [entry for kind in kinds for entry in parse_from_object(kind).params]
    helps = {entry.arg_name: " ".join((entry.description or "").split()) for entry in entries}
    options = []
    for item in sorted(
        fields(group), key=lambda item: bool(item.kw_only)
    ):  # options of several commands come last
        hint = hints[item.name]
        types = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        types = tuple(kind for kind in types if kind is not NoneType)
        many = get_origin(types[0]) in (list, Sequence) or get_args(types[0])[1:] == (...,)
        types = get_args(types[0])[:1] if many else types
        allowed = " or ".join(
            stated.allowed for stated in ranges_of(ranged[item.name])
        ) or in_words(types, WORDS)
        options.append(Option(item, types, many, allowed, helps.get(item.name, "")))
    return options


def read_options(
    program: str, argv: Sequence[str], *groups: type, sections: dict[str, type] | None = None
) -> tuple[Any, ...]:
    """Read a command line into one instance of each dataclass of `groups`.

    A field is an option of the same name, with dashes or underscores: required if it has no default, a flag if its default is
    False. A list takes several values, `--seeds 0 1 2` or `--seeds 0,1,2`, may be repeated, and becomes a tuple. A pair is
    written `32,48`. POSITIONAL fields are given in their order, anywhere between the options, or by name; those with a default
    may be left out.

    Args:
        program: as the user calls it, "vit attention".
        argv: the words after it.
        groups: the first one's docstring describes the command, the others' title a group of options; the fields' docstrings
            are the help texts.
        sections: of the settings that the command takes too, listed in its help; `split_settings` takes them out of `argv`.

    Raises:
        ConfigError: an option or a value that cannot be used, in one line.
        SystemExit: after `--help`.
    """
    asked = not HELP.isdisjoint(argv)
    if asked:
        options_parser(program, *groups, sections=sections)[0].print_help()
        raise SystemExit(0)
    parser, options = _kept_parser(program, *groups, with_help=False)
    try:
        parsed = parser.parse_args(_arranged(argv, options))
    except ArgumentError as error:
        explained = {option.spelled: option for group in groups for option in options_of(group)}
        raise ConfigError(f"{program}: {_reason(error, explained)}; see --help") from error
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(parsed).items()
    }
    return tuple(
        group(**{item.name: values[item.name] for item in fields(group)}) for group in groups
    )


def options_parser(
    program: str, *groups: type, sections: dict[str, type] | None = None, with_help: bool = True
) -> tuple[ArgumentParser, dict[str, Option]]:
    """Return the parser of `read_options`, with any settings that the command takes too, and its options by spelling."""
    parser = ArgumentParser(
        prog=program,
        description=groups[0].__doc__ if groups else None,
        exit_on_error=False,
        allow_abbrev=False,
        formatter_class=_HelpFormatter,
    )
    options: dict[str, Option] = {}
    for group in groups:
        title = (group.__doc__ or "").partition("\n")[0].rstrip(".")
        where = parser if group is groups[0] else parser.add_argument_group(title)
        for option in options_of(group, with_help):
            option.add_to(parser if option.positional else where)
            options[option.spelled] = option
    places = (
        f"{name.upper()} ..."
        if option.many
        else name.upper()
        if option.required
        else f"[{name.upper()}]"
        for name, option in options.items()
        if option.positional
    )
    parser.usage = " ".join([program, *places, "[--option VALUE ...]"])
    if sections:
        parser.usage += " [--config FILE ...] [--SECTION.FIELD VALUE ...]"
        add_settings(parser, sections)
    return parser, options


_kept_parser = cache(options_parser)  # building one takes longer than using it


def default_of(item: Field) -> Any:
    """Return the default of a field, a list as a tuple; MISSING if it has none."""
    return item.default if item.default_factory is MISSING else tuple(item.default_factory())


def refuse_given(options: Any, names: Collection[str], why: str) -> None:
    """Refuse each option of `names` that was given, i.e. differs from its default.

    Raises:
        ConfigError: with the reason `why`.
    """
    for item in fields(options):
        if item.name in names and getattr(options, item.name) != default_of(item):
            raise ConfigError(f"--{item.name.replace('_', '-')}: {why}")


def choose_command(
    program: str, what: str, commands: Mapping[str, str], argv: Sequence[str]
) -> tuple[str, list[str]]:
    """Return the command at the start of a command line, and the words after it.

    Args:
        program: as the user calls it, "vit checkpoint".
        what: the program is for.
        commands: the purpose of each.
        argv: the words after the program.

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
        near = did_you_mean(name, commands) or f"; one of {', '.join(commands)}"
        raise ConfigError(f"{program}: {wrong}{near.rstrip('?')}; see --help")
    return name, rest


def _arranged(argv: Sequence[str], options: dict[str, Option]) -> list[str]:
    """Return a command line as jsonargparse reads it: positional values first, then each option once."""
    places: list[str] = []
    given: dict[str, list[str]] = {}
    words = [*argv, "--"]
    end = words.index("--")  # what follows is positional, whatever it begins with
    rest, after = words[:end], words[end + 1 : -1]
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        option = options.get(name) or options.get(name[2:]) if word.startswith("--") else None
        # the parser would take it for a part of an option, or for a place
        if option is None and word.startswith("--") and ("." in name or after):
            raise ConfigError(f"{_unknown(name, options)}; see --help")
        if option is None:  # positional; or unknown, which the parser reports
            places.append(word)
            continue
        values = [value] if equals else []
        while (
            rest
            and not equals
            and not option.flag
            and not rest[0].startswith("--")
            and (option.many or not values)
        ):
            values.append(rest.pop(0))
        if option.many and str not in option.types:
            values = [part for value in values for part in value.split(",")]
        given[option.spelled] = [*given.get(option.spelled, []), *values] if option.many else values
    places += after
    arranged = []
    for name in [name for name, option in options.items() if option.positional]:
        taken = len(places) if options[name].many else min(len(places), 1)
        arranged += given.pop(name) if name in given else [places.pop(0) for _ in range(taken)]
    arranged += places  # too many, which the parser reports
    named: list[str] = []
    for name, values in given.items():
        if Path in options[name].types and "" in values:
            raise ConfigError(f"{name}: '' cannot be used; name a file or a folder")
        if Path in options[name].types or options[name].field.metadata == FOLDER:
            values = [
                *map(os.path.expanduser, values)
            ]  # the shell leaves the ~ of --out=~/page.html
        pair = any(get_origin(kind) is tuple for kind in options[name].types)
        values = [
            f"[{value}]" if pair and re.fullmatch(r"\d+(,\d+)+", value) else value
            for value in values
        ]
        named += [f"{name}={values[0]}"] if values and not options[name].many else [name, *values]
    return [*named, "--", *arranged] if after else [*arranged, *named]


def _reason(error: ArgumentError, options: dict[str, Option]) -> str:
    """Return what is wrong with a command line: the option, the value, and what it may be."""
    message, by_name = (
        str(error.message),
        {option.field.name: option for option in options.values()},
    )
    if found := re.match(
        r'Parser key "(\w+)".*(?:Got value|Given value): (.*)$', message, re.DOTALL
    ):
        option = by_name[found[1]]
        return f"{option.spelled}: {found[2]!r} cannot be used; {option.allowed}"
    if found := re.match(r"the following arguments are required: (\w+)", message):
        return f"{by_name[found[1]].spelled}: required ({by_name[found[1]].help})"
    if found := re.match(r"unrecognized arguments: (--[\w-]+)", message):
        message = _unknown(found[1].replace("_", "-"), options)
    return one_line(message.removeprefix("argument "))


def _unknown(name: str, options: dict[str, Option]) -> str:
    """Return that there is no option of this name, and which may be meant."""
    whole = name.partition(".")[0]
    option = options.get(whole) or options.get(whole[2:])
    if option is None:
        return f"unrecognized arguments: {name}{did_you_mean(name, options)}"
    value = option.field.metadata.get("metavar", "a value")
    return f"unrecognized arguments: {name}; {whole} is one option here, without parts: {whole} {value}"


class _HelpFormatter(DefaultHelpFormatter):
    """Leaves out, for options, types, which the metavars show, and defaults that say nothing."""

    def _expand_help(self, action: Any) -> str:
        if "." in action.dest:  # a setting
            return super()._expand_help(action)
        default = (
            ", ".join(map(str, action.default))
            if isinstance(action.default, list)
            else action.default
        )
        told = default in (None, False, "", SUPPRESS) or "default" in action.help
        return action.help + ("" if told else f" (default: {default})")


# ---- Options of several commands ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReadsImages(Section):
    """A command that reads images."""

    on_bad_image: Literal["stop", "skip"] = "stop"
    """unreadable images: stop and name the first, or leave them out and warn"""


@dataclass(frozen=True)
class ShownImages(ReadsImages):
    """What the model is shown."""

    images: list[str] = field(default_factory=list, metadata=POSITIONAL)
    """image files, prepared as in training; or what --data takes"""
    data: str | None = field(default=None, metadata=DATA)
    """instead of files: cifar10, cifar100, scenes, or a folder of images"""
    root: Path = field(default=Path("data"), metadata=FOLDER)
    """where CIFAR's archive is"""
    count: Positive = 8
    """number of test images from --data; of a folder without any, number of images"""
    mask: Probability | None = None
    """for masked models: hide this share of the patches, e.g. 0.75"""
    seed: NonNegative = 0
    """seed of the mask"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data is None and len(self.images) == 1 and _is_data(self.images[0]):
            object.__setattr__(self, "data", self.images[0])
            object.__setattr__(self, "images", ())
        if self.mask is None:
            refuse_given(self, ("seed",), "only applies with --mask; add it, or leave this out")
        if self.data is None:
            refuse_given(
                self, ("root", "count"), "only applies with --data; add it, or leave this out"
            )


@dataclass(frozen=True)
class ReadsCheckpoint(Section):
    """A command that reads a checkpoint."""

    checkpoint: str = field(metadata=POSITIONAL)
    """run folder, other folder, file, a name that `vit models` lists, timm/NAME or hf/ORGANISATION/NAME"""


@dataclass(frozen=True, kw_only=True)
class RunsModel(ReadsImages):
    """A command that runs a model on images."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """where to run"""

    def compute(self, threads: int = 0) -> Compute:
        """Return the device, in float32; an error names the options."""
        from vit.machine import choose_compute

        with naming_options():
            return choose_compute(RunConfig(device=self.device, threads=threads), "fp32")


@contextmanager
def naming_options() -> Iterator[None]:
    """Name in errors the options of a command, `--val-size`, where they name settings of a run, `data.val_size`."""
    named = r"\b(?:run|train|data)\.(device|threads|compile|precision|val_size|on_bad_image)\b(?::(?= skip))?"
    try:
        yield
    except UserError as error:
        error.args = (re.sub(named, lambda found: f"--{found[1].replace('_', '-')}", str(error)),)
        raise


def _is_data(name: str) -> bool:
    """Return whether this names data rather than an image file."""
    return os.path.isdir(name) or (name in BUILT_IN and not os.path.exists(name))


# ---- Figures as JSON, and places to write to ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PrintsFigures(Section):
    """A command that prints figures."""

    json: bool = False
    """print the figures as JSON on stdout; everything else goes to stderr"""


def talk(as_json: bool) -> AbstractContextManager[object]:
    """Send prints to stderr if stdout is for JSON alone."""
    return redirect_stdout(sys.stderr if as_json else sys.stdout)


def print_json(value: Any) -> None:
    """Print plain values as JSON; nan and infinity, which JSON lacks, raise a ValueError."""
    print(json.dumps(value, indent=2, allow_nan=False))


@dataclass(frozen=True, kw_only=True)
class WritesFiles(Section):
    """A command that writes files."""

    overwrite: bool = False
    """replace existing files"""


def require_free(paths: Iterable[Path], overwrite: bool, option: str = "--out") -> None:
    """Refuse to replace existing files unless `overwrite`; `option` names them or their folder."""
    for path in paths:
        if os.path.lexists(path) and not overwrite:
            way = "name another file, remove it first, or add --overwrite"
            raise ConfigError(f"{option}: {path} already exists; {way}")


def require_folder(folder: Path, option: str = "--out") -> None:
    """Refuse a folder, given by `option`, that cannot be written to, before anything is computed."""
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    except OSError as error:  # a name that is too long
        raise ConfigError(f"{option}: {folder}: {error.strerror}") from error
    if not there.is_dir():
        raise ConfigError(f"{option}: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}: {there} cannot be written to; name another folder")


def output_file(
    path: Path, suffixes: Sequence[str] = PICTURE, option: str = "--out", overwrite: bool = False
) -> Path:
    """Return the file to write, given by `option`; its name ends in one of `suffixes`.

    Raises:
        ConfigError: it has another suffix, cannot be written, or exists without `overwrite`.
    """
    if path.suffix not in suffixes or os.path.isdir(path):
        raise ConfigError(
            f"{option}: {str(path)!r} cannot be used; name a file that ends in {' or '.join(suffixes)}"
        )
    if len(os.fsencode(path.name)) > 240:  # the temporary file beside it has a longer name
        raise ConfigError(f"{option}: {path.name[:40]}...: File name too long")
    require_folder(path.parent, option)
    require_free([path], overwrite, option)
    return path
