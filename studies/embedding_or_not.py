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
    rank = min(width - 1, values)  # the norm before a layer removes one direction, the mean
    chance = float(chance_angles(head, rank, width - 1).mean())
    found = trained_and_random(
        models, lambda _, model: torch.stack([reading(model.encoder, m) for m in MATRICES])
    )
    after, before = found["trained"], found["random weights"]  # (seeds, matrices, layers)

    gives = ("what it asks for", "what it is found by", "what it hands over")
    vector = "the vector of a token, in its layer"
    shapes = Table(
        "What they are",
        ("matrix", "shape", "how many", "it reads", "it gives"),
        [
            (
                "W_E, the embedding",
                f"{values} x {width}",
                1,
                "the pixels of a patch",
                "the patch's first vector",
            ),
            *(
                (name, f"{width} x {width}", len(encoder.blocks), vector, what)
                for name, what in zip(MATRICES, gives, strict=True)
            ),
        ],
    )
    angles = Table(
        f"Mean angle in degrees between the space that W_E writes ({rank} of {width} dimensions) and a head's ({head})",
        (
            "matrix",
            "first layer, at the start",
            "first layer, trained",
            "all layers, trained",
            "two random spaces",
        ),
        [
            (
                name,
                seeds(before[:, i, 0]),
                seeds(after[:, i, 0]),
                seeds(after[:, i]),
                f"{chance:.1f}",
            )
            for i, name in enumerate(MATRICES)
        ],
    )

    panels = [
        Panel(
            f"first layer, {when}",
            [[chance], *(of[:, i, 0].tolist() for i in range(len(MATRICES)))],
            "degrees",
            limits=(0, 90),
        )
        for when, of in (("before training", before), ("trained", after))
    ]
    about = (
        f"{models[0].data.name} · mean angle between the directions that W_E writes and those that a head reads: 0 where they"
        " are the same, 90 where they have nothing in common"
    )
    names = ["two random spaces", *MATRICES]
    figure = arms_figure(
        names, panels, "Do W_Q, W_K and W_V read what the embedding writes?", about
    )
    return Results([shapes, angles], {"angles": figure})


def reading(encoder: VisionTransformer, name: str) -> Tensor:
    """Return how far a matrix of `MATRICES` is from reading what W_E writes: the heads' mean angle in degrees, (layers,)."""
    written = _centred(encoder.patch_embed.W_E.detach())  # (P, D)
    found = []
    for block in encoder.blocks:
        assert isinstance(block, Block)
        matrix = _centred(
            (getattr(block.attn, name).detach() * block.norm1.weight.detach()[:, None]).T
        )  # (D, D)
        heads = matrix.unflatten(0, (block.attn.num_heads, -1))  # (h, d, D)
        found.append(torch.stack([principal_angles(written, head).mean() for head in heads]).mean())
    return torch.stack(found).float()


def _centred(rows: Tensor) -> Tensor:
    """Return rows without their mean over D, which the norm removes from every token."""
    return rows - rows.mean(1, keepdim=True)


def principal_angles(a: Tensor, b: Tensor) -> Tensor:
    """Return the principal angles in degrees between the row spaces of a (m, D) and b (n, D), the smallest first.

    There are as many as the smaller space has dimensions (Björck and Golub 1973).
    """
    angles = subspace_angles(
        *(rows.cpu().double().numpy().T for rows in (a, b))
    )  # the largest first
    return torch.from_numpy(np.degrees(angles[::-1]))


def chance_angles(m: int, n: int, dim: int) -> Tensor:
    """Return the mean principal angles between random subspaces of m and n out of `dim` dimensions: (min(m, n),)."""
    generator = torch.Generator().manual_seed(0)
    found = [
        principal_angles(
            *(torch.randn(size, dim, generator=generator, dtype=torch.float64) for size in (m, n))
        )
        for _ in range(20)
    ]
    return torch.stack(found).mean(0)
