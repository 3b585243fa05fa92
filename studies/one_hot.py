"""Is an embedding table a linear map, and a patch embedding a table?

The first table compares two ways to compute the same numbers; 0, or rounding, means that they are the same thing. In the
second, a table of typical patches replaces W_E: the model sees each patch as the row most like it. The error is that of the
first vectors, as a share of their length: at 0 the table would be as good as W_E. Its cost is how much the loss over hidden
patches grows, seed by seed.

*Limits.* An exact table would need a row for every possible patch. The typical patches are clusters (k-means) of training
patches; a trained table might do better. Words are few, and alike only by the company they keep; patches are many, and alike by
their pixels, which a linear map uses and a table cannot.
"""

# python -m studies one-hot
# Three models, 25 minutes on one thread. Expect: replacing W_E by a table of 1,024 rows adds
# 0.050 to the loss.

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from studies.experiment import Experiment, Trained
from studies.kinds import clusters
from studies.tables import Results, Table, seeds
from vit.figures.measures import Panel, layers_figure
from vit.mae import masked_patch_loss
from vit.patches import patchify, unpatchify

SIZES = (1, 4, 16, 64, 256, 1024)


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    models = experiment.models()
    found = torch.stack(
        [table_errors(one, experiment.study.images) for one in models]
    )  # (seeds, sizes, 3)
    sizes = found[0, :, 0].int().tolist()  # the same for all: they begin with the same patches
    errors, losses = found[..., 1], found[..., 2]
    linear = seeds([masked_loss(one, one.inputs(experiment.study.images)) for one in models])

    proofs = Table(
        "The same thing in two ways: largest difference of any number",
        ("one way", "the other", "difference"),
        [
            (
                "looking a row up in a table (nn.Embedding)",
                "one-hot vector times the table",
                f"{max(map(one_hot_difference, models)):.1e}",
            ),
            (
                "a patch's pixels times W_E",
                "the strided convolution with the same numbers",
                f"{max(map(convolution_difference, models)):.1e}",
            ),
        ],
    )
    tables = Table(
        "A table of the most typical patches in the place of W_E",
        (
            "rows",
            "relative error of the first vectors",
            "loss over hidden patches",
            "more than with W_E",
        ),
        [
            *(
                (
                    size,
                    seeds(errors[:, i], share=True),
                    seeds(losses[:, i]),
                    seeds(losses[:, i]) - linear,
                )
                for i, size in enumerate(sizes)
            ),
            ("W_E, no table", seeds([0.0] * len(models), share=True), linear, ""),
        ],
    )

    shown = len(models[0].sample(experiment.study.images))
    panels = [
        Panel(
            "first vectors: error of the table",
            {"table": errors.numpy()},
            "of their length",
            share=True,
        ),
        Panel("hidden patches: the loss", {"table": losses.numpy()}, "", {"W_E": linear.mean}),
    ]
    about = (
        f"{models[0].data.name}, {shown:,} test images · line: mean over seeds, band: their range"
    )
    places = [f"{size:,}" for size in sizes]
    figure = layers_figure(
        panels, "A patch embedding as a table", about, places, "rows of the table"
    )
    return Results([proofs, tables], {"table": figure})


def one_hot_difference(trained: Trained) -> float:
    """Return the largest difference between looking up in a table and multiplying one-hot vectors with it."""
    vectors = trained.model.encoder.patch_embed(trained.patches(16)).detach().flatten(0, 1)
    table = nn.Embedding.from_pretrained(vectors)
    numbers = torch.arange(len(vectors), device=vectors.device)
    return float((table(numbers) - F.one_hot(numbers).to(vectors) @ table.weight).abs().max())


@torch.no_grad()
def convolution_difference(trained: Trained) -> float:
    """Return the largest difference between patches times W_E and the convolution that strides by a patch."""
    inputs, embed = trained.inputs(16), trained.model.encoder.patch_embed
    strided = F.conv2d(inputs, embed.proj.weight, embed.proj.bias, stride=embed.patch_size)
    return float(
        (strided.flatten(2).transpose(1, 2) - embed(patchify(inputs, embed.patch_size))).abs().max()
    )


@torch.no_grad()
def table_errors(trained: Trained, images: int) -> Tensor:
    """Return the rows, the error relative to the vectors' length, and the loss of tables of `SIZES`: float64 (sizes, 3).

    If there are too few different patches, the last table has a row for each.
    """
    known = trained.patches(500, "train").flatten(0, 1)  # (n, P)
    inputs, patches = trained.inputs(images), trained.patches(images)  # (B, C, H, W), (B, L, P)
    embed = trained.model.encoder.patch_embed
    meant = embed(patches)  # (B, L, D)
    found = []
    for size in SIZES:
        centres = clusters(known, size, rounds=10)
        typical = centres[torch.cdist(patches.flatten(0, 1), centres).argmin(1)].view_as(patches)
        error = (embed(typical) - meant).square().sum((1, 2)).sqrt() / meant.square().sum(
            (1, 2)
        ).sqrt()
        loss = masked_loss(trained, inputs, unpatchify(typical, embed.patch_size, embed.grid_size))
        found.append((len(centres), float(error.mean()), loss))
        if len(centres) < size:
            break
    return torch.tensor(found, dtype=torch.float64)


@torch.no_grad()
def masked_loss(trained: Trained, inputs: Tensor, shown: Tensor | None = None) -> float:
    """Return the loss over the hidden patches of images (B, C, H, W), if the model sees the images `shown` instead."""
    seen, total = (inputs if shown is None else shown).split(256), 0.0
    for part, (images, mask) in zip(seen, trained.masked(inputs, 256), strict=True):
        loss = masked_patch_loss(
            trained.model(part, mask), trained.model.targets(images), mask.mask
        )
        total += float(loss) * len(images)
    return total / len(inputs)
