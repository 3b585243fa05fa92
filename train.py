"""Pretrain a vision transformer by masked patch reconstruction, or teach it to classify.

    python train.py                                            # configs/quickstart.yaml
    python train.py --config configs/cifar10_tiny_p4.yaml
    python train.py --config configs/folder.yaml --data.root my_images --out runs/mine
    python train.py --config configs/cifar10_tiny_p4.yaml --resume
    python train.py --config configs/finetune_cifar10_tiny_p4.yaml --model.init runs/cifar10_tiny_p4

The run folder, runs/<config> or --out, gets config.yaml, metrics.jsonl, checkpoints/, model.safetensors and config.json,
attention.png, curves.png, summary.json, and reconstructions.png, or confusion.png and reliability.png; with
train.dynamics_every also dynamics.safetensors and dynamics.png; and report.html, a page with all of it.
"""

from __future__ import annotations

import io
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from vit.cli.settings import TrainCommand, parse_train_command, to_yaml
from vit.errors import exit_code_of, one_line

if TYPE_CHECKING:
    from vit.data import Dataset
    from vit.training.processes import Processes
    from vit.training.run import TrainingRun
    from vit.training.run_folder import RunFolder
    from vit.training.stopping import StopRequests

QUICKSTART = Path(__file__).resolve().parent / "configs" / "quickstart.yaml"


def main() -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):  # lines also into a file or a pipe: a run is watched while it runs
        sys.stdout.reconfigure(line_buffering=True)
    command = parse_train_command(sys.argv[1:], QUICKSTART)

    from vit.training.allocator import keep_freed_memory
    from vit.training.processes import joined, launch
    from vit.training.run_folder import RunFolder
    from vit.training.stopping import Stopped, StopRequests

    settings = command.config.train
    folder = RunFolder(command.out)
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        if not command.resume:
            folder.refuse_if_taken()
        if settings.processes > 1:
            return launch(settings.processes, settings.threads)
    keep_freed_memory()
    try:
        with StopRequests() as stop:
            with joined(settings) as processes:
                run = prepare(command, folder, processes)
                train(run, folder, stop)
            if run.processes.first:
                finish(run, folder)
    except Stopped as stopped:
        ways = f"continue with: python train.py --out {folder.path} --resume" if folder.begun else "nothing had begun"
        if os.environ.get("RANK", "0") == "0":
            print(f"stopped by {stopped}; {ways}", file=sys.stderr)
        return stopped.exit_code
    return 0


def prepare(command: TrainCommand, folder: RunFolder, processes: Processes) -> TrainingRun:
    """Data, model and folder, ready for the next step. The folder is the first process's."""
    from vit.data import load_data
    from vit.interpret import DynamicsRecorder
    from vit.report.showcase import save_showcase, showcase_of
    from vit.training.metrics import tensorboard_writer
    from vit.training.run import begin_run

    config = command.config
    if config.train.tensorboard:
        tensorboard_writer()  # better missed now than after the data is loaded
    with processes.one_first():
        data = load_data(config.data, config.model.image_size_2d)
    config = config.with_source(data.source)
    if command.resume and processes.first:
        folder.begin(config_yaml=None)
    states = folder.checkpoints if command.resume else None
    run = begin_run(config, data, states, processes, DynamicsRecorder)
    if not processes.first:
        return run
    if not command.resume:  # only now that nothing can be wrong with it any more
        folder.begin(f"# trained on {one_line(data.description)}\n{to_yaml(config)}")
    save_showcase(showcase_of(data), folder.showcase)

    warn(data)
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    rows, columns = config.model.grid_size
    print(f"data     {one_line(data.description)}")
    what = f"{config.mask.ratio:.0%} hidden"
    if config.train.task == "classify":
        what = f"{len(data.train.class_names)} classes; from {one_line(config.model.init) or 'random weights'}"
    print(f"model    {parameters / 1e6:.2f}M parameters, {rows} x {columns} patches, {what}")
    print(f"compute  {run.compute}; {run.how}")
    print(f"run      {folder.path}, {run.total_steps:,} steps" + (f", from step {run.step:,}" if run.step else ""))
    for note in [*run.notes, *(f"unreadable, left out: {path}" for path in data.train.skipped + data.test.skipped)]:
        print(f"note     {one_line(note)}")
    return run


