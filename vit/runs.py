"""A run folder: its files, their one reader, and the one table of all metrics."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import yaml

from vit.atomic import replacing, write_json
from vit.config import Config, flat_settings
from vit.errors import UserError, one_line

if TYPE_CHECKING:
    from torch import Tensor


class RunError(UserError):
    """A run folder, or a file in it, that cannot be read; the message is one line."""


WRONG_VALUES = (LookupError, TypeError, ValueError, AttributeError)
"""What missing or wrong values in a file raise."""

# ---- Files -----------------------------------------------------------------------------------------------------------


class RunFiles:
    """The paths of everything in the run folder `path`."""

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.snapshots = path / "snapshots"
        self.tensorboard = path / "tensorboard"
        self.showcase = path / "showcase.safetensors"
        self.summary = path / "summary.json"
        self.report = path / "report.html"
        self.reconstructions = path / "reconstructions.png"
        self.confusion = path / "confusion.png"
        self.reliability = path / "reliability.png"
        self.attention = path / "attention.png"
        self.curves = path / "curves.png"
        self.dynamics = path / "dynamics.jsonl"
        self.dynamics_picture = path / "dynamics.png"
        self.model = path / "model.safetensors"
        self.model_config = path / "config.json"
        self.manifest = path / "manifest.json"

    @property
    def all(self) -> list[Path]:
        """Every path in the folder."""
        return [path for path in vars(self).values() if isinstance(path, Path) and path != self.path]

    @property
    def kept(self) -> list[Path]:
        """The files that other programs read and a finished run no longer writes; not the pictures and the report."""
        own = [self.config, self.metrics, self.showcase, self.summary, self.dynamics, self.model, self.model_config]
        return [path for path in own if path.is_file()] + sorted(self.snapshots.glob("*/*"))

    def saved_snapshots(self) -> dict[str, Path]:
        """Return the folders of the run's weight snapshots by name, e.g. "step 1,250", from first to last."""
        folders = sorted(path.parent for path in self.snapshots.glob("step-*/model.safetensors"))
        steps = {folder: folder.name.removeprefix("step-") for folder in folders}
        return {f"step {int(step):,}": folder for folder, step in steps.items() if step.isdecimal()}


READ = ("config.yaml", "metrics.jsonl", "showcase.safetensors", "summary.json", "dynamics.jsonl")
"""The kept files that a report or a table reads; the weights are checked when they are loaded."""

CONTENTS = {
    "report.html": "all of this on one page: open it first",
    "reconstructions.png": "images, what the model sees of them, and how it fills in the rest",
    "confusion.png": "which classes it confuses",
    "reliability.png": "accuracy against confidence",
    "dynamics.png": "how strongly each matrix was trained and how far it moved (all in dynamics.jsonl)",
    "attention.png": "where the last layer's attention looks, head by head",
    "curves.png": "what the run measured, learning rate and gradient norm, over the epochs",
    "summary.json": "these figures and where they come from",
    "manifest.json": "hashes of the run's files, for vit verify",
    "model.safetensors": "the weights, with config.json, for vit.load_model",
}
"""What the user finds in the folder of a finished run."""

OLD_KEYS = {
    "fingerprint": "content_hash",
    "init_fingerprint": "init_content_hash",
    "data_stamp": "data_content_hash",
    "stamp": "content_hash",
    "whole_stamp": "whole_content_hash",
}
"""Keys in earlier versions' JSON files, and their present names."""


def write_manifest(files: RunFiles) -> None:
    """Write manifest.json, with the SHA-256 of every file in `files.kept`: the last act of a run."""
    write_json(
        files.manifest, {"sha256": {path.relative_to(files.path).as_posix(): _sha256(path) for path in files.kept}}
    )


