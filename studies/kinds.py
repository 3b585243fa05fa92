"""Kinds of patches, and what is known about them without any model: how they look, where they lie, what they occur with.

Letters: n or B images, L patches, K kinds, D width, S stages of the residual stream (before the first block, after each).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from torch import Tensor

from studies.experiment import Experiment, Trained
from vit.config import ModelConfig
from vit.data import Dataset
from vit.data.images import evenly_spaced
from vit.data.sources import SCENES_SEED
from vit.encoder import Block, VisionTransformer, eval_mode
from vit.errors import RunError
from vit.inputs import Normalization, cut_to_shape, to_float
from vit.patches import patchify
from vit.scenes import PART_NAMES, draw_scenes, scene_indices

SCENES = 2000  # drawn for counting, and again for measuring: enough for the rare parts
CLEAR = 0.6  # share of a patch's pixels that must be of a part, for the patch to count as that part
CLUSTERS = 32
LEAST = 10  # patches of a kind in each half of the images: a rarer one is not measured
FEWEST = 8  # kinds: fewer have too few orders to tell company from chance
BATCH = 250
WHOLE, ALONE = "in whole images", "alone"
TOGETHER, BESIDE = "in one image", "side by side"


# --- what occurs together ---------------------------------------------------------------------------------------------------


def patch_labels(labels: Tensor, grid_size: tuple[int, int], share: float = 0.0) -> Tensor:
    """Return the commonest label of each patch's pixels, the lowest of several: integers (n, H, W) -> int64 (n, L).

    It is -1 if no label has at least this `share` of the pixels.
    """
    (rows, columns), (height, width) = grid_size, labels.shape[1:]
    patches = labels.long().view(-1, rows, height // rows, columns, width // columns)
    patches = patches.transpose(2, 3).flatten(3).flatten(1, 2)  # (n, L, pixels of a patch)
    counts = patches.new_zeros(*patches.shape[:2], int(patches.max()) + 1)
    most, label = counts.scatter_add_(2, patches, torch.ones_like(patches)).max(2)
    return torch.where(most >= share * patches.shape[2], label, -1)


def together_in_images(labels: Tensor, count: int) -> Tensor:
    """Return the `information` (K, K) of being in one image, by labels (n, L); -1 is none."""
    there = torch.stack(
        [(labels == label).any(1) for label in range(count)], dim=1
    ).double()  # (n, K)
    images = there.sum(0)
    return information(there.T @ there, images[:, None] * images / len(labels))


def side_by_side(labels: Tensor, grid_size: tuple[int, int], count: int) -> Tensor:
    """Return the `information` (K, K) of touching on the grid of patches, by labels (n, L); -1 is none."""
    grid = labels.unflatten(1, grid_size)
    pairs = [(grid[:, 1:], grid[:, :-1]), (grid[:, :, 1:], grid[:, :, :-1])]
    one, other = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
    known = (one >= 0) & (other >= 0)
    met = (
        torch.bincount(one[known] * count + other[known], minlength=count**2)
        .view(count, count)
        .double()
    )
    met = met + met.T
    ends = met.sum(0)
    return information(met, ends[:, None] * ends / met.sum().clamp(min=1))


def information(met: Tensor, expected: Tensor) -> Tensor:
    """Return pointwise mutual information in bits (Church and Hanks 1990): log2 of (met + 1) / (expected + 1).

    The ones pull it towards 0 if few meetings are expected: two rare things may have had no occasion.
    """
    return ((met + 1) / (expected + 1)).log2()


# --- tokens -----------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def residual_stream(encoder: VisionTransformer, inputs: Tensor, alone: bool = False) -> Tensor:
    """Return the patch tokens of images (B, C, H, W) before the first block and after each: (S, B, L, D), not normed.

    With `alone`, each patch is seen by itself, at its place, as if all others were hidden.
    """
    prefix = encoder.num_prefix_tokens
    with eval_mode(encoder):
        x = encoder.embed(encoder.patchify(inputs))  # (B, prefix + L, D)
        batch, patches = len(x), x.shape[1] - prefix
        if alone:
            heads = x[:, None, :prefix].expand(-1, patches, -1, -1)  # (B, L, prefix, D)
            x = torch.cat([heads, x[:, prefix:, None]], dim=2).flatten(0, 1)  # (B L, prefix + 1, D)
        found = [x[:, prefix:]]
        for block in encoder.blocks:
            x = block(x)
            found.append(x[:, prefix:])
    return torch.stack(found).unflatten(1, (batch, -1)).flatten(2, 3)


@torch.no_grad()
def queries_and_keys(encoder: VisionTransformer, inputs: Tensor, alone: bool = False) -> Tensor:
    """Return queries and keys of the patch tokens of `residual_stream`: (2, layers, B, L, D), heads side by side."""
    stream = residual_stream(encoder, inputs, alone)
    sides = []
    for x, block in zip(stream[:-1], encoder.blocks, strict=True):
        assert isinstance(block, Block)
        queries, keys, _ = block.attn.project(block.norm1(x))  # (B, h, L, d)
        sides.append(torch.stack([queries, keys]).transpose(2, 3).flatten(3))
    return torch.stack(sides, dim=1)


def group_means(batches: Iterable[Tensor], labels: Tensor, count: int) -> Tensor:
    """Return the mean token of K groups of patches, beyond the mean token of their places: (S, 2, K, D).

    Even and odd images are averaged apart, so that the two means share no image; nan if a half has no patch of a group. The
    batches (S, B, L, D) are of all images in order; labels are (n, L), -1 for none.
    """
    half = torch.arange(len(labels))[:, None] % 2
    groups = torch.where(
        labels < 0, 2 * count, labels + count * half
    )  # (n, L), the last for patches of no group
    sums, places, done = [], [], 0
    for tokens in batches:
        into = groups[done : done + tokens.shape[1]].flatten().to(tokens.device)
        empty = tokens.new_zeros(len(tokens), 2 * count + 1, tokens.shape[3])
        sums.append(empty.index_add_(1, into, tokens.flatten(1, 2))[:, :-1].cpu().double())
        places.append(tokens.sum(1).cpu().double())
        done += tokens.shape[1]
    typical = torch.stack(places).sum(0) / done  # (S, L, D)
    lie = torch.stack(
        [torch.bincount(column, minlength=2 * count + 1)[:-1] for column in groups.T], dim=1
    ).double()
    beyond = torch.stack(sums).sum(0) - lie @ typical  # (S, 2 K, D)
    return (beyond / lie.sum(1)[:, None]).unflatten(1, (2, count))


def group_cosines(means: Tensor) -> Tensor:
    """Return the cosine between any two groups, about the mean of all, across the halves of `group_means`: (S, K, K)."""
    unit = F.normalize(means - means.mean(2, keepdim=True), dim=-1)
    cosines = unit[:, 0] @ unit[:, 1].transpose(1, 2)
    return (cosines + cosines.transpose(1, 2)) / 2


def group_logits(means: Tensor, heads: int) -> Tensor:
    """Return what a group asks of another, q . k / sqrt(d), mean over heads: (layers, K, K), query by key.

    The means are those of queries and keys, (2, layers, 2, K, D), by `group_means`, i.e. beyond what is typical of the two
    places. A query and a key are of different halves, and share no image.
    """
    queries, keys = means
    asked = queries @ keys.flip(1).mT  # (layers, 2, K, K), summed over heads
    return asked.mean(1) * (means.shape[-1] / heads) ** -0.5 / heads


# --- kinds ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kinds:
    """Kinds of patches, K of them.

    Attributes:
        data: name of the images.
        names: of the kinds.
        views: uint8 test images (n, C, H, W), and whether each patch is shown alone.
        labels: int64 (n, L), the kind of each patch, -1 for none.
        met: (K, K) each, the `information` of being in one image and side by side, in training images.
    """

    data: str
    names: tuple[str, ...]
    views: dict[str, tuple[Tensor, bool]]
    labels: Tensor
    met: dict[str, Tensor]

    def cosines(self, trained: Trained, encoder: VisionTransformer, view: str) -> Tensor:
        """Return the cosines of kinds' tokens before the first block and after each: (S, K, K), see `group_cosines`."""
        images, alone = self.views[view]
        tokens = (
            residual_stream(encoder, trained.prepare(part), alone) for part in images.split(BATCH)
        )
        return group_cosines(group_means(tokens, self.labels, len(self.names)))

    def logits(self, trained: Trained, encoder: VisionTransformer, view: str) -> Tensor:
        """Return what each kind asks of each in every layer: (layers, K, K), query by key, see `group_logits`."""
        images, alone = self.views[view]
        tokens = (
            queries_and_keys(encoder, trained.prepare(part), alone).flatten(0, 1)
            for part in images.split(BATCH)
        )
        means = group_means(tokens, self.labels, len(self.names)).unflatten(0, (2, -1))
        return group_logits(means, encoder.config.num_heads)

    def looks(self, trained: Trained, view: str) -> tuple[Tensor, ...]:
        """Return how alike two kinds look and lie, (K, K) each, larger for more alike.

        These are the cosine of their mean patches, the nearness of mean colours and of contrasts, all beyond what is typical
        of the place, and the cosine of how often they lie at each place.
        """
        size, count = trained.model.encoder.patch_embed.patch_size, len(self.names)
        batches = self.views[view][0].split(BATCH)
        pixels = [
            patchify(trained.prepare(part), size)[None] for part in batches
        ]  # (1, B, L, P) each
        patches = group_means(pixels, self.labels, count)
        colours = patches[0].mean(0).unflatten(1, (-1, size[0] * size[1])).mean(2)  # (K, C)
        spread = group_means((part.std(-1, keepdim=True) for part in pixels), self.labels, count)
        contrasts = spread[0].mean(0)  # (K, 1)
        places = torch.stack(
            [(self.labels == kind).sum(0) for kind in range(count)]
        ).double()  # (K, L)
        lie = F.normalize(places, dim=1)
        near = (-torch.cdist(values, values) for values in (colours, contrasts))
        return (group_cosines(patches)[0], *near, lie @ lie.T)


