"""Do W_Q, W_K and W_V read what the embedding W_E writes?

W_E makes a patch's first vector of its pixels, once. In each layer, W_Q, W_K and W_V read what that vector has become. An angle
of 0 degrees means that a head reads nothing but directions which W_E writes, 90 degrees that it reads none of them; the
angle of two random spaces is what two matrices have that know nothing of each other. A share of 100% means that the matrix
reads only what W_E writes. A difference counts where it is larger than twice its spread over the seeds, and than a degree.

*Limits.* Angles compare spaces, not what is done within them. The positions, which are added to the embedding, are not in W_E.
The norm before each layer is taken into account (its scale and its centring). Where W_E reaches every direction of a narrow
model, the question cannot be asked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vit.encoder import Block, VisionTransformer
from vit.figures.measures import Panel, layers_figure
from vit.studies.analysis.circuits import chance_angles, principal_angles, share_within
from vit.studies.experiment import Experiment
from vit.studies.results import Results, Table, seeds

MATRICES = ("W_Q", "W_K", "W_V")


def study(experiment: Experiment) -> Results:
    """Return what was measured; the module says how to read it."""
    experiment.require_matrices()
    models = experiment.models()
    encoder = models[0].model.encoder
    values, width = encoder.patch_embed.W_E.shape
    head = width // encoder.attention(0).num_heads
    rank = min(width - 1, values)  # the norm in front of a layer takes one direction, the mean, away
    chance = float(chance_angles(head, rank, width - 1).mean())
    read = {name: torch.stack([reading(one.model.encoder, name) for one in models]) for name in MATRICES}
    before = {name: torch.stack([reading(one.initial.encoder, name) for one in models]) for name in MATRICES}
    after, shares = ({name: of[..., i] for name, of in read.items()} for i in (0, 1))  # (seeds, layers)

    what = {"W_Q": "what it asks for", "W_K": "what it is found by", "W_V": "what it hands over"}
    vector = "the vector of a token, in its layer"
    shapes = Table(
        "What they are",
        ("matrix", "shape", "how many", "it reads", "it gives"),
        [
            ("W_E, the embedding", f"{values} x {width}", 1, "the pixels of a patch", "the patch's first vector"),
            *((name, f"{width} x {width}", len(encoder.blocks), vector, what[name]) for name in MATRICES),
        ],
    )
    angles = Table(
        f"Mean angle in degrees between the space that W_E writes ({rank} of {width} dimensions) and a head's ({head})",
        ("matrix", "first layer, at the start", "first layer, trained", "all layers, trained", "two random spaces"),
        [
            (
                name,
                seeds(before[name][:, 0, 0]),
                seeds(after[name][:, 0]),
                seeds(after[name]),
                f"{chance:.1f}",
            )
            for name in MATRICES
        ],
    )

    start = float(torch.stack([before[name][..., 0] for name in MATRICES]).mean())
    panels = [
        Panel(
            "mean angle between what W_E writes and what a head reads",
            {name: of.numpy() for name, of in after.items()},
            "degrees",
            {"two random spaces": chance, "all three, at the start": start},
            limits=(0, 90),
        ),
        Panel(
            "how much of the matrix reads what W_E writes",
            {name: of.numpy() for name, of in shares.items()},
            "",
            {"a random matrix": rank / (width - 1)},
            share=True,
            limits=(0, 1),
        ),
    ]
    about = f"{models[0].data.name} · trained models, mean over heads; line: mean over seeds, band: their range"
    figure = layers_figure(panels, "Do W_Q, W_K and W_V read what the embedding writes?", about)
    return Results([shapes, angles], {"angles": figure})


def reading(encoder: VisionTransformer, name: str) -> Tensor:
    """How a matrix, "W_Q", "W_K" or "W_V", reads what W_E writes, in each layer: (layers, 2).

    The first is the mean principal angle between the two spaces in degrees, over heads; the second is the share of the
    matrix that lies in the space that W_E writes.
    """
    written = _centred(encoder.patch_embed.W_E.detach())  # (P, D)
    found = []
    for block in encoder.blocks:
        assert isinstance(block, Block)
        matrix = _centred((getattr(block.attn, name).detach() * block.norm1.weight.detach()[:, None]).T)  # (D, D)
        heads = matrix.unflatten(0, (block.attn.num_heads, -1))  # (h, d, D)
        angle = torch.stack([principal_angles(written, head).mean() for head in heads]).mean()
        found.append((float(angle), share_within(matrix, written)))
    return torch.tensor(found)


def _centred(rows: Tensor) -> Tensor:
    """Rows without their mean over D, which the norm takes away from every token."""
    return rows - rows.mean(1, keepdim=True)
