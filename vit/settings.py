"""Read settings from files and the command line, and write them.

One way in: files and the command line become one mapping of "section.key" to value, the parser checks its types, and
the sections check their ranges (`vit.config`). `fit(settings={...})` begins with the mapping.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from inspect import formatannotation
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import SUPPRESS, ArgumentError, ArgumentParser, set_parsing_settings

from vit.config import OBJECTIVES, Config, flat_settings, named_data
from vit.errors import ConfigError, did_you_mean, one_line

SECTIONS: dict[str, type] = {item.name: item.default_factory for item in fields(Config)}  # type: ignore[misc]
PACKAGE = Path(__file__).resolve().parent
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").is_dir() else PACKAGE.parent / "configs"
"""The configurations: next to the package in the repository, inside it in a wheel (setup.py)."""
QUICKSTART = CONFIGS / "quickstart.yaml"
RUN_CONFIG = "config.yaml"
HELP = {"-h", "--help"}
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


# --- files -----------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Reads settings as people write them: on, off, yes and no are words, 1e-3 is a number, and a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key, _ in node.value:
            if str(key.value) in keys:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value} is set twice", problem_mark=key.start_mark
                )
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes text like 1e3 or 1.5e3, which is a number to the parser but not to YAML 1.1."""


_BOOL = re.compile("(true|True|TRUE|false|False|FALSE)$")
_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, words) for tag, words in resolvers if not tag.endswith(":bool")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


def read_file(path: Path, sections: Mapping[str, type] | None = None) -> dict[str, Any]:
    """Return the settings in a YAML file by "section.key"; their values are not checked yet.

    Args:
        path: of the file.
        sections: dataclasses by section name; by default those of a run.

    Raises:
        ConfigError: the file cannot be read, or holds an unknown key or one twice.
    """
    sections = sections or SECTIONS
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.load(file, Loader=_Loader)  # a SafeLoader
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"config: cannot read {path}: {reason}") from error

    # sections of settings, and nothing else
    if not isinstance(content, dict):
        raise ConfigError(
            f"config: {path} must hold settings in sections, as `train: {{epochs: 3}}`"
        )
    settings = {}
    for section, values in content.items():
        if section in keys_of(sections):
            raise ConfigError(
                f"{section}: must stand in its section, as `train: {{epochs: 3}}`; found in {path}"
            )
        if section not in sections:
            raise _unknown(str(section), sections, f"found in {path}")
        if not isinstance(values, dict):
            raise ConfigError(f"{section}: must hold `key: value`; found in {path}")
        for name, value in values.items():
            settings[f"{section}.{name}"] = value
    for key in settings:
        if key not in keys_of(sections):
            raise _unknown(key, sections, f"found in {path}")
    return settings


def config_file(name: str) -> Path:
    """Return the file that `--config` names: an existing one, else the package's, as quickstart or configs/quickstart.yaml.

    Raises:
        ConfigError: there is none.
    """
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
    for key, value in flat_settings(config.to_dict()).items():
        if str(value).encode(errors="replace") != str(value).encode(errors="surrogatepass"):
            raise ConfigError(
                f"{key}: {value!r} cannot be used; config.yaml holds UTF-8 names only: rename it"
            )
    return yaml.dump(
        config.to_dict(), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=120
    )


# --- from the mapping to the sections --------------------------------------------------------------------------------


def read_config(path: Path) -> Config:
    """Return the checked settings in a file; see `build_config`."""
    return build_config([path])[0]


def build_config(
    files: Sequence[str | Path], overrides: Mapping[str, Any] | None = None
) -> tuple[Config, frozenset[str]]:
    """Return all settings, and the keys of those that a file or `overrides` names; see `build_sections`.

    Raises:
        ConfigError: a key or a value cannot be used, or an override has no effect on the objective.
    """
    overrides = overrides or {}
    sections, given = build_sections(files, overrides)
    config = Config(**sections)
    used = OBJECTIVES[config.train.objective].sections
    for key in overrides:
        section = key.partition(".")[0]
        for name, objective in OBJECTIVES.items():
            if section in objective.sections and section not in used:
                raise ConfigError(
                    f"{key}: cannot be used; it only applies to train.objective {name}"
                )
    return config, given


