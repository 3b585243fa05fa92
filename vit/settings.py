"""A training run as `vit train` and `fit` ask for it: its settings, and its folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.config import CONFIGS, Config, config_file, flat_settings, read_settings
from vit.errors import ConfigError

QUICKSTART = CONFIGS / "quickstart.yaml"
RUN_CONFIG = "config.yaml"
WRITTEN_BY = "# written by version "
"""The comment in a run's config.yaml that names the version of this package."""


@dataclass(frozen=True)
class TrainCommand:
    """A training run as `vit train` and `fit` ask for it.

    Attributes:
        config: all settings.
        out: run folder.
        resume: whether to continue the run in it.
        program: what the user calls it.
        named: keys of the settings that the command line names.
        requested: of a resumed run, its settings with those of `--config`, for `refuse_conflicts`.
    """

    config: Config
    out: Path
    resume: bool
    program: str = "python train.py"
    named: frozenset[str] = frozenset()
    requested: Config | None = None


def train_command(
    files: Sequence[str],
    settings: Mapping[str, Any],
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    program: str = "python train.py",
) -> TrainCommand:
    """Return a training run.

    Without `files`, the quickstart's is read; with `resume`, the run's own config.yaml, with which
    all else must agree.

    Args:
        files: paths or names of settings files; a later one wins.
        settings: by "section.key"; they win over the files.
        out: run folder; by default runs/ and the name of the last file.
        resume: whether to continue the run in `out`.
        program: what the user calls it.

    Raises:
        ConfigError: the settings cannot be used.
    """
    given = read_settings(*files)
    folder = run_folder(files, out)

    # A run that goes on has its own settings, which those of files may only repeat
    if resume:
        saved = flat_settings(config_of_run(folder).to_dict())
        config = Config.of(saved, settings)
        requested = Config.of({**saved, **given}, settings)
        return TrainCommand(config, folder, True, program, requested=requested)

    if not files:
        given = read_settings(QUICKSTART)
    config = Config.of(given, settings)
    return TrainCommand(config, folder, False, program, frozenset(settings))


def run_folder(files: Sequence[str], out: str | os.PathLike[str] | None) -> Path:
    """Return the folder of a run: `out`, or runs/ and the name of the last file.

    Raises:
        ConfigError: `out` is empty, or the last file has no name.
    """
    if out is not None:
        if not os.fspath(out):
            raise ConfigError("--out", "'' cannot be used; name a folder for the run")
        return Path(os.path.expanduser(out))

    # A run's own config.yaml gives the name of its folder
    path = QUICKSTART
    if files:
        path = config_file(str(files[-1])).resolve()
        # What the shell's `--config <(...)` opens has no path of its own
        if not path.exists():
            raise ConfigError("config", f"{files[-1]} gives the run no name; add --out FOLDER")
    if path.name == RUN_CONFIG:
        return Path("runs") / path.parent.name
    return Path("runs") / path.stem


def config_of_run(out: Path) -> Config:
    """Return the settings of the run in `out`, to be resumed.

    Raises:
        ConfigError: there is no run, or another version has written its settings.
    """
    saved = out / RUN_CONFIG
    if not os.path.exists(saved):  # unlike Path.exists, it returns False for an impossible name
        advice = "leave --resume out to start one, or name its folder with --out"
        raise ConfigError("--resume", f"no run in {out}; {advice}")
    try:
        return Config.read(saved)
    except ConfigError as error:
        version = "an earlier version"
        for line in saved.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(WRITTEN_BY):
                version = f"version {line.removeprefix(WRITTEN_BY)}"
        problem = f"{version} of this program has written {saved}; continue the run with that one"
        raise ConfigError("--resume", f"{problem} ({error})") from error
