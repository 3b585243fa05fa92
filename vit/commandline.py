"""Shared by the programs of this project: how one starts and ends, and its options' parser.

Nothing here imports torch, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from vit.config import (
    BUILT_IN,
    USUAL,
    Config,
    FolderName,
    NonNegative,
    Pair,
    Settings,
    Several,
    Whole,
    flat_settings,
    reason,
    spelled,
    user_path,
)
from vit.errors import ConfigError, did_you_mean, exit_code_of, one_line, received_by, stop
from vit.progress import OptionalStream
from vit.runs import RunFiles

WAITING = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
"""The environment variables for how torch's threads wait; the user's own settings win.

OpenMP reads them once, when torch loads.
"""


def start(program: str, work: Callable[[list[str]], int], argv: Sequence[str]) -> int:
    """Do the work that a program's words ask for, and return its exit code; see `exit_code_of`.

    `--debug` among the words, or VIT_DEBUG=1 in the environment, shows tracebacks.

    Args:
        program: as its messages call it.
        work: takes the other words.
        argv: the words after the program.
    """
    words = [word for word in argv if word != "--debug"]
    debug = "--debug" in argv or os.environ.get("VIT_DEBUG", "0") not in ("", "0")

    # People watch the progress in files and pipes too; names may be any characters, as on stderr
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(line_buffering=True, errors="backslashreplace")

    def one_warning(message: Warning | str, *_: object, **__: object) -> str:
        return f"{program}: warning: {one_line(str(message))}\n"

    warnings.formatwarning = one_warning
    limit_spinning()

    def stoppable() -> int:
        with received_by(stop):
            return work(words)

    # Work continues when nobody reads its messages; its results are on stdout
    stderr = OptionalStream(sys.stderr)
    with redirect_stderr(stderr):
        code = exit_code_of(program, stoppable, debug)

    # What could not be written Python would write at its end, and complain
    OptionalStream(stdout).flush()
    return code


def limit_spinning() -> None:
    """Let a waiting thread sleep after spinning 1,000 times, unless the environment says otherwise.

    GNU's OpenMP spins 300,000 times, for some milliseconds, and 1,000 times only if it has more
    threads than cores. It does not see other processes: next to one, each thread spends its time on
    a core waiting for a thread that has none, and a run with two threads drops to a few percent of
    its speed (docs/speed.md).
    """
    # a loaded torch has read the environment already
    if "torch" not in sys.modules and WAITING.isdisjoint(os.environ):
        os.environ["GOMP_SPINCOUNT"] = "1000"


# --- What an option takes ------------------------------------------------------------------------


Place = Annotated[FolderName, AfterValidator(user_path)]
Numbers = Annotated[Several[Whole], Field(min_length=1)]
Seeds = Annotated[
    Several[NonNegative],
    Field(min_length=1),
    # a seed that is named twice would count as two
    AfterValidator(lambda seeds: tuple(dict.fromkeys(seeds))),
]
Patch = Pair[NonNegative]
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
    """Return the placeholder of a value in `--help`: a|b for a choice, N, X, TEXT."""
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if get_origin(kind) is tuple:
        return f"{placeholder(get_args(kind)[0])},..."
    plain = {bool: "true|false", int: "N", float: "X", str: "TEXT"}
    return plain.get(kind) or placeholder(get_args(kind)[0])


# --- The parser ----------------------------------------------------------------------------------

Option = tuple[str, Any, Any, str]
"""How it is written, and what stands for its value; its type; its default, ... if it must be given;
and its sentence. Without "--" its place names it.

Its value has its name, with underscores: `--on-bad-image` becomes `options.on_bad_image`.
"""

SECTIONS = tuple(type(section) for _, section in Config())
SETTINGS: tuple[Option, ...] = (
    (
        "--config FILE",
        str,
        [],
        "YAML file with settings, or the name of one in configs/; of several, the last one wins",
    ),
    (
        "--data NAME|FOLDER",
        str,
        None,
        "cifar10, cifar100, scenes or a folder of images (sets data.source and data.root)",
    ),
)


OTHER_NAMES = {
    "--output": "--out",
    "--output_dir": "--out",
    "--lr": "--optim.blr",
    "--optimizer": "--optim.name",
    "--model": "--model.init",
    "--model_name": "--model.init",
    "--model_name_or_path": "--model.init",
    "--checkpoint": "--model.init",
    "--pretrained": "--model.init",
}
"""Names of options in the programs of timm, Hugging Face and MAE."""


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{one_line(message.removeprefix('argument '))}; see --help")


class Parser(OneLineParser):
    """A parser of options, and of models of which every field is an option."""

    def __init__(
        self,
        prog: str,
        usage: str = "",
        purpose: str = "",
        options: Sequence[Option | type[Settings]] = (*SETTINGS, *SECTIONS),
    ):
        super().__init__(prog, f"{prog} {usage}", purpose, allow_abbrev=False)
        # "-1,0" is a value, as "-1" is
        self._negative_number_matcher = re.compile(r"-[\d.][\d.,e+-]*$")
        # The usual settings come first in --help
        usual: argparse._ActionsContainer = self
        if SECTIONS[0] in options:
            usual = self.add_argument_group("usual settings")
            self._action_groups.insert(0, self._action_groups.pop())
        for option in options:
            if isinstance(option, tuple):
                add_option(usual if option[0].split()[0][2:] in USUAL else self, *option)
                continue

            # Without a value, a field stays out of the options: a file or its default decides
            group = self.add_argument_group((option.__doc__ or "").partition("\n")[0].rstrip("."))
            for name, field in option.model_fields.items():
                word = option.key(name) if option.section else name.replace("_", "-")
                place = usual if word in USUAL else group
                place.add_argument(
                    f"--{word}",
                    default=argparse.SUPPRESS,
                    metavar=placeholder(field.annotation),
                    help=explained(field.description or "", field.default),
                )

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the options, with the program as the user calls it, and all words."""
        options, unknown = self.parse_known_intermixed_args(argv)
        if unknown:
            name = unknown[0].partition("=")[0]
            near = did_you_mean(name, self._option_string_actions)
            meant = OTHER_NAMES.get(name.replace("-", "_").replace("__", "--", 1))
            if meant in self._option_string_actions:
                near = f"; did you mean {meant}?"
            elif meant == "--model.init" and "checkpoint" in options:
                near = "; did you mean CHECKPOINT, which needs no option?"
            self.error(f"unrecognized arguments: {name}{near}")
        options.program = self.prog
        options.command_line = f"{self.prog} {shlex.join(argv)}"
        return options


