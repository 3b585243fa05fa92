"""`python -m studies`: list the studies, or read the options and run one or all."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from studies import OF_TRAININGS, SEEDS, STUDIES, StudyConfig
from vit.commandline import (
    OneLineParser,
    Parser,
    Place,
    given_settings,
    require_folder,
    start,
    typed,
)
from vit.config import OBJECTIVES, Config, NonNegative, read_settings
from vit.errors import ConfigError, one_line

PROGRAM = "python -m studies"
CONFIGS = Path(__file__).resolve().parent / "configs"
TRAINING_SECTIONS = ("train", "optim", "augment", "reconstruct", "classify")
"""Of the settings: only a training reads them."""
WHAT = "Answer a question by experiment: train the models it needs and look inside them."
SETTINGS = (
    "Every setting of train.py can be given too: --SECTION.FIELD VALUE, --data NAME, --config FILE"
    " (python train.py --help). They override those of studies/configs/. After a stop, the same"
    " command continues from the last checkpoint. --debug shows where an error arose."
)


def named(text: str) -> str:
    """Return a name; an empty one would train models instead."""
    if not text:
        raise argparse.ArgumentTypeError("'' cannot be used; name a model")
    return text


def study_parser() -> argparse.ArgumentParser:
    """Return the parser of the options that follow a study's name."""
    usage = f"{PROGRAM} NAME [options]; NAME is all, or one of {', '.join(STUDIES)}"
    whole_number = typed(NonNegative)
    parser = OneLineParser(
        prog=PROGRAM, usage=usage, description=WHAT, epilog=SETTINGS, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--out",
        type=typed(Place),
        default=Path("runs/studies"),
        metavar="FOLDER",
        help="a subfolder for each study's results, one for the models",
    )
    add(
        "--quick",
        action="store_true",
        help="small models on Scenes with one seed: a preview in two minutes, no answer",
    )
    add(
        "--seeds",
        nargs="+",
        type=whole_number,
        metavar="N",
        help="a model is trained for each; 0 1 2, for world 10 to 14, with --quick the first",
    )
    add(
        "--images",
        type=whole_number,
        metavar="N",
        help="test images to look at; 1000, with --quick 200",
    )
    add(
        "--checkpoint",
        type=named,
        metavar="MODEL",
        help="look at this model instead of training some",
    )
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the studies, and write the results of each as soon as it ends."""
    if not argv:
        print(f"{PROGRAM} NAME answers one of these; --help lists the options")
        for name, question in STUDIES.items():
            print(f"  {name:22} {question}")
        return 0

    # The options, all checked before the first study begins
    name, *words = argv
    if name in ("-h", "--help"):
        words = [name]
    options, settings = study_parser().parse_known_args(words)
    if name not in ("all", *STUDIES):
        raise ConfigError(
            f"{one_line(name)!r} is not a study; name one first: all, {', '.join(STUDIES)}"
        )
    names = [name]
    if name == "all":
        names = list(STUDIES)
    if name == "all" and options.checkpoint:
        names = [study for study in STUDIES if study not in OF_TRAININGS]
        reason = "as they compare training runs and a checkpoint is only one"
        print(f"left out, {reason}: {', '.join(OF_TRAININGS)}")
    require_folder(options.out)
    configs = {study: study_settings(study, options, settings) for study in names}

    # Import torch, which reads the environment that `start` has set
    from studies.experiment import Experiment
    from studies.running import run_study

    # One study after another
    out = options.out
    for study, (config, study_config) in configs.items():
        print(f"{study}: {STUDIES[study]}", flush=True)
        command = shlex.join(["python", "-m", "studies", study, *words])
        reading = run_study(study, Experiment(config, study_config, out / "runs"), out, command)
        print(f"\n{reading}\n\nIn {out / study}: tables.md and its figures, results.json\n")
    return 0


def study_settings(
    name: str, options: argparse.Namespace, settings: Sequence[str] = ()
) -> tuple[Config, StudyConfig]:
    """Return the settings of a study's trainings, and what it looks at.

    Args:
        name: of the study.
        options: from `study_parser`.
        settings: words that override base.yaml and, where asked for, quick.yaml.

    Raises:
        ConfigError: a setting or option cannot be used.
    """
    # What the trainings have in common
    files = [str(CONFIGS / "base.yaml")]
    if options.quick:
        files.append(str(CONFIGS / "quick.yaml"))
    words = Parser(PROGRAM).read(settings)
    config = Config.from_settings(read_settings(*files, *words.config), given_settings(words))
    if OBJECTIVES[config.train.objective].labels:
        raise ConfigError("train.objective: studies need masked autoencoders; leave it out")
    if config.model.qkv != "linear" or not config.model.qkv_bias:
        raise ConfigError(
            "model.qkv, model.qkv_bias: studies need W_Q, W_K, W_V and their biases; leave them out"
        )
    if config.model.init:
        raise ConfigError(
            "model.init: studies compare with their random initial weights; leave it out"
        )

    # What is looked at
    seeds = options.seeds
    if not seeds:
        usual = SEEDS.get(name, StudyConfig.seeds)
        seeds = list(usual[:1] if options.quick else usual)
    images = options.images
    if images is None:
        images = 200 if options.quick else 1000
    if len(set(seeds)) != len(seeds):
        raise ConfigError("--seeds: a seed is given twice; name each once")
    if images < 1:
        raise ConfigError("--images: 0 cannot be used; 1 or more")

    # A checkpoint has its own architecture, and is no comparison of trainings
    given = [word.removeprefix("--").partition("=")[0] for word in settings]
    if "train.seed" in given:
        raise ConfigError("train.seed: a model is trained for each of --seeds; use that")
    if options.checkpoint:
        for key in given:
            if key.startswith("model."):
                raise ConfigError(f"{key}: the checkpoint has its own; leave it out")
            if key.partition(".")[0] in TRAINING_SECTIONS:
                raise ConfigError(f"{key}: a checkpoint is not trained; leave it out")
        if options.seeds and len(options.seeds) > 1:
            raise ConfigError("--seeds: a checkpoint is one model; name one seed")
        if name in OF_TRAININGS:
            problem = f"{name} compares training runs, and a checkpoint is only one"
            raise ConfigError(f"--checkpoint: {problem}; leave it out")
    return config, StudyConfig(seeds, images, options.checkpoint or "", options.quick)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    return start(PROGRAM, run, words)


if __name__ == "__main__":
    sys.exit(main())
