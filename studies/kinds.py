"""Kinds of patches, and what is known about them without any model: appearance, position, what they
occur together with.

Letters: n or B images, L patches, K kinds, D width, S stages of the residual stream (before the
first layer, after each).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from torch import Tensor

from studies.analysis.correlation import correlation
from studies.experiment import Experiment, Trained
from vit.config import ModelConfig
from vit.data import Dataset
from vit.data.sources import SCENES_SEED
from vit.encoder import Block, VisionTransformer
from vit.errors import RunError
from vit.inputs import Normalization, cut_to_shape, evenly_spaced, to_float
from vit.isolation import eval_mode
from vit.patches import patchify
from vit.scenes import PART_NAMES, draw_scenes, scene_indices

SCENES = 2000
"""Drawn for counting, and again for measuring: enough for the rare parts."""
CLEAR = 0.6
"""The share of a patch's pixels that must be of a part, for the patch to count as that part."""
CLUSTERS = 32
LEAST = 10
"""Patches of a kind in each half of the images: a rarer kind is not measured."""
FEWEST = 8
"""Kinds: fewer have too few orders to tell what occurs together from chance."""
BATCH = 250
RED_BALL = "red ball"
"""What takes the place of another part: see `with_red_balls`."""
WHOLE, ALONE = "in whole images", "alone"
TOGETHER, COMPANY = "in one image", "in the same company"


# --- what occurs together ----------------------------------------------------------------


