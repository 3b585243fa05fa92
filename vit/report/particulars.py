"""What a run was made of, and how it is made again: data, settings, machine, commands."""

from __future__ import annotations

import shlex
from typing import Any

from vit.config import OBJECTIVES, Config
from vit.figures.document import element
from vit.report.pieces import Section, command, duration, facts, paragraph, plural, section, spelled, table
from vit.runs import RunRecord, flat_settings


def data(record: RunRecord) -> Section | None:
    """What it was trained and tested on."""
    known = record.data
    if not known:
        return None
    rows = [
        ("name", known["name"]),
        ("source", known["source"]),
        ("training images", f"{known['train_images']:,}"),
        (known["tested_on"], f"{known['test_images']:,}"),
        ("content hash", known["content_hash"]),
    ]
    if known["skipped"]:
        rows.append(("left out", f"{plural(known['skipped'], 'file')} that could not be read"))
    lede = "The content hash covers all pixels and labels: runs with the same one saw the same images."
    return section("data", "Data", lede, paragraph(known["warning"], "warning"), facts(rows))


def settings(record: RunRecord) -> Section:
    """What differs from the defaults, and all of it."""
    defaults = flat_settings(Config().to_dict())
    absent = object()
    changed = [
        (key, spelled(value), spelled(defaults[key]) if key in defaults else "")
        for key, value in record.settings.items()
        if value != defaults.get(key, absent)
    ]
    whole = table(
        ["setting", "value"], [(key, spelled(value)) for key, value in record.settings.items()], "all settings"
    )
    count = plural(len(record.settings), "setting")
    return section(
        "settings", "Settings", "Those that differ from the defaults." if changed else "All are the defaults.",
        table(["setting", "value", "default"], changed, "settings that differ from the defaults") if changed else None,
        element("details", element("summary", f"All {count}"), whole),
    )  # fmt: skip


def machine(record: RunRecord) -> Section | None:
    """What it was computed on, and how fast."""
    summary = record.summary
    if not summary:
        return None
    processes = "1 process" if summary["processes"] == 1 else f"{summary['processes']} processes"
    rows = [
        ("device", summary["device"]),
        ("in", f"{processes}, {plural(summary['threads'], 'thread')}, {summary['precision']}"),
        ("training", f"{duration(summary['seconds'])}, {plural(summary['steps'], 'step')}"),
        ("speed", f"{summary['images_per_second']:,.0f} images a second"),
        ("parameters", f"{summary['parameters']:,}"),
        ("weights kept", summary["weights"]),
        ("versions", ", ".join(f"{name} {version}" for name, version in summary["versions"].items())),
    ]
    return section("machine", "Machine", None, facts(rows))


def repeating(record: RunRecord) -> Section:
    """The commands that make it again, look at it and measure it."""
    lines = [command(what, line) for what, line in commands_of(record)]
    seeds = f"train.seed {record.settings['train.seed']}"
    if record.settings["data.labels"] < 1 or record.settings["data.val_size"]:
        seeds += f" and data.subset_seed {record.settings['data.subset_seed']}"
    lede = f"Weights, order, augmentation and masks come from {seeds}, which config.yaml holds with all other settings."
    return section("repeat", "How to repeat it", lede, *lines)


def commands_of(record: RunRecord) -> list[tuple[str, str]]:
    """What each does, and the line for a shell."""
    run, settings = str(record.files.path), record.settings
    beside = record.files.path.parent / f"{record.name}-again"
    again = ["python", "train.py", "--config", str(record.files.config), "--out", str(beside)]
    if not record.summary:
        return [("Go on from where it stopped", shlex.join(["python", "train.py", "--out", run, "--resume"])),
                ("Begin it again", shlex.join(again))]  # fmt: skip
    source, root = settings["data.source"], settings["data.root"]
    shown = ["--data", root] if source == "folder" else ["--data", source]
    if source.startswith("cifar") and root != "data":
        shown += ["--root", root]
    hidden = [] if OBJECTIVES[settings["train.objective"]].labels else ["--mask", str(settings["mask.ratio"])]
    film = ["--film"] if settings["run.snapshots"] > 1 else []
    look, page, measured = (f"{run}/{name}" for name in ("look", "explore.html", "evaluation"))
    lines = {
        "Train it again": again,
        "Draw where it looks, from any layer, head or patch": ["vit", "attention", run, *shown, "--out", look, *film],
        "A page to look around in its attention":
            ["vit", "explore", run, *shown, "--count", "4", *hidden, "--out", page],
        "Measure its features":
            ["vit", "evaluate", run, *shown, *_of_the_same(settings), "--out", measured],
        "Write this page anew, with what was measured since": ["vit", "report", run],
    }  # fmt: skip
    return [(what, shlex.join(line)) for what, line in lines.items()]


def _of_the_same(settings: dict[str, Any]) -> list[str]:
    """Options of `vit evaluate` for the images that the run was measured on."""
    given = {"--name": settings["data.name"], "--limit": settings["data.limit"], "--tuning": settings["data.val_size"]}
    return [str(part) for option, value in given.items() if value for part in (option, value)]


def remarks(notes: list[str]) -> Section | None:
    """What the reader should know and stands nowhere else."""
    if not notes:
        return None
    return section("notes", "Notes", None, element("ul", *(element("li", note, dir="auto") for note in notes)))
