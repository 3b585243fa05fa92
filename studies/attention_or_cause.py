"""Do patches that get a lot of attention matter more, and heads whose attention is sharp? Attention
against what changes when they are taken away.

A masked patch rests on a visible one if its prediction changes when that one is left out, or
replaced by the mean of the visible patches. The first table shows how well attention, rollout,
gradients and proximity rank the visible patches by this change: a rank correlation of 1 is the same
order, 0 is chance. Near patches are both attended to and similar, so the correlation with the rival
held constant shows what attention predicts beyond proximity, and what proximity predicts beyond
attention; random weights of two initialisations show what the architecture gives untrained. The
second table compares what a head's attention is like with how much the loss grows without the head.

*Limits.* Leaving a patch out removes more than its contribution: the encoder sees fewer patches
than it is used to, and others take over its part; two patches that show the same each seem to
matter little. The decoder attends to tokens, which have taken in other patches on their way through
the encoder; the rollout follows that, in its way. A small model has few heads, so their
correlations are uncertain (the title gives the spread by chance), and the loss without a head is
measured with all others in place.
"""

# python -m studies attention-or-cause
# Three models, 28 minutes on one thread. Expect: patches partly (a rank correlation of 0.60),
# heads not clearly.

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from studies.analysis.correlation import correlation, partial_correlation, ranks, top_overlap
from studies.experiment import NARROW, XAVIER, Experiment, Trained, trained_and_random
from studies.figures import Panel, arms_figure, scatter_figure
from studies.tables import Results, Seeds, Table, seeds
from vit.attention import MultiHeadSelfAttention
from vit.data.draws import make_generator
from vit.errors import AttentionError, RunError
from vit.evaluation.reconstruction import mean_visible
from vit.figures.attention import attention_figure
from vit.figures.style import Figure
from vit.inputs import to_float
from vit.interpret.capture import AttentionMaps
from vit.interpret.explanations import relevance
from vit.interpret.layers import Interception
from vit.interpret.measures import attention_entropy, attention_rollout, head_ablation
from vit.isolation import eval_mode
from vit.mae import MaskedAutoencoder, masked_patch_loss
from vit.masking import Mask, mask_from_noise, num_keep
from vit.patches import grid_distances, patchify, unpatchify

ATTENTION, GRADIENT = "attention, last decoder layer", "gradient × attention, decoder"
PROXIMITY = "proximity"
PER_IMAGE = 4
"""Masked patches of each image to measure."""
TOP = 3
BATCH = 64
"""Images at a time."""
HEAD_MEASURES = ("sharpness", "on other tokens", "strongest weight", "what it writes")


