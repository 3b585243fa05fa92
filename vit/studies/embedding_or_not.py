"""Are W_Q and W_K the embedding? Their shapes, their places, and the angles between what one writes and the others read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vit.encoder import Block, VisionTransformer
from vit.figures.measures import Panel, layers_figure
from vit.interpret.circuits import chance_angles, principal_angles, share_within
from vit.studies.finding import Finding, Seeds, Table, seeds
from vit.studies.laboratory import Laboratory
from vit.studies.plan import Plan, require_matrices

MATRICES = ("W_Q", "W_K", "W_V")
MARGIN = 1.0  # degrees, below which a difference is called none


def study(laboratory: Laboratory, plan: Plan) -> Finding:
    """See the module."""
    require_matrices(plan, "embedding-or-not")
    models = [laboratory.learn(plan.training, seed) for seed in plan.seeds]
    encoder = models[0].model.encoder
    read = {name: torch.stack([reading(one.model.encoder, name) for one in models]) for name in MATRICES}
    at_start = {name: torch.stack([reading(one.initial.encoder, name) for one in models]) for name in MATRICES}
    after, before = ({name: of[name][..., 0] for name in MATRICES} for of in (read, at_start))  # angles (seeds, layers)
    shares = {name: read[name][..., 1] for name in MATRICES}
    values, width = encoder.patch_embed.W_E.shape
    head = width // encoder.attention(0).num_heads
    rank = min(width - 1, values)  # the norm in front of a layer takes one direction, the mean, away
    chance = float(chance_angles(head, rank, width - 1).mean())

    places = "the vector of a token, in its layer"
    gives = ("what it asks for", "what it is found by", "what it hands over")
    shapes = Table(
        "What they are",
        ("matrix", "shape", "how many", "it reads", "it gives"),
        [
            ("W_E, the embedding", f"{values} x {width}", 1, "the pixels of a patch", "the patch's first vector"),
            *(
                (name, f"{width} x {width}", len(encoder.blocks), places, what)
                for name, what in zip(MATRICES, gives, strict=True)
            ),
        ],
    )
    angles = Table(
        f"Mean angle in degrees between the space that W_E writes ({rank} of {width} dimensions) and a head's ({head})",
        ("matrix", "first layer, at the start", "first layer, trained", "all layers, trained", "two random spaces"),
        [
            (
                name,
                *(seeds(of.tolist()) for of in (before[name][:, 0], after[name][:, 0], after[name].mean(1))),
                f"{chance:.1f}",
            )
            for name in MATRICES
        ],
    )
    began, ended = ([seeds(of[name][:, 0].tolist(), digits=1) for name in MATRICES[:2]] for of in (before, after))
    said = answer(values, len(encoder.blocks), began, ended, chance, everything=rank == width - 1)
    limits = (
        "Angles compare spaces, not what is done within them. The positions, which are added to the embedding, are not in W_E."
        " The norm before each layer is taken into account (its scale and its centring)."
    )
    start = {"all three, at the start": float(torch.stack([before[name] for name in MATRICES]).mean())}
    panels = [
        Panel(
            "mean angle between what W_E writes and what a head reads",
            {name: after[name].numpy() for name in MATRICES},
            "degrees",
            {"two random spaces": chance} | start,
            limits=(0, 90),
        ),
        Panel(
            "how much of the matrix reads what W_E writes",
            {name: shares[name].numpy() for name in MATRICES},
            "",
            {"a random matrix": rank / (width - 1)},
            share=True,
            limits=(0, 1),
        ),
    ]
    about = f"{models[0].data.name} · trained models, mean over heads; line: mean over seeds, band: their range"
    figure = layers_figure(panels, "Do W_Q, W_K and W_V read what the embedding writes?", about)
    caption = "The angle between the embedding's space and what W_Q, W_K and W_V read, layer by layer"
    return Finding(said, limits, [shapes, angles], {"angles": figure}, {"angles": caption})


def answer(
    values: int, layers: int, began: Sequence[Seeds], ended: Sequence[Seeds], chance: float, everything: bool
) -> str:
    """What came out, in words that follow the figures.

    Args:
        values: of a patch's pixels.
        layers: of the encoder.
        began, ended: angles in degrees between what W_E writes and what W_Q and W_K read in the first layer, at the start and
            trained.
        chance: the angle of two random spaces.
        everything: whether what W_E writes is every direction that there is.
    """
    what = (
        f"No: the embedding W_E makes a patch's first vector of its {values} pixel values, once; in each of {layers} layers,"
        " W_Q and W_K make a query and a key of what that vector has become."
    )
    if everything:
        return f"{what} How near they are to it cannot be asked here: W_E reaches every direction of so narrow a model."
    nearer = [angle.mean < chance - max(MARGIN, 2 * (angle.spread or 0)) for angle in ended]
    if all(nearer):
        judged = "both nearer than"
    elif any(nearer):
        judged = f"only {'W_Q' if nearer[0] else 'W_K'} nearer than"
    else:
        judged = "no nearer than"
    return (
        f"{what} The directions that W_Q reads in the first layer lie {ended[0]} degrees from those that W_E writes, and W_K's"
        f" {ended[1]} (before training {began[0]} and {began[1]}): {judged} two random spaces ({chance:.1f})."
    )


def reading(encoder: VisionTransformer, name: str) -> Tensor:
    """How a matrix reads what W_E writes, in each layer: (layers, 2).

    The first is the mean principal angle between the two spaces in degrees, over heads; the second is the share of the matrix
    that lies in the space that W_E writes.

    Args:
        encoder: with the three matrices.
        name: "W_Q", "W_K" or "W_V".
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
