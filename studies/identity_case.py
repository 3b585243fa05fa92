"""What is attention if W_Q, W_K and W_V are the identity, compared with learned matrices, on images and in numbers?

Without the three matrices (Q = K = V = X), the logit of two patches is the similarity of their tokens, head by head. A
correlation of 1 between logits and cosine means that a patch looks at what is like it; a symmetry of 1, that a logit is the
same both ways; an own share above the even one, that a patch looks at itself. The last row of the second table is the price of
going without the matrices, the difference from learned ones seed by seed; it counts if it exceeds twice its spread.

*Limits.* A head sees a slice of each token, so even without matrices its logits are not the whole cosine. The learned scale of
the norm before it acts as a diagonal matrix, and tokens hold their positions too: near patches are alike for that alone. W_O
and the MLPs learn in both. The model without the three matrices has fewer parameters, and was not made wider for it; the study
fixed-or-learned measures what is lost if the three matrices exist but never learn. The maps show one patch in each of two
images.
"""

# python -m studies identity-case
# Six models, 36 minutes on one thread, all shared with fixed-or-learned: with the same --out
# they are trained once. Expect: a loss of 0.721, against 0.680 with the three matrices.

from __future__ import annotations

import torch
from torch import Tensor

from studies.analysis.logits import asking, correlation_with_cosine, self_share, symmetry
from studies.experiment import IDENTITY, SCORES, Experiment, Trained, over_seeds, trained_and_random
from studies.tables import Results, Table, seeds
from vit.encoder import VisionTransformer
from vit.figures import attention_figure
from vit.figures.measures import Panel, layers_figure
from vit.figures.style import Figure
from vit.inputs import to_float
from vit.interpret import AttentionMaps, attention_entropy
from vit.interpret.geometry import geometry_of
from vit.patches import patchify

OWN_SHARE, CORRELATION, SYMMETRY, ENTROPY = range(4)


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    data = experiment.require_labels()
    plain, learned = experiment.models(IDENTITY), experiment.models()
    arms = {IDENTITY: plain, "learned matrices": learned}
    found: dict[str, Tensor] = {}  # (seeds, layers, measures)
    for name, models in arms.items():
        both = trained_and_random(
            models, lambda one, model: by_layer(one, model.encoder, experiment.study.images)
        )
        found |= {
            f"{name}, before training": both["random weights"],
            f"{name}, trained": both["trained"],
        }
    even = 1 / geometry_of(learned[0].model).num_tokens

    count = min(experiment.study.images, len(data.test))
    attention = Table(
        f"What attention does on {count:,} test images: patches, means over heads (even share: {even:.1%})",
        (
            "model",
            "own share, first layer",
            "own share, all layers",
            "correlation of logits and cosine",
            "symmetry of logits",
            "entropy, bits",
        ),
        [
            (
                name,
                seeds(of[:, 0, OWN_SHARE], share=True),
                seeds(of[:, :, OWN_SHARE], share=True),
                *(seeds(of[:, :, measure]) for measure in (CORRELATION, SYMMETRY, ENTROPY)),
            )
            for name, of in found.items()
        ],
    )
    scores = {name: over_seeds([one.scores for one in models]) for name, models in arms.items()}
    lost = [scores[IDENTITY][key] - scores["learned matrices"][key] for key in SCORES]
    price = Table(
        f"What it is worth: {experiment.config.train.epochs} epochs on {len(data.train):,} images",
        ("model", "numbers that learn", *SCORES.values()),
        [
            *(
                (name, f"{arms[name][0].numbers_that_learn():,}", *of.values())
                for name, of in scores.items()
            ),
            ("difference, in points where in percent", "", *lost),
        ],
    )

    series = [
        {name: of[..., measure].numpy() for name, of in found.items()} for measure in range(3)
    ]
    panels = [
        Panel(
            "what a patch gives itself",
            series[OWN_SHARE],
            "of its attention",
            {"even": even},
            share=True,
        ),
        Panel("do logits follow the cosine of tokens?", series[CORRELATION], "correlation"),
        Panel("is a logit the same both ways?", series[SYMMETRY], "symmetry"),
    ]
    about = f"{data.name} · patches, mean over heads; line: mean over seeds, band: their range"
    pictures = {
        "maps": maps_figure(plain[0], learned[0]),
        "layers": layers_figure(
            panels, "Attention without the three matrices, and with them", about
        ),
    }
    return Results([attention, price], pictures)


def by_layer(trained: Trained, encoder: VisionTransformer, images: int) -> Tensor:
    """Return own share, correlation, symmetry and entropy of patches' attention: (layers, 4), means over all else."""
    prefix = encoder.num_prefix_tokens
    sums = torch.zeros(len(encoder.blocks), 4)
    inputs = trained.inputs(images)
    for part in inputs.split(100):
        for number, layer in enumerate(asking(encoder, part)):
            weights, patches = layer.logits.softmax(-1), layer.logits[..., prefix:, prefix:]
            measures = (
                self_share(weights, prefix),
                correlation_with_cosine(patches, layer.tokens[:, prefix:]),
                symmetry(patches),
                attention_entropy(weights, prefix),
            )
            sums[number] += torch.stack([of.mean() for of in measures]).cpu() * len(part)
    return sums / len(inputs)


def maps_figure(plain: Trained, learned: Trained) -> Figure:
    """Draw where one patch of each of two test images looks, in each layer, without the three matrices and with them."""
    chosen = plain.data.test.images[plain.data.test.showcase(2)]  # (2, C, h, w)
    embed = plain.model.encoder.patch_embed
    images = to_float(chosen, embed.image_size)
    asks = busiest(patchify(images, embed.patch_size), embed.grid_size)
    rows = {
        "no W, random": plain.initial,
        "no W, trained": plain.model,
        "learned W": learned.model,
    }
    maps, masses = [], []
    for model in rows.values():
        with AttentionMaps(model.encoder) as found, torch.no_grad():
            model.encoder(plain.prepare(chosen))
        layers = [found.to_grid(layer, asks) for layer in found.layers]
        maps.append(
            torch.stack([one.maps.mean(1) for one in layers], dim=1)
        )  # (2, layers, rows, columns)
        masses.append(torch.stack([one.prefix_mass.mean(1) for one in layers], dim=1))
    return attention_figure(
        images.repeat_interleave(len(rows), 0),
        torch.stack(maps, 1).flatten(0, 1),
        [f"layer {layer}" for layer in range(maps[0].shape[1])],
        [*rows] * len(images),
        "Where a patch looks, by similarity alone and by learned W_Q and W_K",
        f"{plain.data.name} · mean of heads · {plain.name}",
        masses=torch.stack(masses, 1).flatten(0, 1),
        query=[ask for ask in asks for _ in rows],
        scale="row",
    )


def busiest(patches: Tensor, grid_size: tuple[int, int]) -> list[tuple[int, int]]:
    """Return row and column of each image's patch (B, L, P) with the most contrast, off the border if possible."""
    contrast = patches.std(-1).unflatten(1, grid_size)  # (B, rows, columns)
    top, left = ((size - 1) // 4 for size in grid_size)
    inner = contrast[:, top : grid_size[0] - top, left : grid_size[1] - left]
    columns = inner.shape[2]
    return [
        (top + place // columns, left + place % columns)
        for place in inner.flatten(1).argmax(1).tolist()
    ]
