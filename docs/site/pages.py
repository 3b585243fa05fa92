"""Write docs/settings.md and docs/commands.md from what vit/ declares: python docs/site/pages.py

They are files of the repository, so that a code host shows them; tests/test_site.py holds that they
are what this writes.
"""

from __future__ import annotations

import argparse
import html
import itertools
import re
from pathlib import Path
from typing import Any

from vit.cli.parsers import COMMANDS, GROUPS, command_parser
from vit.config import PRESETS, USUAL, Config, Settings, flat_settings, read_settings, spelled
from vit.load_options import LoadOptions

DOCS = Path(__file__).parents[1]
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
KINDS = {
    "boolean": "`true`, `false`",
    "integer": "whole number",
    "number": "number",
    "string": "",
}

SETTINGS_HEAD = """# Settings

Every setting of a run. Give one on the command line, in a YAML file, or to `vit.fit`
[in Python](from-python.md):

    vit train --mask.ratio 0.6 --train.epochs 20

```yaml
mask: {ratio: 0.6}
train: {epochs: 20}
```

The command line overrides the file of `--config`, and the file overrides the defaults below.
Without `--config`, `vit train` reads `quickstart.yaml`; where its value is another, it stands below
the default.
`vit train --print_config` prints all settings as a file. Each name has its section:
`mask_ratio` and `batch_size` of other programs are called `mask.ratio` and `train.batch_size`."""
COMMANDS_HEAD = """# Commands

`vit COMMAND --help` prints the same, and of `vit train` all settings. `python -m vit` is `vit`, and
`python train.py` is `vit train`."""

QUICKSTART = flat_settings(Config.from_settings(read_settings("quickstart")).to_dict())
Rows = list[tuple[str, ...]]


def table(head: tuple[str, ...], rows: Rows) -> str:
    """Return a table that site.css stacks on a phone."""
    lines = [head, ("---",) * len(head), *rows]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f'<div class="declared" markdown="1">\n\n{text}\n\n</div>'


def code(text: str) -> str:
    """Return code for a table, where a bar would end the cell."""
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"


def sentence(text: str) -> str:
    """Return a declared sentence on one line, as Markdown in a table."""
    text = " ".join(text.split()).replace("|", "&#124;")
    return text.replace("<", "&lt;").replace("*", "\\*").replace("W_", "W\\_")


def values_of(schema: dict[str, Any]) -> str:
    """Return in words which values a setting takes, by its JSON schema."""
    if "anyOf" in schema:
        return f"{values_of(schema['anyOf'][0])}, or `null`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "prefixItems" in schema:
        return f"two of: {values_of(schema['prefixItems'][0])}"
    if schema["type"] == "array":
        return values_of(schema["items"])
    # a limit of 2**64 is the machine's
    limits = [f"{SIGNS[key]} {schema[key]:,}" for key in SIGNS if schema.get(key, 2**64) < 2**64]
    return f"{KINDS[schema['type']]} {' and '.join(limits)}".strip()


def setting_row(section: type[Settings], name: str) -> tuple[str, ...]:
    schema = section.model_json_schema()["properties"][name]
    said = sentence(section.model_fields[name].description or "")
    values = values_of(schema)
    if values:
        said += f"<br><small>{values}</small>"
    default = code(spelled(schema["default"]))
    key = section.key(name)
    first_run = code(spelled(QUICKSTART[key]))
    if first_run != default:
        default += f"<br><small>quickstart: {first_run}</small>"
    return f"`{key}`", default, said


def settings_page() -> str:
    """Return the page of all settings: the usual ones first."""
    head = ("setting", "default", "what it does, and its values")
    sections = {name: type(section) for name, section in Config()}
    train = command_parser("train")
    usual: Rows = []
    for key in USUAL:
        name, _, field = key.partition(".")
        if field:
            usual.append(setting_row(sections[name], field))
        else:
            [(option, said)] = option_rows([train._option_string_actions[f"--{name}"]])
            usual.append((option, "", said))
    parts = [SETTINGS_HEAD, "## Usual settings", table(head, usual)]
    for name, section in sections.items():
        purpose = " ".join((section.__doc__ or "").split())
        rows = [setting_row(section, field) for field in section.model_fields]
        parts += [f"## {name}", sentence(purpose), table(head, rows)]
        if name == "model":
            sizes: Rows = [
                (f"`{preset}`", *map(str, PRESETS[preset].values())) for preset in PRESETS
            ]
            parts.append(table(("preset", *PRESETS["tiny"]), sizes))
    return "\n\n".join(parts) + "\n"


def option_rows(actions: list[argparse.Action]) -> Rows:
    """Return a row for each option but --help and the settings, which have their own page."""
    rows: Rows = []
    for action in actions:
        name = ", ".join(action.option_strings)
        if action.help == argparse.SUPPRESS or name == "-h, --help":
            continue
        value = "" if action.nargs == 0 else str(action.metavar or action.dest)
        said = sentence((action.help or "").replace("%%", "%"))
        if value.islower():
            said += f"<br><small>{', '.join(map(code, value.split('|')))}</small>"
            value = ""
        rows.append((code(f"{name} {value}".strip()), said))
    return rows


def commands_page() -> str:
    """Return the page of all commands: what `--help` says of each."""
    head = ("option", "what it does")
    parts = [COMMANDS_HEAD]
    for title, names in GROUPS.items():
        links = [
            f"- [`vit {name}`](#vit-{name.replace(' ', '-')}): {sentence(COMMANDS[name][0])}"
            for name in names
        ]
        parts += [f"**{title.capitalize()}**", "\n".join(links)]
    for name in itertools.chain(*GROUPS.values()):
        models = [option for option in COMMANDS[name][-1] if isinstance(option, type)]
        parser = command_parser(name)
        own = parser._action_groups[: len(parser._action_groups) - len(models)]
        rows = option_rows([action for group in own for action in group._group_actions])
        purpose = sentence(parser.description or "")
        usage = re.sub("\n +", "\n", parser.usage or "")
        parts += [f"## vit {name}", purpose, f"```text\n{usage}\n```", table(head, rows)]
        if LoadOptions in models:
            parts.append("And the [options for loading](#loading).")
        elif models:
            parts.append("And every [setting](settings.md), as `--mask.ratio 0.6`.")
    loading = command_parser("checkpoint inspect")._action_groups[-1]._group_actions
    parts += [
        "## Loading",
        "How a command reads its CHECKPOINT.",
        table(head, option_rows(loading)),
    ]
    return "\n\n".join(parts) + "\n"


PAGES = {"settings.md": settings_page, "commands.md": commands_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
