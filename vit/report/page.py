"""`vit report`: one page about a run that opens from disk, without a server, a network or a script.

This module gathers its text, `vit.report.pictures` its pictures; report.html, a jinja2 template, is the page.
"""

from __future__ import annotations

import operator
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from jinja2 import UndefinedError

from vit import __version__
from vit.atomic import write_text
from vit.config import OBJECTIVES, PRESETS, Config, DataConfig, spelled
from vit.evaluate.classification import read_confusion
from vit.figures import confusion_figure, reliability_figure, why_not_drawn
from vit.figures.document import data_uri, render_page
from vit.figures.sheet import PIXELATED
from vit.look.shown import short_name
from vit.pretrained import shipped
from vit.report.moments import moments_of_run
from vit.report.pictures import attention_rows, curve_pictures, dynamics_picture, page_picture, reconstruction_rows
from vit.runs import (
    METRICS,
    WRONG_VALUES,
    Metric,
    RunError,
    RunRecord,
    baselines,
    flat_settings,
    read_run,
    results_lines,
    summary_values,
)
from vit.training.objectives import objective_class

TEMPLATE = Path(__file__).with_name("report.html")
SIGNATURE = '<meta name="generator" content="vit report">'
"""Marks such a page, unlike other files; it is in the template."""
MIXED_UP = 5  # pairs of classes to name as most mixed up
EXPLORE = "explore.html"  # the page of `vit explore` in a run's folder, to link
LOOK_AROUND = "Explore its attention"


def write_report(path: Path, out: Path) -> int:
    """Write the page about the run in the folder `path`, finished or not; an earlier page is replaced.

    Returns:
        Its size in bytes.

    Raises:
        RunError: `out` is another file, or the run's files are not as this version writes them; see `vit.runs.read_run`.
    """
    record = read_run(path.resolve() if path.name in ("", "..") else path)  # commands name folders beside it
    if out.exists() and not is_report(out):
        raise RunError(f"{out} is not a vit report and is left as it is; name another file with --out")
    try:
        page = report_page(record, out)
    except (*WRONG_VALUES, UndefinedError) as error:  # of another version, or edited
        found = f"{type(error).__name__}: {error}"
        raise RunError(f"{path}: its files are not as this version writes them ({found})") from error
    write_text(out, page)
    return out.stat().st_size


def is_report(path: Path) -> bool:
    """Return whether a file is a page written here."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return SIGNATURE.encode() in file.read(2000)


def report_page(record: RunRecord, out: Path | None = None) -> str:
    """Return the page to be written to `out`, by default into the run's folder; equal folders give equal text."""
    settings, files = record.settings, record.files
    objective = objective_class(settings["train.objective"])
    moments, unseen = moments_of_run(record)
    evaluated, unread = evaluations(record)
    left = () if record.samples else (files.reconstructions, files.attention)  # drawing them again takes images
    patch, sizes = settings["model.patch_size"], PRESETS[settings["model.preset"]]
    defaults, absent = flat_settings(Config().to_dict()), object()
    steps = next_steps(record)
    init = short_name(settings["model.init"]) if settings["model.init"] else ""
    explore = os.path.relpath(record.files.path / EXPLORE, (out or record.files.report).parent)
    return render_page(
        TEMPLATE,
        pictures=True,
        version=__version__,
        duration=duration,
        plural=plural,
        run=record,
        kind="classification" if OBJECTIVES[settings["train.objective"]].labels else "pretraining",
        init=init,
        learns=objective.learns(settings, init),
        size={key: sizes[key] if (value := settings[f"model.{key}"]) is None else value for key in sizes},
        patch=patch if isinstance(patch, list) else [patch, patch],
        key_figures=key_figures(record),
        measured=measured(record),
        curves=curve_pictures(record),
        labels=record.samples.labels if record.samples else [],
        smooth=bool(moments) and max(moments[-1].images.shape[-2:]) > PIXELATED,
        reconstructions=reconstruction_rows(moments),
        attention=attention_rows(moments),
        pictures_left={path.stem: data_uri(path.read_bytes()) for path in left if path.exists()},
        dynamics=dynamics_picture(record),
        evaluations=evaluated,
        settings=[(key, spelled(value)) for key, value in settings.items()],
        changed=[
            (key, spelled(value), spelled(defaults[key]) if key in defaults else "")
            for key, value in settings.items()
            if value != defaults.get(key, absent)
        ],
        next_steps=steps,
        explore=quote(explore.replace(os.sep, "/")) if (record.files.path / EXPLORE).is_file() else "",
        longer=shipped_for_longer(),
        commands=[pair for pair in commands_of(record) if pair not in steps],
        notes=[*record.notes, *unseen, *unread],
    )


# ---- Results ---------------------------------------------------------------------------------------------------------


