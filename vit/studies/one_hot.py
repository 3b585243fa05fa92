"""An embedding table is a linear map of one-hot vectors; a patch embedding is the same on pixels, where no table would do."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.evaluate.reconstruction import fixed_mask
from vit.figures.measures import Panel, layers_figure
from vit.interpret.similarity import clusters
from vit.mae import masked_patch_loss
from vit.patches import patchify, unpatchify
from vit.studies.arms import compared, difference
from vit.studies.finding import Finding, Seeds, Table, brief, seeds
from vit.studies.laboratory import Laboratory, Learned
from vit.studies.plan import Plan

SIZES = (1, 4, 16, 64, 256, 1024)
SERVES = 0.05  # of the length of the first vectors: a table that misses them by less is nearly W_E


def study(laboratory: Laboratory, plan: Plan) -> Finding:
    """See the module."""
    models = [laboratory.learn(plan.training, seed) for seed in plan.seeds]
    embed = models[0].model.encoder.patch_embed
    values = embed.proj.weight[0].numel()
    by_size = [table_errors(one, plan.images) for one in models]
    sizes = [size for size, *_ in by_size[0]]  # the same for all: they begin with the same patches
    errors, losses = (torch.tensor([[line[i] for line in one] for one in by_size]) for i in (1, 2))  # (seeds, sizes)
    shown = models[0].sample(plan.images)
    linear = [_loss(one, shown) for one in models]
    exact = max(one_hot_difference(one) for one in models)
    convolved = max(convolution_difference(one) for one in models)

    proofs = Table(
        "The same thing in two ways: largest difference of any number",
        ("one way", "the other", "difference"),
        [
            ("looking a row up in a table (nn.Embedding)", "one-hot vector times the table", f"{exact:.1e}"),
            ("a patch's pixels times W_E", "the strided convolution with the same numbers", f"{convolved:.1e}"),
        ],
    )  # fmt: skip
    tables = Table(
        "A table of the most typical patches in the place of W_E",
        ("rows", "relative error of the first vectors", "loss over hidden patches"),
        [
            *(
                (size, seeds(errors[:, i].tolist(), share=True), seeds(losses[:, i].tolist()))
                for i, size in enumerate(sizes)
            ),
            ("W_E, no table", seeds([0.0] * len(models), share=True), seeds(linear)),
        ],
    )  # fmt: skip
    left, ends, kept = (seeds(errors[:, -1].tolist(), share=True), seeds(losses[:, -1].tolist()), seeds(linear))
    said = answer(exact, values, sizes[-1], left, ends, kept)
    limits = (
        "A table that is exact would need a row for every patch there can be. The typical patches are clusters (k-means) of"
        " patches of training images; a table that is trained might serve better. Words are few, and alike only by"
        " what they stand beside; patches are many, and alike by their pixels, which a linear map uses and a table cannot."
    )
    about = f"{models[0].data.name}, {len(shown):,} test images · line: mean over seeds, band: their range"
    places = [f"{size:,}" for size in sizes]
    panels = [
        Panel("first vectors: error of the table", {"table": errors.numpy()}, "of their length", share=True),
        Panel(
            "hidden patches: the loss", {"table": losses.numpy()}, "", {"W_E": seeds(linear).mean}
        ),
    ]  # fmt: skip
    figure = layers_figure(panels, "A patch embedding as a table", about, places, "rows of the table")
    caption = "The error of a table of typical patches in the place of the patch embedding, by its rows"
    return Finding(said, limits, [proofs, tables], {"table": figure}, {"table": caption})


def answer(exact: float, values: int, rows: int, left: Seeds, ends: Seeds, kept: Seeds) -> str:
    """What came out, in words that follow the figures.

    Args:
        exact: the largest difference between a table and the product of one-hot vectors with it.
        values: of a patch's pixels.
        rows: of the largest table that was put in the place of W_E.
        left: its error, as a share of the vectors' length.
        ends, kept: the loss with that table, and with W_E.
    """
    same = f"{exact:.0e}" if exact else "0"
    embedding = f"a patch embedding, one of {values} pixel values, is"
    judged = f"but {embedding} no table" if left.mean > SERVES else f"and {embedding} nearly a table here"
    changes = compared(brief(difference(ends, kept), 3), "lower", "higher")
    return (
        f"A table is a linear map of one-hot vectors (largest difference {same}), {judged}: {rows:,} typical"
        f" patches miss its vectors by {brief(left)} of their length. With that table in its place, the loss over hidden"
        f" patches, {brief(kept, 3)}, would be {changes}."
    )


def one_hot_difference(learned: Learned) -> float:
    """The largest difference between looking patches up in a table and the product of one-hot vectors with it."""
    patches = _patches(learned, learned.sample(16))
    table = nn.Embedding.from_pretrained(learned.model.encoder.patch_embed(patches).detach().flatten(0, 1))
    numbers = torch.arange(len(table.weight), device=table.weight.device)
    return float((table(numbers) - F.one_hot(numbers).to(table.weight) @ table.weight).abs().max())


def convolution_difference(learned: Learned) -> float:
    """The largest difference between patches times W_E and the convolution that strides by a patch."""
    inputs, embed = learned.prepare(learned.sample(16)), learned.model.encoder.patch_embed
    with torch.no_grad():
        strided = F.conv2d(inputs, embed.proj.weight, embed.proj.bias, stride=embed.patch_size)
        return float((strided.flatten(2).transpose(1, 2) - embed(patchify(inputs, embed.patch_size))).abs().max())


@torch.no_grad()
def table_errors(learned: Learned, images: int) -> list[tuple[int, float, float]]:
    """For tables of growing size, the rows, the error as a share of the vectors' length, and the loss.

    The sizes are `SIZES`, up to the first for which there are too few different patches: it has as many rows as there are.

    Args:
        learned: whose embedding is put into the table.
        images: of the test set that are looked at.
    """
    known = _patches(learned, learned.sample(500, "train")).flatten(0, 1)  # (n, P)
    test = learned.sample(images)
    patches = _patches(learned, test)  # (B, L, P)
    embed = learned.model.encoder.patch_embed
    meant = embed(patches)  # (B, L, D)
    found = []
    for size in SIZES:
        centres, _ = clusters(known, size, rounds=10)
        typical = centres[torch.cdist(patches.flatten(0, 1), centres).argmin(1)].view_as(patches)
        error = (embed(typical) - meant).square().sum((1, 2)).sqrt() / meant.square().sum((1, 2)).sqrt()
        found.append((len(centres), float(error.mean()), _loss(learned, test, typical)))
        if len(centres) < size:
            break
    return found


def _patches(learned: Learned, images: Tensor) -> Tensor:
    """Normalised patches of uint8 images: (B, L, P)."""
    return patchify(learned.prepare(images), learned.model.encoder.patch_embed.patch_size)


@torch.no_grad()
def _loss(learned: Learned, images: Tensor, shown: Tensor | None = None) -> float:
    """The loss over the hidden patches of uint8 images, where the model is shown the patches `shown` (B, L, P) instead."""
    mask_config, embed = learned.config.mask, learned.model.encoder.patch_embed
    inputs, total = learned.prepare(images), 0.0
    seen = inputs if shown is None else unpatchify(shown, embed.patch_size, embed.grid_size)
    for start in range(0, len(inputs), 256):
        part = slice(start, start + 256)
        mask = fixed_mask(mask_config.kind, start, len(inputs[part]), embed.grid_size, mask_config.ratio)
        mask = mask.to(inputs.device)
        loss = masked_patch_loss(learned.model(seen[part], mask), learned.model.targets(inputs[part]), mask.mask)
        total += float(loss) * len(inputs[part])
    return total / len(inputs)
