"""`vit study`: its options, and the settings of a study."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vit.cli.options import FOLDER, POSITIONAL, PrintsFigures, print_json, read_options, require_folder, talk
from vit.config import OBJECTIVES, Config, ConfigError
from vit.errors import one_line
from vit.pretrained import located
from vit.runs import read_mapping
from vit.settings import CONFIGS, SECTIONS, build_sections, read_words, split_settings
from vit.studies import OF_TRAININGS, STUDIES, StudyConfig

SETTINGS = SECTIONS | {"study": StudyConfig}


@dataclass(frozen=True)
class StudyOptions(PrintsFigures):
    """Answer a question by experiment: train the models it needs and look inside them."""

    name: str = field(default="", metadata=POSITIONAL)
    """a study, or all"""
    out: str = field(default="", metadata=FOLDER)
    """for the results, one subfolder per study; its subfolder runs keeps the models"""
    quick: bool = False
    """small models on Scenes with one seed: a preview in under two minutes, not an answer"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name:
            raise ConfigError(f"vit study: name a study first: all, {', '.join(STUDIES)}")
        if self.name not in ("all", *STUDIES):
            raise ConfigError(f"vit study: {one_line(self.name)!r} is not a study; choose all, {', '.join(STUDIES)}")
        if not self.out:
            raise ConfigError("--out: name a folder for the results")
        require_folder(Path(self.out))


_LISTED = "; ".join(f"{name}: {question}" for name, question in STUDIES.items())
StudyOptions.__doc__ = f"{StudyOptions.__doc__} NAME is all, or one of {_LISTED}"
OPTIONS = (StudyOptions,)


def run(argv: Sequence[str]) -> int:
    """Run the studies, and write the results of each as soon as it ends."""
    # The options
    settings, rest = split_settings(argv)
    (options,) = read_options("vit study", rest, *OPTIONS, sections=SETTINGS)
    name, out, quick = options.name, Path(options.out), options.quick
    names = list(STUDIES) if name == "all" else [name]
    of_any = [study for study in names if study not in OF_TRAININGS]
    if name == "all" and study_settings(of_any[0], quick, settings)[1].checkpoint:
        names = of_any
    studies = {study: study_settings(study, quick, settings) for study in names}
    for _, looked_at in studies.values():
        if looked_at.checkpoint:
            located(looked_at.checkpoint)

    # One study after another
    from vit.studies.experiment import Experiment
    from vit.studies.results import run_study

    with talk(options.json):
        if name == "all" and names == of_any:
            print(f"left out, as they compare training runs and a checkpoint is only one: {', '.join(OF_TRAININGS)}")
        for study, (config, looked_at) in studies.items():
            print(f"{study}: {STUDIES[study]}", flush=True)
            command = shlex.join(["vit", "study", study, *["--quick"] * quick, *settings, "--out", options.out])
            reading = run_study(study, Experiment(config, looked_at, out / "runs"), out, command)
            print(f"\n{reading}\n\nIn {out / study}: tables.md and its pictures, results.json\n")
    if options.json:
        print_json({study: read_mapping(out / study / "results.json") for study in studies})
    return 0


def study_settings(name: str, quick: bool = False, settings: Sequence[str] = ()) -> tuple[Config, StudyConfig]:
    """Return the settings of `vit study NAME`: base.yaml, NAME.yaml, quick.yaml where asked, and `settings`; the last wins.

    Raises:
        ConfigError: a setting cannot be used.
    """
    names = ["base", name, *(["quick"] if quick else [])]
    files = [path for name in names if (path := CONFIGS / "studies" / f"{name}.yaml").exists()]
    more, given = read_words(settings, SETTINGS)
    sections, _ = build_sections([*files, *more], given, SETTINGS)
    study = sections.pop("study")
    config = Config(**sections)
    if OBJECTIVES[config.train.objective].labels:
        raise ConfigError("train.objective: studies need masked autoencoders; leave it out")
    if config.model.qkv != "linear" or not config.model.qkv_bias:
        raise ConfigError("model.qkv, model.qkv_bias: studies need W_Q, W_K, W_V and their biases; leave them out")
    if config.model.init:
        raise ConfigError("model.init: studies compare with their random initial weights; leave it out")
    for option in settings if study.checkpoint else ():
        if option.startswith("--model."):
            key = option.removeprefix("--").partition("=")[0]
            raise ConfigError(f"{key}: study.checkpoint has its own; leave it out")
    if study.checkpoint and name in OF_TRAININGS:
        raise ConfigError(
            f"study.checkpoint: {name} compares training runs, and a checkpoint is only one; leave it out"
        )
    return config, study
