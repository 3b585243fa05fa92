"""Read settings from files and the command line, and write them.

One way in: YAML files and the words of a command line become a mapping of "section.key" to value,
from which the sections are built (`vit.config`), and these check every value. `Config.read`
begins with the mapping.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
import warnings
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

import yaml

from vit.config import (
    BUILT_IN,
    OBJECTIVES,
    Config,
    flat_settings,
    hints_of,
    named_data,
    spelled,
    unread_sections,
)
from vit.errors import ConfigError, did_you_mean, quoted

SECTIONS: dict[str, Any] = {item.name: item.default_factory for item in fields(Config)}
"""The dataclass of each section."""
KEYS = list(flat_settings(Config().to_dict()))
"""The names of all settings, with their sections."""
PACKAGE = Path(__file__).resolve().parent
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").is_dir() else PACKAGE.parent / "configs"
"""The configurations: next to the package in the repository, inside it in a wheel."""
QUICKSTART = CONFIGS / "quickstart.yaml"
RUN_CONFIG = "config.yaml"
WRITTEN_BY = "# written by version "
"""The comment in a run's config.yaml that names the version of this package."""
Files = Sequence[str | Path | Mapping[str, Any]]
"""Settings files, by paths or names, or what they hold: settings by "section.key"."""
SYNONYMS = {
    "lr": "optim.blr",
    "learning_rate": "optim.blr",
    "wd": "optim.weight_decay",
    "img_size": "model.image_size",
    "workers": "run.threads",
    "gpu": "run.device",
    "amp": "train.precision",
    "bs": "train.batch_size",
    "epochs": "train.epochs",
    "seed": "train.seed",
}
"""What other programs call some settings."""


# --- YAML ---------------------------------------------------------------------------------------


class Yaml(yaml.SafeLoader):
    """Reads plain values as YAML 1.2 does, and refuses a key that stands twice in a mapping.

    YAML 1.1, which PyYAML follows, takes off for false, 12:30:45 for 45045 and 0100 for 64. Of a
    key that stands twice, PyYAML leaves out the first in silence.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return a mapping, not yet with its values.

        Raises:
            ValueError: a key stands twice.
        """
        node = super().compose_mapping_node(anchor)
        line_of: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge"):
                line = key.start_mark.line + 1
                if key.value in line_of:
                    first = line_of[key.value]
                    raise ValueError(f"{key.value} stands twice, in lines {first} and {line}")
                line_of[key.value] = line
        return node

    def construct_int(self, node: yaml.ScalarNode) -> int:
        """Return a whole number, decimal unless it begins with 0o or 0x."""
        text = self.construct_scalar(node)
        prefix = text[:2].lower()
        return int(text, {"0o": 8, "0x": 16}.get(prefix, 10))


class YamlWriter(yaml.SafeDumper):
    """Writes a text in quotes if YAML 1.1 or 1.2 would read it as another value."""


PLAIN_VALUES = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "merge": r"<<",
}
"""The values that stand without quotes, other than texts, by their tag; the first that fits."""
for tag, pattern in PLAIN_VALUES.items():
    for kind in (Yaml, YamlWriter):
        kind.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), None)
Yaml.add_constructor("tag:yaml.org,2002:int", Yaml.construct_int)


def read_yaml(text: str) -> Any:
    """Parse YAML.

    Raises:
        ValueError: it is not YAML, or holds a number that Python refuses to read.
    """
    try:
        return yaml.load(text, Yaml)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from error


# --- Files --------------------------------------------------------------------------------------


def read_file(path: Path) -> dict[str, Any]:
    """Return the settings in a YAML file by "section.key"; their values are not checked yet.

    Raises:
        ConfigError: the file cannot be read, or holds an unknown key.
    """
    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"config: cannot read {path}: {reason}") from error

    # Sections of settings, and nothing else
    example = "settings stand in sections, as `train: {epochs: 3}`"
    if not isinstance(content, dict):
        raise ConfigError(f"config: {path} holds no settings; {example}")
    settings = {}
    for section, values in content.items():
        if section in KEYS:
            raise ConfigError(f"{section}: {example}; in {path}")
        if section not in SECTIONS:
            raise unknown_setting(str(section), f"in {path}")
        if not isinstance(values, dict):
            raise ConfigError(f"{section}: {quoted(values)} in {path} is no section; {example}")
        for name, value in values.items():
            settings[f"{section}.{name}"] = value
    for key in settings:
        if key not in KEYS:
            raise unknown_setting(key, f"in {path}")
    return settings


