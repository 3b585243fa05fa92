"""Pages that open from disk and ask for nothing: what is written in them stays text, and only what is their own runs."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping

from vit.figures.style import printable


class Markup(str):
    """HTML that may stand in a page as it is; any other text is as_text by `element`."""


def element(name: str, *children: str | None, **attributes: str | None) -> Markup:
    """An element of HTML. Children that are no `Markup`, and all attributes, are text, whatever they hold.

    Args:
        name: of the tag.
        children: None is left out.
        attributes: `class_` is class and `aria_label` aria-label; None is left out.
    """
    spelled = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(printable(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(child if isinstance(child, Markup) else as_text(child) for child in children if child is not None)
    return Markup(f"<{name}{spelled}>" if name in ("img", "source") else f"<{name}{spelled}>{inner}</{name}>")


def as_text(text: str) -> Markup:
    """Any text as a page shows it: no tag, and on its line; what controls lines or direction becomes U+FFFD."""
    return Markup(html.escape(printable(text)))


def data_uri(content: bytes, kind: str = "image/png") -> str:
    """A file as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def sealed_page(template: str, parts: Mapping[str, str], style: str, script: str = "", pictures: bool = False) -> str:
    """A page under a policy that lets this style and this script in, by their hashes, and nothing else from anywhere.

    Args:
        template: HTML with places {{policy}}, {{style}}, those of `parts`, and {{script}} where there is one.
        parts: HTML for the other places.
        style: CSS.
        script: JavaScript; empty for a page without.
        pictures: whether `data_uri`s may be shown.
    """
    rules = ["default-src 'none'", f"style-src '{_hash(style)}'", "base-uri 'none'", "form-action 'none'"]
    if pictures:
        rules.append("img-src data:")
    if script:
        rules += [f"script-src '{_hash(script)}'", "require-trusted-types-for 'script'", "trusted-types 'none'"]
    filled = {**parts, "policy": html.escape("; ".join(rules), quote=False), "style": style, "script": script}
    # In one pass: a name that reads like a place to fill stays a name.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: filled[place[1]], template)


def _hash(source: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"
