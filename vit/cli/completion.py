"""`vit --print-completion SHELL`: what a shell needs to complete commands, options and their values."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec

from jsonargparse import ArgumentParser

from vit.cli.options import options_parser
from vit.config import BUILT_IN, ConfigError
from vit.pretrained import shipped_models

SHELLS = ("bash", "zsh")


def print_completion(shell: str, commands: Mapping[str, str]) -> None:
    """Print the script for a shell, one of SHELLS; `commands` maps each command of `vit` to its purpose.

    Raises:
        ConfigError: the shell is unknown, or shtab is missing.
    """
    if shell not in SHELLS:
        raise ConfigError(f"--print-completion: {shell!r} cannot be used; {' or '.join(SHELLS)}")
    if find_spec("shtab") is None:
        raise ConfigError("--print-completion needs shtab: pip install shtab")
    script = whole_parser(commands).get_completion_script(f"shtab-{shell}")
    print(script.replace("complete -o bashdefault", "complete -o bashdefault -o default"))  # else no files after words


def whole_parser(commands: Mapping[str, str]) -> ArgumentParser:
    """Return one parser of all commands, each with the parser of its own options."""
    parser = ArgumentParser(prog="vit")
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("--print-completion", choices=SHELLS, help="print a script that completes commands and options")
    subcommands = parser.add_subcommands()
    words = {"data": BUILT_IN, "checkpoint": shipped_models()}  # a file will do too
    for name, purpose in commands.items():
        module = import_module(f"vit.cli.{name}")
        if hasattr(module, "command_parser"):
            command = module.command_parser(with_help=True)
        else:
            groups, sections = getattr(module, "OPTIONS", ()), getattr(module, "SETTINGS", None)
            command, _ = options_parser(f"vit {name}", *groups, sections=sections)
        for action in command._actions:
            known = words.get(action.dest, ())
            action.choices = action.choices or list(known) or None
        subcommands.add_subcommand(name, command, help=purpose)
        if hasattr(module, "COMMANDS"):
            inner = command.add_subcommands()
            for word, found in module.COMMANDS.items():
                within, _ = options_parser(f"vit {name} {word}", *found.OPTIONS)
                inner.add_subcommand(word, within, help=found.OPTIONS[0].__doc__)
    return parser
