"""Do W_Q, W_K and W_V read what the embedding W_E writes?

W_E turns a patch's pixels into its first vector, once. In each layer, W_Q, W_K and W_V read what that vector has become. An
angle of 0 degrees means that a head reads only directions that W_E writes, 90 degrees that it reads none of them; unrelated
matrices have the angle of two random spaces. A difference counts if it exceeds twice its spread over the seeds, and a degree.

*Limits.* Angles compare spaces, not what is done within them. The positions, which are added to the embedding, are not in W_E.
The norm before each layer is taken into account (its scale and its centring). If W_E reaches every direction of a narrow model,
the question cannot be asked.
"""

# python -m studies embedding-or-not
# Three models, 24 minutes on one thread. Expect: no; angles of 44 to 45 degrees, as between
# random spaces.

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import subspace_angles
from torch import Tensor

from studies.experiment import Experiment, trained_and_random
from studies.figures import arms_figure
from studies.tables import Results, Table, seeds
from vit.encoder import Block, VisionTransformer
from vit.figures.measures import Panel

MATRICES = ("W_Q", "W_K", "W_V")


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    models = experiment.models()
    encoder = models[0].model.encoder
    values, width = encoder.patch_embed.W_E.shape
    head = width // encoder.attention(0).num_heads
    # The norm before a layer removes one direction, the mean
    rank = min(width - 1, values)
    chance = float(chance_angles(head, rank, width - 1).mean())

    # The angle of every matrix in every layer: (seeds, matrices, layers)
    angles = trained_and_random(models, lambda _, model: angles_of_matrices(model.encoder))
    after = angles["trained"]
    before = angles["random weights"]

    # What the matrices are
    first_vector = "the patch's first vector"
    shape_rows: list[tuple[object, ...]] = [
        ("W_E, the embedding", f"{values} x {width}", 1, "the pixels of a patch", first_vector)
    ]
    outputs = {"W_Q": "its query", "W_K": "its key", "W_V": "its value"}
    shape = f"{width} x {width}"
    for name, output in outputs.items():
        vector = "the vector of a token, in its layer"
        shape_rows.append((name, shape, len(encoder.blocks), vector, output))
    columns = ("matrix", "shape", "how many", "it reads", "it gives")
    shapes = Table("What they are", columns, shape_rows)

    # What they read
    angle_rows = []
    for i, name in enumerate(MATRICES):
        first_before = seeds(before[:, i, 0])
        first_after = seeds(after[:, i, 0])
        angle_rows.append((name, first_before, first_after, seeds(after[:, i]), f"{chance:.1f}"))
    table = Table(
        f"Mean angle in degrees between the space that W_E writes ({rank} of {width} dimensions)"
        f" and a head's ({head})",
        (
            "matrix",
            "first layer, at the start",
            "first layer, trained",
            "all layers, trained",
            "two random spaces",
        ),
        angle_rows,
    )

    # The picture
    panels = []
    for moment, moment_angles in (("before training", before), ("trained", after)):
        arms = [[chance]]
        for i in range(len(MATRICES)):
            arms.append(moment_angles[:, i, 0].tolist())
        panels.append(Panel(f"first layer, {moment}", arms, "degrees", limits=(0, 90)))
    caption = (
        f"{models[0].data.name} · mean angle between the directions that W_E writes and those that"
        " a head reads: 0 where they are the same, 90 where they have nothing in common"
    )
    names = ["two random spaces", *MATRICES]
    title = "Do W_Q, W_K and W_V read what the embedding writes?"
    return Results([shapes, table], {"angles": arms_figure(names, panels, title, caption)})


def angles_of_matrices(encoder: VisionTransformer) -> Tensor:
    """Return the angle of each of `MATRICES` to W_E in each layer: (matrices, layers)."""
    return torch.stack([reading(encoder, name) for name in MATRICES])


def reading(encoder: VisionTransformer, name: str) -> Tensor:
    """Return how far a matrix of `MATRICES` is from reading what W_E writes, layer by layer.

    Returns:
        The heads' mean angle in degrees, (layers,).
    """
    written = _centred(encoder.patch_embed.W_E.detach())  # (P, D)
    layers = []
    for block in encoder.blocks:
        assert isinstance(block, Block)
        # The norm's scale multiplies what the matrix reads
        scale = block.norm1.weight.detach()[:, None]
        matrix = _centred((getattr(block.attn, name).detach() * scale).T)  # (D, D)
        heads = matrix.unflatten(0, (block.attn.num_heads, -1))  # (h, d, D)
        angles = [principal_angles(written, head).mean() for head in heads]
        layers.append(torch.stack(angles).mean())
    return torch.stack(layers).float()


def _centred(rows: Tensor) -> Tensor:
    """Return rows without their mean over D, which the norm removes from every token."""
    return rows - rows.mean(1, keepdim=True)


def principal_angles(a: Tensor, b: Tensor) -> Tensor:
    """Return the principal angles in degrees between the row spaces of a (m, D) and b (n, D), the smallest first.

    There are as many as the smaller space has dimensions (Björck and Golub 1973).
    """
    # scipy takes columns, and gives the largest first
    columns_of_a = a.cpu().double().numpy().T
    columns_of_b = b.cpu().double().numpy().T
    angles = subspace_angles(columns_of_a, columns_of_b)
    return torch.from_numpy(np.degrees(angles[::-1]))


def chance_angles(m: int, n: int, dim: int) -> Tensor:
    """Return the mean principal angles between random subspaces of m and n out of `dim` dimensions.

    Returns:
        As many as the smaller has dimensions: (min(m, n),).
    """
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(20):
        first = torch.randn(m, dim, generator=generator, dtype=torch.float64)
        second = torch.randn(n, dim, generator=generator, dtype=torch.float64)
        draws.append(principal_angles(first, second))
    return torch.stack(draws).mean(0)
