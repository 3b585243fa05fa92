"""Read configurations from files and the command line, and write them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from jsonargparse import SUPPRESS, ArgumentError, ArgumentParser, set_parsing_settings

from vit.config import Config, ConfigError, flat_settings, kept_until_registered, named_data, type_in_words
from vit.errors import did_you_mean, one_line

SECTIONS: dict[str, type] = {item.name: item.default_factory for item in fields(Config)}  # type: ignore[misc]
PACKAGE = Path(__file__).resolve().parent
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").is_dir() else PACKAGE.parent / "configs"
"""The configurations: next to the package in the repository, inside it in a wheel (setup.py)."""
QUICKSTART = CONFIGS / "quickstart.yaml"
RUN_CONFIG = "config.yaml"
HELP = {"-h", "--help"}

_MOVED = {
    "data": {"augment": "crop crop_scale crop_ratio crop_padding flip rand_augment rand_magnitude erasing"},
    "mask": {"reconstruct": "norm_pix_loss"},
    "classify": {"run": "test_flip"},
    "train": {"run": "device threads attention compile save_every log_every snapshots dynamics_every knn_images"},
}
RENAMED = {
    "data.holdout": "is called data.val_size now",
    "train.task": "is called train.objective now",
    "train.accumulate": "is called run.grad_accum_steps now",
    "train.holdout_every": "is called run.val_every now",
    "run.tensorboard": "is called run.track now",
    "train.tensorboard": "is called run.track now",
    "train.processes": "is torchrun's now: torchrun --standalone --nproc-per-node N train.py ...",
    **{
        f"{old}.{key}": f"is called {new}.{key} now"
        for old, moved in _MOVED.items()
        for new, keys in moved.items()
        for key in keys.split()
    },
}
"""Settings of earlier versions, and what became of them."""


def settings_parser(sections: dict[str, type] = SECTIONS) -> ArgumentParser:
    """Return a parser of settings alone; see `add_settings`."""
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    add_settings(parser, sections)
    return parser


@kept_until_registered  # building one takes longer than using it
def config_parser() -> ArgumentParser:
    """Return the parser of all settings, the same one each time."""
    return settings_parser()


def add_settings(parser: ArgumentParser, sections: dict[str, type] = SECTIONS, with_help: bool = False) -> None:
    """Add to a parser `--config FILE` (any number, the later wins), every field of every section, and `--print_config`.

    Args:
        parser: of a command.
        sections: dataclasses by section name.
        with_help: whether to read the help texts too, which takes as long as everything else, and to list `--data`, which
            `expand_data` reads.
    """
    set_parsing_settings(docstring_parse_attribute_docstrings=with_help)
    parser.add_argument("--config", action="config", help="YAML file with settings; of several, the later wins")
    if with_help:
        what = "cifar10, cifar100, scenes or a folder of images: data.source and data.root in one"
        parser.add_argument("--data", metavar="NAME|FOLDER", default=SUPPRESS, help=what)
    for name, section in sections.items():
        group = parser.add_argument_group((section.__doc__ or name).rstrip("."), name=name)
        group.add_class_arguments(section, name, as_group=False)  # a group would read files without `check_file`


def split_settings(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of `argv` that are settings, with their values, and the rest, which are a command's own options.

    Settings are `--SECTION.FIELD`, `--config`, `--data` and `--print_config`.
    """
    settings: list[str] = []
    rest: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        valued = name in ("--config", "--data") or (name.startswith("--") and "." in name)
        found = settings if valued or name == "--print_config" else rest
        found.append(word)
        if valued and not equals and words and not words[0].startswith("--"):
            found.append(words.pop(0))
    return settings, rest


def read_config(path: Path) -> Config:
    """Return the checked settings in a file; see `parse_sections`."""
    return parse_config(config_parser(), ["--config", str(path)])


def parse_config(parser: ArgumentParser, argv: Sequence[str]) -> Config:
    """Return the checked settings in `argv` and the files it names; see `parse_sections`."""
    return Config(**parse_sections(parser, argv, SECTIONS))


