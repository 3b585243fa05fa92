"""Does q . k measure similarity? The first layer as forms on pixels, what heads prefer, and what tells keys apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit.encoder import VisionTransformer
from vit.evaluate.reconstruction import grid_distances
from vit.figures.images import pairs_figure
from vit.figures.measures import Panel, layers_figure, shares_figure
from vit.interpret.circuits import leading_pairs, pixel_forms, positive_share, symmetric_share
from vit.interpret.logits import Asking, asking, split_first_logits, split_keys, variance_parts
from vit.interpret.self_similarity import correlation_with_cosine
from vit.patches import patchify, unpatchify
from vit.studies.arms import difference, stands_out
from vit.studies.finding import Cell, Finding, Seeds, Table, brief, seeds
from vit.studies.laboratory import Laboratory, Learned
from vit.studies.plan import Plan, require_matrices

if TYPE_CHECKING:
    from vit.figures.style import Figure

LIKENESS = ("likeness of the tokens", "likeness of their pixels", "likeness of the tokens, nearness held constant")
MEETINGS = (
    "pixels ask for pixels",
    "pixels ask for places",
    "places ask for pixels",
    "places ask for places",
    "biases",
)
KEYS = ("its place", "its own patch", "what it took in from others")
CLEAR = 3.0  # standard errors over images, from which on the preference of a head counts
BATCH = 32  # images at a time


@dataclass(frozen=True)
class Reading:
    """What an encoder comes to.

    Attributes:
        forms: (h, 4), of the first layer: see `form_shares`.
        liking: (images, layers, h, 3): see `preferences`.
        first: (h, 5), shares of the first layer's logits, in the order of `MEETINGS`.
        keys: (layers, h, 3), shares of all layers' logits, in the order of `KEYS`.
    """

    forms: Tensor
    liking: Tensor
    first: Tensor
    keys: Tensor


def study(laboratory: Laboratory, plan: Plan) -> Finding:
    """See the module."""
    require_matrices(plan, "is-it-similarity")
    models = [laboratory.learn(plan.training, seed) for seed in plan.seeds]
    roots = [spread(one) for one in models]
    trained = [read(one, one.model.encoder, plan.images, root) for one, root in zip(models, roots, strict=True)]
    random = [read(one, one.initial.encoder, plan.images, root) for one, root in zip(models, roots, strict=True)]
    plain = [preferences(one, one.model.encoder, plan.images, identity=True) for one in models]
    data = models[0].data.name
    pictures = {
        "preferences": _preferences_figure(trained, random, plain, data),
        "split": _split_figure(trained, random, plan.seeds, data),
        "pairs": _pairs_figure(models[0], roots[0], data),
    }
    captions = {
        "preferences": "Whether a query's logits are higher for keys that are like it, layer by layer",
        "split": "What the logits of the first layer are made of, and what tells the keys of a query apart in each layer",
        "pairs": "What the heads of the first layer ask for, beside what answers",
    }
    tables = [
        _forms_table(trained, random), _heads_table(trained, random, plain), _first_table(trained, random),
        _keys_table(trained, random),
    ]  # fmt: skip
    return Finding(_answer(trained, random, plain), LIMITS, tables, pictures, captions)


def read(learned: Learned, encoder: VisionTransformer, images: int, root: Tensor) -> Reading:
    """What an encoder comes to on test images.

    Args:
        learned: the study's model, for its data.
        encoder: its own, before or after training.
        images: how many the study is to look at; what takes longer is measured on a part of them.
        root: how patches vary, see `spread`.
    """
    prefix = encoder.num_prefix_tokens
    total = torch.zeros(())
    for part in _batches(learned, images // 4):
        terms = split_first_logits(encoder, part)[..., prefix:, prefix:]
        total = total + variance_parts(terms.flatten(0, 1))  # (h, 9)
    by_parts = total.unflatten(1, (3, 3))
    meetings = by_parts[:, :2, :2].flatten(1)  # (h, 4)
    first = torch.cat([meetings, total.sum(1, keepdim=True) - meetings.sum(1, keepdim=True)], 1)
    others = learned.prepare(learned.sample(256, "train"))
    keys = sum(split_keys(encoder, part, others, seed=i) for i, part in enumerate(_batches(learned, images // 20)))
    assert isinstance(keys, Tensor)
    return Reading(
        form_shares(encoder, root), preferences(learned, encoder, images),
        (first / first.sum(1, keepdim=True)).cpu(), (keys / keys.sum(-1, keepdim=True)).cpu(),
    )  # fmt: skip


def spread(learned: Learned) -> Tensor:
    """How patches vary: the symmetric root (P, P) of their covariance, float64."""
    patches = patchify(learned.prepare(learned.sample(1000, "train")), learned.model.encoder.patch_embed.patch_size)
    values, vectors = torch.linalg.eigh(torch.cov(patches.flatten(0, 1).cpu().double().T))
    return vectors * values.clamp(min=0).sqrt() @ vectors.T


def form_shares(encoder: VisionTransformer, root: Tensor) -> Tensor:
    """How far the first layer's forms on pixels are from a similarity: (h, 4).

    Their symmetric shares and, of the symmetric parts, the positive shares; then both again for the forms weighted by how
    patches vary, where a direction in which no patch differs from another counts for nothing.
    """
    forms = pixel_forms(encoder).cpu().double()
    weighted = root @ forms @ root
    return torch.stack([of(form) for form in (forms, weighted) for of in (symmetric_share, positive_share)], -1)


def preferences(learned: Learned, encoder: VisionTransformer, images: int, identity: bool = False) -> Tensor:
    """Whether heads prefer keys that are like the query: (images, layers, h, 3).

    For each patch that asks, the correlation over all other patches of the logit with the cosine of the two tokens (as they
    enter attention), with that of their pixels, and with that of the tokens while nearness in the image is held constant;
    its mean over the patches of an image.

    Args:
        learned: the study's model, for its data.
        encoder: its own, before or after training.
        images: how many the study is to look at; a quarter of them is.
        identity: instead of the queries and keys of the layer, take each head's part of the tokens themselves: q = k = x.
    """
    prefix, embed = encoder.num_prefix_tokens, encoder.patch_embed
    found = []
    for part in _batches(learned, images // 4):
        nearness = -grid_distances(embed.grid_size, part.device)  # (L, L)
        pixels = patchify(part, embed.patch_size)
        layers = []
        for layer in asking(encoder, part):
            if identity:
                sliced = rearrange(layer.tokens, "b n (h d) -> b h n d", h=layer.queries.shape[1])
                layer = Asking(layer.tokens, sliced, sliced)
            logits, tokens = layer.logits[..., prefix:, prefix:], layer.tokens[:, prefix:]
            three = (
                correlation_with_cosine(logits, tokens),
                correlation_with_cosine(logits, pixels),
                correlation_with_cosine(logits, tokens, nearness),
            )
            layers.append(torch.stack(three, -1))  # (B, h, 3)
        found.append(torch.stack(layers, 1))
    return torch.cat(found).cpu()


def _batches(learned: Learned, images: int) -> list[Tensor]:
    """Some test images, two at least, ready for the model."""
    return [learned.prepare(part) for part in learned.sample(max(images, 2)).split(BATCH)]


# --- in words and tables ------------------------------------------------------------------------------------------------

LIMITS = (
    "Small models after a short training, looked at with whole images, while they were trained on a quarter of the patches."
    " The forms are those of contents, and in the answer weighted by how patches vary; positions and biases are in the split"
    " of the logits. The divisor of the norm, one number a token, is not in the forms; it changes no sign. A head's preference"
    " is an average over queries and keys: a head may draw like to like in one direction and opposites in another. The logits"
    " say what is asked for, not what is done with the answer."
)


def _share(found: Sequence[Tensor]) -> Seeds:
    """A share, from its values for each seed, whose mean is taken."""
    return seeds([float(one.double().mean()) for one in found], share=True)


def _mean(found: Sequence[Tensor]) -> Seeds:
    """A measure, from its values for each seed, whose mean is taken."""
    return seeds([float(one.double().mean()) for one in found])


def _leaning(liking: Tensor) -> tuple[Tensor, Tensor]:
    """Which heads clearly prefer like keys, and which unlike ones: bool (layers, h) each, of (images, layers, h, 3)."""
    tokens = liking[..., 0]
    error = (tokens.std(0) / math.sqrt(len(tokens))).clamp(min=1e-9)
    return tokens.mean(0) / error > CLEAR, tokens.mean(0) / error < -CLEAR


def _answer(trained: Sequence[Reading], random: Sequence[Reading], plain: Sequence[Tensor]) -> str:
    agrees, identity = (_mean([one[..., 0] for one in of]) for of in ([one.liking for one in trained], plain))
    (like, unlike), (like_random, unlike_random) = (
        [_share([_leaning(one.liking)[i].float() for one in of]) for i in (0, 1)] for of in (trained, random)
    )
    (symmetric, plainly), (symmetric_random, plainly_random) = (
        [_share([one.forms[:, i] for one in of]) for i in (2, 0)] for of in (trained, random)
    )
    place, patch = (_share([one.keys[-1, :, i] for one in trained]) for i in (0, 1))
    leaning = difference(like, unlike)
    if leaning.spread is not None and not stands_out(leaning):
        verdict = "Not clearly"
    elif like.mean < 0.6:
        verdict = "No"
    else:
        verdict = "Yes, nearly" if min(like.mean, symmetric.mean) > 0.9 else "Only in part"
    alike = ", but like need not mean looking alike:" if place.mean > patch.mean else ";"
    return (
        f"{verdict}: {brief(like)} of the heads prefer keys that are like the query and {brief(unlike)} prefer unlike ones"
        f" (with random weights, {brief(like_random)} and {brief(unlike_random)}). A query's logits correlate with how like it"
        f" the keys are by {brief(agrees)}, where a plain similarity, q = k = x, would by {brief(identity)}; training"
        f" {_moved(trained, random)}{alike} in the last layer, {brief(place)} of what tells keys apart is their place,"
        f" {brief(patch)} their own patch. A similarity is also the same both ways: weighted by how patches vary, the first"
        f" layer's forms on pixels are so to {brief(symmetric)} (with random weights {brief(symmetric_random)}), unweighted to"
        f" {brief(plainly)} ({brief(plainly_random)})."
    )


def _moved(trained: Sequence[Reading], random: Sequence[Reading]) -> str:
    """What training does to heads' preferences: each head is compared with itself before."""
    pairs = zip(trained, random, strict=True)
    moved = torch.stack([one.liking[..., 0].mean(0) - two.liking[..., 0].mean(0) for one, two in pairs])
    error = float(moved.std()) / math.sqrt(moved.numel()) if moved.numel() > 1 else math.inf
    if abs(float(moved.mean())) <= 2 * error:
        return "does not clearly move them towards either"
    return f"moves them towards {'like' if moved.mean() > 0 else 'unlike'} keys"


