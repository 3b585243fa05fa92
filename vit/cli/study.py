"""`vit study`: its options, and the settings of a study."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jsonargparse import ArgumentParser

from vit.cli.options import print_json, require_folder, talk
from vit.config import OBJECTIVES, Config, ConfigError
from vit.errors import one_line
from vit.pretrained import located
from vit.runs import read_mapping
from vit.settings import CONFIGS, HELP, SECTIONS, config_parser, parse_sections, take_flags, take_options
from vit.studies import OF_TRAININGS, STUDIES, StudyConfig

STUDY_SECTIONS = SECTIONS | {"study": StudyConfig}
OF_LOGITS = ("fixed-or-learned", "is-it-similarity")
"""The studies that set the logits to zero, or take them apart."""


@cache  # building one takes longer than all else before a study begins
def command_parser(with_help: bool = False) -> ArgumentParser:
    """Return the parser of `vit study`: its own options, and every setting of its trainings."""
    listed = "; ".join(f"{name}: {question}" for name, question in STUDIES.items())
    what = f"Answer a question by experiment: train the models it needs and look inside them. NAME is all, or one of {listed}"
    own = {
        "NAME": "a study, or all",
        "--out FOLDER": "for the results, one subfolder per study; its subfolder runs keeps the models",
        "--quick": "small models on Scenes with one seed: a preview in under two minutes, not an answer",
        "--json": "print the results as JSON on stdout; everything else goes to stderr",
    }
    return config_parser("vit study", what, own, STUDY_SECTIONS, with_help)


def run(argv: Sequence[str]) -> int:
    """Run the studies, and write the results of each as soon as it ends."""
    if not HELP.isdisjoint(argv):
        command_parser(with_help=True).print_help()
        return 0

    # The options
    (outs,), rest = take_options(argv, "--out")
    (quick, as_json), rest = take_flags(rest, "--quick", "--json")
    known = ", ".join(STUDIES)
    if not rest or rest[0].startswith("-"):
        raise ConfigError(f"vit study: name a study first: all, {known}")
    name, *settings = rest
    if name not in ("all", *STUDIES):
        raise ConfigError(f"vit study: {one_line(name)!r} is not a study; choose all, {known}")
    if not outs or not outs[-1]:
        raise ConfigError("--out: name a folder for the results")
    out = Path(outs[-1])
    require_folder(out)
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

    with talk(as_json):
        if name == "all" and names == of_any:
            print(f"left out, as they compare training runs and a checkpoint is only one: {', '.join(OF_TRAININGS)}")
        for study, (config, looked_at) in studies.items():
            print(f"{study}: {STUDIES[study]}", flush=True)
            command = shlex.join(["vit", "study", *(study if word == name else word for word in argv)])
            reading = run_study(study, Experiment(config, looked_at, out / "runs"), out, command)
            print(f"\n{reading}\n\nIn {out / study}: tables.md and its pictures, results.json\n")
    if as_json:
        print_json({study: read_mapping(out / study / "results.json") for study in studies})
    return 0


def study_settings(name: str, quick: bool = False, settings: Sequence[str] = ()) -> tuple[Config, StudyConfig]:
    """Return the settings of `vit study NAME`: base.yaml, NAME.yaml, quick.yaml where asked, and `settings`; the last wins.

    Raises:
        ConfigError: a setting cannot be used.
    """
    names = ["base", name, *(["quick"] if quick else [])]
    files = [path for name in names if (path := CONFIGS / "studies" / f"{name}.yaml").exists()]
    argv = [*(f"--config={path}" for path in files), *settings]
    sections = parse_sections(command_parser(), argv, STUDY_SECTIONS)
    study = sections.pop("study")
    config = Config(**sections)
    if OBJECTIVES[config.train.objective].labels:
        raise ConfigError("train.objective: studies need masked autoencoders; leave it out")
    if config.model.qkv != "linear" or not config.model.qkv_bias:
        raise ConfigError("model.qkv, model.qkv_bias: studies need W_Q, W_K, W_V and their biases; leave them out")
    if config.model.qk_norm and name in OF_LOGITS:
        raise ConfigError(f"model.qk_norm: {name} needs logits that W_Q and W_K alone make; leave it out")
    if config.model.init:
        raise ConfigError("model.init: studies compare with their random initial weights; leave it out")
    if study.checkpoint and name in OF_TRAININGS:
        raise ConfigError(
            f"study.checkpoint: {name} compares training runs, and a checkpoint is only one; leave it out"
        )
    return config, study
