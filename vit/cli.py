"""The command `vit`, and how every command reads its settings. Light: what is heavy is imported where it is used."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace, set_parsing_settings

from vit import __version__
from vit.config import Config, ConfigError, DataConfig, MaskConfig, ModelConfig, OptimConfig, TrainConfig
from vit.errors import exit_code_of, one_line

SECTIONS = {"data": DataConfig, "model": ModelConfig, "mask": MaskConfig, "optim": OptimConfig, "train": TrainConfig}
RUN_CONFIG = "config.yaml"


def config_parser(program: str, description: str) -> ArgumentParser:
    """A parser for `--config FILE` (any number, the later wins), every field of every section, and `--print_config`."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    usage = f"{program} [--config FILE ...] [--SECTION.FIELD VALUE ...]"
    parser = ArgumentParser(prog=program, description=description, exit_on_error=False, usage=usage)
    parser.add_argument("--config", action="config", help="YAML file with settings; of several, the later wins")
    for name, section in SECTIONS.items():
        parser.add_class_arguments(section, name)
    return parser


def parse_config(parser: ArgumentParser, argv: Sequence[str]) -> tuple[Config, Namespace]:
    """The settings in `argv` and the files it names, checked, and what else the parser knows.

    Raises:
        ConfigError: a key or value that cannot be used, in one line.
    """
    try:
        for path in _values_of("--config", argv):
            refuse_duplicates(Path(path))
        parsed = parser.parse_args(list(argv))
        built = parser.instantiate_classes(parsed)
        return Config(**{name: built[name] for name in SECTIONS}), parsed
    except argparse.ArgumentError as error:
        message = one_line(str(error.message)).replace("Parser key ", "").replace("typing.", "")
        raise ConfigError(f"{message.rstrip('.')}. All keys are listed by --help") from error


def refuse_duplicates(path: Path) -> None:
    """YAML lets a key stand twice and forgets the first: a setting that silently does nothing is refused here.

    Raises:
        ConfigError: the file names a key twice, is no YAML, or cannot be read.
    """

    def walk(node: yaml.Node, parents: str) -> Iterator[str]:
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                name = f"{parents}{key.value}"
                if name in seen:
                    yield f"{name}: stands twice in {path}, the second time in line {key.start_mark.line + 1}; keep one"
                seen.add(name)
                yield from walk(value, f"{name}.")

    try:
        tree = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config: cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"config: {path} is not YAML: {one_line(str(error))}") from error
    for problem in walk(tree, "") if tree else ():
        raise ConfigError(problem)


def to_yaml(config: Config) -> str:
    """A complete configuration file."""
    return yaml.safe_dump(config.to_dict(), sort_keys=False, default_flow_style=None, width=120)


@dataclass(frozen=True)
class TrainCommand:
    """What train.py was asked to do: train with `config` in the run folder `out`, from where it stopped if `resume`."""

    config: Config
    out: Path
    resume: bool


def parse_train_command(argv: Sequence[str], default_config: Path) -> TrainCommand:
    """Read train.py's command line.

    Without `--config`, `default_config` is taken. With `--resume`, the run's own config.yaml is, and what the command
    line adds must agree with it.

    Raises:
        ConfigError: in one line.
    """
    parser = config_parser(
        "train.py", f"Pretrain by filling in hidden patches. Without --config: {default_config.name}."
    )
    parser.usage += " [--out DIR] [--resume]"
    parser.add_argument("--out", type=str | None, default=None, help="run folder; default: runs/ and the config's name")
    parser.add_argument(
        "--resume", action="store_true", help="continue the run in its folder from its last saved state"
    )
    given = _values_of("--config", argv)
    name = Path(given[-1]) if given else default_config
    name = name.parent.name if name.name == RUN_CONFIG else name.stem
    out = Path((_values_of("--out", argv) or [f"runs/{name}"])[-1])
    saved = out / RUN_CONFIG
    if "--resume" in argv:
        if not saved.exists():
            raise ConfigError(
                f"--resume: there is no run in {out}; leave --resume out to begin one, or name it by --out"
            )
        before, _ = parse_config(parser, ["--config", str(saved)])
        config, _ = parse_config(parser, ["--config", str(saved), *argv])
        for key, old, new in _differences(before, config):
            raise ConfigError(
                f"{key}: the run in {out} has {old!r}, not {new!r}; leave it out, or begin another with --out"
            )
        return TrainCommand(config, out, resume=True)
    config, _ = parse_config(parser, argv if given else ["--config", str(default_config), *argv])
    return TrainCommand(config, out, resume=False)


def _differences(one: Config, other: Config) -> Iterator[tuple[str, Any, Any]]:
    others = other.to_dict()
    for section, values in one.to_dict().items():
        for key, value in values.items():
            if value != others[section][key]:
                yield f"{section}.{key}", value, others[section][key]


def _values_of(option: str, argv: Sequence[str]) -> list[str]:
    scan = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    scan.add_argument(option, action="append", default=[])
    try:
        return list(vars(scan.parse_known_args(list(argv))[0]).popitem()[1])
    except argparse.ArgumentError as error:
        raise ConfigError(f"{option}: {error.message}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """The console command `vit`."""
    argv = sys.argv[1:] if argv is None else list(argv)
    return exit_code_of("vit", lambda: _run(argv))


def _run(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="vit", description="What stands around train.py. Each command has a --help.")
    parser.add_argument("--version", action="version", version=f"vit {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    data = commands.add_parser("data", help="show the images that a configuration would train on", add_help=False)
    data.set_defaults(run=_data)
    arguments, rest = parser.parse_known_args(list(argv))
    return arguments.run(rest)


def _data(argv: Sequence[str]) -> int:
    parser = config_parser("vit data", "Load the data of a configuration, say what it is, and draw a sheet of it.")
    parser.usage += " --out SHEET.png"
    parser.add_argument("--out", type=str, required=True, help="picture to write: .png, .svg or .pdf")
    config, parsed = parse_config(parser, argv)
    from vit.sheet import data_sheet

    print(data_sheet(config, Path(parsed.out)))
    return 0