def _forms_table(trained: Sequence[Reading], random: Sequence[Reading]) -> Table:
    names = ("symmetric", "positive, of the symmetric part", "symmetric, weighted", "positive, weighted")
    rows: list[tuple[Cell, ...]] = [
        (name, _share([one.forms[:, i] for one in trained]), _share([one.forms[:, i] for one in random]), "100%")
        for i, name in enumerate(names)
    ]
    title = "First layer, W_E W_Q W_K^T W_E^T as a form on pixels; weighted: by how patches vary (mean over heads)"
    return Table(title, ("share", "trained", "random weights", "a similarity"), rows)


def _heads_table(trained: Sequence[Reading], random: Sequence[Reading], plain: Sequence[Tensor]) -> Table:
    liking = [[one.liking for one in trained], [one.liking for one in random], plain]
    layers = trained[0].liking.shape[1]

    def cells(which: slice) -> list[Cell]:
        found = [[one[:, which] for one in variant] for variant in liking]
        shares = [_share([_leaning(one)[i].float() for one in variant]) for variant in found[:2] for i in (0, 1)]
        return [*shares, *(_mean([one[..., 0] for one in variant]) for variant in found)]

    rows = [(f"layer {layer}", *cells(slice(layer, layer + 1))) for layer in range(layers)]
    columns = (
        "heads", "like, trained", "unlike, trained", "like, random", "unlike, random", "correlation, trained", "random",
        "q = k = x",
    )  # fmt: skip
    title = (
        "Heads that prefer keys like or unlike the query: the correlation over keys of logit and cosine of the two tokens is"
        f" above or below 0 by {CLEAR:g} standard errors over images, and its mean"
    )
    return Table(title, columns, [*rows, ("all", *cells(slice(None)))])


