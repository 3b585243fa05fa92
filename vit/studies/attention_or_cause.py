"""Are strongly attended patches and heads the ones that matter? Attention against what changes when they are taken away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vit.data.augment import to_float
from vit.data.draws import make_generator
from vit.evaluate.reconstruction import fixed_mask, grid_distances
from vit.figures.attention import attention_figure
from vit.figures.measures import Panel, arms_figure, scatter_figure
from vit.interpret.causes import ATTENTION, GRADIENT, REMOVALS, attended_patches, removal_effects
from vit.interpret.correlation import correlation, partial_correlation, ranks, top_overlap
from vit.interpret.heads import HEAD_MEASURES, head_measures
from vit.interpret.measures import head_ablation
from vit.mae import MaskedAutoencoder, masked_patch_loss
from vit.masking import Mask, num_keep
from vit.studies.finding import Cell, Finding, Seeds, StudyError, Table, brief, seeds
from vit.studies.laboratory import Laboratory, Learned
from vit.studies.plan import Plan

if TYPE_CHECKING:
    from vit.figures.style import Figure

NEARNESS = "nearness"
PER_IMAGE = 4  # hidden patches of an image that are asked about
TOP = 3
LITTLE = 0.1  # a rank correlation, below which there is hardly one
BATCH = 64  # images at a time


@dataclass(frozen=True)
class Asked:
    """Hidden patches, n in all, and what each of the K visible patches of their images is to them.

    Attributes:
        image, hidden: (n,), numbers of the image, of those that are looked at, and of the hidden patch.
        visible: (n, K), numbers of the visible patches.
        guesses: by name, (n, K): how much each is attended to, or how near it is.
        left_out: (n, K), mean squared change of what is filled in when it is hidden as well.
        averaged: likewise, when the mean of the visible patches stands in its place.
        error: (n, K), growth of the squared error when it is hidden as well.
    """

    image: Tensor
    hidden: Tensor
    visible: Tensor
    guesses: dict[str, Tensor]
    left_out: Tensor
    averaged: Tensor
    error: Tensor

    @classmethod
    def of(cls, batches: Sequence[dict[str, Tensor]]) -> Asked:
        """Batches (B, J, ...) of what stands in the attributes, and of guesses by their names, put together."""
        whole = {name: torch.cat([batch[name].flatten(0, 1) for batch in batches]).cpu() for name in batches[0]}
        known = {one.name: whole.pop(one.name) for one in fields(cls) if one.name in whole}
        return cls(guesses=whole, **known)


def study(laboratory: Laboratory, plan: Plan) -> Finding:
    """See the module.

    Raises:
        StudyError: the mask leaves too few patches to be ranked.
    """
    rows, columns = plan.training.model.grid_size
    visible = num_keep(rows * columns, plan.training.mask.ratio)
    if visible < 2 * TOP:
        raise StudyError(f"attention-or-cause: {visible} visible patches are too few to rank; lower mask.ratio")
    models = [laboratory.learn(plan.training, seed) for seed in plan.seeds]
    images = min(max(plan.images // 2, 2), len(models[0].data.test))
    asked = [ask(one, one.model, images) for one in models]
    scores = [scored(one) for one in asked]
    random = [scored(ask(one, one.initial, images)) for one in models]
    heads = [weigh(one, one.model, images) for one in models]
    random_heads = [weigh(one, one.initial, images) for one in models]
    data, chance = models[0].data.name, TOP / visible
    pictures = {
        "example": _example_figure(models[0], asked[0], images),
        "patches": _patches_figure(scores, random, chance, data),
        "heads": _heads_figure(models, heads, data),
    }
    captions = {
        "example": "What the decoder attends to from a hidden patch, beside what changes there when a visible patch is missing",
        "patches": "How well attention, rollout, gradients and nearness rank the visible patches by what they do",
        "heads": "What the attention of a head is like, against what is lost without it",
    }
    tables = [_patches_table(scores, random, chance), _heads_table(models, heads, random_heads)]
    encoders = [one[: _encoder_heads(model)] for model, one in zip(models, heads, strict=True)]
    sharp, free = seeds([head_correlations(one)[0] for one in encoders]), sum(len(one) - 1 for one in encoders)
    noise = free**-0.5 if free else math.inf  # of one head there is no correlation
    return Finding(_answer(scores, random, sharp, noise), LIMITS, tables, pictures, captions)


# --- patches ------------------------------------------------------------------------------------------------------------


def ask(learned: Learned, model: MaskedAutoencoder, images: int) -> Asked:
    """Ask about some hidden patches of each of some test images.

    Args:
        learned: the study's model, for its data and mask.
        model: its own, before or after training.
        images: how many.
    """
    return Asked.of([_ask(model, *batch, number) for number, batch in enumerate(_batches(learned, images))])


def _ask(model: MaskedAutoencoder, inputs: Tensor, mask: Mask, number: int) -> dict[str, Tensor]:
    """What is asked about one batch, the one of this number; by name, (B, J) or (B, J, K) each."""
    drawn = mask.mask.cpu() * torch.rand(
        mask.mask.shape, generator=make_generator(0, "asked", number)
    )  # 0 where it is visible
    hidden = drawn.topk(min(PER_IMAGE, int(mask.mask[0].sum()))).indices.to(inputs.device)  # (B, J)
    every = torch.arange(len(inputs), device=inputs.device)[:, None]
    left_out, averaged = (removal_effects(model, inputs, mask, how) for how in REMOVALS)
    visible = mask.ids_keep[:, None].expand(-1, hidden.shape[1], -1)  # (B, J, K)
    distance = grid_distances(model.encoder.patch_embed.grid_size, inputs.device)[hidden[:, :, None], visible]
    return {
        "image": (number * BATCH + every).expand_as(hidden),
        "hidden": hidden,
        "visible": visible,
        "left_out": left_out.change[every, hidden],
        "averaged": averaged.change[every, hidden],
        "error": left_out.error[every, hidden],
        NEARNESS: -distance,
        **attended_patches(model, inputs, mask, hidden),
    }


def _batches(learned: Learned, images: int) -> list[tuple[Tensor, Mask]]:
    """Some test images, ready for the model, each with the mask of its number among them."""
    config, batches = learned.config, learned.sample(images).split(BATCH)
    masks = (
        fixed_mask(config.mask.kind, number * BATCH, len(batch), config.model.grid_size, config.mask.ratio)
        for number, batch in enumerate(batches)
    )
    return [
        (learned.prepare(batch), mask.to(learned.compute.device)) for batch, mask in zip(batches, masks, strict=True)
    ]


def scored(asked: Asked) -> dict[str, Tensor]:
    """How well each guess ranks the visible patches, over all that was asked: (5,).

    Its rank correlation with the change when a patch is left out, the same with nearness held constant (nan of nearness
    itself), the overlap of the first `TOP`, and the rank correlations with the two other effects.
    """
    nearness = ranks(asked.guesses[NEARNESS])
    left_out, averaged, error = (ranks(of) for of in (asked.left_out, asked.averaged, asked.error))
    found = {}
    for name, guess in asked.guesses.items():
        guessed = ranks(guess)
        beyond = partial_correlation(guessed, left_out, nearness)
        if name == NEARNESS:
            beyond = torch.full_like(beyond, float("nan"))
        shared = top_overlap(guess, asked.left_out, TOP)
        of = (
            correlation(guessed, left_out),
            beyond,
            shared,
            correlation(guessed, averaged),
            correlation(guessed, error),
        )
        found[name] = torch.stack([one.double().mean() for one in of])
    return found


# --- heads --------------------------------------------------------------------------------------------------------------


def weigh(learned: Learned, model: MaskedAutoencoder, images: int) -> Tensor:
    """What the attention of each head is like, and what is lost without it: (heads, 5), those of the encoder first.

    In the order of `HEAD_MEASURES`; then the growth of the loss over hidden patches when the head is silenced.

    Args:
        learned: the study's model, for its data and mask.
        model: its own, before or after training.
        images: of the test set.
    """
    batches = _batches(learned, images)

    def loss() -> Tensor:
        losses = [len(x) * masked_patch_loss(model(x, mask), model.targets(x), mask.mask) for x, mask in batches]
        return torch.stack(losses).sum() / sum(len(x) for x, _ in batches)

    lost = head_ablation(model, loss)  # (layers, most heads)
    measures = head_measures(model, loss).cpu()
    return torch.cat([measures, lost[~lost.isnan()][:, None]], 1)


def _encoder_heads(learned: Learned) -> int:
    return sum(learned.model.encoder.attention(layer).num_heads for layer in range(len(learned.model.encoder.blocks)))


def head_correlations(measures: Tensor) -> list[float]:
    """The rank correlation over heads of each of `HEAD_MEASURES` with the loss, of (heads, 5)."""
    columns = ranks(measures.T)
    return correlation(columns[:-1], columns[-1]).tolist()


# --- in words and tables ------------------------------------------------------------------------------------------------

LIMITS = (
    "What is lost without a patch is how much a hidden patch changes, without a head how much the loss grows. A patch that is"
    " missing changes more than its own contribution: the encoder then sees fewer patches than it was used to, and others take"
    " its part over; two patches that say the same are each found to matter little. Attention of the decoder is attention to"
    " tokens, which have taken in other patches on their way through the encoder; the rollout follows that, in its way. The"
    " heads of a small model are few, and what is lost without one is measured with all others in place."
)


def _answer(
    scores: Sequence[dict[str, Tensor]], random: Sequence[dict[str, Tensor]], sharp: Seeds, noise: float
) -> str:
    """What came out, in words that follow the figures.

    Args:
        scores, random: what `scored` gives, once a seed, of trained models and before training.
        sharp: the rank correlation over heads of their sharpness and what is lost without them.
        noise: its standard deviation where there is no correlation.
    """

    def of(found: Sequence[dict[str, Tensor]], name: str, which: int) -> Seeds:
        return seeds([float(one[name][which]) for one in found])

    which = ((ATTENTION, 0), (NEARNESS, 0), (ATTENTION, 1))
    (attention, near, equal), untrained = ([of(found, *one) for one in which] for found in (scores, random))
    error, gradient = of(scores, ATTENTION, 4), of(scores, GRADIENT, 4)
    chance = ", ".join(str(brief(one)) for one in untrained)
    patches, heads = _verdict(attention, 2 * (attention.spread or 0)), _verdict(sharp, 2 * noise)
    return (
        f"Patches {patches}, heads of the encoder {heads}: how much a hidden patch changes when a visible one is left out goes"
        f" with the attention to it by a rank correlation of {brief(attention)}, with its nearness by {brief(near)}, and with"
        f" attention at equal nearness by {brief(equal)} (with random weights {chance})."
        f" How much worse it is then filled in goes with attention by {brief(error)}, with attention times its gradient by"
        f" {brief(gradient)}. How much the loss grows without a head of the encoder goes with the sharpness of its attention by"
        f" {brief(sharp)}."
    )


def _verdict(agrees: Seeds, noise: float) -> str:
    """How far a rank correlation says yes; `noise` and less says nothing clear, unless it stays small with that added."""
    size = abs(agrees.mean)
    if size <= noise and size + noise >= LITTLE:
        return "not clearly"
    if size < LITTLE:
        return "hardly"
    words = ((0.7, "mostly"), (0.3, "in part"), (LITTLE, "a little"))
    return next((word for least, word in words if agrees.mean >= least), "rather the opposite")


def _patches_table(scores: Sequence[dict[str, Tensor]], random: Sequence[dict[str, Tensor]], chance: float) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for before, found in (("", scores), ("random weights: ", random)):
        for name in found[0]:
            values = [[float(one[name][i]) for one in found] for i in range(5)]
            cells = [seeds(of, share=i == 2) for i, of in enumerate(values)]
            rows.append((before + name, *("" if name == NEARNESS and i == 1 else cell for i, cell in enumerate(cells))))
    columns = (
        "what ranks the visible patches", "left out", "left out, nearness held constant", f"first {TOP} shared",
        "mean patch in its place", "left out: growth of the error",
    )  # fmt: skip
    title = (
        "Rank correlation over the visible patches with what happens to a hidden patch when one is taken away"
        f" (first {TOP} shared by chance: {chance:.0%})"
    )
    return Table(title, columns, rows)


def _heads_table(models: Sequence[Learned], heads: Sequence[Tensor], random: Sequence[Tensor]) -> Table:
    groups = [
        [head_correlations(one) for one in heads],
        [head_correlations(one[: _encoder_heads(model)]) for model, one in zip(models, heads, strict=True)],
        [head_correlations(one) for one in random],
    ]
    rows: list[tuple[Cell, ...]] = [
        (name, *(seeds([one[i] for one in group]) for group in groups)) for i, name in enumerate(HEAD_MEASURES)
    ]
    columns = ("of a head's attention", f"all {len(heads[0])} heads", "those of the encoder", "all, random weights")
    return Table("Rank correlation over heads with the growth of the loss when a head is silenced", columns, rows)


# --- in pictures --------------------------------------------------------------------------------------------------------


def _example_figure(learned: Learned, asked: Asked, images: int) -> Figure:
    agrees = correlation(ranks(asked.guesses[ATTENTION]), ranks(asked.left_out))
    order = agrees.argsort().tolist()
    chosen = [order[round(share * (len(order) - 1))] for share in (0.9, 0.5, 0.1)]
    panels = {
        "attention": asked.guesses[ATTENTION],
        "left out": asked.left_out,
        "mean patch in its place": asked.averaged,
    }
    rows, columns = learned.config.model.grid_size
    maps = torch.full((len(chosen), len(panels), rows * columns), float("nan"))
    for number, one in enumerate(chosen):
        for panel, values in enumerate(panels.values()):
            maps[number, panel, asked.visible[one]] = ranks(values[one]) / (values.shape[1] - 1)
    shown = to_float(learned.sample(images)[asked.image[chosen]], learned.config.model.image_size_2d)
    about = (
        f"{learned.data.name}, seed {learned.config.train.seed} · attention: last decoder layer, mean of heads; then how much"
        " the outlined patch changes when each visible patch is left out, or the mean of them stands in its place; ranked from"
        " 0, the least, to 1, the most; r: rank correlation of the first two, in images at its 90th, 50th and 10th percentile"
    )
    return attention_figure(
        shown, maps.unflatten(2, (rows, columns)), list(panels),
        [f"r = {float(agrees[one]):+.2f}".replace("-", "−") for one in chosen],
        "What is attended to, and what matters", about,
        query=[divmod(int(asked.hidden[one]), columns) for one in chosen], unit="rank",
        mark="the hidden patch that is filled in",
    )  # fmt: skip


def _patches_figure(
    scores: Sequence[dict[str, Tensor]], random: Sequence[dict[str, Tensor]], chance: float, data: str
) -> Figure:
    arms = [(name, scores, name) for name in scores[0]] + [
        (f"random weights: {name}", random, name) for name in random[0]
    ]

    def values(which: int) -> list[list[float]]:
        found = [[float(one[name][which]) for one in of] for _, of, name in arms]
        return [[] if which == 1 and name == NEARNESS else one for (_, _, name), one in zip(arms, found, strict=True)]

    panels = [
        Panel("rank correlation", values(0), lines={"chance": 0.0}),
        Panel("nearness held constant", values(1), lines={"chance": 0.0}),
        Panel(f"first {TOP} shared", values(2), lines={"chance": chance}, share=True),
    ]
    about = (
        f"{data} · against the change of a hidden patch when a visible one is left out; a dot a seed; line: nearness"
    )
    return arms_figure([name for name, _, _ in arms], panels, "What tells which patches matter?", about)


def _heads_figure(models: Sequence[Learned], heads: Sequence[Tensor], data: str) -> Figure:
    groups: dict[str, list[Tensor]] = {"encoder": [], "decoder": []}
    for model, one in zip(models, heads, strict=True):
        for name, part in zip(groups, one.tensor_split([_encoder_heads(model)]), strict=True):
            groups[name].append(part)
    points = {name: torch.cat(parts).numpy() for name, parts in groups.items()}
    mean = torch.tensor([head_correlations(one) for one in heads]).mean(0).tolist()
    units = ("bits below even attention", "share of its attention", "mean over tokens", "length of the vector it adds")
    panels = [
        Panel(
            f"{name}: r = {mean[i]:+.2f}".replace("-", "−"),
            {group: (values[:, i], values[:, -1]) for group, values in points.items()},
            units[i],
        )
        for i, name in enumerate(HEAD_MEASURES)
    ]
    about = f"{data} · a point a head, of all seeds; r: rank correlation over all heads of a model, mean over seeds"
    return scatter_figure(panels, "growth of the loss without it (log)", "Which heads matter?", about, log=True)
