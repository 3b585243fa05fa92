"""What a study is to be made with."""

from __future__ import annotations

from dataclasses import replace

from vit.config import Config, DataConfig
from vit.studies.plan import Plan


def test_the_same_trainings_on_scenes():
    config = Config(data=DataConfig(source="folder", root="photos", name="Mine", limit=300, flip=0.0))
    on_scenes = Plan(config, (0,), 10).on_scenes
    assert on_scenes.data == DataConfig(source="scenes", limit=300, flip=0.0)
    assert replace(on_scenes, data=config.data) == config
    elsewhere = replace(config, data=replace(config.data, root="other photos"))
    assert Plan(elsewhere, (0,), 10).on_scenes == on_scenes  # so the same models are found
    assert Plan(on_scenes, (0,), 10).on_scenes is on_scenes
