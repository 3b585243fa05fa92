"""Are W_Q, W_K and W_V the embedding W_E, and how strongly do they read what it writes?

The four are different parameters: W_E reads pixels, once; W_Q, W_K and W_V read tokens, in every
layer. The first table gives their shapes, which may be equal: in ViT-B/16 all are 768 x 768. The
second tells how strongly a matrix reads the directions that W_E writes, each weighted by how
strongly W_E writes it: |W_E W|^2 over its expected value for a random matrix W of the same size. 1
is a random matrix; below 1 a matrix reads these directions less strongly than that, above 1 more
strongly.

*Limits.* The strength compares matrices, not what is done with the result. The positions, which are
added to the embedding, are not in W_E, and directions are weighted as W_E writes them, not as
patches vary. The scale and the centring of the norm before each layer are taken into account.
"""

# python -m studies embedding-or-not --checkpoint vit-tiny-p4-cifar10 --data cifar10 Ten seconds.
# Expect: no; in the first layer W_Q reads W_E's directions less than half as strongly as a random
# matrix would. Without --checkpoint it trains three small models, in 24 minutes, which stay at 1.

from __future__ import annotations

import torch
from torch import Tensor

from studies.experiment import Experiment, trained_and_random
from studies.figures import Panel, layers_figure
from studies.tables import Results, Table, seeds
from vit.encoder import Block, VisionTransformer

OUTPUTS = {"W_Q": "its query", "W_K": "its key", "W_V": "its value"}
"""What each matrix gives."""


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    models = experiment.models()
    encoder = models[0].model.encoder
    depth = len(encoder.blocks)
    values, width = encoder.patch_embed.W_E.shape
    heads = encoder.attention(0).num_heads

    # What the matrices are
    shape_rows: list[tuple[object, ...]] = [
        (
            "W_E, the embedding",
            f"{values} x {width}",
            1,
            "the pixels of a patch",
            "its first vector",
        )
    ]
    for name, output in OUTPUTS.items():
        vector = "the vector of a token, in its layer"
        shape_rows.append((name, f"{width} x {width}", depth, vector, output))
    columns = ("matrix", "shape", "how many", "it reads", "it gives")
    shapes = Table(
        f"What they are; each of the {heads} heads of a layer has {width // heads} of the {width}"
        " columns of W_Q, W_K and W_V",
        columns,
        shape_rows,
    )

    # What they read: (seeds, matrices, layers)
    read = trained_and_random(models, lambda _, model: strengths(model.encoder))
    rows = []
    for i, name in enumerate(OUTPUTS):
        for model, measured in read.items():
            cells = [seeds(measured[:, i, layer], digits=2) for layer in range(depth)]
            rows.append((name, model, *cells))
    layers = [f"layer {layer}" for layer in range(depth)]
    strength = Table(
        "How strongly they read what W_E writes; 1: as a random matrix",
        ("matrix", "model", *layers),
        rows,
    )

    # The figure
    lines = {name: read["trained"][:, i].numpy() for i, name in enumerate(OUTPUTS)}
    top = 1.05 * max(1.2, float(read["trained"].nan_to_num().max()))
    panel = Panel("", lines, "strength", {"a random matrix": 1.0}, limits=(0, top))
    title = "How strongly W_Q, W_K and W_V read what the embedding writes"
    figure = layers_figure([panel], title, models[0].data.name)
    return Results([shapes, strength], {"reading": figure})


@torch.no_grad()
def strengths(encoder: VisionTransformer) -> Tensor:
    """Return how strongly each matrix of `OUTPUTS` reads what W_E writes, layer by layer.

    Returns:
        (matrices, layers); nan for a matrix of zeros.
    """
    written = _centred(encoder.patch_embed.W_E)  # (P, D)
    matrices = []
    for name in OUTPUTS:
        layers = []
        for block in encoder.blocks:
            assert isinstance(block, Block)
            # The norm's scale multiplies what the matrix reads
            reading = _centred(
                (getattr(block.attn, name) * block.norm1.weight[:, None]).T
            )  # (D, D)
            # A random matrix reads each of D - 1 directions alike: the norm removes one, the mean
            expected = written.square().sum() * reading.square().sum() / (len(reading) - 1)
            layers.append((written @ reading.T).square().sum() / expected)
        matrices.append(torch.stack(layers))
    return torch.stack(matrices).cpu()


def _centred(rows: Tensor) -> Tensor:
    """Return rows without their mean over D, which the norm removes from every token."""
    return rows - rows.mean(1, keepdim=True)