def _first_table(trained: Sequence[Reading], random: Sequence[Reading]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (name, _share([one.first[:, i] for one in trained]), _share([one.first[:, i] for one in random]))
        for i, name in enumerate(MEETINGS)
    ]
    title = "First layer: share of the variance of a query's logits over keys (exact split, mean over heads)"
    return Table(title, ("what meets what", "trained", "random weights"), rows)


def _keys_table(trained: Sequence[Reading], random: Sequence[Reading]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            f"layer {layer}",
            *(_share([one.keys[layer, :, i] for one in of]) for of in (trained, random) for i in range(len(KEYS))),
        )
        for layer in range(len(trained[0].keys))
    ]
    title = "What tells the keys of a query apart: share of the variance of its logits over keys (mean over heads)"
    return Table(title, ("", *(f"{key}, {of}" for of in ("trained", "random") for key in KEYS)), rows)


# --- in pictures --------------------------------------------------------------------------------------------------------


def _preferences_figure(
    trained: Sequence[Reading], random: Sequence[Reading], plain: Sequence[Tensor], data: str
) -> Figure:
    variants = {
        "trained": [one.liking for one in trained], "random weights": [one.liking for one in random], "q = k = x": plain,
    }  # fmt: skip
    panels = [
        Panel(
            f"logit and {name}",
            {
                variant: torch.cat([one.mean(0)[..., i].T for one in found]).numpy()  # (seeds x heads, layers)
                for variant, found in variants.items()
            },
            "correlation over keys",
            {"neither like nor unlike": 0.0},
            limits=(-1, 1),
        )
        for i, name in enumerate(LIKENESS)
    ]
    about = f"{data} · each patch asks all others; line: mean over heads and seeds, band: from the lowest head to the highest"
    return layers_figure(panels, "Are the keys that a query prefers like it?", about)


