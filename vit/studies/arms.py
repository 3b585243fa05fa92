"""Arms of an experiment: models that differ in one thing each, from the same seeds, on the same data, with the same budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from vit.attention import MultiHeadSelfAttention
from vit.data import Dataset
from vit.mae import MaskedAutoencoder
from vit.studies.finding import Seeds, StudyError, seeds
from vit.studies.laboratory import Laboratory, Learned, Scores
from vit.studies.plan import Plan
from vit.training.freeze import freeze


@dataclass(frozen=True)
class Arm:
    """What is different in a model.

    Attributes:
        name: of its runs: studies that name the same arm share its models.
        label: in tables and pictures.
        freeze: parts that do not learn, of encoder and decoder; see `vit.training.freeze`.
        settings: of the model that are others.
        start: changes the new model before its first step.
    """

    name: str
    label: str
    freeze: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    start: Callable[[MaskedAutoencoder], None] | None = None


@torch.no_grad()
def without_positions(model: MaskedAutoencoder) -> None:
    """Set the encoder's table of positions to zero."""
    model.encoder.pos_embed.zero_()


@torch.no_grad()
def without_any_positions(model: MaskedAutoencoder) -> None:
    """Set both tables of positions to zero: nothing says then where a patch lies."""
    model.encoder.pos_embed.zero_()
    model.decoder.pos_embed.zero_()


@torch.no_grad()
def without_queries(model: MaskedAutoencoder) -> None:
    """Set W_Q and its bias to zero everywhere: q = 0, so all logits are 0, and every token gets the same share."""
    for module in model.modules():
        if isinstance(module, MultiHeadSelfAttention) and module.qkv is not None:
            for parameter in module.qkv.parameters():
                parameter.chunk(3)[0].zero_()


NO_TABLE = {"pos_embed": "learned"}  # a table that starts as zeros, and is frozen

AS_IT_IS = Arm("as it is", "all learn")
W_E_FROZEN = Arm("W_E frozen", "W_E frozen", ("patch_embed",))
POSITIONS_LEARNED = Arm("positions learned", "positions learned", (), {"pos_embed": "learned"})
ENCODER_WITHOUT_POSITIONS = Arm(
    "no positions in the encoder", "no positions in the encoder", ("encoder.pos_embed",), NO_TABLE, without_positions
)
NO_POSITIONS = Arm("no positions", "no positions at all", ("encoder.pos_embed",), NO_TABLE, without_any_positions)
W_Q_FROZEN = Arm("W_Q frozen", "W_Q frozen", ("W_Q",))
W_K_FROZEN = Arm("W_K frozen", "W_K frozen", ("W_K",))
W_V_FROZEN = Arm("W_V frozen", "W_V frozen", ("W_V",))
W_O_FROZEN = Arm("W_O frozen", "W_O frozen", ("W_O",))
MLP_FROZEN = Arm("MLP frozen", "MLP frozen", ("mlp",))
QUERIES_AND_KEYS_FROZEN = Arm("W_Q and W_K frozen", "W_Q and W_K frozen", ("W_Q", "W_K"))
THREE_FROZEN = Arm("W_Q W_K and W_V frozen", "all three frozen", ("W_Q", "W_K", "W_V"))
IDENTITY = Arm("identity", "Q = K = V = X", (), {"qkv": "identity"})
UNIFORM = Arm("uniform attention", "uniform attention", ("W_Q", "W_K"), {}, without_queries)


def learn_arm(laboratory: Laboratory, plan: Plan, arm: Arm) -> list[Learned]:
    """The models of an arm, one a seed."""
    model = plan.training.model
    config = replace(plan.training, model=replace(model, freeze=[*model.freeze, *arm.freeze], **arm.settings))
    return [laboratory.learn(config, seed, arm.name, arm.start) for seed in plan.seeds]


def numbers_that_learn(learned: Learned) -> int:
    """How many of a model's numbers its training changed: all, but for what was fixed or frozen."""
    model = deepcopy(learned.initial)
    rows = freeze(model, learned.config.model.freeze)
    learning = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return learning - sum(row.numel() for row in rows)


