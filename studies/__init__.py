"""The learner's questions, answered by measuring: `python -m studies NAME`, from a clone.

To add one, write a module whose docstring says how to read its results and whose
`study(experiment)` returns them, and enter it in `STUDIES`. The answers are in docs/questions/,
their tables in studies/results/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STUDIES = {
    "world": "Does what occurs together become similar?",
    "embedding-or-not": "Are W_Q and W_K the embedding?",
    "one-hot": "Is a patch embedding a lookup table, like a word embedding?",
    "static-and-contextual": "Is the token of a patch the same in every image?",
    "identity-case": "What is attention without the three matrices?",
    "is-it-similarity": "Does q · k measure similarity?",
    "who-trains-them": "Who trains W_Q, W_K, W_V and the embedding?",
    "fixed-or-learned": (
        "Is the embedding fixed or learned, and what is lost when a part does not learn?"
    ),
    "tyres-and-roads": "Does attention make tyres similar to roads?",
    "attention-or-cause": (
        "Do patches that get a lot of attention matter more, and heads whose attention is sharp?"
    ),
}
"""Each study and its question. Its module has the same name, with underscores."""
OF_TRAININGS = ("world", "who-trains-them", "fixed-or-learned", "identity-case")
"""Studies that compare trainings, and so have nothing to ask of a checkpoint."""
SEEDS = {"world": (10, 11, 12, 13, 14)}
"""Seeds of a study where they are not the usual ones: those chose its recipe."""


@dataclass(frozen=True)
class StudyConfig:
    """What a study looks at.

    Attributes:
        seeds: one model is trained per seed; tables give the mean and the spread over them.
        images: test images to look at, where all of them would take too long.
        checkpoint: look at this model, anything that `vit.checkpoints.load_model` reads, instead of
            training some; empty: train.
        quick: whether it is only to show how it works, also where no other setting makes a
            training shorter.
    """

    seeds: Sequence[int] = (0, 1, 2)
    images: int = 1000
    checkpoint: str = ""
    quick: bool = False