def read_files(files: Files) -> list[Mapping[str, Any]]:
    """Return what each file holds, as `read_file`; what was read before stays as it is.

    A file may be a pipe, `--config <(...)`, which can be read once.
    """
    contents = []
    for file in files:
        if isinstance(file, Mapping):
            contents.append(file)
        else:
            contents.append(read_file(config_file(str(file))))
    return contents


def config_file(name: str) -> Path:
    """Return the file that `--config` names: an existing one, else one of the package.

    Args:
        name: of a file, or of one of the package, as quickstart or configs/quickstart.yaml.

    Raises:
        ConfigError: there is none.
    """
    # The shell leaves the ~ of --config=~/file.yaml as it is
    name = os.path.expanduser(name)
    if os.path.lexists(name):
        return Path(name)
    shipped = {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}
    short = name.removeprefix("configs/").removesuffix(".yaml")
    if short not in shipped:
        near = did_you_mean(short, shipped) or f"; the package has {', '.join(shipped)}"
        raise ConfigError(f"config: cannot read {name}: No such file or directory{near}")
    return shipped[short]


def to_yaml(config: Config) -> str:
    """Return a complete configuration file.

    Raises:
        ConfigError: a name is not UTF-8, which YAML cannot hold.
    """
    # What a file system gives as bytes that are no UTF-8 is a text of surrogates
    for key, value in flat_settings(config.to_dict()).items():
        if str(value).encode(errors="replace") != str(value).encode(errors="surrogatepass"):
            allowed = "config.yaml holds UTF-8 names only: rename it"
            raise ConfigError(f"{key}: {value!r} cannot be used; {allowed}")
    return yaml.dump(
        config.to_dict(), Dumper=YamlWriter, sort_keys=False, default_flow_style=None, width=120
    )


# --- From files and a mapping to the sections ---------------------------------------------------


def read_config(path: Path) -> Config:
    """Return the checked settings in a file; see `build_config`."""
    return build_config([path])[0]


def build_config(
    files: Files, overrides: Mapping[str, Any] | None = None
) -> tuple[Config, frozenset[str]]:
    """Return all settings, and the keys of those that a file or `overrides` names.

    Args:
        files: paths or names of YAML files, or what they hold; a later one wins over those before.
        overrides: settings by "section.key", which win over the files.

    Raises:
        ConfigError: a key or a value cannot be used, or an override has no effect on the objective.
    """
    overrides = overrides or {}
    sections, keys = build_sections(files, overrides)
    config = Config(**sections)

    # A file may serve several objectives; an override is meant for this one
    unread = unread_sections(config.train.objective)
    for key in overrides:
        section = key.partition(".")[0]
        for name, objective in OBJECTIVES.items():
            if section in unread and section in objective.sections:
                message = f"cannot be used; it only applies to train.objective {name}"
                raise ConfigError(f"{key}: {message}")
    return config, keys


