"""The record of a run: what its folder says, for tables, pages and config.json."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from vit.config import Config, flat_settings
from vit.errors import one_line
from vit.runs import RunError, RunFiles, SampleImages, read_mapping, read_metrics, read_sample_images

WRONG_VALUES = (LookupError, TypeError, ValueError, AttributeError)
"""What missing or wrong values in a file raise."""


@dataclass(frozen=True)
class RunRecord:
    """The contents of a run folder; metrics and sample images are read at first use.

    Attributes:
        files: where everything is.
        sections: config.yaml as it is; empty for a folder without one.
        summary: summary.json; empty if the run is not finished.
        results: every results.json of `vit evaluate` on the run's own weights, by its folder within the run folder.
        notes: what was left out, and why.
    """

    files: RunFiles
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.files.path.resolve().name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings by "section.key"; one missing in config.yaml has its default, as for train.py."""
        return flat_settings(Config().to_dict()) | flat_settings(self.sections)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return read_metrics(self.files.metrics)

    @cached_property
    def samples(self) -> SampleImages | None:
        """The images that the run keeps; None if their file is missing."""
        if not self.files.showcase.exists():
            return None
        return read_sample_images(self.files.showcase)

    @property
    def data(self) -> dict[str, Any]:
        """`vit.data.Dataset.facts`; empty if neither the summary nor the sample images have them."""
        if self.summary.get("data"):
            return dict(self.summary["data"])
        return self.samples.data if self.samples else {}

    @property
    def tested_on(self) -> str:
        """The images on which the scores were measured, e.g. "test images"."""
        return str(self.data.get("tested_on", "test images"))

    @property
    def tested(self) -> str:
        """The same with their number, e.g. "10,000 test images"."""
        return f"{self.data['test_images']:,} {self.tested_on}"

    @property
    def epochs(self) -> float:
        """Epochs trained so far, with fractions."""
        return float(self.metrics[-1]["epoch"]) if self.metrics else 0.0

    def public(self) -> RunRecord:
        """Return the record without its machine's paths.

        Raises:
            RunError: the command in a results.json is not a command.
        """
        results = {}
        for place, measured in self.results.items():
            try:
                command = _public_command(str(measured.get("command", "")))
            except ValueError as error:
                raise RunError(f"{place}/results.json is damaged: its command: {error}") from error
            results[place] = measured | {"command": command}
        sections = without_paths(self.sections)
        return replace(self, sections=sections, summary=without_paths(self.summary), results=results)

    def scores(self) -> dict[str, Any]:
        """Return the run's measurements for config.json, by their names in summary.json.

        "measured" holds those of each of `results`, with its command and data, but without confusion
        and reliability.
        """
        scores = {}
        for key in KEPT:
            if self.summary.get(key) not in (None, ""):
                scores[key] = self.summary[key]

        # The images
        data = self.summary.get("data") or {}
        for key in ("train_images", "test_images", "tested_on"):
            if key in data:
                scores[key] = data[key]
        if "content_hash" in data:
            scores["data_content_hash"] = data["content_hash"]

        # What `vit evaluate` measured
        measured = [_scores_of_results(results) for results in self.results.values()]
        if measured:
            scores["measured"] = measured
        return scores


def _public_command(command: str) -> str:
    """Return a command line without its machine's paths; raise ValueError if it is no command line."""
    words = []
    for word in shlex.split(one_line(command)):
        option, equals, value = word.partition("=")
        if word.startswith("-"):
            words.append(option + equals + last_part(value))
        else:
            words.append(last_part(word))
    return shlex.join(words)


