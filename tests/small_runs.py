"""Small runs, which `fit` makes in a second."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tiny import RECONSTRUCT, image_set, noise, without_layout

from vit import fit
from vit.config import AugmentConfig, OptimConfig, changed
from vit.data import Dataset
from vit.report.pictures import draw_pictures


def make_run(
    folder: Path,
    task: str = "reconstruct",
    names: Sequence[str] = ("cat", "dog", "ship"),
    data: str = "Noise",
    warning: str | None = None,
    dynamics_every: int = 0,
    held_out: bool = False,
    pictures: bool = False,
) -> Path:
    """Train for 6 steps in a folder, on images of noise."""
    config = changed(
        RECONSTRUCT,
        {
            "augment": AugmentConfig(),
            "optim": OptimConfig(blr=0.05, warmup_epochs=0),
            "data.source": "folder",
            "data.root": "my images",
            "data.name": data,
            "model.pos_embed": "learned",
            "reconstruct.norm_pix_loss": task == "classify",
            "train.objective": task,
            "run.snapshots": 3,
            "run.dynamics_every": dynamics_every,
        },
    )
    parts = (image_set(noise(count, seed), tuple(names)) for seed, count in enumerate((24, 12)))
    tested_on = "held-out training images" if held_out else "test images"
    images = Dataset(data, "folder", *parts, warning, tested_on)
    with pytest.MonkeyPatch.context() as patch, without_layout():
        patch.setattr("vit.train.load_data", lambda *_: images)
        run = fit(config, folder)
        if pictures:
            draw_pictures(run)
    return folder