def build_sections(
    files: Sequence[str | Path],
    overrides: Mapping[str, Any],
    sections: Mapping[str, type] | None = None,
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return sections of settings, each checked by itself, and the keys that were given.

    Args:
        files: paths or names of YAML files; a later one wins over those before.
        overrides: settings by "section.key", which win over the files; a text is read as on the command line.
        sections: dataclasses by section name; by default those of a run.

    Raises:
        ConfigError: a key or a value cannot be used.
    """
    # the files, then the overrides
    sections = sections or SECTIONS
    settings: dict[str, Any] = {}
    for file in files:
        settings |= read_file(config_file(str(file)), sections)
    for key, value in overrides.items():
        if key not in keys_of(sections):
            raise _unknown(key, sections)
        settings[key] = _without_numpy(value)

    # the parser checks the types, the sections the ranges
    nested: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = value
    try:
        parsed = _parser(tuple(sections.items())).parse_object(nested)
    except ArgumentError as error:
        raise _refusal(error, sections) from error
    built = {name: section(**parsed[name].as_dict()) for name, section in sections.items()}
    return built, frozenset(settings)


def keys_of(sections: Mapping[str, type]) -> list[str]:
    """Return the names of all settings, with their sections."""
    return [f"{name}.{item.name}" for name, section in sections.items() for item in fields(section)]


def _without_numpy(value: Any) -> Any:
    """Return a value from Python as a file would hold it: NumPy's numbers and arrays, and paths, become plain."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return [_without_numpy(part) for part in value]
    return value


def _unknown(
    key: str, sections: Mapping[str, type], where: str = "--help lists all keys"
) -> ConfigError:
    """Return the error of a key that is no setting, with the setting that may be meant."""
    synonym = SYNONYMS.get(key.rpartition(".")[2])
    others = [name for name in (*sections, *keys_of(sections)) if name != key]
    near = f"; did you mean {synonym}?" if synonym else did_you_mean(key, others)
    return ConfigError(f"{key}: no such setting; {where}{near}")


def _refusal(error: ArgumentError, sections: Mapping[str, type]) -> ConfigError:
    """Return the error of a value that the parser refuses: key, value, and what is allowed."""
    message = str(error.message)
    wrong = re.search(
        r'Parser key "(\w+)\.(\w+)".*(?:Got value|Given value): (.*)$', message, re.DOTALL
    )
    if wrong is None:
        return ConfigError(
            f"{one_line(str(error)).removeprefix('argument ')}; --help lists all keys"
        )
    section, name, value = wrong.groups()
    hint = get_type_hints(sections[section])[name]
    allowed = formatannotation(hint).replace("typing.", "")
    if get_origin(hint) is Literal:
        allowed = f"one of {', '.join(get_args(hint))}"
    return ConfigError(f"{section}.{name}: {value!r} cannot be used; it needs {allowed}")


# --- the command line ------------------------------------------------------------------------------------------------


@cache  # building one takes longer than using it
def _parser(sections: tuple[tuple[str, type], ...]) -> ArgumentParser:
    """Return a parser of settings alone."""
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    _add_sections(parser, dict(sections), with_help=False)
    return parser


def _add_sections(parser: ArgumentParser, sections: Mapping[str, type], with_help: bool) -> None:
    """Add every field of every section; reading their help texts takes as long as everything else."""
    set_parsing_settings(docstring_parse_attribute_docstrings=with_help)
    for name, section in sections.items():
        group = parser.add_argument_group((section.__doc__ or name).rstrip("."), name=name)
        group.add_class_arguments(section, name, as_group=False)


def add_settings(parser: ArgumentParser, sections: Mapping[str, type]) -> None:
    """Add to a parser, for its help, all that `read_words` reads."""
    config = "YAML file with settings; of several, the later wins"
    data = "cifar10, cifar100, scenes or a folder of images: data.source and data.root in one"
    parser.add_argument("--config", metavar="FILE", default=SUPPRESS, help=config)
    parser.add_argument("--data", metavar="NAME|FOLDER", default=SUPPRESS, help=data)
    _add_sections(parser, sections, with_help=True)


def read_words(
    argv: Sequence[str], sections: Mapping[str, type] | None = None
) -> tuple[list[str], dict[str, Any]]:
    """Return the files that `--config` names on a command line, and its settings by "section.key".

    `--data NAME|FOLDER` stands for data.source and data.root, which win over it.

    Raises:
        ConfigError: an option or a value cannot be used.
    """
    sections = sections or SECTIONS
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    options.add_argument("--config", action="append", default=[])
    options.add_argument("--data", action="append", default=[])
    try:
        named, words = options.parse_known_args(argv)
        for word in words:
            key = word.removeprefix("--").partition("=")[0]
            if word.startswith("--") and key not in keys_of(sections):
                raise _unknown(key, sections)
        given = _parser(tuple(sections.items())).parse_args(words, defaults=False)
    except ArgumentError as error:
        raise _refusal(error, sections) from error
    settings: dict[str, Any] = {}
    for data in named.data:
        for key, value in named_data(data).items():
            settings[f"data.{key}"] = value
    return named.config, settings | vars(given.as_flat())  # type: ignore[union-attr]


def split_settings(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of `argv` that are settings, with their values, and the rest, which are a command's own options.

    Settings are `--SECTION.FIELD`, `--config` and `--data`.
    """
    settings: list[str] = []
    rest: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if name not in ("--config", "--data") and not (name.startswith("--") and "." in name):
            rest.append(word)
            continue
        settings.append(word)
        if not equals and words and not words[0].startswith("--"):
            settings.append(words.pop(0))
    return settings, rest


# --- vit train -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainCommand:
    """The parsed command line of train.py: train with `config` in the run folder `out`, and continue there if `resume`.

    Attributes:
        given: keys of the settings that a file or the command line names; the others may follow from them.
        notes: lines that the user should see.
    """

    config: Config
    out: Path
    resume: bool
    program: str = "python train.py"
    given: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


OWN_OPTIONS: dict[str, dict[str, Any]] = {
    "--out": {
        "metavar": "FOLDER",
        "help": "run folder; by default runs/ and the configuration's name",
    },
    "--resume": {"action": "store_true", "help": "continue the run from its last saved state"},
    "--print_config": {
        "action": "store_true",
        "help": "print all settings as a configuration file, and end",
    },
}
"""The options of `vit train` beside the settings."""


def train_parser(program: str = "vit train") -> ArgumentParser:
    """Return the parser that prints the help of `vit train`."""
    purpose = f"Pretrain by filling in hidden patches, or train a classifier. Without --config: {QUICKSTART.name}."
    usage = f"{program} [--config FILE ...] [--SECTION.FIELD VALUE ...] [--out FOLDER] [--resume]"
    parser = ArgumentParser(prog=program, description=purpose, usage=usage)
    for name, option in OWN_OPTIONS.items():
        parser.add_argument(name, default=SUPPRESS, **option)
    add_settings(parser, SECTIONS)
    return parser


def parse_train_command(argv: Sequence[str], program: str = "python train.py") -> TrainCommand:
    """Parse the command line of train.py or `vit train`; see `train_command`.

    Raises:
        ConfigError: the command line cannot be used.
        SystemExit: after `--help` and `--print_config`.
    """
    if not HELP.isdisjoint(argv):
        train_parser(program).print_help()
        raise SystemExit(0)
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, option in OWN_OPTIONS.items():
        options.add_argument(name, **option)
    try:
        own, words = options.parse_known_args(argv)
    except ArgumentError as error:
        raise _refusal(error, SECTIONS) from error
    files, settings = read_words(words)
    command = train_command(files, settings, own.out, own.resume, program)
    if own.print_config:
        print(to_yaml(command.config), end="")
        raise SystemExit(0)
    return command


def train_command(
    files: Sequence[str],
    settings: Mapping[str, Any],
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    program: str = "python train.py",
) -> TrainCommand:
    """Return a training run as `vit train` and `fit` ask for it.

    Without `files`, the quickstart's is read; with `resume`, the run's own config.yaml, with which all else must agree.

    Args:
        files: paths or names of settings files; a later one wins.
        settings: by "section.key"; they win over the files.
        out: run folder; by default runs/ and the name of the last file.
        resume: whether to continue the run in `out`.
        program: what the user calls it.

    Raises:
        ConfigError: the settings cannot be used.
    """
    # the run folder
    if out is None:
        last = config_file(str(files[-1])).resolve() if files else QUICKSTART
        out = Path("runs") / (last.parent.name if last.name == RUN_CONFIG else last.stem)
    elif not os.fspath(out):
        raise ConfigError("--out: '' cannot be used; name a folder for the run")
    folder = Path(os.path.expanduser(out))

    # a new run
    quick = not files and not resume
    if quick:
        files = [str(QUICKSTART)]
    fitted, notes = fit_epochs(files, settings)
    if not resume:
        try:
            config, given = build_config(files, fitted)
        except ConfigError as error:
            if quick and str(error).partition(":")[0] not in settings:
                message = f"{error}. Without --config, a run has the settings of {QUICKSTART.name}"
                raise ConfigError(message) from error
            raise
        return TrainCommand(config, folder, False, program, given, notes)

    # one that goes on: only `settings` may change e.g. where the data is
    saved = config_of_run(folder)
    before, _ = build_config([saved])
    config, _ = build_config([saved], fitted)
    asked, _ = build_config([saved, *files], fitted)
    refuse_conflicts(asked, before, folder, config.train.epochs)
    return TrainCommand(config, folder, True, program)


def refuse_conflicts(asked: Config, before: Config, out: Path, epochs: int) -> None:
    """Refuse settings that would make another run of the one in `out`.

    Args:
        asked: all settings now.
        before: those of its config.yaml.
        out: run folder.
        epochs: those to resume with, which may be others while the learning rate is held.

    Raises:
        ConfigError: it names the first of these settings.
    """
    for key, old, new in asked.conflicts(before.to_dict()):
        if key == "train.epochs" and new == epochs and before.optim.cooldown < 1:
            continue  # `find_state` knows whether it is not too late
        advice = "leave it out (and --config: the run has its own), or start another with --out"
        raise ConfigError(f"{key}: the run in {out} has {old!r}, not {new!r}; {advice}")


def config_of_run(out: Path) -> Path:
    """Return the configuration of the run in `out`, to be resumed.

    Raises:
        ConfigError: there is no run.
    """
    saved = out / RUN_CONFIG
    if not os.path.exists(saved):  # unlike Path.exists, it returns False for an impossible name
        raise ConfigError(
            f"--resume: no run in {out}; leave --resume out to start one, or name its folder with --out"
        )
    return saved


def fit_epochs(
    files: Sequence[str], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Shorten a file's warm-up and whole epochs if `settings` has fewer epochs than they need.

    Returns:
        `settings` with what was shortened, to a quarter of the epochs, and a note on each.

    Raises:
        ConfigError: as in `build_sections`.
    """
    if "train.epochs" not in settings:
        return dict(settings), ()
    sections, _ = build_sections(files, settings)
    epochs = sections["train"].epochs
    warmup = sections["optim"].warmup_epochs
    whole = sections["classify"].whole_epochs
    too_long = {}
    if warmup > epochs:
        too_long["optim.warmup_epochs"] = warmup
    if whole >= epochs:
        too_long["classify.whole_epochs"] = whole
    shortened = {}
    notes = []
    for key, value in too_long.items():
        if key not in settings:
            shortened[key] = epochs / 4
            notes.append(
                f"{key}: {value:g} does not fit into train.epochs {epochs}; using {epochs / 4:g}"
            )
    return {**settings, **shortened}, tuple(notes)
