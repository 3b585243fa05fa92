"""The learner's questions, answered by measuring: `vit study NAME`. A study's module is imported when it runs.

To add one, write a module whose docstring says how to read its results and whose `study(experiment)` returns them, and enter it
in `STUDIES`. Its own settings go into configs/studies/NAME.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vit.config import ConfigError, NonNegative, Positive, Section

STUDIES = {
    "embedding-or-not": "Are W_Q and W_K the embedding?",
    "static-and-contextual": "Is the vector of a patch the same in every picture?",
    "identity-case": "What is attention without the three matrices?",
    "who-trains-them": "Who trains W_Q, W_K, W_V and the embedding?",
    "fixed-or-learned": "Is the embedding fixed or learned, and what is lost when a part does not learn?",
    "tyres-and-roads": "Does attention make tyres similar to roads?",
    "is-it-similarity": "Does q . k measure similarity?",
    "attention-or-cause": "Do the patches and heads matter that get much attention?",
    "one-hot": "Is a patch embedding a table, as of words?",
}
"""Each study and its question. Its module has the same name, with underscores."""
OF_TRAININGS = ("who-trains-them", "fixed-or-learned", "identity-case")
"""Studies that compare trainings, and so have nothing to ask of a checkpoint."""


@dataclass(frozen=True)
class StudyConfig(Section, section="study"):
    """What a study looks at."""

    seeds: list[NonNegative] = field(default_factory=lambda: [0, 1, 2])
    """one model is trained per seed; tables give the mean and the spread over them"""
    images: Positive = 1000
    """test images to look at, where all of them would take too long"""
    checkpoint: str = ""
    """look at this model, anything that `vit.checkpoints.load_model` reads, instead of training some; empty: train"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"study.seeds: {self.seeds!r} cannot be used; one or more different numbers")