def check_manifest(path: Path, names: Sequence[str] | None = None) -> list[str]:
    """Compare a finished run's files with its manifest.json.

    Args:
        path: run folder.
        names: files to check, relative to it; by default all that are kept or in the manifest.

    Returns:
        A line for each file that has changed, is missing, or is not in the manifest, e.g. "metrics.jsonl has changed". No
        lines for a folder without a manifest.

    Raises:
        RunError: the manifest is damaged.
    """
    files = RunFiles(path)
    if not files.manifest.is_file():
        return []
    said = read_mapping(files.manifest).get("sha256")
    if not isinstance(said, dict) or any(PurePosixPath(name).is_absolute() or ".." in name for name in said):
        raise RunError(f"{files.manifest} is damaged: it names no files of this run")
    problems = []
    kept = [path_of.relative_to(path).as_posix() for path_of in files.kept]
    for name in dict.fromkeys([*said, *kept]) if names is None else names:
        if name not in said:
            problems.append(f"{name} is not in manifest.json")
        elif not (path / name).is_file():
            problems.append(f"{name} is missing")
        elif _sha256(path / name) != said[name]:
            problems.append(f"{name} has changed")
    return problems


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(content: str) -> Any:
    """Parse JSON, refusing nan and infinity, which could not be written again; OLD_KEYS get their new names."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a JSON number")

    def rename(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {OLD_KEYS.get(key, key): value for key, value in pairs}

    return json.loads(content, parse_constant=refuse, object_pairs_hook=rename)


def read_mapping(path: Path, error: type[UserError] = RunError) -> dict[str, Any]:
    """Return the mapping in a YAML (.yaml) or JSON file, empty if there is no file; raise `error` if it is damaged."""
    if not path.is_file():
        return {}
    try:
        content = path.read_text(encoding="utf-8")
        value = yaml.safe_load(content) if path.suffix == ".yaml" else read_json(content)
    except (ValueError, RecursionError, yaml.YAMLError) as problem:
        raise error(f"{path} is damaged: {problem}") from problem
    if not isinstance(value, dict):
        raise error(f"{path} is damaged: keys and values are expected")
    return value


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, none if there is no file. A last line cut short by a kill is left out.

    Raises:
        RunError: another line is not JSON, or has no keys.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        found = [json.loads(line) for line in lines[:-1]]  # anything after the last newline was cut short
        if not all(isinstance(line, dict) for line in found):
            raise ValueError("a line has no keys and values")
        return found
    except ValueError as error:  # also raised for text that is not UTF-8
        raise RunError(f"{path} is damaged: {error}; remove that line") from error


@dataclass(frozen=True)
class SampleImages:
    """A few test images that a run keeps, so that its folder can show the model at work without the data set.

    Attributes:
        images: uint8 (B, C, H, W).
        labels: B class names; may be empty strings.
        class_names: all of them.
        data: `vit.data.Dataset.facts` of the whole data set.
    """

    images: Tensor
    labels: list[str]
    class_names: list[str]
    data: dict[str, Any]

    def save(self, path: Path) -> None:
        """Write showcase.safetensors, whole or not at all."""
        from safetensors.torch import save

        about = json.dumps({"labels": self.labels, "class_names": self.class_names, "data": self.data})
        with replacing(path) as temporary:
            temporary.write_bytes(save({"images": self.images.contiguous()}, metadata={"showcase": about}))


def read_sample_images(path: Path) -> SampleImages:
    """Read showcase.safetensors.

    Raises:
        RunError: it is damaged, or some other file.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about, images = read_json((file.metadata() or {})["showcase"]), file.get_tensor("images")
        samples = SampleImages(images, about["labels"], about["class_names"], about["data"])
        if images.dtype != torch.uint8 or images.ndim != 4 or len(samples.labels) != len(images):
            raise ValueError("images with a label each are expected")
    except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}; remove it to go on without it") from error
    return samples


