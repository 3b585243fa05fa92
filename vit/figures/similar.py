"""A page of the images that are nearest to another; it opens from disk and loads nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vit.figures.document import data_uri, render_page

TEMPLATE = Path(__file__).with_name("similar.html")


@dataclass(frozen=True)
class ShownImage:
    """An image of the page.

    Attributes:
        name: of its file, any text.
        content: of a file to show.
        kind: of that file, "jpeg" or "png"; a PNG's pixels are shown as squares.
        similarity: its cosine similarity with the image of the query.
    """

    name: str
    content: bytes
    kind: str
    similarity: float = 1.0

    @property
    def uri(self) -> str:
        """The content as a data URI."""
        return data_uri(self.content, self.kind)

    @property
    def share(self) -> str:
        """The length of its bar in per cent: a similarity of 0 or less has none."""
        return f"{100 * max(self.similarity, 0.0):.1f}"


def similar_page(
    query: ShownImage,
    model_input: ShownImage,
    neighbours: Sequence[ShownImage],
    *,
    title: str,
    lede: str,
    caption: str,
    facts: Sequence[tuple[str, str]],
) -> str:
    """Return a self-contained page of the images nearest to another: HTML, to be written as UTF-8.

    Args:
        query: the image in question.
        model_input: the same as the model takes it.
        neighbours: the nearest images, the nearest first.
        title: the heading.
        lede: what is below it.
        caption: of `model_input`.
        facts: (what, text) pairs, such as ("model", "ViT-Tiny, patch 4").
    """
    return render_page(
        TEMPLATE,
        pictures=True,
        title=title,
        lede=lede,
        caption=caption,
        query=query,
        model_input=model_input,
        neighbours=neighbours,
        facts=facts,
    )
