"""A tiny model, trained once for all tests of studies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vit.config import AugmentConfig, Config, DataConfig, ModelConfig, OptimConfig, RunConfig, TrainConfig
from vit.studies.kinds import Kinds, parts_of_scenes
from vit.studies.laboratory import Laboratory, Learned
from vit.studies.plan import Plan

TINY = Plan(
    Config(
        data=DataConfig(source="scenes", limit=256),
        augment=AugmentConfig(crop_scale=(0.5, 1.0)),
        model=ModelConfig(
            preset="micro", embed_dim=96, depth=2, num_heads=3, decoder_dim=32, decoder_depth=1, decoder_heads=2
        ),
        optim=OptimConfig(blr=3e-3, warmup_epochs=0.5),
        train=TrainConfig(epochs=2, batch_size=64, precision="fp32"),
        run=RunConfig(threads=1),
    ),
    seeds=(0, 1),
    images=48,
)


@pytest.fixture(scope="session")
def laboratory(tmp_path_factory) -> Laboratory:
    """Whose models all tests of studies share."""
    return Laboratory(tmp_path_factory.mktemp("studies") / "runs", tell=lambda line: None)


@pytest.fixture
def plan() -> Plan:
    """Two seeds of a model that trains in a second."""
    return TINY


@pytest.fixture
def one_seed(plan) -> Plan:
    """The same with one."""
    return replace(plan, seeds=(0,))


@pytest.fixture
def learned(laboratory, plan) -> Learned:
    """The model of the first seed."""
    return laboratory.learn(plan.training, 0)


@pytest.fixture(scope="session")
def parts(laboratory) -> Kinds:
    """The parts of Scenes, as models are shown them."""
    return parts_of_scenes(TINY.training.model, laboratory.data(TINY.training))


@pytest.fixture
def out(tmp_path) -> Path:
    """A folder for answers."""
    return tmp_path / "answers"
