"""A tiny model, trained once for all tests of studies, and Scenes, drawn once."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch

from studies import StudyConfig, kinds
from studies.experiment import Experiment, Trained
from studies.kinds import Kinds, parts_of_scenes
from vit.config import (
    AugmentConfig,
    Config,
    DataConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
)
from vit.evaluation.probe import L2_GRID
from vit.scenes import draw_scenes

TINY = Config(
    data=DataConfig(source="scenes", limit=256),
    augment=AugmentConfig(crop_scale=(0.5, 1.0)),
    model=ModelConfig(
        preset="micro",
        embed_dim=96,
        depth=2,
        num_heads=3,
        decoder_dim=32,
        decoder_depth=1,
        decoder_heads=2,
    ),
    optim=OptimConfig(blr=3e-3, warmup_epochs=0.5),
    train=TrainConfig(epochs=2, batch_size=64, precision="fp32"),
    run=RunConfig(threads=1),
)


def silent(line: str) -> None:
    """Takes the place of print."""


@pytest.fixture(scope="session", autouse=True)
def _quick() -> Iterator[None]:
    """Draw a split's pictures once, and fit probes at one strength: at three they take most of the time."""
    draw = cache(lambda first, count, seed: draw_scenes(first + torch.arange(count), seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            kinds, "draw_scenes", lambda indices, seed: draw(int(indices[0]), len(indices), seed)
        )
        patch.setattr("studies.experiment.L2_GRID", L2_GRID[:1])
        yield


@pytest.fixture(scope="session")
def experiment(tmp_path_factory) -> Experiment:
    """Two seeds of a model that trains in a second; all tests of studies share its runs."""
    return Experiment(
        TINY, StudyConfig([0, 1], 48), tmp_path_factory.mktemp("studies") / "runs", silent
    )


@pytest.fixture(scope="session")
def one_seed(experiment) -> Experiment:
    """The same with one."""
    made = replace(experiment, study=StudyConfig([0], 48))
    made.used = experiment.used
    return made


@pytest.fixture
def trained(one_seed) -> Trained:
    """The model of the first seed."""
    return one_seed.models()[0]


@pytest.fixture(scope="session")
def parts(experiment) -> Kinds:
    """The parts of Scenes, as models are shown them."""
    return parts_of_scenes(TINY.model, experiment.data())
