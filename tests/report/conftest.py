"""Small runs as train.py leaves them, made in a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from vit.atomic import write_json
from vit.checkpoints import save_model
from vit.config import Config, DataConfig, ModelConfig, OptimConfig, ReconstructConfig, RunConfig, TrainConfig
from vit.data import Dataset, ImageSet
from vit.data.images import content_hash
from vit.figures import save_figure
from vit.interpret import DynamicsRecorder
from vit.report.pictures import draw_attention
from vit.report.summary import sample_images, summarize
from vit.runs import read_metrics
from vit.settings import to_yaml
from vit.training.callbacks import MetricsFile
from vit.training.loop import train_steps
from vit.training.run import setup
from vit.training.run_folder import RunFolder

MakeRun = Callable[..., Path]


def image_set(count: int, seed: int, names: Sequence[str]) -> ImageSet:
    images = torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(count) % len(names)
    return ImageSet(images, labels, tuple(names), content_hash(images, labels))


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
            data=DataConfig(source="folder", root="my images", name=data), model=model,
            reconstruct=ReconstructConfig(norm_pix_loss=classify), optim=OptimConfig(blr=0.05, warmup_epochs=0),
            train=TrainConfig(objective=task, epochs=2, batch_size=8, precision="fp32"),
            run=RunConfig(
                snapshots=snapshots, dynamics_every=dynamics_every, device="cpu", log_every=1, test_flip=classify
            ),
        )  # fmt: skip
        images = Dataset(data, "folder", image_set(24, 0, names), image_set(12, 1, names), warning, held_out)
        place, run = RunFolder(folder), setup(config, images)
        folder.mkdir(parents=True)
        place.config.write_text(f"# a comment\n{to_yaml(config)}", encoding="utf-8")
        sample_images(images).save(place.showcase)

        def save(where: Path, dtype: torch.dtype) -> None:
            save_model(
                where, run.result, run.normalize, names, data, data_content_hash=images.content_hash, dtype=dtype
            )

        run.callbacks = [MetricsFile(place.metrics, run)]
        if dynamics_every:
            run.callbacks.append(DynamicsRecorder(run.model, dynamics_every, run.total_steps, place.dynamics))
        for step in train_steps(run):
            if snapshots and step.step in (1, 3, 6)[-snapshots:]:
                save(place.snapshots / f"step-{step.step:08d}", torch.float16)
            if not finished and step.step == 3:
                break
        run.save(place.checkpoints)
        run.callbacks[0].close()
        if finished:
            save(folder, torch.float32)
            measured = run.objective.measure(run)
            write_json(place.summary, summarize(run, read_metrics(place.metrics), measured))
            draw_attention(run, place)
            for stem, figure in run.objective.figures(run, measured).items():
                if not classify:
                    save_figure(figure, folder / f"{stem}.png")
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