def key_figures(record: RunRecord) -> list[tuple[str, str, str]]:
    """Return the three most telling figures: the number, its name, and what it means."""
    summary = record.summary
    if not summary:
        last = next((line for line in reversed(record.metrics) if "loss" in line), None)
        if last is None:
            return []
        epochs = record.settings["train.epochs"]
        return [
            (f"{last['epoch'] / epochs:.0%}", "of the run", f"epoch {last['epoch']:.1f} of {epochs}"),
            (f"{last['loss']:.3f}", "training loss", f"at step {last['step']:,}, on augmented images"),
            (f"{last['images_per_second']:,.0f}", "images/s", "so far"),
        ]
    values, figures = summary_values(summary), []
    for key, name, meaning in (
        ("accuracy", METRICS["accuracy"].short, f"of {record.tested} are classified correctly"),
        ("calibration_error", "", "mean gap between confidence and accuracy"),
        ("masked_loss", METRICS["masked_loss"].short, f"on hidden patches of {record.tested_on}"),
        ("knn_accuracy", "", f"with no labels in {'this run' if record.settings['model.init'] else 'training'}"),
    ):
        if key in values:
            for baseline in baselines(key)[:1]:  # one is enough here
                if baseline.key in values:
                    meaning += f"; {baseline.label}: {baseline.write(values[baseline.key], brief=True)}"
            figures.append((METRICS[key].write(values[key], brief=True), name or METRICS[key].label, meaning))
    speed = f"{summary['images_per_second']:,.0f} images/s"
    return [*figures, (duration(summary["seconds"]), "of training", speed)]


def measured(record: RunRecord) -> dict[str, Any] | None:
    """Return what a finished run measured, with its baselines, by the keys of METRICS; or a classifier's mistakes."""
    summary, values = record.summary, summary_values(record.summary)
    if not summary:
        return None
    if "test_confusion" in summary:
        return mistakes(record, values)
    found = {}
    for key, name in (("masked_loss", "the model"), ("knn_accuracy", "by the model's features")):
        if key in values:
            beside = [(other.label, values[other.key]) for other in baselines(key) if other.key in values]
            better = operator.gt if METRICS[key].kind == "accuracy" else operator.lt
            rows = bars([(name, values[key]), *beside], METRICS[key])
            found[key] = {"bars": rows, "wins": all(better(values[key], value) for _, value in beside)}
    return found


def mistakes(record: RunRecord, values: dict[str, float]) -> dict[str, Any]:
    """Return a classifier's accuracy beside a constant guess, the classes it mixes up, and how reliable its confidence is."""
    summary, table = record.summary, read_confusion(record.summary["test_confusion"])  # (classes, classes)
    names = record.samples.class_names if record.samples else [f"class {i}" for i in range(len(table))]
    cells = table.to_sparse().coalesce()  # 10,000 classes have 100 million cells, few with a count
    (labels, taken), counts = cells.indices(), cells.values()
    images = torch.zeros(len(table), dtype=torch.int64).index_add(0, labels, counts)  # of each class
    models = {"accuracy": "the model", "accuracy_with_flip": "the model, with mirror images"}
    rows = [(name, values[key]) for key, name in models.items() if key in values]
    rows.append(("always the most common class", float(images.max() / images.sum())))

    # The pairs of classes with the most mistakes
    shares = counts / images[labels]
    wrong = (labels != taken).nonzero()[:, 0]
    most = wrong[shares[wrong].argsort(descending=True, stable=True)[:MIXED_UP]].tolist()

    # Pictures; runs of earlier versions have no confidence bins
    found: dict[str, Any] = {
        "bars": bars(rows, METRICS["accuracy"]),
        **{key: METRICS[key].write(values[key]) for key in ("cross_entropy", "calibration_error")},
        "mixed_up": [(names[labels[cell]], names[taken[cell]], f"{shares[cell]:.1%}") for cell in most],
        "confusion": None,
        "not_drawn": why_not_drawn(len(table)),
        "reliability": None,
    }
    if not found["not_drawn"]:
        found["confusion"] = page_picture(
            lambda: confusion_figure(table, names, "", ""),
            f"Which of {len(names)} classes it confuses, in percent; the diagonal is correct.",
        )
    if bins := summary.get("test_reliability"):
        error = values["calibration_error"]
        found["reliability"] = page_picture(
            lambda: reliability_figure(bins, error, "", ""),
            f"Accuracy against confidence; calibration error {error:.1%}.",
        )
    return found


def bars(rows: Sequence[tuple[str, float]], metric: Metric) -> list[tuple[str, str, str]]:
    """Return rows of a bar chart: a name, the length of the bar in percent of the longest, and the value as text."""
    most = max([value for _, value in rows if value > 0], default=1.0)
    return [(name, f"{100 * max(value, 0) / most:.2f}", metric.write(value)) for name, value in rows]