def _split_figure(trained: Sequence[Reading], random: Sequence[Reading], numbers: Sequence[int], data: str) -> Figure:
    heads = {
        f"seed {seed}, head {head}": shares.tolist()
        for seed, one in zip(numbers, trained, strict=True)
        for head, shares in enumerate(one.first[:4])
    }
    heads["random weights, mean"] = torch.stack([one.first.mean(0) for one in random]).mean(0).tolist()
    mean = torch.stack([one.keys.mean(1) for one in trained]).mean(0)  # (layers, 3)
    layers = {f"layer {layer}": shares.tolist() for layer, shares in enumerate(mean)}
    start = torch.stack([one.keys.mean(1) for one in random]).mean(0)
    layers |= {f"random weights, layer {layer}": start[layer].tolist() for layer in sorted({0, len(start) - 1})}
    panels = [
        Panel(title, {name: dict(zip(parts, shares, strict=True)) for name, shares in rows.items()})
        for title, parts, rows in (
            ("first layer: what of the query meets what of the key (exact)", MEETINGS, heads),
            ("what tells the keys of a query apart: the key's …", KEYS, layers),
        )
    ]
    about = f"{data} · shares of the variance of a query's logits over keys; left of 0: works against the rest"
    return shares_figure(panels, "What are logits made of?", about)


def _pairs_figure(learned: Learned, root: Tensor, data: str) -> Figure:
    embed = learned.model.encoder.patch_embed
    channels = embed.proj.weight.shape[1]
    panels: dict[str, tuple[Tensor, list[list[str]]]] = {}
    for name, model in (("trained", learned.model), ("random weights", learned.initial)):
        forms = root @ pixel_forms(model.encoder).cpu().double()[:4] @ root
        rows, notes = [], []
        for form in forms:
            asked, found, shares = leading_pairs(form, 4)
            tiles = F.normalize(torch.stack([asked @ root, found @ root], 1), dim=-1)  # (4, 2, P), patches, not filters
            rows.append(unpatchify(tiles.flatten(0, 1)[:, None], embed.patch_size, (1, 1)).unflatten(0, (-1, 2)))
            alike = (tiles[:, 0] * tiles[:, 1]).sum(-1)
            notes.append(
                [f"{share:.0%} · {cosine:+.2f}".replace("-", "−") for share, cosine in zip(shares, alike, strict=True)]
            )
        panels[name] = torch.stack(rows)[..., : min(channels, 3), :, :], notes
    about = (
        f"{data}, seed {learned.config.train.seed}, first layer · a patch with more of the left tile (or of its negative) asks"
        " for patches with more of the right one (or of its negative); below: share of the head's form as patches vary, and"
        " how alike the tiles are, from −1 to +1"
    )
    names = [f"head {head}" for head in range(len(panels["trained"][0]))]
    return pairs_figure(names, panels, ("asks", "is found"), "What do first-layer heads ask for?", about)
