"""How `python -m studies` runs a study and writes what it returns."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from typing import Any

from studies import STUDIES
from studies.experiment import Experiment
from vit import __version__
from vit.atomic import make_folder, write_json, write_text
from vit.config import flat_settings
from vit.device import device_name
from vit.errors import RunError
from vit.figures import style
from vit.isolation import held
from vit.machine import choose_compute
from vit.mae import Model
from vit.report.record import settings_that_matter
from vit.runs import read_mapping
from vit.weights import checkpoint_hash


def run_study(name: str, experiment: Experiment, out: Path, command: str) -> str:
    """Run a study, and write results.json, tables.md and its figures into `out`/`name`.

    Results of the same settings are replaced. Returns how to read the results, from the docstring
    of the study's module.

    Raises:
        RunError: the folder holds any other file, a package is missing, or the study cannot be
            made.
    """
    # Refuse what cannot be made or written
    folder = out / name
    settings = settings_of(experiment)
    existing = read_mapping(folder / "results.json")
    differs = any(existing.get(key) != value for key, value in settings.items())
    if differs and folder.exists() and any(folder.iterdir()):
        content = "a study with other settings" if existing else "other files"
        raise RunError(f"{folder} holds {content}; name another folder with --out")
    missing = [package for package in ("scipy", "sklearn") if find_spec(package) is None]
    if missing:
        packages = " and ".join(missing)
        raise RunError(f"{name}: {packages} cannot be imported; pip install -e '.[studies]'")

    # Train and measure, on the images of the existing results
    for data in existing.get("data", []):
        experiment.measured_on[data["content_hash"]] = data["name"]
    module = import_module(f"studies.{name.replace('-', '_')}")
    since = time.perf_counter()
    try:
        with held(style, "CAPTION", experiment.name):
            results = module.study(experiment)
    except RunError as error:
        raise RunError(f"{name}: {error}") from error
    measuring_seconds = time.perf_counter() - since - experiment.waited

    # Write the numbers first: what is interrupted after them can be made again
    versions = {"vit-patch-trainer": __version__, "python": sys.version.split()[0]}
    for package in ("torch", "scipy", "scikit-learn"):
        versions[package] = version(package)
    used: list[dict[str, Any]] = []
    for data in experiment.used.values():
        used.append(
            {"name": data.name, "content_hash": data.content_hash, "train_images": len(data.train)}
        )
    record: dict[str, Any] = {
        "question": STUDIES[name],
        "tables": [table.as_plain() for table in results.tables],
        "command": command,
        **settings,
        "data": used,
        "training_seconds": sum(experiment.seconds.values()),
        "measuring_seconds": measuring_seconds,
        "device": device_name(choose_compute(experiment.config.run, "fp32").device),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions,
    }
    make_folder(folder)
    write_json(folder / "results.json", record)
    for key, picture in results.pictures.items():
        style.save_figure(picture, folder / f"{key}.png")

    # Then the page: the question, how to read the answer, figures, tables, the command
    reading = cleandoc(module.__doc__ or "").partition("\n\n")[2]  # its first line is the question
    if experiment.checkpoint is not None:
        reading += f"\n\n{about_checkpoint(experiment, experiment.checkpoint)}"
    pictures = [f"![{key}]({key}.png)" for key in results.pictures]
    tables = [table.as_markdown() for table in results.tables]
    images = " and ".join(data["name"] for data in used)
    seeds = ", ".join(str(seed) for seed in experiment.study.seeds)
    if not used:
        images = "a drawn world"
    measured = (
        f"Measured on {images}, seeds {seeds}, on {record['device']}, {record['date']}:"
        f" {record['training_seconds']:,.0f} s of training,"
        f" {measuring_seconds:,.0f} s of measuring."
    )
    parts = [f"# {STUDIES[name]}", reading, *pictures, *tables, f"    {command}", measured]
    write_text(folder / "tables.md", "\n\n".join(parts) + "\n")
    return reading


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """Return what results depend on, but the images: only results of the same replace them."""
    sections = experiment.config.to_dict()
    checkpoint = None
    if experiment.checkpoint is not None:
        sections = {key: sections[key] for key in ("data", "model", "mask")}  # the others train
        content_hash = checkpoint_hash(experiment.checkpoint)
        checkpoint = {"name": experiment.name, "content_hash": content_hash}
    return {
        "settings": settings_that_matter(flat_settings(sections)),
        "seeds": list(experiment.study.seeds),
        "images": experiment.study.images,
        "checkpoint": checkpoint,
    }


def about_checkpoint(experiment: Experiment, checkpoint: Model) -> str:
    """Return sentences on what the checkpoint stands for, and on what is left out."""
    text = f"*Checkpoint.* What is called trained is {experiment.name}"
    if checkpoint.origin.data:
        text += f", which was trained on {checkpoint.origin.data}"
    (seed,) = experiment.study.seeds
    text += f". Random weights are those that its architecture begins with, of seed {seed}."
    if experiment.left_out:
        text += f" Left out, because they take other trainings: {', '.join(experiment.left_out)}."
    return text
