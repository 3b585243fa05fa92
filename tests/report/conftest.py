"""Small runs as train.py leaves them, made in a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from vit.training.metrics import MetricsLog, read_metrics

from vit.atomic import write_json
from vit.checkpoints import save_model
from vit.cli.settings import to_yaml
from vit.config import ClassifyConfig, Config, DataConfig, MaskConfig, ModelConfig, OptimConfig, TrainConfig
from vit.data import Dataset, ImageSet
from vit.data.images import content_stamp
from vit.interpret import DynamicsRecorder
from vit.report.pictures import draw_attention, draw_reconstructions
from vit.report.showcase import save_showcase, showcase_of
from vit.report.summary import measure_run, summarize
from vit.training.run import begin_run
from vit.training.run_folder import RunFolder

MakeRun = Callable[..., Path]


def image_set(count: int, seed: int, names: Sequence[str]) -> ImageSet:
    images = torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(count) % len(names)
    return ImageSet(images, labels, tuple(names), content_stamp(images, labels))


@pytest.fixture(scope="session")
def make_run() -> MakeRun:
    """Makes a run of 6 steps, or of 3 of them, in a folder."""

    def make(
        folder: Path,
        task: str = "reconstruct",
        names: Sequence[str] = ("cat", "dog", "ship"),
        data: str = "Noise",
        warning: str | None = None,
        snapshots: int = 3,
        finished: bool = True,
        class_token: bool = True,
        dynamics_every: int = 0,
        held_out: bool = False,
    ) -> Path:
        model = ModelConfig(
            image_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, decoder_dim=16, decoder_depth=1,
            decoder_heads=2, class_token=class_token, pos_embed="learned",
        )  # fmt: skip
        classify = task == "classify"
        config = Config(
            DataConfig(source="folder", root="my images", name=data), model, MaskConfig(norm_pix_loss=classify),
            OptimConfig(blr=0.05, warmup_epochs=0),
            TrainConfig(
                task=task, epochs=2, batch_size=8, precision="fp32", snapshots=snapshots, dynamics_every=dynamics_every,
                device="cpu",
            ),
        )  # fmt: skip
        if classify:
            config = replace(config, classify=ClassifyConfig(test_flip=True))
        images = Dataset(data, "folder", image_set(24, 0, names), image_set(12, 1, names), warning, held_out)
        place, run = RunFolder(folder), begin_run(config, images, make_watch=DynamicsRecorder)
        folder.mkdir(parents=True)
        place.config.write_text(f"# a comment\n{to_yaml(config)}", encoding="utf-8")
        save_showcase(showcase_of(images), place.showcase)

        def save(where: Path, dtype: torch.dtype) -> None:
            save_model(where, run.result, run.normalize, names, data, data_stamp=images.stamp, dtype=dtype)

        log = MetricsLog(place.metrics)
        for step in run.steps():
            log.write({**step.metrics, "images_per_second": 100.0})
            if snapshots and step.step in (1, 3, 6)[-snapshots:]:
                save(place.snapshots / f"step-{step.step:08d}", torch.float16)
            if not finished and step.step == 3:
                break
        log.close()
        run.save(place.checkpoints)
        if run.watch is not None:
            run.watch.write(place.dynamics)
        if finished:
            save(folder, torch.float32)
            measured = measure_run(run)[0]
            write_json(place.summary, summarize(run, read_metrics(place.metrics), measured))
            draw_attention(run, place)
            if not classify:
                draw_reconstructions(run, place)
        return folder

    return make


@pytest.fixture(scope="session")
def pretrained(make_run, tmp_path_factory) -> Path:
    """A finished pretraining with snapshots; not to be changed."""
    return make_run(tmp_path_factory.mktemp("runs") / "pretrained")


@pytest.fixture(scope="session")
def classifier(make_run, tmp_path_factory) -> Path:
    """A finished classification with snapshots; not to be changed."""
    return make_run(tmp_path_factory.mktemp("runs") / "classifier", "classify")
