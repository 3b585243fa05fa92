"""`vit study`: make studies, and write down what they came to."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from vit import __version__
from vit.atomic import write_text
from vit.device import choose_compute, device_name
from vit.runs import flat_settings, settings_that_matter
from vit.studies import STUDIES
from vit.studies.finding import Finding, StudyError, write_finding
from vit.studies.laboratory import Laboratory
from vit.studies.plan import Plan

INDEX = "README.md"


def conduct(name: str, plan: Plan, out: Path, command: str, tell: Callable[[str], None] = print) -> Finding:
    """Make a study, and write what it came to into `out`/`name`; its models stay in `out`/runs.

    Args:
        name: of `STUDIES`.
        plan: what it is to be made with.
        out: a study of the same settings that stands there is made again; one of other settings is refused.
        command: that was typed.
        tell: gets a line when a training begins.

    Raises:
        StudyError: it cannot be made with this plan, or another one stands in its place.
    """
    folder, config = out / name, plan.training
    decisive = settings_that_matter(flat_settings(config.to_dict()))
    settings = {"settings": decisive, "seeds": list(plan.seeds), "images": plan.images}
    refuse_another(folder, settings)
    since = time.perf_counter()
    laboratory = Laboratory(out / "runs", tell)
    study: Callable[[Laboratory, Plan], Finding] = import_module(f"vit.studies.{name.replace('-', '_')}").study
    finding = study(laboratory, plan)
    about: dict[str, Any] = {
        "study": name,
        **settings,
        "data": [
            {"name": data.name, "content_hash": data.content_hash, "train_images": len(data.train)}
            for data in laboratory.used
        ],
        "training_seconds": laboratory.training_seconds,
        "measuring_seconds": time.perf_counter() - since - laboratory.waited,
        "device": device_name(choose_compute(config.run, "fp32").device),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {
            "vit-patch-trainer": __version__, "torch": torch.__version__, "python": sys.version.split()[0],
        },
    }  # fmt: skip
    write_finding(folder, STUDIES[name], finding, about, command)
    write_index(out)
    return finding


def refuse_another(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse a folder that holds anything but a study with these settings."""
    results = folder / "results.json"
    try:
        found = json.loads(results.read_text(encoding="utf-8")) if results.exists() else None
    except ValueError as error:
        raise StudyError(f"{results} is no JSON; name another folder with --out") from error
    if found is None and folder.exists() and any(folder.iterdir()):
        raise StudyError(f"{folder} holds other files; name another folder with --out")
    if isinstance(found, dict) and {key: found.get(key) for key in settings} == settings:
        return
    if found is not None:
        raise StudyError(f"{folder} holds a study with other settings; name another folder with --out")


def write_index(out: Path) -> None:
    """A page of all studies in `out`, with their answers."""
    parts = ["# The questions"]
    for name, question in STUDIES.items():
        results = out / name / "results.json"
        if results.exists():
            found = json.loads(results.read_text(encoding="utf-8"))
            parts += [f"## {question}", found["answer"], f"[Pictures, tables, limits]({name}/answer.md)"]
    index = out / INDEX
    if index.exists() and not index.read_text(encoding="utf-8").startswith(parts[0] + "\n"):
        raise StudyError(f"--out: {index} is not ours and would be lost; name another folder")
    write_text(index, "\n\n".join(parts) + "\n")
