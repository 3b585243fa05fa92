"""A run as `vit train` and `fit` ask for it, and its folder: the files and their readers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.config import CONFIGS, Config, config_file, flat_settings, read_settings
from vit.errors import ConfigError, RunError

__version__ = "0.1.0"
"""The version of this package, written into runs and pages."""
QUICKSTART = CONFIGS / "quickstart.yaml"
RUN_CONFIG = "config.yaml"


@dataclass(frozen=True)
class TrainCommand:
    """A training run as `vit train` and `fit` ask for it.

    Attributes:
        config: all settings.
        out: run folder.
        resume: whether to continue the run in it.
        named: keys of the settings that the command line names.
        requested: of a resumed run, its settings with those of `--config`, for `refuse_conflicts`.
    """

    config: Config
    out: Path
    resume: bool
    named: frozenset[str] = frozenset()
    requested: Config | None = None


def train_command(
    files: Sequence[str],
    settings: Mapping[str, Any],
    out: Path | None = None,
    resume: bool = False,
) -> TrainCommand:
    """Return a training run.

    Without `files`, the quickstart's is read; with `resume`, the run's own config.yaml, with which
    all else must agree.

    Args:
        files: paths or names of settings files; a later one wins.
        settings: by "section.key"; they win over the files.
        out: run folder; by default runs/ and the name of the last file.
        resume: whether to continue the run in `out`.
    """
    in_files = read_settings(*files)
    folder = out or Path("runs") / run_name(files)

    # A resumed run has its own settings, with which those of files must agree
    if resume:
        saved = flat_settings(config_of_run(folder).to_dict())
        config = Config.from_settings(saved, settings)
        requested = Config.from_settings({**saved, **in_files}, settings)
        return TrainCommand(config, folder, True, requested=requested)

    if not files:
        in_files = read_settings(QUICKSTART)
    config = Config.from_settings(in_files, settings)
    return TrainCommand(config, folder, False, frozenset(settings))


def run_name(files: Sequence[str]) -> str:
    """Return the name of the last file; a run's own config.yaml has the name of its folder."""
    path = QUICKSTART
    if files:
        path = config_file(files[-1]).resolve()
    if path.name == RUN_CONFIG:
        return path.parent.name
    return path.stem


def config_of_run(out: Path) -> Config:
    """Return the settings of the run in `out`, to be resumed."""
    saved = out / RUN_CONFIG
    if not os.path.exists(saved):  # unlike Path.exists, it returns False for an impossible name
        advice = "leave --resume out to start one, or name its folder with --out"
        raise ConfigError("--resume", f"no run in {out}; {advice}")
    try:
        return Config.read(saved)
    except ConfigError as error:
        # another version's, which its first lines name, or one that was edited
        raise ConfigError("--resume", f"{saved}: {error}") from error


class RunFiles:
    """The paths of everything in the run folder `path`."""

    def __init__(self, path: Path):
        self.path = path
        # From the first step on
        self.config = path / RUN_CONFIG
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.snapshots = path / "snapshots"
        self.tensorboard = path / "tensorboard"
        self.data = path / "data.json"
        # From the last step on: a folder with a summary holds a finished run
        self.summary = path / "summary.json"
        self.report = path / "report.html"
        # If run.dynamics_every is set
        self.dynamics = path / "dynamics.jsonl"
        # The trained model
        self.model = path / "model.safetensors"
        self.model_config = path / "config.json"
        self.trained_on = path / "trained_on.npy"

    @property
    def pictures(self) -> list[Path]:
        """The figures; a run draws those that suit its objective."""
        return [self.path / name for name in CONTENTS if name.endswith(".png")]

    @property
    def all(self) -> list[Path]:
        """Every path in the folder."""
        # A folder that is being written also has other attributes
        values = vars(self).values()
        files = [path for path in values if isinstance(path, Path) and path != self.path]
        return files + self.pictures

    @property
    def has_begun(self) -> bool:
        """Whether it is the folder of a run: another may hold a file of one of these names."""
        return self.config.exists() and self.metrics.exists()

    def saved_snapshots(self) -> dict[str, Path]:
        """Return the folders of the run's snapshots by name, e.g. "step 1,250", first to last."""
        snapshots = {}
        for weights in sorted(self.snapshots.glob("step-*/model.safetensors")):
            step = weights.parent.name.removeprefix("step-")
            if step.isdecimal():
                snapshots[f"step {int(step):,}"] = weights.parent
        return snapshots


CONTENTS = {
    "report.html": "all of this on one page: open it first",
    "reconstructions.png": "images, their visible patches, and the reconstruction of the rest",
    "confusion.png": "counts of each class by predicted class",
    "reliability.png": "accuracy against confidence",
    "mistakes.png": "the most confident mistakes",
    "dynamics.png": "gradient size and movement of each weight matrix (see dynamics.jsonl)",
    "attention.png": "attention of the last layer, head by head",
    "curves.png": "loss, scores, learning rate and gradient norm over the epochs",
    "summary.json": "these scores, and how they were measured",
    "model.safetensors": "the weights, with config.json, for vit.load_model",
    "trained_on.npy": "hashes of the training images, which vit evaluate compares with its own",
}
"""The files for the user in the folder of a finished run."""


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file; empty if there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise RunError(f"{path} is damaged: {problem}") from problem
    if not isinstance(value, dict):
        raise RunError(f"{path} is damaged: keys and values are expected")
    return value


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl; none if there is no file.

    A last line cut short by a kill is left out.
    """
    if not path.exists():
        return []

    try:
        # Anything after the last newline was cut short
        complete_lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in complete_lines]
    except ValueError as error:
        # Also raised for text that is not UTF-8
        raise RunError(f"{path} is damaged: {error}; remove that line") from error


def read_saved_part(path: Path, length: int) -> bytes:
    """Return the part of a file that was written before a checkpoint; nothing if it is gone.

    Later lines belong to steps that a resumed run repeats.

    Args:
        path: metrics.jsonl or dynamics.jsonl.
        length: its bytes at the checkpoint.
    """
    if not path.exists():
        return b""
    part = path.read_bytes()[:length]
    # whole lines, in case the file was edited
    return part[: part.rfind(b"\n") + 1]
