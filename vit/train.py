"""A whole run: set up, train, finish.

The run folder (runs/<config>, or --out) receives config.yaml, metrics.jsonl, checkpoints/,
showcase.safetensors, model.safetensors, config.json and summary.json; run.dynamics_every adds
dynamics.jsonl, run.snapshots adds snapshots/. `vit train` adds the pictures and report.html.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from vit.atomic import write_json, write_text
from vit.config import Config, ModelConfig, Tracker, changed
from vit.data import Dataset
from vit.data.folder import refuse_run_among_images
from vit.data.sources import load_data
from vit.errors import ConfigError, DataError, one_line, plural
from vit.isolation import isolated
from vit.machine import choose_device
from vit.mae import Model
from vit.progress import say
from vit.runs import (
    WRITTEN_BY,
    TrainCommand,
    __version__,
    config_of_run,
    read_metrics,
    read_sample_images,
)
from vit.training import process
from vit.training.callbacks import (
    MetricsFile,
    Progress,
    Snapshots,
    Validation,
    measure,
    sample_images,
    summarize,
)
from vit.training.distributed import Distributed, init_distributed
from vit.training.initial import follow, refuse_init
from vit.training.loop import train_and_save
from vit.training.objectives import Objective, register
from vit.training.process import StopRequests
from vit.training.run import Run, describe_compute, find_state, refuse_conflicts, setup
from vit.training.run_folder import RunFolder, refusing_other_states
from vit.training.step import Callback, restore


@isolated()
def fit(
    config: Config,
    out: str | Path,
    train: Any = None,
    test: Any = None,
    callbacks: Sequence[Callback] = (),
    *,
    init: Model | None = None,
    resume: bool = False,
    objective: type[Objective] | None = None,
    keep_freed_memory: bool = False,
) -> Run:
    """Train, evaluate and save a model, as `vit train` does, without its pictures and its report.

    `vit.report.pictures.draw_pictures(run, run.folder, run.summary["scores"])` draws those; `vit
    report FOLDER` then makes the page.

    The process is left as it was, but for `keep_freed_memory`: random generators, threads, modes of
    torch, signal handlers.

    Args:
        config: all settings: `Config.read("quickstart", {"train.epochs": 1})`.
        out: the run folder.
        train: map-style training data that replaces `data.source`; see
            `vit.data.map_style.load_datasets`.
        test: data to evaluate on; without it, some images of `train` are held out.
        callbacks: added to the run's own; the main process calls them.
        init: the model to begin with, from `vit.load_model` or another run; `model.init` becomes
            its source, and the architecture is its own, but for drop path and pooling.
        resume: continue the run in `out` from its last saved state; pass the same datasets and the
            same objective, if any.
        objective: a class of your own, in place of `train.objective`, which becomes its name.
        keep_freed_memory: let the process keep the memory that a step frees, until it ends: on a
            CPU under Linux, steps are up to 1.3 times as fast.

    Returns:
        The finished run: `result` is the model, in eval mode, whose `origin` prepares images;
        `summary` the measurements, `folder` the run folder.

    Raises:
        UserError: settings, data or folder cannot be used; the message is one line.
        Stopped: a signal ended the run (a KeyboardInterrupt); its state is saved, and `resume`
            continues it.
    """
    if objective is not None:
        config = changed(config, {"train.objective": register(objective)})
    command = read_command(config, out, resume)
    if init is not None:
        command = with_init(command, init)
    if keep_freed_memory:
        process.keep_freed_memory()
    # absolute, because the caller may change the current folder meanwhile, e.g. in a callback
    with RunFolder(command.out.absolute()) as folder, StopRequests() as stop:
        run = carry_out(command, folder, stop, train, test, callbacks, init)
        if run.dist.is_main:
            write_json(folder.summary, run.summary)
    return run


def carry_out(
    command: TrainCommand,
    folder: RunFolder,
    stop: StopRequests,
    train: Any = None,
    test: Any = None,
    callbacks: Sequence[Callback] = (),
    init: Model | None = None,
) -> Run:
    """Carry out a parsed command line, up to the run's `summary`, which is not written yet.

    Args:
        command: settings and options.
        folder: the run folder, entered.
        stop: receives the signals, entered.
        train, test, callbacks, init: as for `fit`.

    Returns:
        The trained run. Only the main process saves and measures the model.
    """
    with init_distributed(command.config) as dist:
        # Set up
        run, all_callbacks = set_up(command, folder, dist, train, test, callbacks, init)

        # Train: a signal ends the run after the step under way, with its state saved
        with stop.deferred():
            train_and_save(run, all_callbacks, folder.checkpoints, lambda: stop.agree(dist))

    # Finish: the other processes have ended
    run.result.origin = run.origin
    if dist.is_main:
        run.save_model(folder.path)
        say("measuring the model ...")
        with dist.others_ended():
            scores = measure(run)
        run.summary = summarize(run, read_metrics(folder.metrics), scores)
        run.objective.eval()
        if run.ema is not None:
            run.ema.finish(run.model)
    return run


# ---- From arguments to settings -----------------------------------------------------------------


def read_command(config: Config, out: str | Path, resume: bool) -> TrainCommand:
    """Turn the arguments of `fit` into a parsed command line.

    Raises:
        ConfigError: the settings cannot be used.
    """
    out = Path(os.path.expanduser(out))

    if resume:
        # what followed from model.init when the run began, and what has its default
        saved = config_of_run(out).model
        chosen = ("init", "drop_path", "global_pool", "freeze")
        default = ModelConfig()
        followed = {}
        for key, value in saved:
            is_the_checkpoints = saved.init and key not in chosen
            if is_the_checkpoints or getattr(config.model, key) == getattr(default, key):
                followed[f"model.{key}"] = value
        config = changed(config, followed)
    return TrainCommand(config, out, resume)


def with_init(command: TrainCommand, init: Model) -> TrainCommand:
    """Name the source of a loaded model in the settings.

    Raises:
        ConfigError: they name another checkpoint, or as `refuse_init`.
    """
    refuse_init(command.config, init)
    settings = command.config.model
    source = init.origin.source
    if settings.init and Path(settings.init) != Path(source):
        raise ConfigError(
            f"model.init: {settings.init} is not the loaded model's, {source}; "
            "leave one of them out"
        )
    if settings.init:
        return command
    return replace(command, config=changed(command.config, {"model.init": source}))


# ---- Set up -------------------------------------------------------------------------------------


def set_up(
    command: TrainCommand,
    folder: RunFolder,
    dist: Distributed,
    train: Any,
    test: Any,
    callbacks: Sequence[Callback],
    init: Model | None = None,
) -> tuple[Run, list[Callback]]:
    """Set up data, model, folder, and all callbacks of this process.

    Only the main process touches the folder, and only after all that can be refused.
    """
    # what can be refused before the data is loaded
    config = command.config
    if command.resume:
        before = config_of_run(folder.path).to_dict()
        requested = command.requested or config
        refuse_conflicts(requested, before, folder.path, config.train.epochs)
    choose_device(config.run.device)
    if not command.resume:
        if dist.is_main:
            folder.refuse_if_taken()
            if config.data.source == "folder":
                refuse_run_among_images(folder.path, config.data.root)
        refuse_init(config, init)
    refuse_names(callbacks)
    trackers: list[Callback] = []
    if dist.is_main and config.run.track:
        # whose libraries few runs need
        from vit.training.trackers import TRACKERS

        # each once
        for name in dict.fromkeys(config.run.track):
            trackers.append(TRACKERS[name]())

    # the architecture of the loaded model, which a resumed run has in its settings already
    notes: list[str] = []
    if init is not None and not command.resume:
        config, notes = follow(config, command.named, init)

    # the data; config.yaml is to name the images actually used
    data = load_images(config, dist, train, test)
    if data.source != config.data.source:
        # Scenes in place of missing images do not have their name
        kept = "" if data.source == "scenes" else config.data.name
        used = {"data.source": data.source, "data.name": kept, "data.fallback": "stop"}
        config = changed(config, used)
    if command.resume and data.source == "scenes" and folder.showcase.exists():
        # of a run that began with other images than its settings meant
        data = replace(data, warning=read_sample_images(folder.showcase).data.get("warning"))

    # the run, at its first step or where its last state left it
    state = None
    if command.resume:
        with refusing_other_states():
            state = last_state(folder, config, data, dist)
            run = setup(config, data, dist, state, init)
    else:
        run = setup(config, data, dist, init=init)
    run.notes = notes + run.notes
    run.folder = folder
    if not dist.is_main:
        return run, []

    # callbacks that continue from the state; if one cannot, the folder stays as it is
    recorders: list[Callback] = []
    if config.run.dynamics_every:
        from vit.training.dynamics import DynamicsRecorder

        recorder = DynamicsRecorder(
            run.model, config.run.dynamics_every, run.total_steps, folder.dynamics
        )
        recorders.append(recorder)
    restore([*recorders, *trackers, *callbacks], run.callback_states)

    # the folder, and the callbacks that write to it at once
    metrics = open_folder(run, folder, command.resume, state)
    announce(run, folder)
    all_callbacks = [
        *recorders,
        *trackers,
        *callbacks,
        Progress(run),
        metrics,
        Validation(measure),
        Snapshots(folder.snapshots, run),
    ]
    return run, all_callbacks


def load_images(config: Config, dist: Distributed, train: Any, test: Any) -> Dataset:
    """Load the images of a run, the same in every process.

    Raises:
        DataError: they cannot be read, are too few, or differ between processes.
    """
    with dist.main_process_first():
        data = load_data(config.data, config.model.image_size, train, test)
    refuse_different_images(data, dist)
    refuse_too_few_images(data)
    return data


def last_state(
    folder: RunFolder, config: Config, data: Dataset, dist: Distributed
) -> dict[str, Any] | None:
    """Return the state that a resumed run goes on from; None if it was stopped before its first.

    Raises:
        RunError: the run is finished without a state, or as `find_state` raises.
    """
    # locked before its states are read
    if dist.is_main:
        folder.begin(config_yaml=None)
    state = find_state(folder.checkpoints, config, data, dist)
    if state is None and dist.is_main:
        folder.refuse_if_trained()
    return state


def open_folder(
    run: Run, folder: RunFolder, resume: bool, state: dict[str, Any] | None
) -> MetricsFile:
    """Write the settings of a run and its sample images; a resumed run forgets what it repeats.

    Args:
        run: at its first step, or where `state` left it.
        folder: the run folder, entered.
        resume: whether the folder holds this run already.
        state: from `last_state`.

    Returns:
        The file of metrics, at the run's step.
    """
    # without the last phase of a shorter run
    config = run.config
    if state is not None and state["config"]["train"]["epochs"] != config.train.epochs:
        folder.forget_later_steps(run.step)
    settings = (
        f"# trained on {one_line(run.data.description)}\n{WRITTEN_BY}{__version__}\n"
        f"{config.to_yaml()}"
    )
    if not resume:
        folder.begin(settings)
    metrics = MetricsFile(folder.metrics, run)
    if resume and (state is None or Config.read(folder.config).train.epochs != config.train.epochs):
        write_text(folder.config, settings)
    sample_images(run.data).save(folder.showcase)
    return metrics


def refuse_names(callbacks: Sequence[Callback]) -> None:
    """Refuse callbacks whose states could not be told apart.

    Raises:
        ConfigError: a callback with a state has no name, or another's.
    """
    names = {MetricsFile.name, "dynamics", *get_args(Tracker)}
    for callback in callbacks:
        kind = type(callback).__name__
        if not isinstance(callback, Callback):
            raise ConfigError(f"callbacks: a {kind} is no object of a subclass of vit.Callback")
        if type(callback).state_dict is not Callback.state_dict and not callback.name:
            raise ConfigError(f"callbacks: {kind} has a state_dict but no name; give it one")
        if callback.name in names:
            raise ConfigError(
                f"callbacks: {kind}'s name, {callback.name!r}, is another's; give it one of its own"
            )
        if callback.name:
            names.add(callback.name)


def refuse_different_images(data: Dataset, dist: Distributed) -> None:
    """Refuse to train in several processes that have loaded different images.

    Raises:
        DataError: this process's differ from the main one's.
    """
    images_hash = dist.broadcast_from_main(lambda: data.content_hash)
    if images_hash != data.content_hash:
        raise DataError(
            f"{one_line(data.name)}: process {dist.rank} has other images than the first: "
            f"{data.content_hash}, not {images_hash}; give every machine the same"
        )


def refuse_too_few_images(data: Dataset) -> None:
    """Refuse to train on a single image.

    Raises:
        DataError: there are not two.
    """
    count = len(data.train)
    if count < 2:
        images = plural(count, "training image")
        problem = f"{images}: there is nothing to learn from; give some hundred or more"
        raise DataError(f"{one_line(data.name)}: {problem}")


def announce(run: Run, folder: RunFolder) -> None:
    """Print the data, model, device and length of the run."""
    # a warning on stderr, then a line for each part of the run
    warn(run.data)
    say(f"data     {one_line(run.data.description)}")

    model = run.config.model
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    rows, columns = model.grid_size
    height, width = model.patch_size
    patches = f"{rows * columns} patches ({rows} x {columns}) of {height} x {width} pixels"
    objective = run.config.train.objective
    say(f"model    {parameters / 1e6:.2f}M parameters, {patches}; objective: {objective}")

    say(f"compute  {describe_compute(run)}")

    length = plural(run.total_steps, "step")
    if run.step:
        length += f", from step {run.step:,}"
    say(f"run      {folder.path}, {length}")
    for note in [*run.data.notes, *run.notes]:
        say(f"note     {one_line(note)}")


def warn(data: Dataset) -> None:
    """Warn on stderr if the data is not what the settings name."""
    if data.warning:
        bar = "!" * 100
        text = textwrap.fill(f"WARNING: {data.warning}", 100)
        print(f"\n{bar}\n{text}\n{bar}\n", file=sys.stderr, flush=True)
