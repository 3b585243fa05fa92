"""A whole run: set up, train, finish.

The run folder, runs/<config> or --out, gets config.yaml, metrics.jsonl, checkpoints/, model.safetensors and config.json,
attention.png, curves.png, the objective's pictures, summary.json, and report.html, a page with all of it; with
run.dynamics_every also dynamics.safetensors and dynamics.png.
"""

from __future__ import annotations

import os
import sys
import textwrap

from vit.atomic import write_json
from vit.cli.settings import TrainCommand, to_yaml
from vit.data import Dataset, load_data
from vit.errors import one_line
from vit.interpret import DynamicsRecorder
from vit.report.page import write_report
from vit.report.pictures import draw_pictures
from vit.report.samples import sample_images, save_samples
from vit.report.summary import summarize
from vit.runs import PICTURES, read_metrics, summary_lines
from vit.training.allocator import keep_freed_memory
from vit.training.callbacks import MetricsFile, Snapshots, TensorBoard, Validation, tensorboard_writer
from vit.training.distributed import init_distributed, launched
from vit.training.loop import train_steps
from vit.training.progress import Progress
from vit.training.run import Run, find_state, restore, setup
from vit.training.run_folder import RunFolder
from vit.training.stopping import Stopped, StopRequests


def train(command: TrainCommand) -> int:
    """Train as `command` says; the exit code is 0 when the run is finished."""
    folder = RunFolder(command.out)
    if not command.resume and not launched():
        folder.refuse_if_taken()
    keep_freed_memory()
    try:
        with StopRequests() as stop:
            with init_distributed(command.config) as dist:
                # Set up
                with dist.main_process_first():
                    data = load_data(command.config.data, command.config.model.image_size_2d)
                run = set_up(command, folder, data, dist)

                # Train: a signal ends the run after the step under way, with its state saved
                stop.hold(True)
                try:
                    for done in train_steps(run):
                        for callback in run.callbacks:
                            callback.on_step(run, done)
                        stopping = stop.agree(dist)
                        last = done.step == run.total_steps
                        if dist.is_main and (done.step % run.config.run.save_every == 0 or last or stopping):
                            done.check()
                            run.save(folder.checkpoints)
                        if stopping:
                            break
                finally:
                    for callback in run.callbacks:
                        callback.close()
                stop.hold(False)

            # Finish
            if dist.is_main:
                finish(run, folder)
    except Stopped as stopped:
        ways = f"continue with: python train.py --out {folder.path} --resume" if folder.begun else "nothing had begun"
        if os.environ.get("RANK", "0") == "0":
            print(f"stopped by {stopped}; {ways}", file=sys.stderr)
        return stopped.exit_code
    return 0