# ---- The record of a run ---------------------------------------------------------------------------------------------


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
        """The images that the run keeps; None if an earlier version trained it."""
        return read_sample_images(self.files.showcase) if self.files.showcase.exists() else None

    @property
    def data(self) -> dict[str, Any]:
        """`vit.data.Dataset.facts`; empty if neither the summary nor the sample images have them."""
        return self.summary.get("data") or (self.samples.data if self.samples else {})

    @property
    def tested_on(self) -> str:
        """The images on which the figures were measured, e.g. "test images"."""
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
        for place, found in self.results.items():
            try:
                words = shlex.split(one_line(str(found.get("command", ""))))
            except ValueError as error:
                raise RunError(f"{place}/results.json is damaged: its command: {error}") from error
            options = ((word.partition("=") if word.startswith("-") else ("", "", word)) for word in words)
            command = shlex.join(name + equals + last_part(value) for name, equals, value in options)
            results[place] = found | {"command": command}
        return replace(
            self, sections=without_paths(self.sections), summary=without_paths(self.summary), results=results
        )

    def figures(self) -> dict[str, Any]:
        """Return the run's measurements for config.json, by their names in summary.json.

        "measured" holds those of each of `results`, with its command and data, but without confusion and reliability.
        """
        data = self.summary.get("data") or {}
        known = {key: self.summary[key] for key in KEPT if self.summary.get(key) not in (None, "")}
        known |= {key: data[key] for key in ("train_images", "test_images", "tested_on") if key in data}
        known |= {"data_content_hash": data["content_hash"]} if "content_hash" in data else {}
        measured = []
        for found in self.results.values():
            about = {"command": found["command"], "data": found["data"]["name"]}
            about |= {key: found["data"].get(key) for key in ("test_images", "tested_on")}
            about["data_content_hash"] = found["data"].get("content_hash")
            for method in [name for name in ("knn", "linear", "head", "reconstruction") if name in found]:
                values = found[method]
                if isinstance(values, dict):
                    values = {key: value for key, value in values.items() if key not in ("confusion", "reliability")}
                about[method] = values
            measured.append(about)
        return known | ({"measured": measured} if measured else {})


def read_run(path: Path) -> RunRecord:
    """Read a run folder, finished or not.

    Raises:
        RunError: there is no run, its config.yaml or summary.json is damaged, or a file has changed since the run ended.
    """
    if not RunFiles(path).config.is_file():
        raise RunError(f"{path} is not a run: it has no config.yaml; name the folder of a run, e.g. runs/quickstart")
    there = [name for name in READ if (path / name).exists()]  # a missing file only leaves a report with less to say
    if problems := check_manifest(path, there):
        ways = f"put it back, or remove {RunFiles(path).manifest} to use it as it is"
        raise RunError(f"{path}: {problems[0]} since the run ended: {ways}")
    record = read_folder(path)
    for place in sorted(path.rglob("results.json")):
        name = str(place.parent.relative_to(path))
        try:
            results = read_mapping(place)
        except RunError as error:
            record.notes.append(str(error))
            continue
        if is_about(record.summary, results):
            record.results[name] = results
            if not record.summary:
                record.notes.append(
                    f"{name}/results.json was measured while this run was under way, at this step or before"
                )
        else:
            record.notes.append(f"{name}/results.json measured other weights than the run's and is left out")
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
    """Return the settings that can change figures, by "section.key": not where a run computes or finds its images."""
    places = {"data.root", "data.cache", "data.download", "data.name"}
    return {key: value for key, value in settings.items() if not key.startswith("run.") and key not in places}


def is_about(summary: Mapping[str, Any], results: Mapping[str, Any]) -> bool:
    """Return whether results.json is about the weights of this summary.json; True if an old summary has no hash."""
    return summary.get("content_hash") in (None, results.get("content_hash"))


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
        if not (measured := read_mapping(place / "results.json")):
            raise RunError(f"no results.json in {place}; `vit evaluate ... --out {shlex.quote(str(place))}` writes one")
        if not is_about(record.summary, measured):
            other = f"was measured on other weights than those of {folder}"
            raise RunError(f"what is in {place} {other}; measure these")
        record.results[str(place)] = measured
    return record.public()


KEPT = (
    "objective", "init", "test_loss", "test_loss_of_baselines", "test_mask", "neighbours", "test_accuracy",
    "test_accuracy_with_flip", "test_calibration_error", "epochs", "steps", "weights", "seed", "seconds", "device",
    "precision", "versions", "content_hash",
)  # fmt: skip
"""The keys of summary.json that a converted model's config.json keeps."""