def require_labels(laboratory: Laboratory, plan: Plan, name: str) -> Dataset:
    """The images of a plan, which study `name` measures features by.

    Raises:
        StudyError: they have no labels, which neighbours and probe need.
    """
    data = laboratory.data(plan.training)
    if not (data.train.labelled and data.test.labelled):
        raise StudyError(f"{name}: {data.name} has no labels to measure features by; take images with classes")
    return data


def measures_of(scores: Sequence[Scores]) -> dict[str, Seeds]:
    """Return the scores of several seeds by measure: "loss", "neighbours", "linear"."""
    return {
        key: seeds([getattr(one, key) for one in scores], share=key != "loss")
        for key in ("loss", "neighbours", "linear")
    }


def difference(found: Seeds, other: Seeds) -> Seeds:
    """By how much a measure is above another, seed by seed: what both share falls out (masks, order, and where they
    have the same tensors, first weights).

    Shares of one differ by points (hundredths).
    """
    unit = 100 if found.share else 1
    return seeds([unit * (one - two) for one, two in zip(found.values, other.values, strict=True)])


def stands_out(difference: Seeds) -> bool:
    """Whether a difference is more than twice its spread (standard deviation) over the seeds; of a single seed, never."""
    return difference.spread is not None and abs(difference.mean) > 2 * difference.spread


def compared(difference: Seeds, less: str, more: str, unit: str = "") -> str:
    """A difference in words: "0.02 ± 0.01 higher", or "not clearly lower or higher (+0.01 ± 0.03)"; of one seed, it says so.

    Args:
        difference: of one measure from another.
        less, more: what it is when it is below or above zero.
        unit: after the figure.
    """
    if difference.spread is not None and not stands_out(difference):
        return f"not clearly {less} or {more} ({signed(difference)}{unit})"
    size = replace(difference, values=tuple(value * (-1 if difference.mean < 0 else 1) for value in difference.values))
    one = " (of one seed)" if difference.spread is None else ""
    return f"{size}{unit} {less if difference.mean < 0 else more}{one}"


def signed(difference: Seeds) -> str:
    """A difference with its sign, also where that is a plus."""
    return f"{'+' * (difference.mean > 0)}{difference}"


def extremes(differences: Mapping[str, Seeds], best: int, unit: str = "") -> str:
    """What costs most, little and nothing, in words: "most is lost with A (+0.5 ± 0.1), nothing clear with B or C".

    Args:
        differences: by arm, from where all learn.
        best: 1 where more is better, -1 where less is.
        unit: after the figure of what costs most.
    """
    worst_first = sorted(differences, key=lambda label: best * differences[label].mean)
    told = {label: f"{label} ({signed(found)}{unit})" for label, found in differences.items()}
    worst, least = worst_first[0], worst_first[-1]
    if differences[worst].spread is None:
        if best * differences[worst].mean >= 0:
            return "nothing is lost with any of them, of one seed"
        return f"most is lost with {told[worst]}, least with {told[least]}, of one seed"
    costs = {label: -best * differences[label].mean for label in worst_first if stands_out(differences[label])}
    most = next(iter(costs.values()), 0.0)
    if most <= 0:
        return "nothing clear is lost with any of them"
    worst = next(iter(costs))
    small = [label for label in costs if abs(costs[label]) < most / 10]
    unclear = [label for label in differences if label not in costs]
    parts = [f"most is lost with {told[worst]}"]
    if small:
        parts.append(f"little with {_some([f'{label} ({signed(differences[label])})' for label in small])}")
    if unclear:
        parts.append(f"nothing clear with {_some(unclear)}")
    return ", ".join(parts)


def _some(names: Sequence[str], most: int = 4) -> str:
    """ "A, B or C"; of more than `most`, how many others there are."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} others"
    return " or ".join([part for part in (", ".join(names[:-1]), names[-1]) if part])
