"""Small runs as train.py leaves them, made in a second."""

from collections.abc import Sequence
from pathlib import Path

import torch
from tiny import RECONSTRUCT, image_set, noise, without_layout

from vit.atomic import write_json
from vit.config import AugmentConfig, OptimConfig, changed
from vit.data import Dataset
from vit.report.pictures import draw_pictures
from vit.runs import read_metrics
from vit.train import measure
from vit.training.callbacks import MetricsFile, save_samples, summarize
from vit.training.dynamics import DynamicsRecorder
from vit.training.loop import save as save_state
from vit.training.loop import train_steps
from vit.training.run import setup
from vit.training.run_folder import RunFolder


def make_run(
    folder: Path,
    task: str = "reconstruct",
    names: Sequence[str] = ("cat", "dog", "ship"),
    data: str = "Noise",
    warning: str | None = None,
    snapshots: int = 3,
    finished: bool = True,
    dynamics_every: int = 0,
    held_out: bool = False,
    pictures: bool = False,
) -> Path:
    """Make a run of 6 steps, or of 3 of them, in a folder."""
    classify = task == "classify"
    config = changed(
        RECONSTRUCT,
        {
            "augment": AugmentConfig(),
            "optim": OptimConfig(blr=0.05, warmup_epochs=0),
            "data.source": "folder",
            "data.root": "my images",
            "data.name": data,
            "model.pos_embed": "learned",
            "reconstruct.norm_pix_loss": classify,
            "train.objective": task,
            "run.snapshots": snapshots,
            "run.dynamics_every": dynamics_every,
        },
    )
    parts = (image_set(noise(count, seed), tuple(names)) for seed, count in enumerate((24, 12)))
    images = Dataset(data, "folder", *parts, warning, held_out)
    place, run = RunFolder(folder), setup(config, images)
    folder.mkdir(parents=True)
    place.config.write_text(f"# a comment\n{config.to_yaml()}", encoding="utf-8")
    save_samples(images, place.showcase)

    callbacks = [MetricsFile(place.metrics, run)]
    if dynamics_every:
        callbacks.append(
            DynamicsRecorder(run.model, dynamics_every, run.total_steps, place.dynamics)
        )
    for step in train_steps(run, callbacks):
        if snapshots and step.step in (1, 3, 6)[-snapshots:]:
            run.save_model(place.snapshots / f"step-{step.step:08d}", torch.float16)
        if not finished and step.step == 3:
            break
    save_state(run, callbacks, place.checkpoints)
    callbacks[0].close()
    if finished:
        run.result.origin = run.origin
        run.save_model(folder)
        measured = measure(run)
        summary = summarize(run, read_metrics(place.metrics), measured)
        write_json(place.summary, summary)
        if pictures:
            with without_layout():
                draw_pictures(run, place, measured)
    return folder
