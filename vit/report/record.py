"""What a run folder says, finished or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vit.checkpoints.card import is_about, mapping, read_json
from vit.checkpoints.reading import CheckpointError
from vit.config import Config
from vit.errors import UserError
from vit.report.showcase import Showcase, load_showcase
from vit.training.metrics import read_metrics
from vit.training.run_folder import RunFolder


class RecordError(UserError):
    """A folder that is no run; the message is one line."""


@dataclass(frozen=True)
class Record:
    """A run as its folder tells it.

    Attributes:
        folder: the run's.
        settings: of config.yaml, by "section.key"; one that it leaves out has its default, as for train.py.
        metrics: lines of metrics.jsonl.
        summary: summary.json; empty of a run that is not finished.
        results: every results.json of `vit evaluate` below the run folder: the name of its folder there, and what it holds.
        showcase: the images that the run keeps; None of a run of an earlier version.
        notes: what could not be read, and why.
    """

    folder: RunFolder
    settings: dict[str, Any]
    metrics: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    results: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    showcase: Showcase | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What the run is called: its folder's name."""
        return self.folder.path.resolve().name

    @property
    def data(self) -> dict[str, Any]:
        """`vit.data.Dataset.facts`; empty where nothing tells them."""
        return self.summary.get("data") or (self.showcase.data if self.showcase else {})

    @property
    def tested(self) -> str:
        """What its figures were measured on: "10,000 test images"."""
        return f"{self.data['test_images']:,} {self.tested_on}"

    @property
    def tested_on(self) -> str:
        """What its figures were measured on: "test images"."""
        return str(self.data.get("tested_on", "test images"))

    @property
    def epochs(self) -> float:
        """Epochs that were trained, with fractions."""
        return float(self.metrics[-1]["epoch"]) if self.metrics else 0.0


def read_record(path: Path) -> Record:
    """What a run folder says.

    Raises:
        RecordError, CheckpointError, ShowcaseError, MetricsError: there is no run, or a file of it is damaged.
    """
    folder = RunFolder(path)
    if not folder.config.is_file():
        raise RecordError(
            f"{path} is no run: there is no config.yaml in it; name the folder of a run, runs/quickstart say"
        )
    summary = mapping(folder.summary, read_json)
    results, notes = [], []
    for place in sorted(path.rglob("results.json")):
        try:
            found = mapping(place, read_json)
        except CheckpointError as error:
            notes.append(str(error))
            continue
        name = str(place.parent.relative_to(path))
        if is_about(summary, found):
            results.append((name, found))
        else:
            notes.append(f"{name}/results.json is about other weights than the run's and is left out")
    try:
        settings = settings_of(Config().to_dict()) | settings_of(mapping(folder.config, yaml.safe_load))
    except AttributeError as error:
        raise RecordError(f"{folder.config} is damaged: it is not made of sections") from error
    showcase = load_showcase(folder.showcase) if folder.showcase.exists() else None
    return Record(folder, settings, read_metrics(folder.metrics), summary, results, showcase, notes)


def settings_of(sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What config.yaml holds, by "section.key"."""
    return {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
