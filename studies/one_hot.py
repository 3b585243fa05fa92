"""Is an embedding table a linear map, and a patch embedding a table?

The first table compares two ways to compute the same numbers; 0, or rounding, means that they are
the same thing. In the others, a table of typical patches replaces W_E: the model sees each patch as
the row most like it. The typical patches are centres of clusters (k-means), either of the pixels of
training patches or of the vectors that W_E makes of them; the row is chosen by the same. The error
is that of the vectors, relative to their length: at 0 the table would be as good as W_E. Its cost
is how much the loss over masked patches grows, seed by seed.

*Limits.* An exact table would need a row for every possible patch, and a trained table might do
better than these. The number of a word does not say which words resemble it, so a table loses
nothing; the pixels of a patch do, which a linear map uses and a table cannot.
"""

# python -m studies one-hot
# Three models, 25 minutes on one thread. Expect: replacing W_E by a table of 1,024 rows adds 0.047
# to the loss if the rows are chosen by pixels, 0.035 if by vectors.

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from studies.experiment import Experiment, Trained
from studies.figures import Panel, layers_figure
from studies.kinds import clusters
from studies.tables import Results, Table, seeds
from vit.mae import masked_patch_loss
from vit.patches import patchify, unpatchify

SIZES = (1, 4, 16, 64, 256, 1024)
CHOICES = ("pixels", "vectors")
"""What typical patches are chosen by: what patches are, or what W_E makes of them."""


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    # Measure every model with tables in place of W_E, and with W_E: (seeds, sizes, 3)
    models = experiment.models()
    images = experiment.study.images
    measures: dict[str, Tensor] = {}
    for choice in CHOICES:
        measures[choice] = torch.stack([table_errors(model, images, choice) for model in models])
    linear = seeds([masked_loss(model, model.inputs(images)) for model in models])

    # Two ways to the same numbers
    table_difference = max(one_hot_difference(model) for model in models)
    strided_difference = max(convolution_difference(model) for model in models)
    proofs = Table(
        "The same thing in two ways: largest difference of any number",
        ("one way", "the other", "difference"),
        [
            (
                "looking a row up in a table (nn.Embedding)",
                "one-hot vector times the table",
                f"{table_difference:.1e}",
            ),
            (
                "a patch's pixels times W_E",
                "the strided convolution with the same numbers",
                f"{strided_difference:.1e}",
            ),
        ],
    )

    # What tables lose
    tables = []
    for choice, measured in measures.items():
        rows: list[tuple[object, ...]] = []
        for i, size in enumerate(measured[0, :, 0].int().tolist()):
            loss = seeds(measured[:, i, 2])
            rows.append((size, seeds(measured[:, i, 1], share=True), loss, loss - linear))
        rows.append(("W_E, no table", seeds([0.0] * len(models), share=True), linear, ""))
        title = f"A table of the most typical patches in place of W_E, chosen by {choice}"
        columns = (
            "rows",
            "relative error of the vectors",
            "loss over masked patches",
            "more than with W_E",
        )
        tables.append(Table(title, columns, rows))

    # The figure
    count = len(models[0].sample(images))
    errors = {f"chosen by {name}": one[..., 1].numpy() for name, one in measures.items()}
    losses = {f"chosen by {name}": one[..., 2].numpy() for name, one in measures.items()}
    panels = [
        Panel("error of the vectors", errors, "of their length", share=True, limits=(0, None)),
        Panel("loss over masked patches", losses, "", {"W_E": linear.mean}, limits=(0, None)),
    ]
    caption = f"{models[0].data.name}, {count:,} test images"
    if len(models) > 1:
        caption += " · line: mean over seeds, band: their range"
    ticks = [f"{size:,}" for size in measures["pixels"][0, :, 0].int().tolist()]
    title = "A patch embedding as a table"
    figure = layers_figure(panels, title, caption, ticks, "rows of the table")
    return Results([proofs, *tables], {"table": figure})


def one_hot_difference(trained: Trained) -> float:
    """Return the largest difference between a look-up in a table and one-hot vectors times it."""
    embed = trained.model.encoder.patch_embed
    vectors = embed(trained.patches(16)).detach().flatten(0, 1)  # (n, D)
    table = nn.Embedding.from_pretrained(vectors)
    numbers = torch.arange(len(vectors), device=vectors.device)
    products = F.one_hot(numbers).to(vectors) @ table.weight
    return float((table(numbers) - products).abs().max())


@torch.no_grad()
def convolution_difference(trained: Trained) -> float:
    """Return the largest difference between patches times W_E and a convolution with its numbers.

    The convolution strides by a patch.
    """
    inputs = trained.inputs(16)
    embed = trained.model.encoder.patch_embed
    strided = F.conv2d(inputs, embed.proj.weight, embed.proj.bias, stride=embed.patch_size)
    vectors = strided.flatten(2).transpose(1, 2)  # (B, D, rows, columns) -> (B, L, D)
    products = embed(patchify(inputs, embed.patch_size))  # (B, L, D)
    return float((vectors - products).abs().max())


@torch.no_grad()
def table_errors(trained: Trained, images: int, choice: str) -> Tensor:
    """Measure tables of `SIZES`: rows, relative error of the vectors, loss: float64 (sizes, 3).

    If there are too few different patches, the last table has a row for each.

    Args:
        choice: one of `CHOICES`.
    """
    train_patches = trained.patches(500, "train").flatten(0, 1)  # (n, P)
    inputs = trained.inputs(images)  # (B, C, H, W)
    patches = trained.patches(images)  # (B, L, P)
    embed = trained.model.encoder.patch_embed
    vectors = embed(patches)  # (B, L, D)
    lengths = vectors.square().sum((1, 2)).sqrt()  # (B,)
    if choice == "pixels":
        known, asked = train_patches, patches
    else:
        known, asked = embed(train_patches), vectors

    measures = []
    for size in SIZES:
        # Each patch becomes the row most like it
        centres = clusters(known, size, rounds=10)
        nearest = torch.cdist(asked.flatten(0, 1), centres).argmin(1)
        if choice == "vectors":
            # W_E is linear, so a mean of vectors is the vector of a patch
            bias = embed(torch.zeros_like(patches[0, :1]))  # (1, D)
            centres = (centres - bias) @ torch.linalg.pinv(embed.W_E)
        typical = centres[nearest].view_as(patches)

        # What that does to the vectors, and to what the model fills in
        error = (embed(typical) - vectors).square().sum((1, 2)).sqrt() / lengths
        images_of_table = unpatchify(typical, embed.patch_size, embed.grid_size)
        loss = masked_loss(trained, inputs, images_of_table)
        measures.append((len(centres), float(error.mean()), loss))
        if len(centres) < size:
            break
    return torch.tensor(measures, dtype=torch.float64)


@torch.no_grad()
def masked_loss(trained: Trained, inputs: Tensor, seen: Tensor | None = None) -> float:
    """Return the loss over the masked patches of images (B, C, H, W).

    Args:
        seen: what the model sees in their place, (B, C, H, W); None for the images.
    """
    if seen is None:
        seen = inputs
    total = 0.0
    batches = zip(seen.split(256), trained.masked(inputs, 256), strict=True)
    for part, (images, mask) in batches:
        prediction = trained.model(part, mask)
        loss = masked_patch_loss(prediction, trained.model.targets(images), mask.mask)
        total += float(loss) * len(images)
    return total / len(inputs)
