"""What is attention if W_Q, W_K and W_V are the identity, compared with learned matrices, on images
and in numbers?

Without the three matrices (Q = K = V = X), the score of two patches is the similarity of their
tokens, head by head. A correlation of 1 between scores and cosine means that a patch attends to
what is like it; a symmetry of 1, that a score is the same both ways; an own share above the uniform
one, that a patch attends to itself. The last rows of the second table are the price of going
without the matrices, or without training them: the difference from learned ones seed by seed, with
its spread.

*Limits.* A head sees a slice of each token, so even without matrices its scores are not the whole
cosine. The learned scale of the norm before it acts as a diagonal matrix, and tokens hold their
positions too: near patches are alike for that alone. W_O and the MLPs learn in both. The model
without the three matrices has fewer parameters, and was not made wider for it. The maps show one
patch of one image.
"""

# python -m studies identity-case
# Nine models, 25 minutes on one thread, all shared with fixed-or-learned: with the same --out they
# are trained once. Expect: a loss of 0.721, against 0.683 with the three matrices.

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from studies.analysis.logits import (
    correlation_with_cosine,
    queries_and_keys_by_layer,
    self_share,
    symmetry,
)
from studies.experiment import (
    IDENTITY,
    NARROW,
    SCORES,
    Experiment,
    Trained,
    over_seeds,
    trained_and_random,
)
from studies.figures import Panel, layers_figure
from studies.tables import Results, Seeds, Table, seeds
from vit.encoder import VisionTransformer
from vit.figures.attention import attention_figure
from vit.figures.style import Figure
from vit.inputs import to_float
from vit.interpret import AttentionMaps, attention_entropy
from vit.interpret.geometry import geometry_of
from vit.patches import patchify

OWN_SHARE, CORRELATION, SYMMETRY, ENTROPY = range(4)


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    # Measure the attention of both arms, trained and with random weights: (seeds, layers, measures)
    data = experiment.require_labels()
    images = experiment.study.images
    plain = experiment.models(IDENTITY)
    learned = experiment.models()
    arms = {IDENTITY: plain, "learned matrices": learned}
    measures: dict[str, Tensor] = {}
    for name, models in arms.items():
        both = trained_and_random(
            models, lambda trained, model: by_layer(trained, model.encoder, images)
        )
        for model, measured in both.items():
            measures[f"{name}, {model}"] = measured

    # What attention does
    uniform = 1 / geometry_of(learned[0].model).num_tokens
    rows: list[tuple[str | Seeds, ...]] = []
    for name, values in measures.items():
        first = seeds(values[:, 0, OWN_SHARE], share=True)
        cells: list[str | Seeds] = [name, first, seeds(values[:, :, OWN_SHARE], share=True)]
        for measure in (CORRELATION, SYMMETRY, ENTROPY):
            cells.append(seeds(values[:, :, measure]))
        rows.append(tuple(cells))
    count = min(images, len(data.test))
    attention = Table(
        f"What attention does on {count:,} test images: patches, means over heads"
        f" (uniform: {uniform:.1%})",
        (
            "model",
            "own share, first layer",
            "own share, all layers",
            "correlation of scores and cosine",
            "symmetry of scores",
            "entropy, bits",
        ),
        rows,
    )

    # What the three matrices are worth
    scores = {}
    price_rows: list[tuple[str | Seeds, ...]] = []
    arms["matrices frozen at random"] = experiment.models("all three frozen")
    for name, models in arms.items():
        scores[name] = over_seeds([model.scores for model in models])
        numbers = f"{models[0].numbers_that_learn():,}"
        price_rows.append((name, numbers, *scores[name].values()))
    for name in (IDENTITY, "matrices frozen at random"):
        lost = [scores[name][key] - scores["learned matrices"][key] for key in SCORES]
        row = f"{name}, minus learned matrices (points where in percent)"
        price_rows.append((row, "", *lost))
    budget = f"{experiment.config.train.epochs} epochs on {len(data.train):,} images"
    columns = ("model", "trainable parameters", *SCORES.values())
    price = Table(f"What it is worth: {budget}", columns, price_rows)

    # The figures
    series: list[dict[str, np.ndarray]] = []
    for measure in (OWN_SHARE, CORRELATION, SYMMETRY):
        lines = {}
        for name, values in measures.items():
            if not name.endswith(NARROW):  # six lines are more than can be told apart
                lines[name] = values[..., measure].numpy()
        series.append(lines)
    panels = [
        Panel(
            "share that a patch gives itself",
            series[OWN_SHARE],
            "of its attention",
            {"uniform": uniform},
            share=True,
        ),
        Panel("correlation of scores and cosine", series[CORRELATION], "correlation"),
        Panel("symmetry of scores", series[SYMMETRY], "symmetry"),
    ]
    caption = f"{data.name} · patches, mean over heads; line: mean over seeds, band: their range"
    title = "Attention without the three matrices, and with them"
    pictures = {
        "maps": maps_figure(plain[0], learned[0]),
        "layers": layers_figure(panels, title, caption),
    }
    return Results([attention, price], pictures)