class Drawn(NamedTuple):
    """n scenes: images uint8 (n, C, H, W), classes (n,), the part of each pixel (n, H, W) and of each patch (n, L)."""

    images: Tensor
    classes: Tensor
    pixels: Tensor
    patches: Tensor


def drawn_scenes(split: Literal["train", "test"], model: ModelConfig, share: float) -> Drawn:
    """Draw the first `SCENES` of a split, with the part that covers at least this `share` of each patch, else -1."""
    images, classes, pixels = draw_scenes(scene_indices(SCENES, split), SCENES_SEED)
    images, pixels = (cut_to_shape(some, model.image_size_2d) for some in (images, pixels))
    # Resized like the images: each pixel has the part of the nearest one.
    resized = F.interpolate(pixels[:, None], model.image_size_2d)[:, 0]
    return Drawn(images, classes, pixels, patch_labels(resized, model.grid_size, share))


def require_parts(experiment: Experiment, names: Sequence[str]) -> None:
    """Refuse patches so large that some parts of Scenes hardly ever fill one."""
    model = experiment.on_scenes.model
    frequent = _frequent(drawn_scenes("test", model, CLEAR).patches, len(PART_NAMES)).tolist()
    rare = [name for name in names if PART_NAMES.index(name) not in frequent]
    if rare:
        height, width = model.patch_size_2d
        smaller = f"model.patch_size {max(min(model.image_size_2d) // 8, 1)}"
        raise RunError(
            f"too few patches of {height} x {width} pixels are filled by a {' or a '.join(rare)}; take"
            f" {smaller if experiment.checkpoint is None else 'another checkpoint'}"
        )