def train(run: TrainingRun, folder: RunFolder, stop: StopRequests) -> None:
    """All remaining steps; a signal ends them after the one under way, with its state saved."""
    from vit.report.summary import measure_held_out
    from vit.training.metrics import MetricsLog
    from vit.training.progress import Progress
    from vit.training.run_folder import held_out_steps, snapshot_steps

    settings, processes = run.config.train, run.processes
    stop.hold(True)
    if not processes.first:
        for _ in run.steps():
            if stop.agree(processes):
                break
        stop.hold(False)
        return
    kept = snapshot_steps(run.total_steps, settings.snapshots)
    tested = held_out_steps(run.total_steps, settings.epochs, settings.holdout_every)
    if run.step == 0 and 0 in kept:
        take_snapshot(run, folder)
    log = MetricsLog(folder.metrics, run.step, folder.tensorboard if settings.tensorboard else None)
    progress = Progress(run.total_steps, settings.epochs, run.step)
    images, since, began = 0, run.seconds, run.step
    try:
        for step in run.steps():
            last = step.step == run.total_steps
            progress.update(step)
            images += step.images
            if step.step % settings.log_every == 0 or step.step == 1 or last:
                log.write({**step.metrics, "images_per_second": images / (run.seconds - since)})
                images, since = 0, run.seconds
            if step.step == began + 1 and run.compute.compile:
                print(f"compiled and made the first step in {run.first_step_seconds:.0f} s", flush=True)
            if step.step in tested:
                log.write({"step": step.step, "epoch": step.epoch, **measure_held_out(run)})
            if step.step in kept:
                step.check()
                take_snapshot(run, folder)
            stopping = stop.agree(processes)
            if step.step % settings.save_every == 0 or last or stopping:
                step.check()
                log.sync()
                if run.watch is not None:
                    run.watch.write(folder.dynamics)
                run.save(folder.checkpoints)
            if stopping:
                break
    finally:
        progress.close()
        log.close()
    stop.hold(False)


def take_snapshot(run: TrainingRun, folder: RunFolder) -> None:
    """The weights as they are now, or their average as it is, for `vit attention --film` and `vit explore`."""
    import torch

    from vit.checkpoints import save_model

    data, place = run.data, folder.snapshots / f"step-{run.step:08d}"
    save_model(
        place, run.result, run.normalize, data.train.class_names, data.name, data_stamp=data.stamp, dtype=torch.float16
    )


def finish(run: TrainingRun, folder: RunFolder) -> None:
    """The model, the summary and the pictures, and a word on each."""
    from vit.atomic import write_json
    from vit.checkpoints import save_model
    from vit.report.page import write_report
    from vit.report.pictures import draw_attention, draw_classes, draw_curves, draw_dynamics, draw_reconstructions
    from vit.report.summary import measure_run, summarize
    from vit.runs import summary_text
    from vit.training.metrics import read_metrics

    save_model(
        folder.path, run.result, run.normalize, run.data.train.class_names, run.data.name, data_stamp=run.data.stamp
    )
    print("measuring what was learned ...", flush=True)
    metrics = read_metrics(folder.metrics)
    measured, logits = measure_run(run)
    if logits is not None:
        draw_classes(run, folder, logits)
        pictures = list(OF_CLASSES)
    else:
        draw_reconstructions(run, folder)
        pictures = list(OF_PATCHES)
    draw_attention(run, folder)
    draw_curves(run, folder, metrics, measured)
    if run.watch is not None:
        draw_dynamics(run, folder)
        pictures += OF_DYNAMICS
    summary = summarize(run, metrics, measured)
    write_json(folder.summary, summary)  # after all that it sums up: a folder with a summary holds a finished run
    write_report(folder.path, folder.report)

    warn(run.data)
    speed = f"{run.step:,} steps in {run.seconds:,.0f} s, {summary['images_per_second']:,.0f} images/s"
    print(f"\n{one_line(run.data.name)}: {speed}")
    print(f"measured on {len(run.data.test):,} {run.data.tested_on}:")
    for line in (*summary_text(measured), "", f"In {folder.path}:", REPORT, *pictures, *OF_ALL):
        print(line, flush=True)


REPORT = "  report.html          all of this on one page: open it first"
OF_PATCHES = ("  reconstructions.png  images, what the model sees of them, and how it fills in the rest",)
OF_CLASSES = (
    "  confusion.png        which classes it takes for which",
    "  reliability.png      how sure it is, and how often it is right",
)
OF_DYNAMICS = (
    "  dynamics.png         how strongly each matrix was trained and how far it moved; dynamics.safetensors: all",
)
OF_ALL = (
    "  attention.png        where the last layer's attention looks, head by head",
    "  curves.png           how the run went: what it measured, learning rate and gradient norm over the epochs",
    "  summary.json         these figures and what they came from",
    "  model.safetensors    the weights, with config.json: vit.checkpoints.load_model reads them",
)


def warn(data: Dataset) -> None:
    """Say, so that nobody overlooks it, that the data is not what was asked for."""
    if data.warning:
        bar = "!" * 100
        print(f"\n{bar}\n{textwrap.fill('WARNING: ' + data.warning, 100)}\n{bar}\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(exit_code_of("train.py", main))
