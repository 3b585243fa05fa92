"""Are W_Q, W_K and W_V the embedding W_E, and how strongly do they read what it writes?

The four are different parameters: W_E reads pixels, once; W_Q, W_K and W_V read tokens, in every
layer. The first table gives their shapes, which may be equal: in ViT-B/16 all are 768 x 768. The
second tells how strongly a matrix W reads the dimensions that W_E writes: the squared length of the
result over its expected value for a random W of the same size. 1 is a random matrix; below 1 a
matrix reads these dimensions less strongly than that, above 1 more strongly. What counts depends on
how the dimensions are weighted: as W_E writes them (its rows), all alike (an orthonormal basis), or
as patches vary (the embeddings of test images, around their mean). A finding is one that all
three share.

*Limits.* The strength compares matrices, not what is done with the result. The positions, which are
added to the embedding, are not in W_E. The scale and the centring of the norm before each layer are
taken into account; that the norm also divides each token by its length is not.
"""

# python -m studies embedding-or-not --checkpoint vit-tiny-p4-cifar10 --data cifar10 Ten seconds.
# Expect: no; in the first layer W_K reads W_E's dimensions 1.2 to 1.5 times as strongly as a random
# matrix would, W_Q 0.4 to 1.1 times. Without --checkpoint it trains three small models, in 24
# minutes, which stay at 1.

from __future__ import annotations

import torch
from torch import Tensor

from studies.experiment import Experiment, trained_and_random
from studies.figures import Panel, layers_figure
from studies.tables import Results, Table, seeds
from vit.encoder import Block, VisionTransformer

OUTPUTS = {"W_Q": "its query", "W_K": "its key", "W_V": "its value"}
"""What each matrix gives."""
WEIGHTINGS = ("as W_E writes them", "all alike", "as patches vary")
"""How the dimensions that W_E writes are weighted."""
IMAGES = 200
"""Whose patches say how patches vary."""


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
            "its first token",
        )
    ]
    for name, output in OUTPUTS.items():
        shape_rows.append((name, f"{width} x {width}", depth, "a token, in its layer", output))
    stored = encoder.state_dict()["blocks.0.attn.qkv.weight"].shape
    shape_rows.append(
        (
            "the three in a file, transposed: qkv.weight",
            f"{stored[0]} x {stored[1]}",
            depth,
            "a token, in its layer",
            "all three",
        )
    )
    columns = ("matrix", "shape", "how many", "input", "output")
    shapes = Table(
        f"The matrices; each of the {heads} heads of a layer has {width // heads} of the {width}"
        " columns of W_Q, W_K and W_V",
        columns,
        shape_rows,
    )

    # What they read: (seeds, weightings, matrices, layers)
    read = trained_and_random(
        models,
        lambda trained, model: strengths(model.encoder, trained.patches(IMAGES).flatten(0, 1)),
    )
    top = 1.05 * max(1.2, float(read["trained"].nan_to_num().max()))
    rows = []
    panels = []
    for number, weighting in enumerate(WEIGHTINGS):
        for matrix, name in enumerate(OUTPUTS):
            for model, measured in read.items():
                strength = measured[:, number, matrix]  # (seeds, layers)
                cells = [seeds(strength[:, layer], digits=2) for layer in range(depth)]
                rows.append((name, weighting, model, *cells))
        trained = read["trained"][:, number]  # (seeds, matrices, layers)
        lines = {name: trained[:, matrix].numpy() for matrix, name in enumerate(OUTPUTS)}
        one = {"a random matrix": 1.0}
        panels.append(Panel(f"weighted {weighting}", lines, "strength", one, limits=(0, top)))
    layers = [f"layer {layer}" for layer in range(depth)]
    table = Table(
        "How strongly they read the dimensions that W_E writes; 1: as a random matrix",
        ("matrix", "dimensions weighted", "model", *layers),
        rows,
    )

    title = "How strongly W_Q, W_K and W_V read what the embedding writes"
    figure = layers_figure(panels, title, models[0].data.name)
    return Results([shapes, table], {"reading": figure})


@torch.no_grad()
def strengths(encoder: VisionTransformer, patches: Tensor) -> Tensor:
    """Return how strongly each matrix of `OUTPUTS` reads what W_E writes, layer by layer.

    Args:
        patches: (n, P), whose variation is one of the `WEIGHTINGS`.

    Returns:
        (weightings, matrices, layers); nan for a matrix of zeros.
    """
    rows = _centred(encoder.patch_embed.W_E)  # (P, D)
    _, sizes, basis = torch.linalg.svd(rows, full_matrices=False)
    varying = (patches - patches.mean(0)) @ rows  # (n, D)
    weighted = (rows, basis[sizes > 1e-6 * sizes[0]], varying)
    read = []
    for name in OUTPUTS:
        for block in encoder.blocks:
            assert isinstance(block, Block)
            # The norm's scale multiplies what the matrix reads
            reading = _centred(
                (getattr(block.attn, name) * block.norm1.weight[:, None]).T
            )  # (D, D)
            # A random matrix reads each of D - 1 directions alike: the norm removes one, the mean
            per_direction = reading.square().sum() / (len(reading) - 1)
            for written in weighted:
                expected = written.square().sum() * per_direction
                read.append((written @ reading.T).square().sum() / expected)
    shape = (len(OUTPUTS), len(encoder.blocks), len(weighted))
    return torch.stack(read).view(shape).movedim(2, 0).cpu()


def _centred(rows: Tensor) -> Tensor:
    """Return rows without their mean over D, which the norm removes from every token."""
    return rows - rows.mean(1, keepdim=True)
