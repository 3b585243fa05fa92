"""`vit report`: one page about a run that opens from disk, without a server, a network or a script.

It shows the folder's pictures as they are, and what its files say; report.html, a jinja2 template, is the page.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from jinja2 import UndefinedError

from vit import figures as draw
from vit.atomic import write_text
from vit.config import OBJECTIVES, PRESETS, Config, flat_settings, spelled
from vit.errors import RunError
from vit.evaluate.classification import read_confusion
from vit.figures.document import data_uri, render_page
from vit.metrics import METRICS, Metric, baselines, results_lines, summary_values
from vit.report.curves import curves_of
from vit.report.record import WRONG_VALUES, RunRecord, read_run
from vit.version import __version__

TEMPLATE = Path(__file__).with_name("report.html")
SIGNATURE = '<meta name="generator" content="vit report">'
"""Marks such a page, unlike other files; it is in the template."""
MIXED_UP = 5  # pairs of classes to name as most mixed up
EXPLORE = "explore.html"  # the page of `vit explore` in a run's folder, to link
PICTURES = ("reconstructions", "confusion", "reliability", "attention", "curves", "dynamics")
"""The stems of the pictures in a run's folder that the page shows."""


def write_report(path: Path, out: Path) -> int:
    """Write the page about the run in the folder `path`, finished or not; an earlier page is replaced.

    Returns:
        Its size in bytes.

    Raises:
        RunError: `out` is another file, or the run's files are not as this version writes them.
    """
    record = read_run(path)
    if out.exists() and not is_report(out):
        advice = "name another file with --out"
        raise RunError(f"{out} is not a vit report and is left as it is; {advice}")
    try:
        page = report_page(record, out)
    except (*WRONG_VALUES, UndefinedError) as error:  # of another version, or edited
        found = f"{type(error).__name__}: {error}"
        raise RunError(
            f"{path}: its files are not as this version writes them ({found})"
        ) from error
    write_text(out, page)
    return out.stat().st_size


def is_report(path: Path) -> bool:
    """Return whether a file is a page written here."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return SIGNATURE.encode() in file.read(2000)


def report_page(record: RunRecord, out: Path | None = None) -> str:
    """Return the page to be written to `out`, by default into the run's folder.

    Equal folders give equal text.
    """
    settings = record.settings
    classifies = OBJECTIVES[settings["train.objective"]].labels
    patch = settings["model.patch_size"]
    evaluated, unread = evaluations(record)

    # The architecture: what is not set follows from the preset
    size = dict(PRESETS[settings["model.preset"]])
    for key in size:
        if settings[f"model.{key}"] is not None:
            size[key] = settings[f"model.{key}"]

    return render_page(
        TEMPLATE,
        pictures=True,
        version=__version__,
        duration=duration,
        plural=plural,
        run=record,
        kind="classification" if classifies else "pretraining",
        size=size,
        patch=patch if isinstance(patch, list) else [patch, patch],
        key_scores=key_scores(record),
        measured=measured(record),
        shown=pictures_of(record),
        explore=link_to_explore(record, out or record.files.report),
        evaluations=evaluated,
        settings=[(key, spelled(value)) for key, value in settings.items()],
        changed=changed_settings(settings),
        notes=[*record.notes, *unread],
    )


def pictures_of(record: RunRecord) -> dict[str, str]:
    """Return the pictures in the folder as data URIs, by the stem of their name; "" for one that is not there.

    Without curves.png, which a run draws at its end, the curves so far are drawn.
    """
    pictures = dict.fromkeys(PICTURES, "")
    for stem in PICTURES:
        path = record.files.path / f"{stem}.png"
        if path.is_file():
            pictures[stem] = data_uri(path.read_bytes())
    if not pictures["curves"] and record.metrics:
        curves = curves_of(record.settings, record.tested_on, record.summary, record.metrics)
        about = f"{record.epochs:.1f} of {plural(record.settings['train.epochs'], 'epoch')}"
        figure = draw.curves_figure(record.metrics, curves, "Training curves", about)
        pictures["curves"] = data_uri(draw.png_of(figure))
    return pictures


def link_to_explore(record: RunRecord, page: Path) -> str:
    """Return the address of the run's page of `vit explore`, from its report; "" if it has none."""
    explore = record.files.path / EXPLORE
    if not explore.is_file():
        return ""
    return quote(os.path.relpath(explore, page.parent).replace(os.sep, "/"))


