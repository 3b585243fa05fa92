"""`vit report`: one page about a run that opens from disk, without a server, a network or a script.

It shows the figures and the contents of the files in the folder; report.html, a jinja2 template,
is the page.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vit.atomic import make_folder, write_text
from vit.config import ModelConfig, spelled
from vit.errors import RunError, plural
from vit.figures.curves import curves_figure
from vit.figures.document import data_uri, render_page
from vit.figures.style import png_of
from vit.metrics import mistakes_of, score_lines
from vit.report.curves import curves_of
from vit.report.record import DEFAULTS, RunRecord, tested_images_of
from vit.report.scores import (
    charts_of,
    confused_classes,
    duration,
    key_scores,
)
from vit.runs import __version__

TEMPLATE = Path(__file__).with_name("report.html")
SIGNATURE = '<meta name="generator" content="vit report">'
"""Marks such a page, unlike other files; it is in the template."""
EXPLORE = "explore.html"
"""The page of `vit explore` in a run's folder, to link."""


def write_report(record: RunRecord, out: Path) -> int:
    """Write the page about a run, finished or not, over an earlier page.

    Returns:
        Its size in bytes.
    """
    # Replace no file that somebody else has written; the signature stands near the start
    if out.exists() and SIGNATURE.encode() not in out.read_bytes()[:2000]:
        advice = "name another file with --out"
        raise RunError(f"{out} is not a vit report and is left as it is; {advice}")
    page = report_page(record, out)
    make_folder(out.parent)
    write_text(out, page)
    return out.stat().st_size


def report_page(record: RunRecord, out: Path) -> str:
    """Return the page to be written to `out`.

    Equal folders give equal text.
    """
    # What was trained
    settings = record.settings
    kind = "Pretraining run"
    if record.learns_labels:
        kind = "Fine-tuning run" if settings["model.init"] else "Classification run"
    model = ModelConfig(**{key: settings[f"model.{key}"] for key in ModelConfig.model_fields})

    # A page of `vit explore`, to be linked
    explore = ""
    target = record.files.path / EXPLORE
    if target.is_file():
        explore = quote(Path(os.path.relpath(target, out.parent)).as_posix())

    return render_page(
        TEMPLATE,
        images=True,
        version=__version__,
        duration=duration,
        plural=plural,
        run=record,
        kind=kind,
        size=model.filled,
        key_scores=key_scores(record),
        charts=charts_of(record),
        mistakes=mistakes_of(record.scores),
        confused=confused_classes(record),
        shown=pictures_of(record),
        explore=explore,
        score_lines=score_lines,
        tested_images_of=tested_images_of,
        settings=[(key, spelled(value)) for key, value in settings.items()],
        changed=changed_settings(settings),
    )


def pictures_of(record: RunRecord) -> dict[str, str]:
    """Return the figures in the folder as data URIs, by the stem of their name; "" if missing.

    Without curves.png, which a run draws at its end, the curves so far are drawn.
    """
    # As they are in the folder
    pictures = {}
    for path in record.files.pictures:
        pictures[path.stem] = data_uri(path.read_bytes()) if path.is_file() else ""

    # A run that is not finished has curves already
    if not pictures["curves"] and record.metrics:
        subtitle = f"{record.epochs:.1f} of {plural(record.settings['train.epochs'], 'epoch')}"
        figure = curves_figure(record.metrics, curves_of(record), "Training curves", subtitle)
        pictures["curves"] = data_uri(png_of(figure))
    return pictures


def changed_settings(settings: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the settings that differ from the defaults: "section.key", value, default."""
    return [
        (key, spelled(settings[key]), spelled(default))
        for key, default in DEFAULTS.items()
        if settings[key] != default
    ]