def parts_of_scenes(model: ModelConfig, data: Dataset) -> Kinds:
    """Return the parts of Scenes, a kind each.

    A patch shown alone is cut out along its part: its other pixels have the mean colour of the training images.
    """
    grid, shown, counted = (
        model.grid_size,
        drawn_scenes("test", model, CLEAR),
        drawn_scenes("train", model, 0),
    )
    patches = shown.patches.view(-1, 1, *grid).float()
    covers = F.interpolate(
        patches, shown.images.shape[-2:]
    )  # (n, 1, H, W), the part of each pixel's patch
    mean = torch.tensor(Normalization.of(data.train.images).mean)
    grey = mean.mul(255).round().to(shown.images.dtype)[:, None, None]  # 0 to the model
    cut = torch.where(shown.pixels[:, None] == covers, shown.images, grey)
    views = {WHOLE: (shown.images, False), ALONE: (cut, True)}
    return _kinds("Scenes", PART_NAMES, views, shown.patches, counted.patches, grid)


def clusters(points: Tensor, count: int, seed: int = 0, rounds: int = 25) -> Tensor:
    """Return k-means' centres (k, P) of points (n, P); fewer than `count` if there are fewer different points."""
    count = min(count, len(points.unique(dim=0)))
    found = KMeans(count, n_init=1, max_iter=rounds, random_state=seed).fit(points.cpu().numpy())
    return torch.from_numpy(found.cluster_centers_).to(points)