def patch_labels(labels: Tensor, grid_size: tuple[int, int], share: float = 0.0) -> Tensor:
    """Return each patch's commonest label, the lowest of several: (n, H, W) -> int64 (n, L).

    It is -1 if no label has at least this `share` of the pixels.
    """
    rows, columns = grid_size
    height, width = labels.shape[1:]
    patches = labels.long().view(-1, rows, height // rows, columns, width // columns)
    patches = patches.transpose(2, 3).flatten(3).flatten(1, 2)  # (n, L, pixels of a patch)
    counts = patches.new_zeros(*patches.shape[:2], int(patches.max()) + 1)
    most, label = counts.scatter_add_(2, patches, torch.ones_like(patches)).max(2)
    return torch.where(most >= share * patches.shape[2], label, -1)


def together_in_images(labels: Tensor, count: int) -> Tensor:
    """Return the `information` (K, K) of being in one image, by labels (n, L); -1 is none."""
    # Whether an image has a kind: (n, K)
    present = torch.stack([(labels == label).any(1) for label in range(count)], dim=1).double()
    images = present.sum(0)
    return information(present.T @ present, images[:, None] * images / len(labels))


def same_company(together: Tensor) -> Tensor:
    """Return how alike the company of two kinds is, the two themselves left out: (K, K).

    It is the correlation of what they occur with, by `together` (K, K). King and queen keep the
    same company, whether or not they stand in one sentence (Harris 1954).
    """
    count = len(together)
    company = together.new_ones(count, count)
    for first in range(count):
        for second in range(first):
            others = torch.ones(count, dtype=torch.bool)
            others[[first, second]] = False
            alike = correlation(together[first, others], together[second, others])
            company[first, second] = company[second, first] = alike
    return company


def information(counted: Tensor, expected: Tensor) -> Tensor:
    """Return pointwise mutual information in bits (Church and Hanks 1990).

    It is log2 of (counted + 1) / (expected + 1).

    The ones pull it towards 0 if two kinds are expected together only a few times: rare kinds had
    little occasion.
    """
    return ((counted + 1) / (expected + 1)).log2()


# --- tokens ----------------------------------------------------------------


@torch.no_grad()
def residual_stream(encoder: VisionTransformer, inputs: Tensor, alone: bool = False) -> Tensor:
    """Return the patch tokens of images (B, C, H, W) before the first layer and after each: (S, B,
    L, D), not normed.

    With `alone`, each patch is seen by itself, at its place, as if all others were hidden.
    """
    prefix = encoder.num_prefix_tokens
    with eval_mode(encoder):
        x = encoder.embed(encoder.patchify(inputs))  # (B, prefix + L, D)
        batch, patches = len(x), x.shape[1] - prefix
        if alone:
            prefixes = x[:, None, :prefix].expand(-1, patches, -1, -1)  # (B, L, prefix, D)
            x = torch.cat([prefixes, x[:, prefix:, None]], dim=2)  # (B, L, prefix + 1, D)
            x = x.flatten(0, 1)
        stages = [x[:, prefix:]]
        for block in encoder.blocks:
            x = block(x)
            stages.append(x[:, prefix:])
    return torch.stack(stages).unflatten(1, (batch, -1)).flatten(2, 3)


@torch.no_grad()
def queries_and_keys(encoder: VisionTransformer, stream: Tensor) -> Tensor:
    """Return queries and keys of the patch tokens of a `residual_stream`: (2, layers, B, L, D),
    heads side by side."""
    sides = []
    for x, block in zip(stream[:-1], encoder.blocks, strict=True):
        assert isinstance(block, Block)
        queries, keys, _ = block.attn.project(block.norm1(x))  # (B, h, L, d)
        sides.append(torch.stack([queries, keys]).transpose(2, 3).flatten(3))
    return torch.stack(sides, dim=1)


def group_means(batches: Iterable[Tensor], labels: Tensor, count: int) -> Tensor:
    """Return the mean token of K groups of patches, less that of their places: (S, 2, K, D).

    Even and odd images are averaged apart, so that the two means share no image; nan if a half has
    no patch of a group. The batches (S, B, L, D) are of all images in order; labels are (n, L), -1
    for none.
    """
    half = torch.arange(len(labels))[:, None] % 2
    # The group of each patch: (n, L), the last for patches of no group
    groups = torch.where(labels < 0, 2 * count, labels + count * half)

    # Sum the tokens by group and by place
    group_sums = []
    place_sums = []
    done = 0
    for tokens in batches:
        indices = groups[done : done + tokens.shape[1]].flatten().to(tokens.device)
        sums = tokens.new_zeros(len(tokens), 2 * count + 1, tokens.shape[3])
        sums.index_add_(1, indices, tokens.flatten(1, 2))
        group_sums.append(sums[:, :-1].cpu().double())
        place_sums.append(tokens.sum(1).cpu().double())
        done += tokens.shape[1]
    typical = torch.stack(place_sums).sum(0) / done  # (S, L, D)

    # How many patches of each group lie at each place: (2 K, L)
    columns = [torch.bincount(column, minlength=2 * count + 1)[:-1] for column in groups.T]
    counts = torch.stack(columns, dim=1).double()
    beyond = torch.stack(group_sums).sum(0) - counts @ typical  # (S, 2 K, D)
    return (beyond / counts.sum(1)[:, None]).unflatten(1, (2, count))


def group_cosines(means: Tensor) -> Tensor:
    """Return the cosine between any two groups, about the mean of all, across the halves of
    `group_means`: (S, K, K)."""
    unit = F.normalize(means - means.mean(2, keepdim=True), dim=-1)
    cosines = unit[:, 0] @ unit[:, 1].transpose(1, 2)
    return (cosines + cosines.transpose(1, 2)) / 2


def dimensions(means: Tensor) -> Tensor:
    """Return in how many directions the means (..., K, D) of groups differ: (...).

    It is the participation ratio of the variances: 1 if the groups lie on a line.
    """
    centred = means - means.mean(-2, keepdim=True)
    variances = torch.linalg.svdvals(centred).square()
    return variances.sum(-1).square() / variances.square().sum(-1)


def group_scores(means: Tensor, heads: int) -> Tensor:
    """Return the score of a group's query for another's key, q . k / sqrt(d), mean over heads.

    Args:
        means: of queries and keys, (2, layers, 2, K, D), by `group_means`, i.e. beyond what is
            typical of the two places. A query and a key are of different halves, and share no
            image.
        heads: whose queries and keys lie side by side.

    Returns:
        (layers, K, K), query by key.
    """
    queries, keys = means
    scores = queries @ keys.flip(1).mT  # (layers, 2, K, K), summed over heads
    return scores.mean(1) * (means.shape[-1] / heads) ** -0.5 / heads


# --- kinds ----------------------------------------------------------------


@dataclass(frozen=True)
class Kinds:
    """Kinds of patches, K of them.

    Attributes:
        data: name of the images.
        names: of the kinds.
        views: uint8 test images (n, C, H, W), and whether each patch is shown alone.
        labels: int64 (n, L), the kind of each patch, -1 for none.
        together: (K, K) each, the `information` of being in one image, of training images, and
            `same_company` by it.
    """

    data: str
    names: tuple[str, ...]
    views: dict[str, tuple[Tensor, bool]]
    labels: Tensor
    together: dict[str, Tensor]

    def ends(self, trained: Trained, encoder: VisionTransformer, view: str) -> Tensor:
        """Return all tokens before the first layer and after the last: (2, n, L, D)."""
        images, alone = self.views[view]
        parts = []
        for part in images.split(BATCH):
            parts.append(residual_stream(encoder, trained.prepare(part), alone)[[0, -1]])
        return torch.cat(parts, dim=1)

    def means(
        self, trained: Trained, encoder: VisionTransformer, view: str
    ) -> tuple[Tensor, Tensor]:
        """Return the `group_means` of kinds' tokens before the first layer and after each, (S, 2,
        K, D), and of their queries and keys, (2, layers, 2, K, D)."""
        images, alone = self.views[view]

        def batches() -> Iterator[Tensor]:
            for part in images.split(BATCH):
                stream = residual_stream(encoder, trained.prepare(part), alone)
                yield torch.cat([stream, queries_and_keys(encoder, stream).flatten(0, 1)])

        means = group_means(batches(), self.labels, len(self.names))
        stages = len(encoder.blocks) + 1
        return means[:stages], means[stages:].unflatten(0, (2, -1))

    def appearance(self, trained: Trained, view: str) -> tuple[Tensor, ...]:
        """Return how similar two kinds are in appearance and position, (K, K) each, larger for more
        similar.

        These are the cosine of their mean patches, as they are and whitened, the nearness of mean
        colours and of contrasts, all beyond the mean of the position, and the cosine of how often
        they lie at each position. Whitened, because most of what pixels share is brightness, which
        a linear map may turn down without having learned what occurs together.
        """
        # Pixels: (1, B, L, P) each
        size = trained.model.encoder.patch_embed.patch_size
        count = len(self.names)
        images, _ = self.views[view]
        pixels = [patchify(trained.prepare(part), size)[None] for part in images.split(BATCH)]
        patches = group_means(pixels, self.labels, count)
        colours = patches[0].mean(0).unflatten(1, (-1, size[0] * size[1])).mean(2)  # (K, C)
        white = whitening(torch.cat(pixels, dim=1).flatten(0, 2))
        whitened = group_means((part @ white for part in pixels), self.labels, count)
        spread = group_means((part.std(-1, keepdim=True) for part in pixels), self.labels, count)
        contrasts = spread[0].mean(0)  # (K, 1)

        # How often a kind lies at each place: (K, L)
        places = torch.stack([(self.labels == kind).sum(0) for kind in range(count)]).double()
        places = F.normalize(places, dim=1)

        nearness_of_colours = -torch.cdist(colours, colours)
        nearness_of_contrasts = -torch.cdist(contrasts, contrasts)
        return (
            group_cosines(patches)[0],
            group_cosines(whitened)[0],
            nearness_of_colours,
            nearness_of_contrasts,
            places @ places.T,
        )


def whitening(patches: Tensor, share: float = 0.99) -> Tensor:
    """Return the map (P, Q) of patches (n, P) to principal components, each of variance 1.

    They are the first ones that hold this `share` of the variance.
    """
    variances, directions = torch.linalg.eigh(torch.cov(patches.double().T))
    # the largest first
    variances = variances.flip(0)
    directions = directions.flip(1)
    kept = int((variances.cumsum(0) < share * variances.sum()).sum()) + 1
    return (directions[:, :kept] / variances[:kept].sqrt()).to(patches)


class Drawn(NamedTuple):
    """n scenes: images uint8 (n, C, H, W), classes (n,), the part of each pixel (n, H, W) and of
    each patch (n, L)."""

    images: Tensor
    classes: Tensor
    pixels: Tensor
    patches: Tensor


def with_red_balls(images: Tensor, pixels: Tensor, part: str) -> tuple[Tensor, Tensor]:
    """Put red balls in place of a part of Scenes, in half of the images by a coin each.

    They have the outline of the part, and its light and shade; so an image never has both.

    Args:
        images: uint8 (n, C, H, W).
        pixels: the part of each pixel, (n, H, W).
        part: name of it.

    Returns:
        The images and parts with `RED_BALL`, whose number is the first after `PART_NAMES`.
    """
    coins = torch.rand(len(images), generator=torch.Generator().manual_seed(0)) < 0.5
    replaced = (pixels == PART_NAMES.index(part)) & coins[:, None, None]
    grey = images.float().mean(1, keepdim=True)
    red = torch.cat([150 + 0.4 * grey, 0.25 * grey, 0.25 * grey], dim=1).to(images.dtype)
    pixels = torch.where(replaced, len(PART_NAMES), pixels)
    return torch.where(replaced[:, None], red, images), pixels


def drawn_scenes(
    split: Literal["train", "test"], model: ModelConfig, share: float, replaced: str = ""
) -> Drawn:
    """Draw the first `SCENES` of a split, with the part that covers at least this `share` of each
    patch, else -1; with red balls for the part `replaced`."""
    images, classes, pixels = draw_scenes(scene_indices(SCENES, split), SCENES_SEED)
    if replaced:
        images, pixels = with_red_balls(images, pixels, replaced)
    images = cut_to_shape(images, model.image_size)
    pixels = cut_to_shape(pixels, model.image_size)
    # Resized like the images: each pixel has the part of the nearest one.
    resized = F.interpolate(pixels[:, None], model.image_size)[:, 0]
    return Drawn(images, classes, pixels, patch_labels(resized, model.grid_size, share))


def require_parts(experiment: Experiment, names: Sequence[str]) -> None:
    """Refuse patches so large that some parts of Scenes hardly ever fill one."""
    model = experiment.on_scenes.model
    frequent = _frequent(drawn_scenes("test", model, CLEAR).patches, len(PART_NAMES)).tolist()
    rare = [name for name in names if PART_NAMES.index(name) not in frequent]
    if rare:
        height, width = model.patch_size
        smaller = f"model.patch_size {max(min(model.image_size) // 8, 1)}"
        if experiment.checkpoint is not None:
            smaller = "another checkpoint"
        problem = f"too few patches of {height} x {width} pixels are filled by a"
        raise RunError(f"{problem} {' or a '.join(rare)}; take {smaller}")


def parts_of_scenes(model: ModelConfig, data: Dataset, replaced: str = "") -> Kinds:
    """Return the parts of Scenes, a kind each; with red balls for the part `replaced`.

    A patch shown alone is cut out along its part: its other pixels have the mean colour of the
    training images.
    """
    grid = model.grid_size
    shown = drawn_scenes("test", model, CLEAR, replaced)
    counted = drawn_scenes("train", model, 0, replaced)

    # Cut each patch out along its part: (n, 1, H, W), the part of each pixel's patch
    patches = shown.patches.view(-1, 1, *grid).float()
    covers = F.interpolate(patches, shown.images.shape[-2:])
    mean = torch.tensor(Normalization.measured_on(data.train.images).mean)
    grey = mean.mul(255).round().to(shown.images.dtype)[:, None, None]  # 0 to the model
    cut = torch.where(shown.pixels[:, None] == covers, shown.images, grey)
    views = {WHOLE: (shown.images, False), ALONE: (cut, True)}
    names = (*PART_NAMES, RED_BALL)
    return _kinds("Scenes", names, views, shown.patches, counted.patches)


def clusters(points: Tensor, count: int, seed: int = 0, rounds: int = 25) -> Tensor:
    """Return k-means' centres (k, P) of points (n, P); fewer than `count` if there are fewer
    different points."""
    count = min(count, len(points.unique(dim=0)))
    kmeans = KMeans(count, n_init=1, max_iter=rounds, random_state=seed)
    kmeans.fit(points.cpu().numpy())
    return torch.from_numpy(kmeans.cluster_centers_).to(points)


def clusters_of_patches(model: ModelConfig, data: Dataset, images: int, draw: int = 0) -> Kinds:
    """Return kinds of test patches by k-means of pixels, with what occurs together in ten times as
    many training images.

    Another `draw` starts k-means from other centres, and clusters the patches of other images.
    """
    shown = data.test.images[evenly_spaced(len(data.test), images)]
    counted = data.train.images[evenly_spaced(len(data.train), 10 * images)]
    normalize = Normalization.measured_on(data.train.images)

    def patches(images: Tensor) -> Tensor:
        """Return normalised patches: uint8 (B, C, h, w) -> (B, L, P)."""
        inputs = normalize(to_float(images, model.image_size))
        return patchify(inputs, model.patch_size)

    clustered = counted[(evenly_spaced(len(counted), 500) + draw) % len(counted)]
    centres = clusters(patches(clustered).flatten(0, 1), CLUSTERS, seed=draw)

    def nearest(images: Tensor) -> Tensor:
        """Return the nearest centre of each patch: uint8 (B, C, h, w) -> int64 (B, L)."""
        parts = [torch.cdist(patches(part), centres).argmin(2) for part in images.split(BATCH)]
        return torch.cat(parts)

    names = tuple(str(number) for number in range(len(centres)))
    views = {WHOLE: (shown, False), ALONE: (shown, True)}
    return _kinds(data.name, names, views, nearest(shown), nearest(counted))


def _frequent(labels: Tensor, count: int) -> Tensor:
    """Return which kinds have `LEAST` patches in each half of the images: int64 (K,)."""
    halves = []
    for half in (labels[::2], labels[1::2]):
        halves.append(torch.bincount(half[half >= 0], minlength=count))
    return (torch.stack(halves).amin(0) >= LEAST).nonzero()[:, 0]


def _kinds(
    data: str,
    names: tuple[str, ...],
    views: dict[str, tuple[Tensor, bool]],
    labels: Tensor,
    counted: Tensor,
) -> Kinds:
    """Keep the kinds that are frequent enough in `labels`, with what occurs together in
    `counted`."""
    frequent = _frequent(labels, len(names))
    if len(frequent) < FEWEST:
        raise RunError(
            f"{data}: {len(frequent)} kinds of patches are frequent enough in {len(labels):,} test "
            f"images, {FEWEST} are needed; take more images (--images, --data.limit) or smaller "
            "patches (model.patch_size, another checkpoint)"
        )

    # Count the frequent kinds from 0; the last place is that of -1, no kind
    number = torch.full((len(names) + 1,), -1)
    number[frequent] = torch.arange(len(frequent))
    in_one_image = together_in_images(number[counted], len(frequent))
    together = {TOGETHER: in_one_image, COMPANY: same_company(in_one_image)}
    frequent_names = tuple(names[kind] for kind in frequent.tolist())
    return Kinds(data, frequent_names, views, number[labels], together)
