"""What a study is to be made with. Light: nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from vit.config import Config, ConfigError, DataConfig
from vit.studies.finding import StudyError


@dataclass(frozen=True)
class StudyConfig:
    """What a study looks at."""

    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """one model for each is trained: of several, the mean and the spread"""
    images: int = 1000
    """test images that are looked at, where looking at all of them would take long"""

    def __post_init__(self) -> None:
        whole = all(isinstance(seed, int) and 0 <= seed < 2**64 for seed in self.seeds)
        if not self.seeds or not whole or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"study.seeds: {self.seeds!r} cannot be used; different numbers from 0, one at least")
        if self.images < 1:
            raise ConfigError(f"study.images: {self.images!r} cannot be used; 1 or more")


@dataclass(frozen=True)
class Plan:
    """What a study is to be made with.

    Attributes:
        training: of the models that it trains, but for the seed.
        seeds, images: see `StudyConfig`.
    """

    training: Config
    seeds: tuple[int, ...]
    images: int

    @property
    def on_scenes(self) -> Config:
        """The same trainings on Scenes, of which it is known what every pixel shows; `training` where they are so already."""
        if self.training.data.source == "scenes":
            return self.training
        data = replace(self.training.data, source="scenes", root=DataConfig.root, name="", cache=DataConfig.cache)
        return replace(self.training, data=data)


def require_matrices(plan: Plan, name: str, biases: bool = False) -> None:
    """Refuse models that have no W_Q, W_K and W_V for study `name` to look at.

    Args:
        plan: of the study.
        name: of the study.
        biases: whether it looks at theirs as well.

    Raises:
        StudyError: the settings take them away.
    """
    model = plan.training.model
    if model.qkv != "linear":
        raise StudyError(f"{name}: with model.qkv {model.qkv} there are no W_Q, W_K and W_V to look at; leave it out")
    if biases and not model.qkv_bias:
        raise StudyError(f"{name}: without model.qkv_bias there are no biases to look at; leave it out")