@dataclass(frozen=True)
class MaskedPatches:
    """n masked patches, and how much they rest on each of the K visible patches of their images.

    Attributes:
        image: (n,), index of the image.
        hidden: (n,), index of the masked patch.
        visible: (n, K), indices of the visible patches.
        guesses: by name, (n, K): how much each visible patch is attended to, or how near it is.
        left_out: (n, K), mean squared change of the prediction when the visible patch is
            masked too.
        averaged: (n, K), the change with the mean of the visible patches in the patch's place.
        error: (n, K), growth of the squared error when the visible patch is masked too.
    """

    image: Tensor
    hidden: Tensor
    visible: Tensor
    guesses: dict[str, Tensor]
    left_out: Tensor
    averaged: Tensor
    error: Tensor


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    rows, columns = experiment.config.model.grid_size
    visible = num_keep(rows * columns, experiment.config.mask.ratio)
    if visible < 2 * TOP:
        raise RunError(f"{visible} visible patches are too few to rank; lower mask.ratio")
    models = experiment.models()
    images = min(max(experiment.study.images // 2, 2), len(models[0].data.test))

    # Patches: what ranks them, and by model how well, (seeds, guesses, 5)
    example = measure_masked_patches(models[0], models[0].model, images)
    guesses = list(example.guesses)
    scores = trained_and_random(
        models,
        lambda trained, model: scored(measure_masked_patches(trained, model, images)),
    )
    chance = TOP / visible
    patches_rows: list[tuple[str | Seeds, ...]] = []
    for model, values in scores.items():
        prefix = "" if model == "trained" else f"{model}: "
        for guess, name in enumerate(guesses):
            cells = [seeds(values[:, guess, i], share=i == 2) for i in range(5)]
            patches_rows.append((prefix + name, *cells))
    patches_table = Table(
        "Rank correlation over the visible patches with what happens to a masked patch when one is"
        f" taken away (first {TOP} shared by chance: {chance:.0%}; the rival of proximity is"
        " attention, that of the others proximity)",
        (
            "what ranks the visible patches",
            "left out",
            "left out, rival held constant",
            f"first {TOP} shared",
            "mean patch in its place",
            "left out: growth of the error",
        ),
        patches_rows,
    )

    # Heads
    measured = trained_and_random(
        models, lambda trained, model: measure_heads(trained, model, images)
    )
    heads = measured["trained"]  # (seeds, heads, 5)
    encoder = models[0].model.encoder
    encoder_heads = 0
    for layer in range(len(encoder.blocks)):
        encoder_heads += encoder.attention(layer).num_heads
    groups = []
    by_group = (heads, heads[:, :encoder_heads], measured[XAVIER], measured[NARROW])
    for measures_of_seeds in by_group:
        groups.append(torch.stack([head_correlations(measures) for measures in measures_of_seeds]))

    # How far from 0 a correlation over so many heads lies by chance
    deviations = []
    for count in (heads.shape[1], encoder_heads):
        if count > 1:
            deviations.append(f"{(count - 1) ** -0.5:.2f}")
        else:
            deviations.append("any")
    noise = " and ".join(deviations)
    heads_rows: list[tuple[str | Seeds, ...]] = []
    for column, name in enumerate(HEAD_MEASURES):
        heads_rows.append((name, *[seeds(group[:, column]) for group in groups]))
    heads_table = Table(
        "Rank correlation over heads with the growth of the loss when a head is silenced (standard"
        f" deviation by chance, of one seed: {noise})",
        (
            "of a head's attention",
            f"all {heads.shape[1]} heads",
            "those of the encoder",
            f"all, {XAVIER}",
            f"all, {NARROW}",
        ),
        heads_rows,
    )

    data = models[0].data.name
    pictures = {
        "example": example_figure(models[0], example, images),
        "patches": patches_figure(guesses, scores, data),
        "heads": heads_figure(
            {"encoder": heads[:, :encoder_heads], "decoder": heads[:, encoder_heads:]},
            groups[0],
            data,
        ),
    }
    return Results([patches_table, heads_table], pictures)


# --- patches: B batch, L patches, K visible ones, J masked ones to measure ------------------------


class Effects(NamedTuple):
    """How each patch's prediction changes when a visible patch is taken away, (B, L, K) each."""

    # Mean squared
    change: Tensor
    # Growth of the mean squared error
    error: Tensor


@torch.no_grad()
def removal_effects(
    model: MaskedAutoencoder,
    inputs: Tensor,
    mask: Mask,
    how: Literal["left out", "mean patch"] = "left out",
) -> Effects:
    """Take away each visible patch of images (B, C, H, W) in turn.

    Args:
        how: mask it too, or replace it by the mean of the visible ones.
    """
    embed = model.encoder.patch_embed
    targets = model.targets(inputs)
    patches = patchify(inputs, embed.patch_size)  # (B, L, P)
    mean = mean_visible(patches, mask)  # (B, 1, P)
    changes = []
    errors = []
    with eval_mode(model):
        prediction = model(inputs, mask)  # (B, L, P)
        error = (prediction - targets).square().mean(-1)  # (B, L)
        for number in range(mask.ids_keep.shape[1]):
            # Predict without the visible patch
            if how == "left out":
                without = model(inputs, hide_one_more(mask, number))
            else:
                place = mask.ids_keep[:, number, None, None].expand_as(mean)
                replaced = patches.scatter(1, place, mean)
                images = unpatchify(replaced, embed.patch_size, embed.grid_size)
                without = model(images, mask)
            changes.append((without - prediction).square().mean(-1))
            errors.append((without - targets).square().mean(-1) - error)
    return Effects(torch.stack(changes, -1), torch.stack(errors, -1))


def hide_one_more(mask: Mask, number: int) -> Mask:
    """Return the mask that also hides the visible patch at `number` of `ids_keep`."""
    visible = mask.ids_keep.shape[1]
    noise = mask.ids_restore.float()
    return mask_from_noise(noise.masked_fill(noise == number, visible - 0.5), visible - 1)


def attended_patches(
    model: MaskedAutoencoder, inputs: Tensor, mask: Mask, hidden: Tensor
) -> dict[str, Tensor]:
    """Return how much attention visible patches get from masked ones (B, J): (B, J, K) by name, in
    mask order.

    `ATTENTION` is that of the last decoder layer; `GRADIENT` is relevance (Chefer, Gur and Wolf
    2021) for the patch's error.
    """
    # Attention of the decoder, and the rollout through decoder and encoder
    prefix, depth = model.encoder.num_prefix_tokens, len(model.encoder.blocks)
    every = torch.arange(len(inputs), device=inputs.device)
    # As tokens of the decoder: (B, J, K)
    visible = prefix + mask.ids_keep[:, None].expand(-1, hidden.shape[1], -1)
    # Indices that take (B, J, K) out of (B, N, N)
    at = (every[:, None, None], prefix + hidden[:, :, None], visible)
    with eval_mode(model), torch.no_grad(), AttentionMaps(model) as maps:
        model(inputs, mask)
    layers = [maps.weights[number] for number in sorted(maps.weights)]
    by_name = {ATTENTION: layers[-1].mean(1)[at]}
    decoder = attention_rollout(layers[depth:])
    # With a single layer, these would rank patches as the last layer does
    if len(layers) - depth > 1:
        mean_of_layers = torch.stack(layers[depth:]).mean((0, 2))
        by_name["attention, mean of decoder layers"] = mean_of_layers[at]
        by_name["rollout, decoder"] = decoder[at]
    prefix_tokens = torch.arange(prefix, device=inputs.device).expand(*visible.shape[:2], -1)
    encoded = torch.cat([prefix_tokens, visible], -1)  # (B, J, prefix + K)
    rollout = decoder[at[0], at[1], encoded] @ attention_rollout(layers[:depth])
    by_name["rollout, encoder and decoder"] = rollout[..., prefix:]

    # Relevance, patch by patch
    relevances = []
    for patch in hidden.unbind(1):
        score = partial(_right_at, targets=model.targets(inputs), patch=patch)
        tokens = relevance(model.decoder, inputs, score, lambda x: model(x, mask))
        relevances.append(tokens[every, prefix + patch])
    by_name[GRADIENT] = torch.stack(relevances, 1).gather(2, visible)
    return by_name


def _right_at(filled: Tensor, targets: Tensor, patch: Tensor) -> Tensor:
    """Return minus the squared error of one patch of each image: (B,)."""
    error = (filled - targets).square().mean(-1)  # (B, L)
    return -error[torch.arange(len(filled), device=filled.device), patch]


def measure_masked_patches(
    trained: Trained, model: MaskedAutoencoder, images: int
) -> MaskedPatches:
    """Measure what `PER_IMAGE` masked patches of test images rest on."""
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for number, (inputs, mask) in enumerate(trained.masked(trained.inputs(images), BATCH)):
        # J masked patches of each image
        noise = torch.rand(mask.mask.shape, generator=make_generator(0, "asked", number))
        count = min(PER_IMAGE, int(mask.mask[0].sum()))
        hidden = (mask.mask.cpu() * noise).topk(count).indices.to(inputs.device)
        every = torch.arange(len(inputs), device=inputs.device)[:, None]

        # What each of K visible patches is to them: (B, J, K)
        left_out = removal_effects(model, inputs, mask, "left out")
        averaged = removal_effects(model, inputs, mask, "mean patch")
        visible = mask.ids_keep[:, None].expand(-1, hidden.shape[1], -1)
        distances = grid_distances(model.encoder.patch_embed.grid_size, inputs.device)
        distance = distances[hidden[:, :, None], visible]
        batch = {
            "image": (number * BATCH + every).expand_as(hidden),
            "hidden": hidden,
            "visible": visible,
            "left_out": left_out.change[every, hidden],
            "averaged": averaged.change[every, hidden],
            "error": left_out.error[every, hidden],
            PROXIMITY: -distance,
            **attended_patches(model, inputs, mask, hidden),
        }
        for name, values in batch.items():
            parts[name].append(values.flatten(0, 1).cpu())

    # All batches; what is no field of its own is a predictor
    guesses = {name: torch.cat(batches) for name, batches in parts.items()}
    fields = {}
    for name in ("image", "hidden", "visible", "left_out", "averaged", "error"):
        fields[name] = guesses.pop(name)
    return MaskedPatches(guesses=guesses, **fields)


def scored(patches: MaskedPatches) -> Tensor:
    """Return how well each predictor ranks the visible patches: float64 (predictors, 5).

    These are the rank correlation with the change when a patch is left out, the same with its rival
    held constant (proximity, or of proximity `ATTENTION`), the overlap of the first `TOP`, and the
    rank correlations with the two other effects.
    """
    left_out = ranks(patches.left_out)
    averaged = ranks(patches.averaged)
    error = ranks(patches.error)
    scores = []
    for name, guess in patches.guesses.items():
        guessed = ranks(guess)
        rival = ranks(patches.guesses[ATTENTION if name == PROXIMITY else PROXIMITY])
        measures = (
            correlation(guessed, left_out),
            partial_correlation(guessed, left_out, rival),
            top_overlap(guess, patches.left_out, TOP),
            correlation(guessed, averaged),
            correlation(guessed, error),
        )
        scores.append(torch.stack([measure.double().mean() for measure in measures]))
    return torch.stack(scores)


# --- heads ----------------------------------------------------------------


@torch.no_grad()
def head_measures(model: nn.Module, run: Callable[[], object]) -> Tensor:
    """Return `HEAD_MEASURES` of all heads of our models: (heads, 4), means over the tokens that
    `run` shows.

    These are the bits below the entropy of uniform weights; the share of attention on other tokens;
    the largest weight; the length of the vector that the head adds.
    """
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}

    def measure(layer: int, weights: Tensor, values: Tensor) -> Tensor:
        name = names[layer]
        attention = model.get_submodule(name)
        if not isinstance(attention, MultiHeadSelfAttention):
            raise AttentionError(
                f"{name} ({type(attention).__name__}) does not say what its heads write"
            )
        mixed = weights @ values  # (B, h, N, d)
        written = mixed @ attention.W_O.unflatten(0, (weights.shape[1], -1))  # (B, h, N, D)
        measures = (
            math.log2(weights.shape[-1]) - attention_entropy(weights),
            1 - weights.diagonal(dim1=-2, dim2=-1).mean(-1),
            weights.amax(-1).mean(-1),
            written.norm(dim=-1).mean(-1),
        )
        sums[layer] = sums.get(layer, 0) + torch.stack(measures, -1).sum(0)  # (h, 4)
        counts[layer] = counts.get(layer, 0) + len(weights)
        return mixed

    interception = Interception(model, measure)
    names = interception.names
    with eval_mode(model), interception.active():
        run()
    return torch.cat([sums[layer] / counts[layer] for layer in sorted(sums)])


def measure_heads(trained: Trained, model: MaskedAutoencoder, images: int) -> Tensor:
    """Return `HEAD_MEASURES` and the growth of the loss when a head is silenced: (heads, 5), the
    encoder's first."""
    batches = list(trained.masked(trained.inputs(images), BATCH))
    count = sum(len(inputs) for inputs, _ in batches)

    def loss() -> Tensor:
        losses = []
        for inputs, mask in batches:
            mean = masked_patch_loss(model(inputs, mask), model.targets(inputs), mask.mask)
            losses.append(len(inputs) * mean)
        return torch.stack(losses).sum() / count

    lost = head_ablation(model, loss)  # (layers, most heads)
    return torch.cat([head_measures(model, loss).cpu(), lost[~lost.isnan()][:, None]], 1)


def head_correlations(measures: Tensor) -> Tensor:
    """Return the rank correlations over heads of `HEAD_MEASURES` and loss: (heads, 5) -> (4,)."""
    columns = ranks(measures.T)
    return correlation(columns[:-1], columns[-1])


# --- figures ----------------------------------------------------------------


def example_figure(trained: Trained, patches: MaskedPatches, images: int) -> Figure:
    """Draw attention beside what matters, in images where they agree well, moderately and badly."""
    # The images
    agrees = correlation(ranks(patches.guesses[ATTENTION]), ranks(patches.left_out))
    order = agrees.argsort().tolist()
    chosen = [order[round(share * (len(order) - 1))] for share in (0.9, 0.5, 0.1)]
    panels = {
        "attention": patches.guesses[ATTENTION],
        "left out": patches.left_out,
        "mean patch in its place": patches.averaged,
    }

    # Their maps, of ranks from 0 to 1
    rows, columns = trained.config.model.grid_size
    maps = torch.full((len(chosen), len(panels), rows * columns), float("nan"))
    for row, index in enumerate(chosen):
        for panel, values in enumerate(panels.values()):
            maps[row, panel, patches.visible[index]] = ranks(values[index]) / (values.shape[1] - 1)

    originals = trained.sample(images)[patches.image[chosen]]
    pixels = to_float(originals, trained.config.model.image_size)
    agreements = [f"r = {float(agrees[index]):+.2f}".replace("-", "−") for index in chosen]
    caption = (
        f"{trained.data.name} · attention: last decoder layer, mean of heads; then how much"
        " the outlined patch changes when each visible patch is left out, or the mean of them"
        " stands in its place; ranked from 0, the least, to 1, the most; r: rank correlation of the"
        " first two, in images at its 90th, 50th and 10th percentile"
    )
    return attention_figure(
        pixels,
        maps.unflatten(2, (rows, columns)),
        list(panels),
        agreements,
        "What is attended to, and what matters",
        caption,
        query=[divmod(int(patches.hidden[index]), columns) for index in chosen],
        unit="rank",
        mark="the masked patch that is reconstructed",
    )


def patches_figure(guesses: Sequence[str], scores: dict[str, Tensor], data: str) -> Figure:
    """Draw how well each predictor ranks the visible patches, by model: (seeds, guesses, 5)."""
    panels = []
    # one scale, as far as a bar reaches
    low, high = -0.1, 0.9
    for values in scores.values():
        spread = values.std(0, correction=int(len(values) > 1))[:, :2]  # (guesses, 2)
        low = min(low, float((values.mean(0)[:, :2] - spread).min()))
        high = max(high, float((values.mean(0)[:, :2] + spread).max()))
    for column in range(2):
        for model, values in scores.items():
            title = "rival held constant" if column else model
            chosen = values[:, :, column].T.tolist()  # by guess, of the seeds
            panels.append(Panel(title, chosen, lines={"chance": 0.0}, limits=(low, high)))
    caption = (
        f"{data} · rank correlation with the change of a masked patch when a visible one is left"
        " out · the rival of proximity is attention, that of the others proximity"
    )
    return arms_figure(guesses, panels, "What predicts which patches matter?", caption)


def heads_figure(groups: dict[str, Tensor], correlations: Tensor, data: str) -> Figure:
    """Draw measures of heads against the loss without them: by group, (seeds, heads, 5)."""
    units = (
        "bits below uniform attention →",
        "share of its attention →",
        "mean over tokens →",
        "length of what it adds →",
    )
    means = correlations.mean(0).tolist()
    panels = []
    for i, (name, unit, mean) in enumerate(zip(HEAD_MEASURES, units, means, strict=True)):
        points = {}
        for group, measures in groups.items():
            x = measures[..., i].flatten().numpy()
            y = measures[..., -1].flatten().numpy()
            points[group] = (x, y)
        panels.append(Panel(f"{name}: r = {mean:+.2f}".replace("-", "−"), points, unit))
    caption = f"{data} · each point is one head of one model; r: rank correlation over all heads of"
    caption += " a model, mean over seeds"
    return scatter_figure(
        panels, "growth of the loss without it (log)", "Which heads matter?", caption
    )
