"""A whole run: set up, train, finish.

The run folder (runs/<config>, or --out) receives config.yaml, metrics.jsonl, checkpoints/, model.safetensors, config.json,
attention.png, curves.png, the objective's pictures, summary.json and report.html (all of it on one page);
run.dynamics_every adds dynamics.jsonl and dynamics.png.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vit import openmp
from vit.atomic import write_json, write_text
from vit.config import Config, ConfigError, flat_settings
from vit.data import DataError, Dataset, load_data
from vit.data.folder import refuse_run_among_images
from vit.errors import one_line
from vit.interpret.dynamics import DynamicsRecorder
from vit.metrics import aligned, summary_lines
from vit.report.summary import sample_images, summarize
from vit.runs import CONTENTS, read_metrics
from vit.settings import (
    TrainCommand,
    build_sections,
    config_of_run,
    read_config,
    refuse_conflicts,
    to_yaml,
    train_command,
)
from vit.training.callbacks import Callback, MetricsFile, Progress, Snapshots, Validation
from vit.training.distributed import Distributed, init_distributed
from vit.training.initial import follow_checkpoint
from vit.training.loop import train_and_save
from vit.training.process import StopRequests, keep_freed_memory
from vit.training.run import Run, find_state, setup
from vit.training.run_folder import RunFolder
from vit.training.trackers import TRACKERS


def fit(
    config: Config | str | Path,
    out: str | Path | None = None,
    dataset: Any = None,
    test_dataset: Any = None,
    callbacks: Sequence[Callback] = (),
    *,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> Run:
    """Train, evaluate and save a model, as `vit train` does.

    Args:
        config: all settings, or the path or name of a settings file (as in `--config`).
        out: the run folder; by default runs/ and the name of the settings file.
        dataset: map-style training data that replaces `data.source`; see `vit.data.map_style.load_datasets`.
        test_dataset: data to evaluate on; without it, some images of `dataset` are held out.
        callbacks: added to the run's own; the main process calls them.
        settings: by "section.key"; they override those in the file.
        resume: continue the run in `out` from its last saved state; pass the same datasets, if any.

    Returns:
        The finished run: `result` is the model, `summary` the measurements, `folder` the run folder.

    Raises:
        UserError: settings, data or folder cannot be used; the message is one line.
        Stopped: a signal ended the run (a KeyboardInterrupt); its state is saved, and `resume` continues it.
    """
    return run_command(read_command(config, out, settings or {}, resume), dataset, test_dataset, callbacks)


def run_command(
    command: TrainCommand, dataset: Any = None, test_dataset: Any = None, callbacks: Sequence[Callback] = ()
) -> Run:
    """Carry out a parsed command line; see `fit`."""
    keep_freed_memory()
    with RunFolder(command.out) as folder, StopRequests() as stop:
        with init_distributed(command.config) as dist:
            # Set up
            run = set_up(command, folder, dist, stop, dataset, test_dataset, callbacks)

            # Train: a signal ends the run after the step under way, with its state saved
            stop.hold(True)
            train_and_save(run, folder.checkpoints, lambda: stop.agree(dist))
            stop.hold(False)

        # Finish
        if dist.is_main:
            finish(run, folder)
    return run


def read_command(
    config: Config | str | Path, out: str | Path | None, settings: Mapping[str, Any], resume: bool
) -> TrainCommand:
    """Turn the arguments of `fit` into a parsed command line.

    Raises:
        ConfigError: the settings cannot be used.
    """
    if not isinstance(config, Config):
        return train_command([str(config)], settings, out, resume)
    if out is None or settings:
        argument = "settings" if settings else "out"
        raise ConfigError(f"{argument}: a Config holds all settings and needs a folder: fit(config, out)")
    out = Path(os.path.expanduser(out))

    # the settings that differ from their defaults count as given; their types are checked as a file's are
    defaults = flat_settings(Config().to_dict())
    given = {key: value for key, value in flat_settings(config.to_dict()).items() if value != defaults[key]}
    build_sections([], given)

    # what followed from model.init when the run began
    if resume:
        saved = read_config(config_of_run(out))
        follows = {key: value for key, value in vars(saved.model).items() if f"model.{key}" not in given}
        config = replace(config, model=replace(config.model, **follows))
        refuse_conflicts(config, saved, out, config.train.epochs)
    return TrainCommand(config, out, resume, given=frozenset(given))


def set_up(
    command: TrainCommand,
    folder: RunFolder,
    dist: Distributed,
    stop: StopRequests,
    dataset: Any,
    test_dataset: Any,
    callbacks: Sequence[Callback],
) -> Run:
    """Set up data, model, folder and callbacks. Only the main process touches the folder."""
    # everything that can fail, before the folder is touched
    config, notes = command.config, list(command.notes)
    if not command.resume:
        if dist.is_main:
            folder.refuse_if_taken()
            if config.data.source == "folder":
                refuse_run_among_images(folder.path, config.data.root)
        config, more = follow_checkpoint(config, command.given)
        notes += more
    taken = {Validation.name, DynamicsRecorder.name, *TRACKERS}
    for callback in callbacks:
        if type(callback).state_dict is not Callback.state_dict and not callback.name:
            raise ConfigError(f"callbacks: {type(callback).__name__} has a state_dict but no name; give it one")
        if callback.name in taken:
            what = f"{type(callback).__name__}'s name, {callback.name!r}, is another's"
            raise ConfigError(f"callbacks: {what}; give it one of its own")
        taken |= {callback.name} - {""}
    trackers = [TRACKERS[name]() for name in dict.fromkeys(config.run.track)] if dist.is_main else []
    with dist.main_process_first():
        data = load_data(config.data, config.model.image_size_2d, dataset, test_dataset)
    if (first := dist.broadcast_from_main(lambda: data.content_hash)) != data.content_hash:
        found = f"process {dist.rank} has other images than the first: {data.content_hash}, not {first}"
        raise DataError(f"{one_line(data.name)}: {found}; give every machine the same")
    if data.source != config.data.source:  # config.yaml names the images actually used
        config = replace(config, data=replace(config.data, source=data.source, fallback="stop"))
    if command.resume and dist.is_main:
        folder.begin(config_yaml=None)
    state = find_state(folder.checkpoints, config, data, dist) if command.resume else None
    if state is None and command.resume and dist.is_main:
        folder.refuse_if_trained()
    run = setup(config, data, dist, state)
    run.notes, run.folder = notes + run.notes, folder
    if not dist.is_main:
        return run
    if config.run.dynamics_every:
        run.add(DynamicsRecorder(run.model, config.run.dynamics_every, run.total_steps, folder.dynamics))
    run.add(*trackers, *callbacks)

    # the folder, and the callbacks that write to it
    settings = f"# trained on {one_line(data.description)}\n{to_yaml(config)}"
    if not command.resume:
        folder.begin(settings)
    elif state is None or read_config(folder.config).train.epochs != config.train.epochs:
        write_text(folder.config, settings)
    sample_images(data).save(folder.showcase)
    announce(run, folder)
    run.add(Progress(run), MetricsFile(folder.metrics, run), Validation(stop), Snapshots(folder.snapshots, run))
    return run


def announce(run: Run, folder: RunFolder) -> None:
    """Print the data, model, device and length of the run."""
    warn(run.data)
    parameters, (rows, columns) = sum(p.numel() for p in run.model.parameters()), run.config.model.grid_size
    patches = f"{rows * columns} patches ({rows} x {columns}) of {' x '.join(map(str, run.config.model.patch_size_2d))} pixels"
    print(f"data     {one_line(run.data.description)}")
    print(f"model    {parameters / 1e6:.2f}M parameters, {patches}; objective: {run.config.train.objective}")
    print(f"compute  {run.computed_on}")
    if run.compute.device.type == "cpu":
        print(f"threads  waiting: {openmp.setting()} (set it, or OMP_WAIT_POLICY, before the command)")
    print(f"run      {folder.path}, {run.total_steps:,} steps" + (f", from step {run.step:,}" if run.step else ""))
    for note in [*run.data.notes, *run.notes]:
        print(f"note     {one_line(note)}")


def finish(run: Run, folder: RunFolder) -> None:
    """Write the model, pictures, summary and report, and print a line about each."""
    from vit.report.page import write_report  # matplotlib, which no step needs
    from vit.report.pictures import draw_pictures

    run.save_model(folder.path)
    print("measuring the model ...", flush=True)
    with run.dist.others_ended():
        measured = run.objective.measure(run)
        draw_pictures(run, folder, measured)
    summary = run.summary = summarize(run, read_metrics(folder.metrics), measured)
    write_json(folder.summary, summary)  # after everything it sums up: a folder with a summary holds a finished run
    write_report(folder.path, folder.report)

    speed = f"{run.step:,} steps in {run.seconds:,.0f} s, {summary['images_per_second']:,.0f} images/s"
    print(f"\n{one_line(run.data.name)}: {speed}")
    print(f"measured on {len(run.data.test):,} {run.data.tested_on}:")
    files = (f"  {name:<20} {what}" for name, what in CONTENTS.items() if (folder.path / name).exists())
    for line in (*aligned(summary_lines(measured)), "", f"In {folder.path}:", *files):
        print(line, flush=True)
    run.objective.eval()


def warn(data: Dataset) -> None:
    """Warn on stderr if the data is not what was asked for."""
    if data.warning:
        bar = "!" * 100
        print(f"\n{bar}\n{textwrap.fill('WARNING: ' + data.warning, 100)}\n{bar}\n", file=sys.stderr, flush=True)