def parse_sections(parser: ArgumentParser, argv: Sequence[str], sections: dict[str, type]) -> dict[str, Any]:
    """Return the sections in `argv` and the files it names, each checked by itself.

    The command line overrides the files, whichever comes first.

    Raises:
        ConfigError: a key or value cannot be used.
    """
    try:
        (files,), settings = take_options(expand_data(argv), "--config")
        for option in settings:
            key = option.removeprefix("--").partition("=")[0]
            if option.startswith("--") and key in RENAMED:
                raise ConfigError(f"{key}: {RENAMED[key]}")
            if option.startswith("--") and key.count(".") > 1:  # the parser takes it for a part of a setting
                whole = ".".join(key.split(".")[:2])
                raise ConfigError(f"{key}: no such setting; {whole} is one, without parts")
        files = [str(config_file(name)) for name in files]
        for path in files:
            check_file(Path(path), sections)
        vars(parser).pop("print_config", None)  # which one that failed has left
        parsed = parser.parse_args([*(f"--config={path}" for path in files), *settings])
        return {name: section(**parsed[name].as_dict()) for name, section in sections.items()}
    except ArgumentError as error:
        raise ConfigError(_reason(str(error.message), sections)) from error


def _reason(message: str, sections: dict[str, type]) -> str:
    """Return what is wrong with a setting that the parser refuses: key, value, and what is allowed.

    Args:
        message: jsonargparse's, with names of Python's types and its own.
        sections: by name.
    """
    if found := re.search(r'Parser key "(\w+)\.(\w+)".*(?:Got value|Given value): (.*)$', message, re.DOTALL):
        section, name, value = found.groups()
        allowed = type_in_words(get_type_hints(sections[section])[name])
        return f"{section}.{name}: {value!r} cannot be used; {allowed}"
    message = one_line(message).replace("Parser key ", "").replace("typing.", "")
    words = r"unrecognized arguments: --([\w.]+)|Group '(\w+)' does not accept option '(\w+)'"
    if unknown := re.search(words, message):
        message += did_you_mean(".".join(filter(None, unknown.groups())), keys_of(sections))
    return f"{message.rstrip('.?')}; --help lists all keys"


def keys_of(sections: Mapping[str, type]) -> list[str]:
    """Return the names of all settings, with their sections."""
    return [f"{name}.{item.name}" for name, section in sections.items() for item in fields(section)]


def config_file(name: str) -> Path:
    """Return the file that `--config` names: an existing one, else the package's, as quickstart or configs/quickstart.yaml.

    Raises:
        ConfigError: there is none.
    """
    known = {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}
    if os.path.lexists(name):
        return Path(name)
    short = name.removeprefix("configs/").removesuffix(".yaml")
    if short not in known:
        near = did_you_mean(short, known) or f"; the package has {', '.join(known)}"
        raise ConfigError(f"config: cannot read {name}: No such file or directory{near}")
    return known[short]


