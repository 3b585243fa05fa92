"""Pages that open from disk and load nothing else: template, style and script in one file."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vit.errors import printable
from vit.figures.style import PALETTE_FILE

SIMILAR = Path(__file__).with_name("similar.html")
"""The template of the images that are nearest to another."""


def render_page(template: Path, images: bool = False, **values: Any) -> str:
    """Render a template as a page that loads and runs nothing but its own style and script.

    A content security policy allows these two by hash. All values are text, whatever they hold:
    tags are escaped, and characters that control lines or direction are escaped too.

    Args:
        template: of jinja2, with places for `policy`, `style` and `script`; beside it lies the
            style as .css, which may use the colours of palette.css, and a script as .js.
        images: whether images as `data_uri`s may be shown.
        values: of the other names in the template. `markupsafe.Markup` is not escaped.
    """
    style = PALETTE_FILE.read_text(encoding="utf-8")
    style += template.with_suffix(".css").read_text(encoding="utf-8")
    script = ""
    if template.with_suffix(".js").exists():
        script = template.with_suffix(".js").read_text(encoding="utf-8")

    # What the page may load and run: nothing but these two
    rules = [
        "default-src 'none'",
        f"style-src '{_hash(style)}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if images:
        rules.append("img-src data:")
    if script:
        rules.append(f"script-src '{_hash(script)}'")
        rules.append("require-trusted-types-for 'script'")
        rules.append("trusted-types 'none'")

    # A name that the template has and the caller does not give is an error, not a gap
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_as_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    parts = {"policy": "; ".join(rules), "style": Markup(style), "script": Markup(script)}
    return environment.get_template(template.name).render(parts | values)


def _as_text(value: Any) -> Any:
    """Return a value as a page shows it: None as nothing, plain text without control characters."""
    # No value is no text, not the word None
    if value is None:
        return ""
    # `Markup` is a subclass of str, and stays as it is
    if type(value) is str:
        return printable(value)
    return value


def data_uri(content: bytes, kind: str = "png") -> str:
    """Return an image, the content of a file of this kind, as a data URI."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _hash(source: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"