def build_sections(
    files: Files, overrides: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the sections, each checked by itself, and the keys that were given.

    Args:
        files, overrides: as for `build_config`.

    Raises:
        ConfigError: a key or a value cannot be used.
    """
    # Later files win over earlier ones, overrides over all
    settings: dict[str, Any] = {}
    for content in read_files(files):
        settings |= content
    settings |= overrides

    # From "section.key" to sections
    nested: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for key, value in settings.items():
        if key not in KEYS:
            raise unknown_setting(key)
        section, _, name = key.partition(".")
        nested[section][name] = value
    sections = {name: section(**nested[name]) for name, section in SECTIONS.items()}
    return sections, frozenset(settings)


def unknown_setting(key: str, place: str = "--help lists all keys") -> ConfigError:
    """Return the error of a key that is no setting, with the setting that may be meant."""
    names = [name for name in (*SECTIONS, *KEYS) if name != key]
    synonym = SYNONYMS.get(key.rpartition(".")[2])
    if synonym is None:
        return ConfigError(f"{key}: no such setting; {place}{did_you_mean(key, names)}")
    return ConfigError(f"{key}: no such setting; {place}; did you mean {synonym}?")


# --- The command line ---------------------------------------------------------------------------


@cache
def sentences_of(section: type) -> dict[str, str]:
    """Return the help of each field of a dataclass: the sentence below it."""
    definition: Any = ast.parse(inspect.getsource(section)).body[0]
    sentences = {}
    for item, sentence in pairwise(definition.body):
        if isinstance(item, ast.AnnAssign):
            sentences[ast.unparse(item.target)] = " ".join(sentence.value.value.split())
    return sentences


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add `--config`, and an option for every setting, `--SECTION.FIELD VALUE`."""
    files = "YAML file with settings, or the name of one of the package; of several, the later wins"
    parser.add_argument("--config", action="append", default=[], metavar="FILE", help=files)
    data = "cifar10, cifar100, scenes or a folder of images: data.source and data.root in one"
    parser.add_argument("--data", metavar="NAME|FOLDER", help=data)

    # Without a value, a setting stays out of the options: a file or its default decides
    defaults = Config().to_dict()
    for name, section in SECTIONS.items():
        group = parser.add_argument_group((section.__doc__ or name).rstrip("."))
        hints = hints_of(section)
        for key, sentence in sentences_of(section).items():
            default = spelled(defaults[name][key])
            text = f"{sentence} (default: {default})".replace("%", "%%")
            value = placeholder(hints[key])
            group.add_argument(f"--{name}.{key}", default=SUPPRESS, metavar=value, help=text)


def placeholder(hint: Any) -> str:
    """Return what stands for a value in `--help`: a|b for a choice, N, X, TEXT."""
    hint = underlying(hint)
    if get_origin(hint) is Literal:
        return "|".join(get_args(hint))
    return {bool: "true|false", int: "N", float: "X", str: "TEXT"}.get(hint, "VALUE")


def underlying(hint: Any) -> Any:
    """Return a type without its range (`Annotated`), and without None."""
    if get_origin(hint) is Annotated:
        return underlying(hint.__origin__)
    if get_origin(hint) in (Union, UnionType):
        parts = [part for part in get_args(hint) if part is not NoneType]
        if len(parts) == 1:
            return underlying(parts[0])
    return hint


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a command line by "section.key", from the options of `add_settings`.

    `--data NAME|FOLDER` stands for data.source and data.root, which win over it.

    Raises:
        ConfigError: `--data` is neither a name nor a folder.
    """
    settings: dict[str, Any] = {}

    # What --data stands for
    if options.data is not None:
        tell_apart(options.data)
        for key, value in named_data(options.data).items():
            settings[f"data.{key}"] = value

    # The settings themselves
    for key, text in vars(options).items():
        if key in KEYS:
            section, _, name = key.partition(".")
            settings[key] = from_text(text, hints_of(SECTIONS[section])[name])
    return settings


def tell_apart(data: str) -> None:
    """Warn if a folder here has the name of built-in data, which --data takes it for."""
    if data in BUILT_IN and os.path.isdir(data):
        warnings.warn(
            f"{data} is the built-in data, not the folder {data} here: that is ./{data}",
            stacklevel=2,
        )


def from_text(text: str, hint: Any) -> Any:
    """Return a word of the command line as a YAML file would give it to `convert`.

    A text stays as it is; 3,4 is a list like [3, 4], and so is a single value of several.
    """
    hint = underlying(hint)
    if hint is str:
        return text
    if "," in text and not text.startswith("["):
        text = f"[{text}]"
    try:
        value = read_yaml(text)
    except ValueError:
        return text
    takes_many = get_origin(hint) is list or Ellipsis in get_args(hint)
    if takes_many and not isinstance(value, list):
        return [value]
    return value


# --- vit train ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainCommand:
    """A training run as `vit train` and `fit` ask for it.

    Attributes:
        config: all settings.
        out: run folder.
        resume: whether to continue the run in it.
        program: what the user calls it.
        given: keys of the settings that a file or the command line names; the others may follow
            from them.
        notes: lines that the user should see.
        requested: of a resumed run, its settings with those of `--config`, for `refuse_conflicts`.
    """

    config: Config
    out: Path
    resume: bool
    program: str = "python train.py"
    given: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    requested: Config | None = None


def train_command(
    files: Sequence[str],
    settings: Mapping[str, Any],
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    program: str = "python train.py",
) -> TrainCommand:
    """Return a training run.

    Without `files`, the quickstart's is read; with `resume`, the run's own config.yaml, with which
    all else must agree.

    Args:
        files: paths or names of settings files; a later one wins.
        settings: by "section.key"; they win over the files.
        out: run folder; by default runs/ and the name of the last file.
        resume: whether to continue the run in `out`.
        program: what the user calls it.

    Raises:
        ConfigError: the settings cannot be used.
    """
    folder = run_folder(files, out)

    # A run that goes on has its own settings
    if resume:
        config, requested = resumed_config(folder, files, settings)
        return TrainCommand(config, folder, True, program, requested=requested)

    # A new one, with notes on what was shortened
    try:
        chosen = read_files(files or [QUICKSTART])
        fitted, notes = fit_epochs(chosen, settings)
        config, keys = build_config(chosen, fitted)
    except ConfigError as error:
        # Nobody named the quickstart's settings, so an error about one says where it is from
        key = str(error).partition(":")[0]
        if files or key in settings:
            raise
        message = f"{error}. Without --config, a run has the settings of {QUICKSTART.name}"
        raise ConfigError(message) from error
    return TrainCommand(config, folder, False, program, keys, notes)


def run_folder(files: Sequence[str], out: str | os.PathLike[str] | None) -> Path:
    """Return the folder of a run: `out`, or runs/ and the name of the last file.

    Raises:
        ConfigError: `out` is empty, or the last file does not exist or has no name.
    """
    if out is not None:
        if not os.fspath(out):
            raise ConfigError("--out: '' cannot be used; name a folder for the run")
        return Path(os.path.expanduser(out))

    # A run's own config.yaml gives the name of its folder
    path = QUICKSTART
    if files:
        path = config_file(str(files[-1])).resolve()
        # What the shell's `--config <(...)` opens has no path of its own
        if not path.exists():
            raise ConfigError(f"config: {files[-1]} gives the run no name; add --out FOLDER")
    if path.name == RUN_CONFIG:
        return Path("runs") / path.parent.name
    return Path("runs") / path.stem


def resumed_config(
    folder: Path, files: Sequence[str], settings: Mapping[str, Any]
) -> tuple[Config, Config]:
    """Return the settings of a run that goes on: its own, with what may change, as where data is.

    Returns:
        These, and the same with those of the files, which may only repeat them.

    Raises:
        ConfigError: as `config_of_run`, or a setting cannot be used.
    """
    saved = flat_settings(config_of_run(folder).to_dict())
    contents = read_files(files)
    fitted, _ = fit_epochs(contents, settings)
    config, _ = build_config([saved], fitted)
    requested, _ = build_config([saved, *contents], fitted)
    return config, requested


def config_of_run(out: Path) -> Config:
    """Return the settings of the run in `out`, to be resumed.

    Raises:
        ConfigError: there is no run, or another version has written its settings.
    """
    saved = out / RUN_CONFIG
    if not os.path.exists(saved):  # unlike Path.exists, it returns False for an impossible name
        advice = "leave --resume out to start one, or name its folder with --out"
        raise ConfigError(f"--resume: no run in {out}; {advice}")
    try:
        return read_config(saved)
    except ConfigError as error:
        version = "an earlier version"
        for line in saved.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(WRITTEN_BY):
                version = f"version {line.removeprefix(WRITTEN_BY)}"
        raise ConfigError(
            f"--resume: {version} of this program has written {saved}; continue the run with that "
            f"one ({error})"
        ) from error


def fit_epochs(files: Files, settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Shorten a file's warm-up and whole epochs if `settings` has fewer epochs than they need.

    Returns:
        `settings` with what was shortened, to a quarter of the epochs, and a note on each.

    Raises:
        ConfigError: as in `build_sections`.
    """
    if "train.epochs" not in settings:
        return dict(settings), ()

    # What a file asks for, and does not fit
    sections, _ = build_sections(files, settings)
    epochs = sections["train"].epochs
    warmup = sections["optim"].warmup_epochs
    whole_epochs = sections["classify"].whole_epochs
    too_long = {}
    if warmup > epochs:
        too_long["optim.warmup_epochs"] = warmup
    if whole_epochs >= epochs:
        too_long["classify.whole_epochs"] = whole_epochs

    # What the user asks for too is a contradiction, which the sections refuse; what the objective
    # does not read has no effect
    unread = unread_sections(sections["train"].objective)
    shortened = {}
    notes = []
    for key, value in too_long.items():
        if key not in settings and key.partition(".")[0] not in unread:
            shortened[key] = epochs / 4
            message = f"{key}: {value:g} does not fit into train.epochs {epochs}"
            notes.append(f"{message}; using {epochs / 4:g}")
    return {**settings, **shortened}, tuple(notes)
