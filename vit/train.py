"""A whole run: set up, train, finish.

The run folder (runs/<config>, or --out) receives config.yaml, metrics.jsonl, data.json,
checkpoints/, model.safetensors, config.json and summary.json; run.dynamics_every adds
dynamics.jsonl, run.snapshots adds snapshots/. `vit train` adds the figures and report.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vit.atomic import write_json, write_text
from vit.config import Config, changed, user_path
from vit.data import Dataset
from vit.data.folder import refuse_run_among_images
from vit.data.sources import load_data
from vit.errors import ConfigError, DataError, one_line
from vit.evaluation import Options, evaluate
from vit.evaluation.classification import calibrate
from vit.isolation import isolated
from vit.machine import choose_device
from vit.mae import Model
from vit.progress import say
from vit.runs import (
    TrainCommand,
    __version__,
    config_of_run,
    read_mapping,
    read_metrics,
)
from vit.training import process
from vit.training.callbacks import (
    MetricsFile,
    Progress,
    Snapshots,
    Validation,
    announce,
    summarize,
)
from vit.training.distributed import Distributed, init_distributed
from vit.training.initial import follow
from vit.training.loop import train_and_save
from vit.training.objectives import Objective, register
from vit.training.run import Run, setup
from vit.training.run_folder import RunFolder, find_state, refuse_conflicts
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
    """Train, evaluate and save a model, as `vit train` does, but without figures and report.

    `vit.report.pictures.draw_pictures(run)` draws those; `vit report FOLDER` then makes the page.

    The process is left as it was, but for `keep_freed_memory`: random generators, threads, modes of
    torch, signal handlers. One of several processes loses the environment variables by which they
    met.

    Args:
        config: all settings: `Config.read("quickstart", {"train.epochs": 1})`.
        out: the run folder.
        train: map-style training data that replaces `data.source`; see
            `vit.data.map_style.load_datasets`.
        test: data to evaluate on; without it, some images of `train` are held out.
        callbacks: added to the run's own; the main process calls them.
        init: the model to begin with, from `vit.load_model` or another run; `model.init` becomes
            its source, and the architecture is its own, but for drop path and pooling.
        resume: continue the run in `out` from its last checkpoint; pass the same datasets and the
            same objective, if any.
        objective: a class of your own instead of `train.objective`, which becomes its name.
        keep_freed_memory: let the process keep the memory that a step frees, until it ends: on a
            CPU under Linux, steps are up to 1.3 times as fast.

    Returns:
        The finished run: `result` is the model, in eval mode, whose `origin` prepares images;
        `summary` the measurements, `folder` the run folder.

    Raises:
        UserError: settings, data or folder cannot be used; the message is one line.
        Stopped: a signal ended the run (a KeyboardInterrupt); a checkpoint is saved, and `resume`
            continues it.
    """
    # absolute, because the caller may change the current folder meanwhile, e.g. in a callback
    out = user_path(out).absolute()
    if objective is not None:
        config = changed(config, {"train.objective": register(objective)})
    if resume and config_of_run(out).model.init:
        # the architecture was the checkpoint's
        chosen = {key: getattr(config.model, key) for key in ("drop_path", "global_pool", "freeze")}
        config = changed(config, {"model": changed(config_of_run(out).model, chosen)})
    if init is not None:
        config = changed(config, {"model.init": init.origin.source})
    if keep_freed_memory:
        process.keep_freed_memory()
    command = TrainCommand(config, out, resume)
    with RunFolder(out) as folder, process.StopRequests() as stop:
        run = carry_out(command, folder, stop, train, test, callbacks, init)
        if run.dist.is_main:
            write_json(folder.summary, run.summary)
    return run


def carry_out(
    command: TrainCommand,
    folder: RunFolder,
    stop: process.StopRequests,
    train: Any = None,
    test: Any = None,
    callbacks: Sequence[Callback] = (),
    init: Model | None = None,
) -> Run:
    """Carry out a parsed command line, up to the run's `summary`, which is not written yet.

    `folder` and `stop` are entered; train, test, callbacks and init are those of `fit`.
    """
    with init_distributed(command.config) as dist:
        # Set up
        run, all_callbacks = set_up(command, folder, dist, train, test, callbacks, init)

        # Train: a signal ends the run after the current step, with a checkpoint
        with stop.deferred():
            train_and_save(run, all_callbacks, folder.checkpoints, lambda: stop.agree(dist))

    # Finish: the other processes have ended
    run.result.origin = run.origin
    if dist.is_main:
        run.objective.eval()
        # perhaps an average, which is no part of the objective
        run.result.eval()
        with dist.using_all_cores():
            # after the last checkpoint, from which a finished run that is resumed does it again
            if "head" in run.objective.measures:
                calibrate(run.result.encoder, run.data, run.origin.inputs, run.compute)
            run.save_model(folder.path)
            say("measuring the model ...")
            scores = measure(run)
        run.summary = summarize(run, read_metrics(folder.metrics), scores)
    return run


def set_up(
    command: TrainCommand,
    folder: RunFolder,
    dist: Distributed,
    train: Any,
    test: Any,
    callbacks: Sequence[Callback],
    init: Model | None,
) -> tuple[Run, list[Callback]]:
    """Set up data, model, folder, and all callbacks of this process.

    Only the main process touches the folder, and only after all that can be refused.
    """
    # what can be refused before the data is loaded
    config = command.config
    choose_device(config.run.device)
    notes: list[str] = []
    if command.resume:
        before = config_of_run(folder.path).to_dict()
        requested = command.requested or config
        refuse_conflicts(requested, before, folder.path, config.train.epochs)
    elif dist.is_main:
        folder.refuse_if_taken()
        refuse_run_among_images(folder.path, user_path(config.data.root))
    if init is not None and not command.resume:
        config, notes = follow(config, command.named, init)
    recorders: list[Callback] = []
    if dist.is_main and config.run.track:
        # whose libraries few runs need
        from vit.training.trackers import TRACKERS

        # each once
        recorders += [TRACKERS[name]() for name in dict.fromkeys(config.run.track)]
    recorders += callbacks

    # its state would be lost, or taken for another callback's
    names = {"", MetricsFile.name, "dynamics"}
    for callback in recorders:
        has_state = type(callback).state_dict is not Callback.state_dict
        if has_state and callback.name in names:
            raise ConfigError(
                f"callbacks: {type(callback).__name__} has a state, and the name "
                f"{callback.name!r}; give it one of its own"
            )
        names.add(callback.name)

    # the data; config.yaml is to name the images actually used
    data = load_images(config, dist, train, test)
    if data.source != config.data.source:
        # Scenes drawn instead of missing images do not have their name
        kept = "" if data.source == "scenes" else config.data.name
        used = {"data.source": data.source, "data.name": kept, "data.fallback": "stop"}
        config = changed(config, used)
    if command.resume and data.source == "scenes":
        # of a run that began with other images than its settings name
        data = replace(data, warning=read_mapping(folder.data).get("warning"))

    # the run, at its first step or at its last checkpoint; the folder is locked before that is read
    state = None
    if command.resume:
        if dist.is_main:
            folder.begin(config_yaml=None)
        state = find_state(folder.checkpoints, config, data, dist)
        if state is None and dist.is_main:
            folder.refuse_if_trained()
    run = setup(config, data, dist, state, init)
    run.notes = notes + run.notes
    run.folder = folder
    if not dist.is_main:
        return run, []

    # callbacks that continue from the state; if one cannot, the folder is left unchanged
    if config.run.dynamics_every:
        from vit.training.dynamics import DynamicsRecorder

        recorders.insert(0, DynamicsRecorder(folder.dynamics, run))
    restore(recorders, run.callback_states)

    # the folder, and the callbacks that write to it at once; a longer run continues from before the
    # learning-rate decay of the shorter one
    settings = f"# trained on {one_line(data.description)}\n"
    settings += f"# written by version {__version__}\n{config.to_yaml()}"
    if not command.resume:
        folder.begin(settings)
    else:
        if config_of_run(folder.path).train.epochs != config.train.epochs:
            folder.forget_later_steps(run.step)
        write_text(folder.config, settings)
    metrics = MetricsFile(folder.metrics, run)
    write_json(folder.data, data.facts)
    announce(run, folder)
    # baselines stay as they are while a model learns
    validation = Validation(partial(measure, baselines=False))
    own = [Progress(run), metrics, validation, Snapshots(folder.snapshots, run)]
    return run, recorders + own


def load_images(config: Config, dist: Distributed, train: Any, test: Any) -> Dataset:
    """Load the images of a run, the same in every process."""
    with dist.main_process_first():
        data = load_data(config.data, config.model.image_size, train, test)

    images_hash = dist.broadcast_from_main(lambda: data.content_hash)
    if images_hash != data.content_hash:
        raise DataError(
            f"{data.name}: process {dist.rank} has other images than the first: "
            f"{data.content_hash}, not {images_hash}; give every machine the same"
        )
    if len(data.train) < 2:
        raise DataError(
            f"{data.name}: a run needs at least two training images; give a few hundred"
        )
    return data


def measure(run: Run, baselines: bool = True) -> dict[str, list[dict[str, Any]]]:
    """Measure `run.result` on `run.data.test` by the objective's methods; see `vit.metrics`.

    With `baselines`, also what the k-NN accuracy is compared with, which validation does not need.
    """
    # all others need labels
    methods = [
        method
        for method in run.objective.measures
        if method == "reconstruction" or run.data.has_classes
    ]

    # as in training, with the same mask ratio
    options = Options(
        masks=((run.config.mask.kind, run.config.mask.ratio),),
        baselines=baselines,
        knn_images=run.config.run.knn_images,
    )
    return evaluate(run.result, run.data, methods, run.compute, options).scores
