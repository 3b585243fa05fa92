"""`train.py` and `vit train`: the options, the checkpoint to begin with, the pictures, the report and the exit code.

The run itself is `vit/train.py`.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vit.atomic import write_json
from vit.cli.startup import start
from vit.errors import one_line
from vit.metrics import aligned, summary_lines
from vit.pretrained import located
from vit.runs import CONTENTS
from vit.settings import TrainCommand, parse_train_command, train_parser
from vit.training.run_folder import RunFolder

if TYPE_CHECKING:
    from vit.mae import Model
    from vit.training.run import Run

command_parser = train_parser
BEST_SHIPPED = "vit-tiny-p4-cifar10"
"""The model of `vit models` whose features classify best by nearest neighbours."""


def main() -> int:
    """The program train.py."""
    return start("train.py", lambda: run(sys.argv[1:], "python train.py"))


def run(argv: Sequence[str], program: str = "vit train") -> int:
    """Read the settings, and train."""
    command = parse_train_command(argv, program=program)
    if (
        not command.resume and "TORCHELASTIC_RUN_ID" not in os.environ
    ):  # torchrun's processes start one after another
        RunFolder(command.out).refuse_if_taken()
    if command.config.model.init and not command.resume:
        located(command.config.model.init)

    from vit.training.process import (  # imports torch; wrong settings are refused before
        Stopped,
        ignoring_signals,
    )

    try:
        train(command)
    except Stopped as stopped:
        with ignoring_signals():
            begun = RunFolder(command.out).begun
            out = shlex.quote(str(command.out))
            ways = (
                f"continue with: {command.program} --out {out} --resume"
                if begun
                else "nothing had started"
            )
            if os.environ.get("RANK", "0") == "0":
                print(f"stopped by {stopped}; {ways}", file=sys.stderr)
            return stopped.exit_code
    return 0


def train(command: TrainCommand) -> None:
    """Load what the run begins with, train, and draw the pictures and the page; a signal raises `Stopped`."""
    from vit import train as training
    from vit.training.process import StopRequests

    with RunFolder(command.out) as folder, StopRequests() as stop:
        command, init = load_init(command, folder)
        run = training.train(command, folder, stop, init=init)
        if not run.dist.is_main:
            return

        from vit.report.baselines import measure_baselines
        from vit.report.page import write_report  # matplotlib, which no step needs
        from vit.report.pictures import draw_pictures

        # the summary comes after the pictures: a folder with a summary holds a finished run
        with run.dist.others_ended():
            shipped = shipped_baseline(run)
            run.summary["baselines"] = measure_baselines(run, shipped)
            draw_pictures(run, folder, run.summary)
        write_json(folder.summary, run.summary)
        write_report(folder.path, folder.report)
        print_summary(run)
        print(f"\nIn {folder.path}:")
        for name, content in CONTENTS.items():
            if (folder.path / name).exists():
                print(f"  {name:<20} {content}", flush=True)


def shipped_baseline(run: Run) -> Model | None:
    """Load the model of the package that the run's features are compared with; None if it has seen such images."""
    from vit.checkpoints import load_model
    from vit.report.baselines import OWN_IMAGES

    # Nor is it worth loading where nearest neighbours cannot be measured, or where the run began with it
    if run.data.source not in OWN_IMAGES or "knn" not in run.objective.measures:
        return None
    if not run.data.train.labelled or run.config.model.init == BEST_SHIPPED:
        return None
    return load_model(BEST_SHIPPED, part="encoder")


def print_summary(run: Run) -> None:
    """Print what was measured at the end."""
    speed = f"{run.step:,} steps in {run.seconds:,.0f} s, {run.summary['images_per_second']:,.0f} images/s"
    print(f"\n{one_line(run.data.name)}: {speed}")
    print(f"measured on {len(run.data.test):,} {run.data.tested_on}:")
    for line in aligned(summary_lines(run.summary)):
        print(line)


def load_init(command: TrainCommand, folder: RunFolder) -> tuple[TrainCommand, Model | None]:
    """Load the checkpoint that the run begins with, if it is still to begin; the settings follow its architecture."""
    from vit.checkpoints.initial import load_initial
    from vit.training.state import saved_states

    if not command.config.model.init or (command.resume and saved_states(folder.checkpoints)):
        return command, None
    given = None if command.resume else command.given
    config, init, notes = load_initial(command.config, given)
    return replace(command, config=config, notes=(*command.notes, *notes)), init
