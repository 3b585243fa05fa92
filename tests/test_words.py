"""One name for one thing: no page, help, message or docstring has a word that CONTRIBUTING's table refuses."""

import ast
import re
from collections.abc import Iterator

from forks import ROOT

CONTRIBUTING, TABLE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Words")
PAGES = ("README.md", "docs/**/*.md", "vit/pretrained/*/README.md", "vit/**/*.html")
REFUSED = [
    phrase.strip()
    for phrases in re.findall(r"^\|[^|]*\|([^|]*)\|$", TABLE, re.MULTILINE)[2:]
    for phrase in phrases.split(",")
]
# code, the names of arguments, the targets of links, and tags
CODE = re.compile(
    r"^```.*?^```|`[^`]+`|^ +\w+(?=: )|\]\([^)]*\)|<(style|script|code|pre)\b.*?</\1>|<[^>]*>|{[{%#].*?[}%#]}",
    re.MULTILINE | re.DOTALL,
)


def texts() -> Iterator[tuple[str, str]]:
    """What is written for people, by its place: pages, and all strings of the package with a space."""
    yield "CONTRIBUTING.md", CONTRIBUTING
    for path in (path for pattern in PAGES for path in ROOT.glob(pattern)):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for path in ROOT.glob("vit/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and " " in str(node.value):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", str(node.value)


def test_one_name_for_one_thing():
    assert len(REFUSED) > 20, "CONTRIBUTING.md has lost its table of words"
    phrases = "|".join(REFUSED).replace(" ", r"\s+")
    refused = re.compile(rf"^.*\b(?:{phrases})s?\b.*$", re.IGNORECASE | re.MULTILINE)
    found = [
        f"{place}: {hit.group().strip()}"
        for place, text in texts()
        for hit in refused.finditer(CODE.sub(" ", text))
    ]
    assert not found, "CONTRIBUTING.md says how to call it:\n" + "\n".join(found)
