"""The record of a run: the contents of its folder, for tables and pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vit.config import OBJECTIVES, Config, flat_settings, read_settings
from vit.errors import RunError, plural
from vit.metrics import MEASURES
from vit.runs import RunFiles, read_mapping, read_metrics

DEFAULTS = flat_settings(Config().to_dict())
"""All settings by "section.key", as config.yaml holds them."""
NOT_COMPARED = ("train.seed", "data.fallback")
"""Settings that runs in one row may differ in; the images that a fallback gave are compared."""


@dataclass(frozen=True)
class RunRecord:
    """The contents of a run folder; metrics and the facts on its data are read at first use.

    Attributes:
        files: where everything is.
        settings: all of them by "section.key"; one missing in config.yaml has its default.
        summary: summary.json; empty if the run is not finished.
        results: every results.json of `vit evaluate` on the run's own weights, by its folder within
            the run folder.
        notes: files that were left out, and why.
    """

    files: RunFiles
    settings: dict[str, Any]
    summary: dict[str, Any]
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.files.path.resolve().name

    @property
    def learns_labels(self) -> bool:
        """Whether it is a classifier; of another program's objective, only the name is known."""
        objective = OBJECTIVES.get(self.settings["train.objective"])
        return objective is not None and objective.labels

    @cached_property
    def scores(self) -> dict[str, list[dict[str, Any]]]:
        """What was measured at the end, by method; empty if the run is not finished."""
        return dict(self.summary.get("scores", {}))

    @property
    def usual_scores(self) -> dict[str, float]:
        """The score of each method's first row, by "method.measure"."""
        scores = {}
        for method, key in MEASURES:
            row = self.scores.get(method, [{}])[0]
            if key in row:
                scores[f"{method}.{key}"] = row[key]
        return scores

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return read_metrics(self.files.metrics)

    @cached_property
    def data(self) -> dict[str, Any]:
        """`vit.data.Dataset.facts`, from the summary, else from data.json; empty without both."""
        # The summary comes at the end of a run, data.json at its start
        return dict(self.summary.get("data") or read_mapping(self.files.data))

    @property
    def tested_on(self) -> str:
        """The kind of images behind the scores, e.g. "test images"."""
        return str(self.data.get("tested_on", "test images"))

    @property
    def tested(self) -> str:
        """The images behind the scores with their number, e.g. "10,000 test images"."""
        return tested_images_of(self.data)

    @property
    def epochs(self) -> float:
        """Epochs trained so far, with fractions."""
        # Nothing is logged before the first step
        if not self.metrics:
            return 0.0
        return float(self.metrics[-1]["epoch"])

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What finished runs have in common if they differ only in the seed: settings and data."""
        data = self.data
        identity = settings_that_matter(self.settings)
        for key in NOT_COMPARED:
            identity.pop(key)
        # The initial weights themselves, wherever they were
        identity["model.init"] = self.summary.get("init_content_hash") or identity["model.init"]
        # All images, whichever of them are held out or have labels
        identity["data"] = data.get("whole_content_hash", data["content_hash"])
        identity["counts"] = (data["train_images"], data["test_images"], data["tested_on"])
        for row in self.scores.get("knn", []):
            identity["bank"] = (row.get("bank"), row.get("geometry"))
        return identity


def tested_images_of(data: Mapping[str, Any]) -> str:
    """Return the images behind scores with their number, from `vit.data.Dataset.facts`."""
    return plural(data["test_images"], data["tested_on"].removesuffix("s"))


def read_run(path: Path) -> RunRecord:
    """Read a run folder, finished or not."""
    files = RunFiles(path)
    # Without settings, it is some other folder
    if not files.config.is_file():
        advice = "name the folder of a run, e.g. runs/quickstart"
        raise RunError(f"{path} is not a run: it has no config.yaml; {advice}")
    settings = DEFAULTS | read_settings(files.config)
    record = RunRecord(files, settings, read_mapping(files.summary))

    # What `vit evaluate` left in the folder, if it is about the run's own weights
    for results_path in sorted(path.rglob("results.json")):
        file = results_path.relative_to(path)
        try:
            results = read_mapping(results_path)
        except RunError as error:
            record.notes.append(str(error))
            continue
        # There are no final weights yet to compare with
        if not record.summary:
            moment = "at this step or before"
            record.notes.append(f"{file} was measured before the end of this run, {moment}")
        elif record.summary.get("content_hash") != results.get("content_hash"):
            record.notes.append(f"{file} is left out: it measured other weights than this run's")
            continue
        record.results[str(file.parent)] = results
    return record


def settings_that_matter(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that can change scores, by "section.key".

    Where a run computes and finds its images, and what they are called, cannot.
    """
    irrelevant = {"data.root", "data.cache", "data.download", "data.name"}
    return {
        key: value
        for key, value in settings.items()
        if not key.startswith("run.") and key not in irrelevant
    }