def without_paths(values: dict[str, Any]) -> dict[str, Any]:
    """Remove the machine's paths from config.yaml or summary.json: folders are dropped, `init` keeps its last part."""
    values = dict(values)
    if isinstance(data := values.get("data"), dict):
        values["data"] = {key: value for key, value in data.items() if key not in ("root", "cache", "warning")}
    if isinstance(model := values.get("model"), dict) and "init" in model:
        values["model"] = model | {"init": last_part(model["init"])}
    return values | ({"init": last_part(values["init"])} if "init" in values else {})


def last_part(value: Any) -> Any:
    """Return the last part of a path that reveals its machine (/home/me/runs/tiny, ~/tiny, ../tiny); else `value` itself."""
    if not isinstance(value, str):
        return value
    if PureWindowsPath(value).drive:
        return PureWindowsPath(value).name
    path = PurePosixPath(value)
    return path.name if path.is_absolute() or ".." in path.parts or value.startswith("~") else value


# ---- Metrics ---------------------------------------------------------------------------------------------------------

FORMS = {"accuracy": (".2%", ".1%"), "error": (".2%", ".1%"), "loss": (".4f", ".3f"), "time": (",.0f", ",.0f")}
"""How to write each kind of metric: in full, and with fewer digits. Higher accuracy is better; of all else, less is."""


@dataclass(frozen=True)
class Metric:
    """A measured quantity: its names, how it is written, and where it is stored.

    Attributes:
        key: its name in code.
        kind: a key of FORMS.
        label: its full name.
        short: its name in a column head.
        in_summary: its place in summary.json, with dots; "" if it is not there.
        in_results: its method and key in results.json; "" if it is not there.
        baseline_of: the key of the metric whose baseline it is; "" if it is not a baseline.
        of_classifier: True for classifiers only, False for pretraining only, None if its place in the file says so.
    """

    key: str
    kind: str
    label: str
    short: str
    in_summary: str = ""
    in_results: tuple[str, str] = ("", "")
    baseline_of: str = ""
    of_classifier: bool | None = None

    def of_summary(self, summary: Mapping[str, Any]) -> float | None:
        """Return its value in summary.json, or None."""
        if self.of_classifier not in (None, "test_accuracy" in summary):
            return None
        value: Any = summary
        for key in self.in_summary.split("."):
            value = (value or {}).get(key)
        return None if value is None else float(value)

    def write(self, value: float, brief: bool = False) -> str:
        """Return the value as text, with fewer digits if `brief`."""
        return format(value, FORMS[self.kind][brief])


_BASELINES = "test_loss_of_baselines"
METRICS = {metric.key: metric for metric in (
    Metric("masked_loss", "loss", "loss on hidden patches", "loss",
           "test_loss", ("reconstruction", "loss"), of_classifier=False),
    Metric("mean_visible", "loss", "guessing the mean of the visible patches", "visible mean",
           f"{_BASELINES}.mean_of_visible_patches", ("reconstruction", "mean_of_visible_patches"), "masked_loss"),
    Metric("nearest_visible", "loss", "copying the nearest visible patch", "nearest visible",
           f"{_BASELINES}.nearest_visible_patch", ("reconstruction", "nearest_visible_patch"), "masked_loss"),
    Metric("accuracy", "accuracy", "classifier accuracy", "accuracy", "test_accuracy", ("head", "accuracy")),
    Metric("accuracy_with_flip", "accuracy", "classifier accuracy with mirror images", "with mirror images",
           "test_accuracy_with_flip", ("head", "accuracy_with_flip")),
    Metric("calibration_error", "error", "expected calibration error", "calibration error",
           "test_calibration_error", ("head", "expected_calibration_error")),
    Metric("cross_entropy", "loss", "cross-entropy", "cross-entropy",
           "test_loss", ("head", "cross_entropy"), of_classifier=True),
    Metric("knn_accuracy", "accuracy", "nearest-neighbour accuracy", "neighbours",
           "neighbours.encoder_accuracy", ("knn", "accuracy")),
    Metric("pixel_knn_accuracy", "accuracy", "by raw pixels", "by raw pixels",
           "neighbours.raw_pixel_accuracy", ("knn", "raw_pixel_accuracy"), "knn_accuracy"),
    Metric("linear_probe", "accuracy", "linear probe of frozen features", "linear probe", "", ("linear", "accuracy")),
    Metric("seconds", "time", "seconds of training", "seconds", "seconds"),
)}  # fmt: skip
"""Every metric, by key, in the order in which they are shown."""


