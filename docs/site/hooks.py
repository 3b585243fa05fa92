"""What the site adds to the Markdown of docs/: formulas, letters in their colours, pictures that
enlarge, pages of files beside docs/, live pages.

MkDocs calls the functions that begin with `on_` (mkdocs.yml names this file).
"""

from __future__ import annotations

import base64
import html
import json
import logging
import os
import posixpath
import re
import subprocess
import sys
import tempfile
import tomllib
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

import yaml
from latex2mathml.converter import convert_to_element
from mkdocs.structure.files import File, Files

from vit.figures.style import DARK_PALETTE, PALETTE

LOG = logging.getLogger("mkdocs.plugins.formulas")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
BESIDE = {
    "README.md": "README.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "CITATION.cff": "cite.md",
    "LICENSE": "licence.md",
}
"""Files beside docs/ and the pages that stand for them."""
BESIDE |= {f"notebooks/{path.name}": f"notebooks/{path.stem}.md" for path in NOTEBOOKS}
LIVE = "VIT_SITE_LIVE"
"""A folder that holds the live pages; without this variable, the commands of docs/live.md write
them."""

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
"""A formula as pymdownx.arithmatex leaves it."""
MATRIX = re.compile(r"\bW_([EQKVO])\b")
LETTERS = {"E": "x", "X": "x", "Q": "q", "K": "k", "V": "v", "O": "o"}
"""The colour of a letter, by its name in vit/figures/palette.css. Small letters are rows of the
large ones."""
LETTERS |= {letter.lower(): colour for letter, colour in LETTERS.items() if letter not in "EO"}
VERBATIM = {"code", "pre", "script", "style", "math", "title"}
"""Elements whose text is no prose."""


def render_formula(latex: str, block: bool) -> str:
    """Return a formula as MathML, which browsers draw without a script; letters have their
    colours."""
    element = convert_to_element(latex, display="block" if block else "inline")
    for child in element.iter():
        # latex2mathml writes signs as references, "&#x0003D;", which would be escaped once more
        child.text = html.unescape(child.text or "")
    colour_letters(element)
    return ElementTree.tostring(element, encoding="unicode", short_empty_elements=False)


def colour_letters(element: ElementTree.Element) -> None:
    """Mark W_E, Q, k and the like with the class of their colour.

    An index keeps the colour of its base: the q of q_i is the letter, and its i is not. The base W
    takes the colour of its index.
    """
    if element.tag in ("msub", "msubsup") and element[0].text == "W":
        letter = element[1].text or ""
        if letter in LETTERS:
            element.set("class", f"letter-{LETTERS[letter]}")
        return
    if element.tag in ("msub", "munder"):
        colour_letters(element[0])
        return
    if element.tag == "mi" and element.text in LETTERS and element.text != "E":
        element.set("class", f"letter-{LETTERS[element.text]}")
    for child in element:
        colour_letters(child)


class Prose(HTMLParser):
    """Copies HTML; in prose, W_Q gets its subscript and its colour. `dollars` are what no formula
    took.

    A picture becomes a link to its file.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []
        self.verbatim: list[str] = []
        self.dollars: list[str] = []
        self.links = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.handle_picture(attrs)
            return
        self.links += tag == "a"
        self.parts.append(self.get_starttag_text() or "")
        if tag in VERBATIM:
            self.verbatim.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.handle_picture(attrs)
            return
        self.parts.append(self.get_starttag_text() or "")

    def handle_picture(self, attrs: list[tuple[str, str | None]]) -> None:
        picture = self.get_starttag_text() or ""
        source = dict(attrs).get("src") or ""
        if not self.links:
            picture = f'<a class="picture" href="{html.escape(source)}">{picture}</a>'
        self.parts.append(picture)

    def handle_endtag(self, tag: str) -> None:
        self.links -= tag == "a"
        self.parts.append(f"</{tag}>")
        if self.verbatim and self.verbatim[-1] == tag:
            self.verbatim.pop()

    def handle_data(self, data: str) -> None:
        if not self.verbatim:
            if "$" in data:
                self.dollars.append(data.strip())
            data = MATRIX.sub(coloured_matrix, data)
        self.parts.append(data)

    def handle_entityref(self, name: str) -> None:
        self.parts.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.parts.append(f"&#{name};")

    def handle_comment(self, data: str) -> None:
        self.parts.append(f"<!--{data}-->")


def coloured_matrix(found: re.Match[str]) -> str:
    letter = found[1]
    return f'<b class="letter-{LETTERS[letter]}">W<sub>{letter}</sub></b>'


def finish_page(page: str) -> tuple[str, list[str]]:
    """Return a page's HTML with its formulas and letters, and the text of formulas that were not
    closed."""

    def rendered(found: re.Match[str]) -> str:
        return render_formula(html.unescape(found[2]), block=found[1] == "div")

    prose = Prose()
    prose.feed(FORMULA.sub(rendered, page))
    prose.close()
    return "".join(prose.parts), prose.dollars


def palette_css() -> str:
    """Return the colours of palette.css for the two themes of the site, a line each."""
    lines = []
    for theme, colours in (("default", PALETTE), ("slate", DARK_PALETTE)):
        declared = " ".join(f"--{name}: {colour};" for name, colour in colours.items())
        lines.append(f'[data-md-color-scheme="{theme}"] {{ {declared} }}')
    return "\n".join(lines)


def notebook_page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by their names.

    Args:
        notebook: what its file holds: JSON.
        name: the pictures' names begin with it.
    """
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        # Lines for the notebook alone, such as %matplotlib inline, are no Python
        code = "\n".join(line for line in source.splitlines() if not line.startswith("%"))
        parts.append(f"```python\n{code.strip()}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                picture = f"{name}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![A figure that the code above draws]({picture})")
            elif "text/markdown" in data:
                parts.append("".join(data["text/markdown"]))
            else:
                text = "".join(data["text/plain"]).rstrip()
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n", pictures


def citation_page(text: str) -> str:
    """Return CITATION.cff as a BibTeX entry."""
    said = yaml.safe_load(text)
    authors = " and ".join(author["name"] for author in said["authors"])
    entry = {"title": said["title"], "author": f"{{{authors}}}", "version": said["version"]}
    fields = "".join(f"  {key} = {{{value}}},\n" for key, value in entry.items())
    return f"# How to cite\n\n```bibtex\n@software{{{said['title']},\n{fields}}}\n```\n"


def live_pages(text: str) -> dict[str, bytes]:
    """Return the pages that the commands of docs/live.md write, by their names in the site.

    They are kept for as long as the process lives: `mkdocs serve` makes them once.
    """
    if LIVE not in os.environ:
        os.environ[LIVE] = tempfile.mkdtemp()
    folder = Path(os.environ[LIVE])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path}
    pages = {}
    for name, (command, written) in live_commands(text).items():
        if not (folder / written).exists():
            done = subprocess.run(
                command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
            )
            if done.returncode:
                LOG.warning("%s: %s", command, done.stderr.strip())
                continue
        pages[name] = (folder / written).read_bytes()
    return pages