def add_option(
    group: argparse._ActionsContainer, words: str, kind: Any, default: Any, sentence: str
) -> None:
    """Add an `Option` to a parser or to a group of its options."""
    name, _, metavar = words.partition(" ")
    if kind is bool:
        group.add_argument(name, action="store_true", help=sentence)
        return
    details: dict[str, Any] = {
        "type": typed(kind),
        "metavar": metavar.removesuffix(" ...") or placeholder(kind),
        "help": explained(sentence, default),
    }

    # A positional may be left out where an option does the same
    if name.startswith("--"):
        details |= {"required": default is ..., "default": default}
        if default == []:
            details["action"] = "append"
    elif metavar.endswith(" ..."):
        details["nargs"] = "+" if default is ... else "*"
    elif default is None:
        details |= {"nargs": "?", "default": argparse.SUPPRESS}
    group.add_argument(name, **details)


def explained(sentence: str, default: Any) -> str:
    """Return a sentence for `--help`, on one line, with the default if it is a value."""
    text = " ".join(sentence.split())
    if default not in (None, ..., [], ()):
        text += f" (default: {spelled(default)})"
    return text.replace("%", "%%")


# --- Settings ------------------------------------------------------------------------------------


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a command line by "section.key", as texts that `Config` reads.

    `--data NAME|FOLDER` stands for data.source and data.root, which win over it.
    """
    settings: dict[str, Any] = {}
    if options.data is not None:
        settings = flat_settings({"data": named_data(options.data)})
    for key, text in vars(options).items():
        if "." in key:
            settings[key] = None if text == "null" else text
    return settings


def named_data(data: str | None, root: str | Path = "data") -> dict[str, Any]:
    """Return `DataConfig`'s source and root for a command's --data.

    Args:
        data: a name in BUILT_IN, or a folder of images.
        root: folder of the archive of a built-in data set.
    """
    data = data or ""
    if data in BUILT_IN:
        # A folder here of that name is another thing, which nobody would notice
        if Path(data).is_dir():
            warnings.warn(
                f"{data} is the built-in data, not the folder {data} here: that is ./{data}",
                stacklevel=2,
            )
        return {"source": data, "root": root}
    if not data or not user_path(data).is_dir():
        names = ", ".join(BUILT_IN)
        near = did_you_mean(data, [*BUILT_IN, *map(str, user_path(data).parent.glob("*/"))])
        raise ConfigError("--data", f"{data!r} is neither {names} nor a folder of images{near}")
    return {"source": "folder", "root": data}


# --- Files to write -------------------------------------------------------------------------------

PAGE = (".html", ".htm")
PICTURE = (".png", ".svg", ".pdf")
"""The suffixes of files to write."""


def require_free(paths: Iterable[Path], overwrite: bool, option: str = "--out") -> None:
    """Refuse to replace existing files unless `overwrite`; `option` names them or their folder."""
    for path in paths:
        if os.path.lexists(path) and not overwrite:
            advice = "name another file, remove it first, or add --overwrite"
            raise ConfigError(f"{option}: {path} already exists; {advice}")


def require_folder(folder: Path, option: str = "--out") -> None:
    """Refuse a folder, given by `option`, that cannot be written to."""
    # The folder itself need not exist
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}: {existing} is not a folder to write to; name another")


def output_file(
    path: Path, suffixes: Sequence[str] = PICTURE, option: str = "--out", overwrite: bool = False
) -> Path:
    """Return the file to write, given by `option`; its name ends in one of `suffixes`."""
    # The name
    if path.suffix not in suffixes or path.is_dir():
        allowed = f"name a file that ends in {' or '.join(suffixes)}"
        raise ConfigError(f"{option}: {str(path)!r} cannot be used; {allowed}")

    # The place
    require_folder(path.parent, option)
    require_free([path], overwrite, option)
    return path


def refuse_among_images(place: Path, data: str) -> None:
    """Refuse to write figures, by `--out`, into a folder of images: they would be among them.

    Args:
        place: the folder of the figures; it need not exist.
        data: a folder of images; the name of other data is no such place.
    """
    images = Path(os.path.realpath(user_path(data)))
    folder = Path(os.path.realpath(place))
    if data in BUILT_IN or not folder.is_relative_to(images):
        return
    within = [place for place in (folder, *folder.parents) if images in place.parents]
    if any(RunFiles(place).has_begun for place in within):
        return
    problem = f"{place} is within the folder of the images, {data}"
    raise ConfigError(f"--out: {problem}; name another, or its figures would be among them")