def changed_settings(settings: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the settings that differ from the defaults: "section.key", value, default."""
    defaults = flat_settings(Config().to_dict())
    changed = []
    for key, value in settings.items():
        if key not in defaults:
            changed.append((key, spelled(value), ""))
        elif value != defaults[key]:
            changed.append((key, spelled(value), spelled(defaults[key])))
    return changed


# ---- Results ---------------------------------------------------------------------------------------------------------


def key_scores(record: RunRecord) -> list[tuple[str, str, str]]:
    """Return the three most telling scores: the number, its name, and what it means."""
    summary = record.summary
    if not summary:
        return scores_so_far(record)
    values = summary_values(summary)
    training = "this run" if record.settings["model.init"] else "training"
    shown = (
        ("accuracy", METRICS["accuracy"].short, f"of {record.tested} are classified correctly"),
        ("calibration_error", "", "mean gap between confidence and accuracy"),
        ("masked_loss", METRICS["masked_loss"].short, f"on hidden patches of {record.tested_on}"),
        ("knn_accuracy", "", f"with no labels in {training}"),
    )
    scores = []
    for key, name, meaning in shown:
        if key not in values:
            continue
        metric = METRICS[key]
        for baseline in baselines(key)[:1]:  # one is enough here
            if baseline.key in values:
                value = baseline.write(values[baseline.key], brief=True)
                meaning += f"; {baseline.label}: {value}"
        scores.append((metric.write(values[key], brief=True), name or metric.label, meaning))
    speed = f"{summary['images_per_second']:,.0f} images/s"
    return [*scores, (duration(summary["seconds"]), "of training", speed)]


def scores_so_far(record: RunRecord) -> list[tuple[str, str, str]]:
    """Return the same for a run that is not finished; none before its first step."""
    steps = [line for line in record.metrics if "loss" in line]
    if not steps:
        return []
    last = steps[-1]
    epochs = record.settings["train.epochs"]
    return [
        (f"{last['epoch'] / epochs:.0%}", "of the run", f"epoch {last['epoch']:.1f} of {epochs}"),
        (f"{last['loss']:.3f}", "training loss", f"at step {last['step']:,}, on augmented images"),
        (f"{last['images_per_second']:,.0f}", "images/s", "so far"),
    ]


def measured(record: RunRecord) -> dict[str, Any] | None:
    """Return what a finished run measured, with its baselines, by the keys of METRICS; or a classifier's mistakes."""
    values = summary_values(record.summary)
    if not record.summary:
        return None
    if "test_confusion" in record.summary:
        return mistakes(record, values)
    compared = {}
    for key, name in (("masked_loss", "the model"), ("knn_accuracy", "by the model's features")):
        if key not in values:
            continue
        better = operator.gt if METRICS[key].kind == "accuracy" else operator.lt
        rows = [(name, values[key])]
        wins = True
        for baseline in baselines(key):
            if baseline.key in values:
                rows.append((baseline.label, values[baseline.key]))
                wins = wins and better(values[key], values[baseline.key])
        compared[key] = {"bars": bars(rows, METRICS[key]), "wins": wins}
    return compared


def mistakes(record: RunRecord, values: Mapping[str, float]) -> dict[str, Any]:
    """Return a classifier's accuracy beside a constant guess, and the classes that it mixes up."""
    # 10,000 classes have 100 million cells, few with a count
    table = read_confusion(record.summary["test_confusion"])  # (classes, classes)
    cells = table.to_sparse().coalesce()
    labels, predicted = cells.indices()
    counts = cells.values()
    images = torch.zeros(len(table), dtype=torch.int64).index_add(
        0, labels, counts
    )  # of each class
    names = [f"class {number}" for number in range(len(table))]
    if record.samples:
        names = record.samples.class_names

    # Accuracy
    rows = []
    for key, name in (
        ("accuracy", "the model"),
        ("accuracy_with_flip", "the model, with mirror images"),
    ):
        if key in values:
            rows.append((name, values[key]))
    rows.append(("always the most common class", float(images.max() / images.sum())))

    # The pairs of classes with the most mistakes
    shares = counts / images[labels]
    wrong = (labels != predicted).nonzero()[:, 0]
    most = wrong[shares[wrong].argsort(descending=True, stable=True)[:MIXED_UP]].tolist()
    mixed_up = [
        (names[labels[cell]], names[predicted[cell]], f"{shares[cell]:.1%}") for cell in most
    ]

    return {
        "bars": bars(rows, METRICS["accuracy"]),
        "cross_entropy": METRICS["cross_entropy"].write(values["cross_entropy"]),
        "calibration_error": METRICS["calibration_error"].write(values["calibration_error"]),
        "mixed_up": mixed_up,
    }


def bars(rows: Sequence[tuple[str, float]], metric: Metric) -> list[tuple[str, str, str]]:
    """Return rows of a bar chart: a name, the length of the bar in percent of the longest, and the value as text."""
    longest = max([value for _, value in rows if value > 0], default=1.0)
    chart = []
    for name, value in rows:
        length = 100 * max(value, 0) / longest
        chart.append((name, f"{length:.2f}", metric.write(value)))
    return chart


def evaluations(record: RunRecord) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what each `vit evaluate` measured, and notes on what cannot be read."""
    evaluated, notes = [], []
    for name, results in record.results.items():
        try:
            evaluated.append(evaluation(record, name, results))
        except WRONG_VALUES as error:
            problem = f"{type(error).__name__}: {error}"
            notes.append(f"{name}/results.json is not as vit evaluate writes it: {problem}")
    return evaluated, notes


def evaluation(record: RunRecord, name: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a results.json says; raise one of WRONG_VALUES if it is not as `vit evaluate` writes it."""
    data = results["data"]
    images = f"{data['train_images']:,} training images, measured on {data['test_images']:,} {data['tested_on']}"

    # A row per metric, but for the losses, which have a table of their own with a row per mask
    loss = METRICS["masked_loss"]
    lines = [line for line in results_lines(results) if line.metric != loss]
    columns = [loss, *baselines(loss.key)]
    losses = []
    for row in results.get("reconstruction") or []:
        cells = [column.write(row[column.in_results[1]]) for column in columns]
        losses.append((row["mask"], f"{row['ratio']:.0%}", *cells))

    warnings = [results.get("note")]
    if data.get("warning") != record.data.get("warning"):
        warnings.insert(0, data.get("warning"))
    return {
        "name": name,
        "about": f"{data['name']}: {images}.",
        "warnings": warnings,
        "scores": [(line.metric.label, line.value, line.how) for line in lines],
        "head": ["mask", "hidden", *(column.short for column in columns)],
        "losses": losses,
        "command": results.get("command"),
    }


# ---- Text ------------------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: 2 h 5 min."""
    whole = max(round(seconds), 0)
    for unit, length, below, part in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def plural(count: int, what: str) -> str:
    """Return "1 head", "3 heads", "50,000 images"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