def check_file(path: Path, sections: Mapping[str, type]) -> None:
    """Refuse files that the parser would accept, or explain less clearly: without sections, with an unknown or repeated key.

    YAML accepts a repeated key and forgets the first one: a setting that silently does nothing.

    Raises:
        ConfigError: the file is one of these, or cannot be read.
    """

    known = keys_of(sections)
    seen: set[str] = set()
    visited: list[yaml.Node] = []

    def walk(node: yaml.Node, name: str) -> Iterator[str]:
        where = f"in {path}, line {node.start_mark.line + 1}"
        if not node.tag.startswith("tag:yaml.org,2002:") or "python" in node.tag:
            yield f"{name or 'config'}: the tag {node.tag} {where}, cannot be used; only plain values can"
        if name in ("", *sections) and not isinstance(node, yaml.MappingNode):
            yield f"{name or 'config'}: must hold `key: value` {where}" + ("" if name else ", in sections")
        if any(node is other for other in visited):
            yield f"{name}: the alias {where}, cannot be used; write out what it stands for"
        if isinstance(node, yaml.CollectionNode):
            visited.append(node)
        if isinstance(node, yaml.SequenceNode):
            for value in node.value:
                yield from walk(value, name)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                inner, nested = f"{name}.{key.value}".lstrip("."), isinstance(value, yaml.MappingNode)
                line = f"line {key.start_mark.line + 1}"
                if inner in RENAMED:
                    yield f"{inner}: {RENAMED[inner]}; found in {path}, {line}"
                elif inner not in (*sections, *known) and (name == "" or (name in sections and not nested)):
                    near = did_you_mean(inner, known)
                    yield f"{inner}: no such setting; found in {path}, {line}; --help lists all keys{near}"
                if inner in seen:
                    yield f"{inner}: set twice in {path}, the second time on {line}; keep one"
                seen.add(inner)
                yield from walk(value, inner)

    try:
        text = path.read_text(encoding="utf-8")
        if path.read_text(errors="replace") != text:  # as jsonargparse reads it
            raise ConfigError(f"config: {path} is UTF-8, which Python is not set to here; set PYTHONUTF8=1")
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config: cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"config: {path} is not YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"config: {path} is nested too deep; settings go in sections as `key: value`") from error
    if tree is None:
        raise ConfigError(f"config: {path} is empty")
    for problem in walk(tree, ""):
        raise ConfigError(problem)


class _Dumper(yaml.SafeDumper):
    """Quotes text like 1e3 or 1.5e3, which is a number to the parser but not to YAML 1.1."""


_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


def to_yaml(config: Config) -> str:
    """Return a complete configuration file.

    Raises:
        ConfigError: a name is not UTF-8, which YAML cannot hold.
    """
    for key, value in flat_settings(config.to_dict()).items():
        if str(value).encode(errors="replace") != str(value).encode(errors="surrogatepass"):
            raise ConfigError(f"{key}: {value!r} cannot be used; config.yaml holds UTF-8 names only: rename it")
    return yaml.dump(config.to_dict(), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=120)


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


def train_parser(program: str = "vit train", with_help: bool = False) -> ArgumentParser:
    """Return the parser of `parse_train_command`, which reads --out and --resume itself; they are listed in the help."""
    what = f"Pretrain by filling in hidden patches, or train a classifier. Without --config: {QUICKSTART.name}."
    usage = f"{program} [--config FILE ...] [--SECTION.FIELD VALUE ...] [--out FOLDER] [--resume]"
    parser = ArgumentParser(prog=program, description=what, exit_on_error=False, usage=usage, allow_abbrev=False)
    if with_help:
        out = "run folder; by default runs/ and the configuration's name"
        parser.add_argument("--out", metavar="FOLDER", default=SUPPRESS, help=out)
        resume = "continue the run from its last saved state"
        parser.add_argument("--resume", action="store_true", default=SUPPRESS, help=resume)
    add_settings(parser, with_help=with_help)
    return parser


_kept_parser = kept_until_registered(train_parser)  # a notebook or a study may read many command lines


