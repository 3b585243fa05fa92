"""`train.py` and `vit train`: options, initial checkpoint, figures, report and exit code.

The run itself is `vit/train.py`.
"""

from __future__ import annotations

import shlex
import signal
import sys
import warnings
from argparse import Namespace
from contextlib import redirect_stdout
from typing import Any

from vit.atomic import write_json
from vit.checkpoints import load_model
from vit.cli.outputs import score_table
from vit.cli.parsers import command_of
from vit.config import OBJECTIVES
from vit.errors import Stopped, one_line, plural
from vit.mae import Model
from vit.progress import OptionalStream
from vit.report.page import write_report
from vit.report.pictures import draw_pictures
from vit.report.record import read_run
from vit.runs import CONTENTS, TrainCommand
from vit.train import carry_out
from vit.training.distributed import own_place
from vit.training.process import StopRequests, keep_freed_memory
from vit.training.run_folder import RunFolder, saved_states


def run(options: Namespace) -> int:
    """Read the settings, train, and return the exit code; after a signal, say how to continue."""
    command = command_of(options)
    if options.print_config:
        print(command.config.to_yaml(), end="")
        return 0

    # what can be refused before anything is loaded
    place = own_place()
    # several processes come one after another: the folder may be this run's already
    if place.world_size == 1 and not command.resume:
        RunFolder(command.out).refuse_if_taken()

    try:
        # a run that takes hours goes on when whoever read its output has gone
        with redirect_stdout(OptionalStream(sys.stdout)):
            train(command)
    except KeyboardInterrupt as interrupt:
        # Python's own interrupt comes from a second Ctrl-C
        stopped = Stopped(signal.SIGINT)
        if isinstance(interrupt, Stopped):
            stopped = interrupt
        advice = "nothing had started"
        if RunFolder(command.out).config.exists():
            out = shlex.quote(str(command.out))
            advice = f"continue with: {options.program} --out {out} --resume"
        # of several processes, the first speaks
        if place.is_main:
            print(f"stopped by {stopped}; {advice}", file=sys.stderr)
        return stopped.exit_code
    return 0


def train(command: TrainCommand) -> None:
    """Load the initial checkpoint, train, draw the figures and write the report."""
    keep_freed_memory()
    with RunFolder(command.out) as folder, StopRequests() as stop:
        # a resumed run continues from its own checkpoint, any other from the initial one
        init = None
        has_state = command.resume and saved_states(folder.checkpoints)
        if command.config.model.init and not has_state:
            init = load_initial(command)

        run = carry_out(command, folder, stop, init=init)
        if not run.dist.is_main:
            return

        # the summary comes after the figures: a folder with a summary is of a finished run
        with run.dist.using_all_cores():
            draw_pictures(run)
        write_json(folder.summary, run.summary)
        write_report(read_run(folder.path), folder.report)

        # what was measured, and where to look
        print(
            f"\n{one_line(run.data.name)}: {plural(run.step, 'step')} in {run.seconds:,.0f} s,"
            f" {run.summary['images_per_second']:,.0f} images/s\nmeasured on {run.data.tested}:"
        )
        print(score_table(run.summary["scores"]))
        print(f"\nIn {folder.path}:")
        for name, content in CONTENTS.items():
            if (folder.path / name).exists():
                print(f"  {name:<20} {content}")
        print(f"\nThe report: {one_line(str(folder.report))}", flush=True)


def load_initial(command: TrainCommand) -> Model:
    """Load the checkpoint that `model.init` names, at the size that the command line says."""
    config = command.config
    options: dict[str, Any] = {}
    for name in ("image_size", "patch_size", "num_heads"):
        # the settings of a run that goes on say all
        if command.resume or f"model.{name}" in command.named:
            options[name] = config.model.filled[name]
    if OBJECTIVES[config.train.objective].labels:
        options["part"] = "encoder"

    # that a decoder or head is new needs no warning in training
    with warnings.catch_warnings(action="ignore"):
        return load_model(config.model.init, **options)
