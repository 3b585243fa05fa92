"""W_Q = W_K = W_V = I: attention as plain self-similarity, on an image and in numbers, beside matrices that are learned."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vit.data.augment import to_float
from vit.encoder import VisionTransformer
from vit.figures import attention_figure
from vit.figures.measures import Panel, layers_figure
from vit.figures.style import Figure
from vit.interpret import AttentionMaps, attention_entropy
from vit.interpret.logits import asking
from vit.interpret.self_similarity import correlation_with_cosine, self_share, symmetry
from vit.patches import patchify
from vit.studies.arms import (
    AS_IT_IS,
    IDENTITY,
    compared,
    difference,
    learn_arm,
    measures_of,
    numbers_that_learn,
    require_labels,
    stands_out,
)
from vit.studies.finding import Cell, Finding, Seeds, Table, brief, seeds
from vit.studies.laboratory import Laboratory, Learned
from vit.studies.plan import Plan, require_matrices

MEASURES = ("own share", "correlation", "symmetry", "entropy")
MARGIN = 1.0  # points of a patch's attention: what is not clearly more, and stays below this, is no more
MORE, UNCLEAR, NO_MORE = "more", "not clearly more", "no more"
FOLLOWS = 0.5  # correlation of logits and likeness, from which on a patch is said to look at what is like it


def study(laboratory: Laboratory, plan: Plan) -> Finding:
    """See the module."""
    require_matrices(plan, "identity-case")
    data = require_labels(laboratory, plan, "identity-case")
    arms = {
        "Q = K = V = X": learn_arm(laboratory, plan, IDENTITY),
        "learned matrices": learn_arm(laboratory, plan, AS_IT_IS),
    }
    found: dict[str, dict[str, Tensor]] = {}  # of a kind of model, by measure: (seeds, layers)
    for name, models in arms.items():
        for when, key in (("before training", "initial"), ("trained", "model")):
            of = torch.stack([by_layer(one, getattr(one, key).encoder, plan.images) for one in models])
            found[f"{name}, {when}"] = dict(zip(MEASURES, of.unbind(-1), strict=True))
    _, plain_trained, _, learned = found.values()
    tokens = arms["learned matrices"][0].model.encoder.pos_embed.shape[1]

    scores = {name: measures_of([one.scores for one in models]) for name, models in arms.items()}
    lost = {key: difference(of, scores["learned matrices"][key]) for key, of in scores["Q = K = V = X"].items()}
    attention = Table(
        f"What attention does on {min(plan.images, len(data.test)):,} test images: patches, means over heads",
        (
            "model", "own share, first layer", "own share, all layers", "correlation of logits and cosine",
            "symmetry of logits", "entropy, bits",
        ),
        [
            (
                name, seeds(of["own share"][:, 0].tolist(), share=True), _all_layers(of, "own share"),
                *(_all_layers(of, key) for key in MEASURES[1:]),
            )
            for name, of in found.items()
        ],
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (name, f"{numbers_that_learn(models[0]):,}", *scores[name].values()) for name, models in arms.items()
    ]
    rows += [("difference, in points where in percent", "", *lost.values())]
    price = Table(
        f"What it is worth: {plan.training.train.epochs} epochs on {len(data.train):,} images",
        (
            "model",
            "numbers that learn",
            "loss over hidden patches",
            "20 nearest neighbours",
            "linear probe",
        ),
        rows,
    )
    own, theirs = (seeds(of["own share"][:, 0].tolist(), share=True) for of in (plain_trained, learned))
    follow, learned_follow = (_all_layers(of, "correlation") for of in (plain_trained, learned))
    said = answer(own, theirs, 1 / tokens, follow, learned_follow, lost)
    limits = (
        "Heads see slices of a token, so that even without matrices a head's logits are not the whole cosine. The learned scale"
        " of the norm in front stands in for a diagonal matrix, and tokens hold their positions too: near patches are alike for"
        " that alone. W_O and the MLPs learn in both. The model without the three matrices has fewer numbers, and was not made"
        " wider for it; what is lost where the three matrices are there but never learn, fixed-or-learned measures. The maps"
        " are those of two images and of one patch in each."
    )
    about = f"{data.name} · patches, mean over heads; line: mean over seeds, band: their range"
    series = {key: {name: of[key].numpy() for name, of in found.items()} for key in MEASURES}
    panels = [  # the entropy stands in the table
        Panel("what a patch gives itself", series["own share"], "of its attention", {"even": 1 / tokens}, share=True),
        Panel("do logits follow the cosine of tokens?", series["correlation"], "correlation"),
        Panel("is a logit the same both ways?", series["symmetry"], "symmetry"),
    ]
    figures = {
        "maps": maps_figure(arms["Q = K = V = X"][0], arms["learned matrices"][0]),
        "layers": layers_figure(panels, "Attention without the three matrices, and with them", about),
    }
    captions = {
        "maps": "Where one patch looks, layer by layer: by similarity alone, untrained and trained, and by learned matrices",
        "layers": "What a patch gives itself, and whether logits follow similarity and are the same both ways, layer by layer",
    }
    return Finding(said, limits, [attention, price], figures, captions)


def _all_layers(of: Mapping[str, Tensor], key: str) -> Seeds:
    return seeds(of[key].mean(1).tolist(), share=key == "own share")


def answer(own: Seeds, theirs: Seeds, even: float, follow: Seeds, learned: Seeds, lost: Mapping[str, Seeds]) -> str:
    """What came out, in words that follow the figures.

    Args:
        own, theirs: what a patch gives itself in the first layer, without matrices and with learned ones.
        even: the share that each would get if all got the same.
        follow, learned: how far logits go with the cosine of tokens, without matrices and with learned ones.
        lost: by how much the measures of the identity case are above those of learned matrices.
    """
    above, ahead = (_judged(difference(own, one)) for one in (seeds([even] * len(own.values), share=True), theirs))
    if above == NO_MORE:
        judged = "A patch hardly looks at itself"
    elif above == UNCLEAR:
        judged = "A patch does not clearly look at itself"
    elif ahead == MORE and follow.mean >= FOLLOWS:
        judged = "A patch looks at what is like it, and so at itself"
    else:
        judged = f"A patch looks at itself {ahead} than with learned matrices"
    loss = compared(brief(lost["loss"], 3), "lower", "higher")
    neighbours = compared(brief(lost["neighbours"], 1), "lower", "higher", " points")
    return (
        f"{judged}: in the first layer it gives itself {brief(own)} of its attention, where learned matrices give"
        f" {brief(theirs)} and an even share is {even:.1%}. Its logits and the likeness of the tokens correlate by"
        f" {brief(follow)}, learned ones by {brief(learned)}. Without the three matrices the loss over hidden patches is"
        f" {loss}, and the accuracy of nearest neighbours {neighbours}."
    )


def _judged(ahead: Seeds) -> str:
    """Whether a difference in points is shown to be one, or shown to be none; neither is not clear."""
    if ahead.mean > 0 and (ahead.spread is None or stands_out(ahead)):
        return MORE
    return NO_MORE if ahead.mean + 2 * (ahead.spread or 0) < MARGIN else UNCLEAR


def by_layer(learned: Learned, encoder: VisionTransformer, images: int) -> Tensor:
    """`MEASURES` of the patches of whole test images, layer by layer, means over images, heads and patches.

    Args:
        learned: gives the images.
        encoder: of it, trained or not.
        images: how many.

    Returns:
        float32 (layers, measures).
    """
    prefix = encoder.num_prefix_tokens
    sums = torch.zeros(len(encoder.blocks), len(MEASURES))
    shown = learned.sample(images)
    for part in shown.split(100):
        for number, layer in enumerate(asking(encoder, learned.prepare(part))):
            weights, patches = layer.logits.softmax(-1), layer.logits[..., prefix:, prefix:]
            measures = (
                self_share(weights, prefix),
                correlation_with_cosine(patches, layer.tokens[:, prefix:]),
                symmetry(patches),
                attention_entropy(weights, prefix),
            )
            sums[number] += torch.stack([of.mean() for of in measures]).cpu() * len(part)
    return sums / len(shown)


def maps_figure(plain: Learned, learned: Learned) -> Figure:
    """Where a patch looks in each layer, of two test images: without the three matrices, untrained and trained, and with."""
    chosen = plain.data.test.images[plain.data.test.showcase(2)]  # (2, C, h, w)
    embed = plain.model.encoder.patch_embed
    images = to_float(chosen, embed.image_size)
    asks = busiest(patchify(images, embed.patch_size), embed.grid_size)
    rows = {
        "no matrices, untrained": plain.initial,
        "no matrices, trained": plain.model,
        "learned matrices": learned.model,
    }
    maps, masses = [], []
    for model in rows.values():
        with AttentionMaps(model.encoder) as found, torch.no_grad():
            model.encoder(plain.prepare(chosen))
        layers = [found.to_grid(layer, asks, "mean") for layer in found.layers]
        maps.append(torch.cat([one.maps for one in layers], dim=1))  # (2, layers, rows, columns)
        masses.append(torch.cat([one.prefix_mass for one in layers], dim=1))
    panels = [f"layer {layer}" for layer in range(maps[0].shape[1])]
    return attention_figure(
        images.repeat_interleave(len(rows), 0), torch.stack(maps, 1).flatten(0, 1), panels, [*rows] * len(images),
        "Where a patch looks, by similarity alone and by learned matrices",
        f"{plain.data.name} · mean of heads · seed {plain.config.train.seed}",
        masses=torch.stack(masses, 1).flatten(0, 1), query=[ask for ask in asks for _ in rows], scale="row",
    )  # fmt: skip


def busiest(patches: Tensor, grid_size: tuple[int, int]) -> list[tuple[int, int]]:
    """The patch with the most contrast of each image, away from the border where there is such: row and column.

    Args:
        patches: (B, L, P), brightness or colours.
        grid_size: (rows, columns), whose product is L.
    """
    contrast = patches.std(-1).unflatten(1, grid_size)  # (B, rows, columns)
    top, left = ((size - 1) // 4 for size in grid_size)
    inner = contrast[:, top : grid_size[0] - top, left : grid_size[1] - left]
    columns = inner.shape[2]
    return [(top + place // columns, left + place % columns) for place in inner.flatten(1).argmax(1).tolist()]