def parse_train_command(argv: Sequence[str], program: str = "python train.py") -> TrainCommand:
    """Parse the command line of train.py or `vit train`.

    Without `--config`, the quickstart's file is read; with `--resume`, the run's own config.yaml, with which the command
    line must agree.

    Raises:
        ConfigError: the command line cannot be used.
    """
    parser = _kept_parser(program) if HELP.isdisjoint(argv) else train_parser(program, with_help=True)
    (resume,), argv = take_flags(argv, "--resume")
    (files, outs), settings = take_options(expand_data(argv), "--config", "--out")
    files = [str(config_file(name)) for name in files]
    last = Path(files[-1]).resolve() if files else QUICKSTART
    out = Path(
        os.path.expanduser(outs[-1]) if outs else f"runs/{last.parent.name if last.name == RUN_CONFIG else last.stem}"
    )
    if outs and not outs[-1]:
        raise ConfigError("--out: '' cannot be used; name a folder for the run")
    quick = not files and not resume
    if quick:
        files = [str(QUICKSTART)]
    argv, notes = fit_epochs(parser, [*(f"--config={file}" for file in files), *settings])
    if not resume:
        try:
            config = parse_config(parser, argv)
        except ConfigError as error:
            key = str(error).partition(":")[0]
            if not quick or any(word.partition("=")[0] == f"--{key}" for word in settings):
                raise
            raise ConfigError(f"{error}. Without --config, a run has the settings of {QUICKSTART.name}") from error
        given = parser.parse_args(argv, defaults=False).as_flat()  # type: ignore[union-attr]
        return TrainCommand(config, out, False, program, frozenset(vars(given)), notes)
    saved = config_of_run(out)
    before = parse_config(parser, ["--config", str(saved)])
    _, settings = take_options(argv, "--config")  # only the command line may change e.g. where the data is
    config = parse_config(parser, ["--config", str(saved), *settings])
    refuse_conflicts(parse_config(parser, ["--config", str(saved), *argv]), before, out, config.train.epochs)
    return TrainCommand(config, out, True, program)


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
        ways = "leave it out (and --config: the run has its own), or start another with --out"
        raise ConfigError(f"{key}: the run in {out} has {old!r}, not {new!r}; {ways}")


def config_of_run(out: Path) -> Path:
    """Return the configuration of the run in `out`, to be resumed.

    Raises:
        ConfigError: there is no run.
    """
    if not os.path.exists(saved := out / RUN_CONFIG):  # unlike Path.exists, it returns False for an impossible name
        raise ConfigError(f"--resume: no run in {out}; leave --resume out to start one, or name its folder with --out")
    return saved


def fit_epochs(parser: ArgumentParser, argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Shorten a file's warm-up and whole epochs if the command line sets fewer epochs than they need.

    Returns:
        `argv` with what was shortened, to a quarter of the epochs, and a note on each.

    Raises:
        ConfigError: as in `parse_sections`.
    """
    said = {word.removeprefix("--").partition("=")[0] for word in argv if word.startswith("--")}
    if "train.epochs" not in said:
        return list(argv), ()
    sections = parse_sections(parser, argv, SECTIONS)
    epochs, shortened, notes = sections["train"].epochs, [], []
    for section, name in (("optim", "warmup_epochs"), ("classify", "whole_epochs")):
        key, value = f"{section}.{name}", getattr(sections[section], name)
        fits = value < epochs or (value == epochs and section == "optim")
        if not fits and key not in said:
            shortened.append(f"--{key}={epochs / 4:g}")
            notes.append(f"{key}: {value:g} does not fit into train.epochs {epochs}; using {epochs / 4:g}")
    return [*argv, *shortened], tuple(notes)


def expand_data(argv: Sequence[str]) -> list[str]:
    """Replace `--data NAME|FOLDER` in `argv` by the settings it stands for, placed first so that the others win."""
    (named,), rest = take_options(argv, "--data")
    return [*(f"--data.{key}={value}" for data in named for key, value in named_data(data).items()), *rest]


def take_flags(argv: Sequence[str], *flags: str) -> tuple[list[bool], list[str]]:
    """Return whether each of `flags` is in `argv`, and `argv` without them."""
    return [flag in argv for flag in flags], [word for word in argv if word not in flags]


def take_options(argv: Sequence[str], *options: str) -> tuple[list[list[str]], list[str]]:
    """Return the values of each of `options` in `argv`, and `argv` without them."""
    found: dict[str, list[str]] = {option: [] for option in options}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in found:
            rest.append(word)
        elif equals or not (value := next(words, "--")).startswith("--"):
            found[name].append(value)
        else:
            raise ConfigError(f"{name}: a value is missing")
    return list(found.values()), rest
