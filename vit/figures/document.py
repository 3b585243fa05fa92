"""Pages that open from disk and ask for nothing: a jinja2 template, its style and perhaps its script, in one file."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vit.figures.style import printable


def render_page(template: Path, pictures: bool = False, **values: Any) -> str:
    """Render a template under a policy that lets in its own style and script, by their hashes, and nothing from elsewhere.

    All values are text, whatever they hold: tags are escaped, and what controls lines or direction becomes U+FFFD.

    Args:
        template: of jinja2, with places for `policy`, `style` and `script`; the style lies beside it as .css, a script as .js.
        pictures: whether `data_uri`s may be shown.
        values: what else the template names. `markupsafe.Markup` is taken as it is.

    Raises:
        jinja2.UndefinedError: the template names what is not there.
    """
    style, script = (
        path.read_text(encoding="utf-8") if (path := template.with_suffix(suffix)).exists() else ""
        for suffix in (".css", ".js")
    )
    rules = ["default-src 'none'", f"style-src '{_hash(style)}'", "base-uri 'none'", "form-action 'none'"]
    if pictures:
        rules.append("img-src data:")
    if script:
        rules += [f"script-src '{_hash(script)}'", "require-trusted-types-for 'script'", "trusted-types 'none'"]
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: "" if value is None else printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    own = {"policy": "; ".join(rules), "style": Markup(style), "script": Markup(script)}
    return environment.get_template(template.name).render(own | values)


def data_uri(png: bytes) -> str:
    """Return a picture as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _hash(source: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"