@dataclass(frozen=True)
class Line:
    """A metric for people: its value as text, and how it was measured, which may be ""."""

    metric: Metric
    value: str
    how: str = ""


def baselines(key: str) -> list[Metric]:
    """Return the baselines of the metric with this key."""
    return [metric for metric in METRICS.values() if metric.baseline_of == key]


def summary_values(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures in summary.json, by key."""
    found = {key: metric.of_summary(summary) for key, metric in METRICS.items()}
    return {key: value for key, value in found.items() if value is not None}


def summary_lines(summary: Mapping[str, Any]) -> list[Line]:
    """Return what a run measured at its end, without the time; baselines follow their metric."""
    lines = []
    for key, value in summary_values(summary).items():
        mask = summary.get("test_mask") if key == "masked_loss" else None
        how = f"{mask['kind']} mask, {mask['ratio']:.0%} hidden" if mask else ""
        if key != "seconds":
            lines.append(Line(METRICS[key], METRICS[key].write(value), how))
    return lines


def results_lines(results: Mapping[str, Any]) -> list[Line]:
    """Return what `vit evaluate` measured; `how` includes the baselines."""
    lines = []
    for metric in METRICS.values():
        method, key = metric.in_results
        found = results.get(method) or []  # reconstruction has a row per mask
        for row in found if isinstance(found, list) else [found]:
            if key in row and not metric.baseline_of:
                value, how = metric.write(row[key]), _protocol(method, key, row)
                if key == "accuracy" and "spread" in row:
                    value += f" ± {row['spread']:.2%} over {len(row['seeds'])} seeds"
                how += [f"{other.short} {other.write(row[other.in_results[1]])}" for other in baselines(metric.key)]
                lines.append(Line(metric, value, "; ".join(how)))
    return lines


def _protocol(method: str, key: str, row: Mapping[str, Any]) -> list[str]:
    """Return how a metric of results.json was measured."""

    def by_seed(value: Any, form: str = "") -> str:
        return ", ".join(format(choice, form) for choice in value) if isinstance(value, list) else format(value, form)

    if method == "knn":
        return [f"k {row['k']}, {row['bank']:,} training images"]
    if method == "reconstruction":
        return [f"{row['mask']} mask, {row['ratio']:.0%} hidden"]
    if method == "linear":
        how = [f"{row['labels']:,} labels, layer {by_seed(row['layer'])}"]
        if "strength" in row:
            chosen = f"chosen on {row['held_out']:,} held-out training images"
            how.append(f"L2 {by_seed(row['strength'], '.0e')}, {chosen}")
        return how + ([] if row.get("converged", True) else ["the fit has not converged"])
    unnamed = key == "accuracy" and not row.get("classes_named", True)
    return ["its classes have no names; assuming the data's order"] if unnamed else []


def aligned(lines: Sequence[Line]) -> list[str]:
    """Return figures for a terminal: labels, values and remarks in columns, baselines indented."""
    labels = [f"{'  ' if line.metric.baseline_of else ''}{line.metric.label}" for line in lines]
    wide, value = (max(map(len, column), default=0) for column in (labels, [line.value for line in lines]))
    return [
        f"{label:<{wide}}  {line.value:<{value}}  {f'({line.how})' if line.how else ''}".rstrip()
        for label, line in zip(labels, lines, strict=True)
    ]
