"""Pages that open from disk and load nothing else: a jinja2 template, its style and perhaps its script, in one file."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vit.figures.style import printable


def render_page(template: Path, pictures: bool = False, **values: Any) -> str:
    """Render a template under a content security policy that allows its own style and script, by hash, and nothing else.

    All values are text, whatever they hold: tags are escaped, and characters that control lines or direction become U+FFFD.

    Args:
        template: of jinja2, with places for `policy`, `style` and `script`; beside it lies the style as .css, a script as .js.
        pictures: whether `data_uri`s may be shown.
        values: of the other names in the template. `markupsafe.Markup` is not escaped.

    Raises:
        jinja2.UndefinedError: the template names a value that is missing.
    """
    style, script = (
        path.read_text(encoding="utf-8") if (path := template.with_suffix(suffix)).exists() else ""
        for suffix in (".css", ".js")
    )
    rules = [
        "default-src 'none'",
        f"style-src '{_hash(style)}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if pictures:
        rules.append("img-src data:")
    if script:
        rules += [
            f"script-src '{_hash(script)}'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: (
            "" if value is None else printable(value) if type(value) is str else value
        ),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    own = {"policy": "; ".join(rules), "style": Markup(style), "script": Markup(script)}
    return environment.get_template(template.name).render(own | values)


def data_uri(png: bytes) -> str:
    """Return a picture as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _hash(source: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"