def live_commands(text: str) -> dict[str, tuple[str, str]]:
    """Return the commands of docs/live.md: name of the page in the site -> command as it stands
    there, file it writes."""
    commands = {}
    for command in re.findall(r"^    (?:vit|python) (?:.*\\\n)*.*\n", text, re.MULTILINE):
        written = command.split()[-1]
        if written.startswith("runs/"):
            written += "/report.html"
        commands[PurePosixPath(written).name] = (command, written)
    return commands


def on_config(config: Any, **_: Any) -> Any:
    """Take from pyproject.toml the version, the licence and, if it has one, the address."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.repo_url = config.repo_url or project.get("urls", {}).get("Repository")
    config.repo_name = "Repository"
    config.copyright = f"Version {project['version']}, licence {project['license']}"
    return config


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add what is made, not written: the colours, the files beside docs/, the live pages."""
    made: dict[str, str | bytes] = {"site/palette.css": palette_css()}
    for path in NOTEBOOKS:
        page, pictures = notebook_page(json.loads(path.read_text(encoding="utf-8")), path.stem)
        made[BESIDE[f"notebooks/{path.name}"]] = page
        made |= {f"notebooks/{name}": content for name, content in pictures.items()}
    text = {name: (ROOT / name).read_text(encoding="utf-8") for name in BESIDE}
    made["contributing.md"] = text["CONTRIBUTING.md"]
    made["changes.md"] = text["CHANGELOG.md"]
    made["cite.md"] = citation_page(text["CITATION.cff"])
    licence = text["LICENSE"].replace("[", "\\[")  # no link
    made["licence.md"] = "# Licence\n\n" + re.sub("^ +", "", licence, flags=re.MULTILINE)
    live = live_pages((ROOT / "docs" / "live.md").read_text(encoding="utf-8"))
    made |= {f"live/{name}": content for name, content in live.items()}
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Link what lies beside docs/, and below the commands of docs/live.md the pages they write."""
    name = page.file.src_uri
    if name == "settings.md":
        page.meta["search"] = {"boost": 3}  # before pages that only mention a setting
    if name == "live.md":
        for live, (command, _written) in live_commands(markdown).items():
            link = f'<a class="md-button md-button--primary" href="{live}">Open this page</a>'
            markdown = markdown.replace(command, f"{command}\n{link}\n")
        return markdown
    up = "../" * name.count("/")
    markdown = re.sub(
        r"(?<!\[)`(\d\d_\w+)\.ipynb`", rf"[`\1.ipynb`]({up}notebooks/\1.md)", markdown
    )
    return link_beside(markdown, name, config.repo_url)


def link_beside(markdown: str, page: str, repository: str | None) -> str:
    """Return a page whose links to files beside docs/ lead to their pages, or to the repository.

    Without a repository, such a link is the file's name.
    """
    sources = {made: source for source, made in BESIDE.items() if made != "README.md"}
    folder = posixpath.dirname(sources.get(page, f"docs/{page}"))

    def linked(found: re.Match[str]) -> str:
        text, place, anchor = found.groups()
        target = posixpath.normpath(posixpath.join(folder, place))
        if not (ROOT / target).exists():
            return found[0]
        if target in BESIDE:
            target = f"docs/{BESIDE[target]}"
        if target.startswith("docs/"):
            place = posixpath.relpath(target, posixpath.dirname(f"docs/{page}"))
            return f"[{text}]({place}{anchor})"
        if repository:
            return f"[{text}]({repository}/blob/HEAD/{target})"
        if posixpath.basename(target) in text:
            return text
        return f"{text} (`{target}`)"

    return re.sub(r"\[([^\]]*)\]\(([^):#\s]+)(#[^)\s]*|)\)", linked, markdown)


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Finish a page; with --strict, a formula that is not closed stops the build."""
    page.title = MATRIX.sub(coloured_matrix, page.title)
    content, dollars = finish_page(content)
    for text in dollars:
        LOG.warning("%s: a dollar sign outside of a formula: %s", page.file.src_uri, text)
    return content
