"""`vit study`: its options."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jsonargparse import ArgumentParser

import vit
from vit.cli.old_options import require_folder
from vit.config import OBJECTIVES, Config, ConfigError
from vit.errors import one_line
from vit.settings import SECTIONS, config_parser, parse_sections, take_options
from vit.studies import STUDIES
from vit.studies.plan import Plan, StudyConfig

CONFIGS = Path(vit.__file__).resolve().parents[1] / "configs" / "studies"
BASE, QUICK = CONFIGS / "base.yaml", CONFIGS / "quick.yaml"


@cache  # to make one takes longer than all else before a study begins
def study_parser() -> ArgumentParser:
    """The options of `vit study`: the study's own, and every setting of the trainings it makes."""
    listed = "; ".join(f"{name}: {question}" for name, question in STUDIES.items())
    what = f"Answer a question by measuring: train the models that it takes, look into them. NAME is all, or one of {listed}"
    own = {
        "NAME": "of a study, or all",
        "--out DIR": "folder for answers, pictures and tables, a folder each; models are kept in its folder runs",
        "--quick": "on Scenes, with small models of one seed: a look in less than two minutes, not an answer",
    }
    return config_parser("vit study", what, own, SECTIONS | {"study": StudyConfig})


def run(argv: Sequence[str]) -> int:
    """Make the studies, each written down as soon as it is made."""
    argv = list(argv)
    (outs,), rest = take_options(argv, "--out")
    quick = "--quick" in rest
    rest = [argument for argument in rest if argument != "--quick"]
    if {"-h", "--help"} & set(rest):
        study_parser().print_help()
        return 0
    known = ", ".join(STUDIES)
    if not rest or rest[0].startswith("-"):
        raise ConfigError(f"vit study: name a study first: all, {known}")
    name, *settings = rest
    if name != "all" and name not in STUDIES:
        raise ConfigError(f"vit study: {one_line(name)!r} is none; there is all, {known}")
    if not outs or not outs[-1]:
        raise ConfigError("--out: name a folder for the answers")
    out = Path(outs[-1])
    require_folder(out)
    names = list(STUDIES) if name == "all" else [name]
    plans = {one: study_plan(one, quick, settings) for one in names}

    from vit.studies.conduct import conduct

    for number, (one, plan) in enumerate(plans.items()):
        if number:
            print()
        print(f"{one}: {STUDIES[one]}", flush=True)
        command = shlex.join(["vit", "study", *(one if argument == name else argument for argument in argv)])
        finding = conduct(one, plan, out, command)
        print(f"\n{finding.answer}\n\nIn {out / one}: answer.md, {', '.join(f'{key}.png' for key in finding.pictures)}")
    return 0


def study_plan(name: str, quick: bool = False, settings: Sequence[str] = ()) -> Plan:
    """What `vit study NAME` would be made with.

    Args:
        name: of a study; its configuration in configs/studies/ comes after base.yaml.
        quick: with quick.yaml after both.
        settings: as on the command line; they come last, and win.

    Raises:
        ConfigError: a setting that cannot be used, or the configurations are not there.
    """
    if not BASE.exists():
        raise ConfigError(
            f"vit study: {BASE} is missing; it is in the repository, install from there (pip install -e .)"
        )
    files = [BASE, CONFIGS / f"{name}.yaml", *([QUICK] if quick else [])]
    argv = [*(f"--config={path}" for path in files), *settings]
    sections = parse_sections(study_parser(), argv, SECTIONS | {"study": StudyConfig})
    study = sections.pop("study")
    config = Config(**sections)
    if OBJECTIVES[config.train.objective].labels:
        raise ConfigError("train.objective: studies look at masked autoencoders; leave it out")
    if config.model.init:
        raise ConfigError("model.init: studies compare with the random weights that they begin with; leave it out")
    return Plan(config, tuple(study.seeds), study.images)