def clusters_of_patches(model: ModelConfig, data: Dataset, images: int) -> Kinds:
    """Return kinds of test patches by k-means of pixels, with what they meet in ten times as many training images."""
    shown = data.test.images[evenly_spaced(len(data.test), images)]
    counted = data.train.images[evenly_spaced(len(data.train), 10 * images)]
    normalize = Normalization.of(data.train.images)

    def patches(some: Tensor) -> Tensor:
        return patchify(
            normalize(to_float(some, model.image_size_2d)), model.patch_size_2d
        )  # (B, L, P)

    centres = clusters(patches(counted[evenly_spaced(len(counted), 500)]).flatten(0, 1), CLUSTERS)

    def nearest(some: Tensor) -> Tensor:
        return torch.cat(
            [torch.cdist(patches(part), centres).argmin(2) for part in some.split(BATCH)]
        )

    names = tuple(str(number) for number in range(len(centres)))
    views = {WHOLE: (shown, False), ALONE: (shown, True)}
    return _kinds(data.name, names, views, nearest(shown), nearest(counted), model.grid_size)


def _frequent(labels: Tensor, count: int) -> Tensor:
    """Return which kinds have `LEAST` patches in each half of the images: int64 (K,)."""
    halves = [
        torch.bincount(half[half >= 0], minlength=count) for half in (labels[::2], labels[1::2])
    ]
    return (torch.stack(halves).amin(0) >= LEAST).nonzero()[:, 0]


def _kinds(
    data: str,
    names: tuple[str, ...],
    views: dict[str, tuple[Tensor, bool]],
    labels: Tensor,
    counted: Tensor,
    grid: tuple[int, int],
) -> Kinds:
    """Keep the kinds that are frequent enough in `labels`, with what they meet in `counted`."""
    kept = _frequent(labels, len(names))
    if len(kept) < FEWEST:
        raise RunError(
            f"{data}: {len(kept)} kinds of patches are frequent enough in {len(labels):,} test images, {FEWEST} are needed;"
            " take more images (--images, --data.limit) or smaller patches (model.patch_size, another checkpoint)"
        )
    number = torch.full((len(names) + 1,), -1)  # its last place is that of -1, no kind
    number[kept] = torch.arange(len(kept))
    met = {
        TOGETHER: together_in_images(number[counted], len(kept)),
        BESIDE: side_by_side(number[counted], grid, len(kept)),
    }
    return Kinds(data, tuple(names[kind] for kind in kept.tolist()), views, number[labels], met)
