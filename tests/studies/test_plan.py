"""What a study is to be made with."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest

from vit.config import AugmentConfig, Config, DataConfig, ModelConfig
from vit.studies.finding import StudyError
from vit.studies.plan import Plan, require_matrices


def test_the_same_trainings_on_scenes():
    config = Config(
        data=DataConfig(source="folder", root="photos", name="Mine", limit=300), augment=AugmentConfig(flip=0.0)
    )
    on_scenes = Plan(config, (0,), 10).on_scenes
    assert on_scenes.data == DataConfig(source="scenes", limit=300)
    assert replace(on_scenes, data=config.data) == config
    elsewhere = replace(config, data=replace(config.data, root="other photos"))
    assert Plan(elsewhere, (0,), 10).on_scenes == on_scenes  # so the same models are found
    assert Plan(on_scenes, (0,), 10).on_scenes is on_scenes


STUDIES = ("embedding-or-not", "identity-case", "fixed-or-learned", "is-it-similarity", "who-trains-them")


def plan_of(**settings) -> Plan:
    return Plan(Config(model=ModelConfig(**settings)), (0,), 10)


@pytest.mark.parametrize("name", STUDIES)
def test_studies_of_the_matrices_refuse_models_without_them_before_anything_else(name):
    study = import_module(f"vit.studies.{name.replace('-', '_')}").study
    with pytest.raises(StudyError, match=f"^{name}: with model.qkv identity there are no W_Q, W_K and W_V to look at"):
        study(None, plan_of(qkv="identity"))


def test_biases_are_asked_for_where_a_study_looks_at_them():
    require_matrices(plan_of(), "some-study", biases=True)
    require_matrices(plan_of(qkv_bias=False), "some-study")
    with pytest.raises(StudyError, match=r"^some-study: without model.qkv_bias there are no biases to look at"):
        require_matrices(plan_of(qkv_bias=False), "some-study", biases=True)
    study = import_module("vit.studies.who_trains_them").study
    with pytest.raises(StudyError, match=r"^who-trains-them: without model.qkv_bias"):
        study(None, plan_of(qkv_bias=False))
