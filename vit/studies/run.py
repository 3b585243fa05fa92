"""`vit study`: run a study, and write what it returns."""

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

from vit import __version__
from vit.atomic import write_json, write_text
from vit.device import choose_compute, device_name
from vit.figures import save_figure
from vit.runs import flat_settings, read_mapping, settings_that_matter
from vit.studies import STUDIES
from vit.studies.experiment import Experiment
from vit.studies.results import StudyError


def run_study(name: str, experiment: Experiment, out: Path, command: str) -> str:
    """Run a study, and write results.json, tables.md and its pictures into `out`/`name`.

    Results of the same settings are replaced; other files are refused with a StudyError. Returns how to read the results,
    which is the docstring of the study's module.
    """
    # refuse what cannot be made or written
    folder, config = out / name, experiment.config
    decisive = settings_that_matter(flat_settings(config.to_dict()))
    settings = {"settings": decisive, "seeds": list(experiment.study.seeds), "images": experiment.study.images}
    found = read_mapping(folder / "results.json", StudyError)
    if any(found.get(key) != value for key, value in settings.items()) and folder.exists() and any(folder.iterdir()):
        what = "a study with other settings" if found else "other files"
        raise StudyError(f"{folder} holds {what}; name another folder with --out")
    if missing := [package for package in ("scipy", "sklearn") if find_spec(package) is None]:
        raise StudyError(f"{name}: {' and '.join(missing)} cannot be imported; pip install -e '.[studies]'")

    # train and measure
    module, since = import_module(f"vit.studies.{name.replace('-', '_')}"), time.perf_counter()
    try:
        results = module.study(experiment)
    except StudyError as error:
        raise StudyError(f"{name}: {error}") from error

    # write, the numbers last
    reading = cleandoc(module.__doc__ or "")
    about: dict[str, Any] = {
        "question": STUDIES[name],
        "tables": [table.as_plain() for table in results.tables],
        "command": command,
        **settings,
        "data": [
            {"name": data.name, "content_hash": data.content_hash, "train_images": len(data.train)}
            for data in experiment.used.values()
        ],
        "training_seconds": sum(experiment.seconds.values()),
        "measuring_seconds": time.perf_counter() - since - experiment.waited,
        "device": device_name(choose_compute(config.run, "fp32").device),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {
            "vit-patch-trainer": __version__,
            "python": sys.version.split()[0],
            **{package: version(package) for package in ("torch", "scipy", "scikit-learn")},
        },
    }
    for key, picture in results.pictures.items():
        save_figure(picture, folder / f"{key}.png")
    pictures = [f"![{key}]({key}.png)" for key in results.pictures]
    tables = [table.as_markdown() for table in results.tables]
    measured = (
        f"Measured on {' and '.join(data.name for data in experiment.used.values())},"
        f" seeds {', '.join(map(str, experiment.study.seeds))}, on {about['device']}, {about['date']}:"
        f" {about['training_seconds']:,.0f} s of training, {about['measuring_seconds']:,.0f} s of measuring."
    )
    parts = [f"# {STUDIES[name]}", reading, *pictures, *tables, f"    {command}", measured]
    write_text(folder / "tables.md", "\n\n".join(parts) + "\n")
    write_json(folder / "results.json", about)
    return reading