def by_layer(trained: Trained, encoder: VisionTransformer, images: int) -> Tensor:
    """Measure the attention of patches, as means over all but the layers.

    Returns:
        Own share, correlation, symmetry and entropy: (layers, 4).
    """
    prefix = encoder.num_prefix_tokens
    sums = torch.zeros(len(encoder.blocks), 4)
    inputs = trained.inputs(images)
    for part in inputs.split(100):
        for number, layer in enumerate(queries_and_keys_by_layer(encoder, part)):
            weights = layer.logits.softmax(-1)  # (B, h, N, N)
            patch_logits = layer.logits[..., prefix:, prefix:]  # (B, h, L, L)
            measures = (
                self_share(weights, prefix),
                correlation_with_cosine(patch_logits, layer.tokens[:, prefix:]),
                symmetry(patch_logits),
                attention_entropy(weights, prefix),
            )
            means = torch.stack([measure.mean() for measure in measures])
            sums[number] += means.cpu() * len(part)
    return sums / len(inputs)


def maps_figure(plain: Trained, learned: Trained) -> Figure:
    """Draw the attention of one patch of a test image, in each layer of three models."""
    # The image, and its patch whose attention is drawn
    test = plain.data.test
    originals = test.images[test.showcase(2)[:1]]  # (1, C, h, w)
    embed = plain.model.encoder.patch_embed
    images = to_float(originals, embed.image_size)
    queries = busiest(patchify(images, embed.patch_size), embed.grid_size)

    # The maps of each model: (1, layers, rows, columns), and what is left for prefix tokens
    models = {
        "no W, Xavier": plain.initial,
        "no W, trained": plain.model,
        "learned W": learned.model,
    }
    maps = []
    masses = []
    for model in models.values():
        with AttentionMaps(model.encoder) as attention, torch.no_grad():
            model.encoder(plain.prepare(originals))
        layers = [attention.to_grid(layer, queries) for layer in attention.layers]
        maps.append(torch.stack([layer.maps.mean(1) for layer in layers], dim=1))
        masses.append(torch.stack([layer.prefix_mass.mean(1) for layer in layers], dim=1))

    # A row for each model
    row_queries = []
    for query in queries:
        row_queries += [query] * len(models)
    return attention_figure(
        images.repeat_interleave(len(models), 0),
        torch.stack(maps, 1).flatten(0, 1),
        [f"layer {layer}" for layer in range(maps[0].shape[1])],
        [*models] * len(images),
        "Attention without and with learned matrices",
        f"{plain.data.name} · mean of heads · {plain.name} · Xavier: random weights, not trained",
        masses=torch.stack(masses, 1).flatten(0, 1),
        query=row_queries,
        scale="row",
    )


def busiest(patches: Tensor, grid_size: tuple[int, int]) -> list[tuple[int, int]]:
    """Return row and column of each image's patch with the most contrast, off the border.

    Args:
        patches: (B, L, P).
    """
    contrast = patches.std(-1).unflatten(1, grid_size)  # (B, rows, columns)

    # Small grids have no patch off the border
    rows, columns = grid_size
    top = (rows - 1) // 4
    left = (columns - 1) // 4
    inner = contrast[:, top : rows - top, left : columns - left]

    inner_columns = inner.shape[2]
    busiest_patches = []
    for index in inner.flatten(1).argmax(1).tolist():
        busiest_patches.append((top + index // inner_columns, left + index % inner_columns))
    return busiest_patches