def _scores_of_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a results.json says, but for confusion and reliability."""
    data = results["data"]
    scores = {
        "command": results["command"],
        "data": data["name"],
        "test_images": data.get("test_images"),
        "tested_on": data.get("tested_on"),
        "data_content_hash": data.get("content_hash"),
    }
    for method in ("knn", "linear", "head", "reconstruction"):
        if method not in results:
            continue
        values = results[method]
        if isinstance(values, dict):
            values = {key: values[key] for key in values if key not in ("confusion", "reliability")}
        scores[method] = values
    return scores


def read_run(path: Path) -> RunRecord:
    """Read a run folder, finished or not.

    Raises:
        RunError: there is no run, or its config.yaml or summary.json is damaged.
    """
    if not RunFiles(path).config.is_file():
        advice = "name the folder of a run, e.g. runs/quickstart"
        raise RunError(f"{path} is not a run: it has no config.yaml; {advice}")
    record = read_folder(path)

    # What `vit evaluate` left in the folder, if it is about the run's own weights
    for place in sorted(path.rglob("results.json")):
        name = str(place.parent.relative_to(path))
        try:
            results = read_mapping(place)
        except RunError as error:
            record.notes.append(str(error))
            continue
        file = f"{name}/results.json"
        if not is_about(record.summary, results):
            record.notes.append(f"{file} measured other weights than the run's and is left out")
            continue
        record.results[name] = results
        if not record.summary:
            moment = "at this step or before"
            record.notes.append(f"{file} was measured while this run was under way, {moment}")
    return record


def read_folder(path: Path) -> RunRecord:
    """Read the settings and the summary of a folder; each is empty if missing.

    Raises:
        RunError: one of them is damaged.
    """
    files = RunFiles(path)
    record = RunRecord(files, read_mapping(files.config), read_mapping(files.summary))
    if not all(isinstance(section, dict) for section in record.sections.values()):
        raise RunError(f"{files.config} is damaged: settings go in sections")
    return record


def settings_that_matter(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that can change scores, by "section.key".

    Where a run computes and finds its images cannot.
    """
    places = {"data.root", "data.cache", "data.download", "data.name"}
    matter = {}
    for key, value in settings.items():
        if not key.startswith("run.") and key not in places:
            matter[key] = value
    return matter


def is_about(summary: Mapping[str, Any], results: Mapping[str, Any]) -> bool:
    """Return whether results.json is about the weights of this summary.json, or there is none yet."""
    return not summary or summary.get("content_hash") == results.get("content_hash")


def read_to_publish(folder: Path, results: Sequence[Path] = ()) -> RunRecord:
    """Read a finished run for publication, without its machine's paths.

    Args:
        folder: the run folder, with config.yaml and summary.json.
        results: folders with a results.json that `vit evaluate --out` wrote about its model.

    Raises:
        RunError: the run has not ended, a file is damaged, or results are missing or about other weights.
    """
    record = read_folder(folder)
    if not record.sections or not record.summary:
        raise RunError(f"{folder} is not a finished run: config.yaml and summary.json are needed")
    for place in results:
        measured = read_mapping(place / "results.json")
        if not measured:
            command = f"`vit evaluate ... --out {shlex.quote(str(place))}`"
            raise RunError(f"no results.json in {place}; {command} writes one")
        if not is_about(record.summary, measured):
            other = f"was measured on other weights than those of {folder}"
            raise RunError(f"what is in {place} {other}; measure these")
        record.results[str(place)] = measured
    return record.public()


KEPT = (
    "objective", "init", "test_loss", "test_loss_of_baselines", "test_mask", "neighbours", "test_accuracy",
    "test_accuracy_with_flip", "test_calibration_error", "epochs", "steps", "weights", "seed", "seconds",
    "device", "precision", "versions", "content_hash",
)  # fmt: skip
"""The keys of summary.json that a converted model's config.json keeps."""


def without_paths(values: dict[str, Any]) -> dict[str, Any]:
    """Remove the machine's paths from config.yaml or summary.json.

    Folders are dropped; `init` keeps its last part.
    """
    public = dict(values)
    data = public.get("data")
    if isinstance(data, dict):
        dropped = ("root", "cache", "warning")
        public["data"] = {key: value for key, value in data.items() if key not in dropped}
    model = public.get("model")
    if isinstance(model, dict) and "init" in model:
        public["model"] = model | {"init": last_part(model["init"])}
    if "init" in public:
        public["init"] = last_part(public["init"])
    return public


def last_part(value: Any) -> Any:
    """Return the last part of a path that reveals its machine; else `value` itself.

    Such paths are /home/me/runs/tiny, ~/tiny and ../tiny.
    """
    if not isinstance(value, str):
        return value
    if PureWindowsPath(value).drive:
        return PureWindowsPath(value).name
    path = PurePosixPath(value)
    reveals = path.is_absolute() or ".." in path.parts or value.startswith("~")
    return path.name if reveals else value