def evaluations(record: RunRecord) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what each `vit evaluate` measured, and notes on what cannot be read."""
    found, notes = [], []
    loss = METRICS["masked_loss"]
    columns = [loss, *baselines(loss.key)]
    for name, results in record.results.items():
        try:
            data = results["data"]
            warning = data.get("warning")
            about = f"{data['name']}: {data['train_images']:,} training images, measured on"
            shown = {
                "name": name,
                "about": f"{about} {data['test_images']:,} {data['tested_on']}.",
                "warnings": [warning if warning != record.data.get("warning") else None, results.get("note")],
                "figures": [
                    (line.metric.label, line.value, line.how) for line in results_lines(results) if line.metric != loss
                ],
                "head": ["mask", "hidden", *(column.short for column in columns)],
                "losses": [
                    (
                        row["mask"],
                        f"{row['ratio']:.0%}",
                        *(column.write(row[column.in_results[1]]) for column in columns),
                    )
                    for row in results.get("reconstruction") or []
                ],
                "command": results.get("command"),
            }
            found.append(shown)
        except WRONG_VALUES as error:
            notes.append(f"{name}/results.json is not as vit evaluate writes it: {type(error).__name__}: {error}")
    return found, notes


def shipped_for_longer() -> dict[str, str]:
    """Return what the shipped model reached and in what time: what to expect if a short run does not tell classes apart."""
    found = shipped("vit-tiny-p4-cifar10")
    figures, accuracy = found["figures"], METRICS["knn_accuracy"]
    measured = figures["measured"][0]
    return {
        "name": found["name"],
        "time": duration(figures["seconds"]),
        "data": measured["data"],
        "accuracy": accuracy.write(measured["knn"]["accuracy"], brief=True),
        "pixels": accuracy.write(measured["knn"]["raw_pixel_accuracy"], brief=True),
    }


# ---- Next steps, and how to repeat it --------------------------------------------------------------------------------


def next_steps(record: RunRecord) -> list[tuple[str, str]]:
    """Return the up to three most useful commands after this run: what each does, and the line for a shell."""
    known = commands_of(record)
    if not record.summary:
        return known[:1]
    settings, run = record.settings, str(record.files.path)
    steps = [] if (record.files.path / EXPLORE).is_file() else [pair for pair in known if pair[0] == LOOK_AROUND]
    if OBJECTIVES[settings["train.objective"]].labels:
        return [*steps, ("Classify a photograph of yours", shlex.join(["vit", "predict", run, "photo.jpg"]))]
    if settings["data.source"] == "dataset":  # which only Python can pass on
        return steps
    if record.samples and len(record.samples.class_names) > 1:
        tune = ["vit", "train", "--config", "finetune_cifar10_tiny_p4", "--model.init", run]
        for key in ("source", "root", "name", "limit", "val_size", "subset_seed", "on_bad_image"):
            if (value := settings[f"data.{key}"]) != getattr(DataConfig(), key):
                tune += [f"--data.{key}", str(value)]
        tune += ["--out", f"{run}-finetuned"]
        steps.append(("Fine-tune it as a classifier", shlex.join(tune)))
    found = measured(record) or {}
    if not all(compared["wins"] for compared in found.values()):
        longer = ["--train.epochs", str(5 * settings["train.epochs"]), "--out", f"{run}-longer"]
        line = ["vit", "train", "--config", str(record.files.config), *longer]
        steps.append(("Train five times as long", shlex.join(line)))
    return steps


def commands_of(record: RunRecord) -> list[tuple[str, str]]:
    """Return the commands that repeat the run, look at it and measure it: what each does, and the line for a shell."""
    settings, train, run = record.settings, ["vit", "train"], str(record.files.path)
    beside = str(record.files.path.parent / f"{record.name}-again")
    again = [*train, "--config", str(record.files.config), "--out", beside]
    if not record.summary:
        lines = {"Resume it": [*train, "--out", run, "--resume"], "Start it again": again}
        return [(what, shlex.join(line)) for what, line in lines.items()]
    source, root = settings["data.source"], settings["data.root"]
    shown = [run, "--data", {"folder": root, "dataset": "IMAGES"}.get(source, source)]
    if source.startswith("cifar") and root != "data":
        shown += ["--root", root]
    hidden = [] if OBJECTIVES[settings["train.objective"]].labels else ["--mask", str(settings["mask.ratio"])]
    film = ["--film"] if settings["run.snapshots"] > 1 else []
    same = {"--name": settings["data.name"], "--limit": settings["data.limit"], "--val-size": settings["data.val_size"]}
    same["--seeds"] = settings["data.subset_seed"] if settings["data.val_size"] else 0
    skip = ["--on-bad-image", "skip"] if settings["data.on_bad_image"] == "skip" else []
    of_the_same = [str(part) for option, value in same.items() if value for part in (option, value)]
    page, look = ["--count", "4", *hidden, "--out", f"{run}/explore.html"], ["--out", f"{run}/look", *film]
    lines = {
        "Train it again": again,
        "Draw where it looks, from any layer, head or patch": ["vit", "attention", *shown, *skip, *look],
        LOOK_AROUND: ["vit", "explore", *shown, *skip, *page],
        "Measure its features": ["vit", "evaluate", *shown, *of_the_same, *skip, "--out", f"{run}/evaluation"],
        "Update this page with later measurements": ["vit", "report", run],
    }
    return [(what, shlex.join(line)) for what, line in lines.items()]


# ---- Text ------------------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: 2 h 5 min."""
    whole = max(round(seconds), 0)
    for unit, length, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def plural(count: int, what: str) -> str:
    """Return "1 head", "3 heads", "50,000 images"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
