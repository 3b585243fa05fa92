"""Does q . k measure similarity? The first layer as forms on pixels, what heads prefer, and what distinguishes keys.

A similarity prefers what is like the query, is the same both ways (symmetric: 100%), and draws like to like in every direction
(positive: 100%). In the first layer the logit of two patches' contents is a bilinear form on their pixels; the first table
gives its shares. Weighted by how patches vary, a direction in which patches do not differ counts for nothing. The second table
tells whether each head's logits follow the cosine of the two tokens; q = k = x is what a plain similarity would have. The third
and fourth split the logits of a query over its keys into their parts. Random weights show what an untrained model has; a
difference counts if it exceeds twice its spread over the seeds.

*Limits.* These are small models after a short training, shown whole images but trained on a quarter of the patches. The forms
are those of contents; positions and biases are in the split of the logits. The forms leave out the norm's divisor, one number
per token, which changes no sign. A head's preference is an average over queries and keys: a head may draw like to like in one
direction and opposites in another. Logits say what is asked for, not what is done with the answer.
"""

# python -m studies is-it-similarity
# Three models, 26 minutes on one thread. Expect: all heads prefer similar keys, by a
# correlation of 0.69 (q = k = x: 0.93).

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from studies.analysis.logits import (
    Asking,
    asking,
    correlation_with_cosine,
    leading_pairs,
    pixel_forms,
    positive_share,
    split_first_logits,
    split_keys,
    symmetric_share,
    variance_parts,
)
from studies.experiment import Experiment, Trained, trained_and_random
from studies.figures import pairs_figure
from studies.tables import Results, Seeds, Table, seeds
from vit.encoder import Block, VisionTransformer
from vit.errors import RunError
from vit.evaluate.reconstruction import grid_distances
from vit.figures.measures import Panel, layers_figure, shares_figure
from vit.figures.style import Figure
from vit.patches import patchify, unpatchify

SIMILARITIES = (
    "similarity of the tokens",
    "similarity of their pixels",
    "similarity of the tokens, nearness held constant",
)
FORMS = (
    "symmetric",
    "positive, of the symmetric part",
    "symmetric, weighted",
    "positive, weighted",
)
MEETINGS = (
    "query of pixels, key of pixels",
    "query of pixels, key of places",
    "query of places, key of pixels",
    "query of places, key of places",
    "biases",
)
"""The parts of the first layer's logits."""
KEYS = ("its place", "its own patch", "what it took in from others")
"""The parts of a key."""
CLEAR = 3.0
"""Standard errors over images from which a head's preference counts."""
BATCH = 32
"""Images at a time."""


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    models = experiment.models()
    images = experiment.study.images
    for trained in models:
        require_logits(trained.model.encoder)

    # What the first layer compares, what heads prefer, and what their logits are made of
    forms = trained_and_random(
        models, lambda trained, model: form_shares(model.encoder, covariance_root(trained))
    )
    preferred = trained_and_random(
        models, lambda trained, model: preferences(trained, model.encoder, images)
    )
    first = trained_and_random(
        models, lambda trained, model: first_layer_shares(trained, model.encoder, images)
    )
    keys = trained_and_random(
        models, lambda trained, model: key_shares(trained, model.encoder, images)
    )

    # The same without matrices
    plain = []
    for trained in models:
        plain.append(preferences(trained, trained.model.encoder, images, identity=True))
    preferred["q = k = x"] = torch.stack(plain)

    data = models[0].data.name
    pictures = {
        "preferences": preferences_figure(preferred, data),
        "split": split_figure(first, keys, data),
        "pairs": pairs_of_patches(models[0], data),
    }
    tables = [
        forms_table(forms),
        preferences_table(preferred),
        first_layer_table(first),
        keys_table(keys),
    ]
    return Results(tables, pictures)


# --- measures ----------------------------------------------------------------


def require_logits(encoder: VisionTransformer) -> None:
    """Refuse a model with a head whose logits are of no pair of patches, as under uniform attention."""
    for number, block in enumerate(encoder.blocks):
        assert isinstance(block, Block)
        heads = torch.stack([block.attn.W_Q, block.attn.W_K]).unflatten(
            -1, (block.attn.num_heads, -1)
        )  # (2, D, h, d)
        if not heads.any(-1).any(1).all():
            raise RunError(
                f"in layer {number}, W_Q or W_K of a head is zero: its logits compare nothing; take another model"
            )


def batches(trained: Trained, images: int) -> tuple[Tensor, ...]:
    """Return test images, at least two, as batches of the model's input."""
    return trained.inputs(max(images, 2)).split(BATCH)


def first_layer_shares(trained: Trained, encoder: VisionTransformer, images: int) -> Tensor:
    """Return the shares of the first layer's logits, over a quarter of the images: (h, 5), in the order of `MEETINGS`."""
    prefix = encoder.num_prefix_tokens
    total = torch.zeros(())
    for part in batches(trained, images // 4):
        terms = split_first_logits(encoder, part)[..., prefix:, prefix:]
        total = total + variance_parts(terms.flatten(0, 1))  # (h, 9)
    meetings = total.unflatten(1, (3, 3))[:, :2, :2].flatten(1)  # (h, 4)
    first = torch.cat([meetings, total.sum(1, keepdim=True) - meetings.sum(1, keepdim=True)], 1)
    return (first / first.sum(1, keepdim=True)).cpu()


def key_shares(trained: Trained, encoder: VisionTransformer, images: int) -> Tensor:
    """Return the shares of all layers' logits, over a 20th of the images: (layers, h, 3), in the order of `KEYS`."""
    others = trained.inputs(256, "train")
    parts = enumerate(batches(trained, images // 20))
    keys = torch.stack([split_keys(encoder, part, others, seed=i) for i, part in parts]).sum(0)
    return (keys / keys.sum(-1, keepdim=True)).cpu()


def covariance_root(trained: Trained) -> Tensor:
    """Return the symmetric root (P, P) of the patches' covariance, float64."""
    patches = trained.patches(1000, "train").flatten(0, 1)
    values, vectors = torch.linalg.eigh(torch.cov(patches.cpu().double().T))
    return vectors * values.clamp(min=0).sqrt() @ vectors.T


def form_shares(encoder: VisionTransformer, root: Tensor) -> Tensor:
    """Return how far the first layer's forms on pixels are from a similarity.

    Returns:
        (h, 4), in the order of `FORMS`.
    """
    forms = pixel_forms(encoder).cpu().double()  # (h, P, P)
    weighted = root @ forms @ root
    shares = (
        symmetric_share(forms),
        positive_share(forms),
        symmetric_share(weighted),
        positive_share(weighted),
    )
    return torch.stack(shares, -1)


def preferences(
    trained: Trained, encoder: VisionTransformer, images: int, identity: bool = False
) -> Tensor:
    """Return how far heads prefer keys that are similar to the query, over a quarter of the images.

    A patch's logits are correlated over all other patches with the cosine of the two tokens as they
    enter attention, of their pixels, and of the tokens at equal distance.

    Args:
        identity: with q = k = x, a head's slice of it, in the place of learned queries and keys.

    Returns:
        (images, layers, h, 3), the last in the order of `SIMILARITIES`.
    """
    prefix = encoder.num_prefix_tokens
    embed = encoder.patch_embed
    correlations = []
    for part in batches(trained, images // 4):
        nearness = -grid_distances(embed.grid_size, part.device)  # (L, L)
        pixels = patchify(part, embed.patch_size)
        layers = []
        for layer in asking(encoder, part):
            logits = layer.logits
            if identity:
                heads = layer.queries.shape[1]
                sliced = rearrange(layer.tokens, "b n (h d) -> b h n d", h=heads)
                logits = Asking(layer.tokens, sliced, sliced).logits
            logits = logits[..., prefix:, prefix:]  # (B, h, L, L)
            tokens = layer.tokens[:, prefix:]
            by_similarity = (
                correlation_with_cosine(logits, tokens),
                correlation_with_cosine(logits, pixels),
                correlation_with_cosine(logits, tokens, nearness),
            )
            layers.append(torch.stack(by_similarity, -1))  # (B, h, 3)
        correlations.append(torch.stack(layers, 1))
    return torch.cat(correlations).cpu()


def leaning(preferred: Tensor) -> tuple[Tensor, Tensor]:
    """Return which heads clearly prefer similar keys, and which dissimilar ones.

    Args:
        preferred: (seeds, images, layers, h, 3), of `preferences`.

    Returns:
        bool (seeds, layers, h) each.
    """
    tokens = preferred[..., 0]
    error = (tokens.std(1) / math.sqrt(tokens.shape[1])).clamp(min=1e-9)
    return tokens.mean(1) / error > CLEAR, tokens.mean(1) / error < -CLEAR


# --- tables ----------------------------------------------------------------


def share(values: Tensor) -> Seeds:
    """Return shares (seeds, ...) as a cell; bool counts as 0 and 1."""
    return seeds(values.double(), share=True)


def forms_table(forms: dict[str, Tensor]) -> Table:
    """Return how far the first layer's forms are from a similarity: (seeds, h, 4) by model."""
    rows: list[tuple[str | Seeds, ...]] = []
    for i, name in enumerate(FORMS):
        rows.append((name, *(share(values[..., i]) for values in forms.values()), "100%"))
    title = (
        "First layer, W_E W_Q W_K^T W_E^T as a form on pixels; weighted: by how patches vary (mean"
        " over heads)"
    )
    return Table(title, ("share", *forms, "a similarity"), rows)


def preferences_table(preferred: dict[str, Tensor]) -> Table:
    """Return how many heads prefer similar keys: (seeds, images, layers, h, 3) by model.

    The models are trained, with random weights, and q = k = x.
    """
    depth = preferred["trained"].shape[2]
    layers = {f"layer {layer}": slice(layer, layer + 1) for layer in range(depth)}
    layers["all"] = slice(None)
    rows = []
    for name, chosen in layers.items():
        cells = []
        for model in ("trained", "random weights"):
            similar, dissimilar = leaning(preferred[model][:, :, chosen])
            cells += [share(similar), share(dissimilar)]
        for values in preferred.values():
            cells.append(seeds(values[:, :, chosen, :, 0].double()))
        rows.append((name, *cells))
    title = (
        "Heads that prefer keys similar or dissimilar to the query: the correlation over keys of"
        f" logit and cosine of the two tokens is above or below 0 by {CLEAR:g} standard errors over"
        " images, and its mean"
    )
    columns = (
        "heads",
        "similar, trained",
        "dissimilar, trained",
        "similar, random",
        "dissimilar, random",
        "correlation, trained",
        "random",
        "q = k = x",
    )
    return Table(title, columns, rows)


def first_layer_table(first: dict[str, Tensor]) -> Table:
    """Return what the first layer's logits are made of: (seeds, h, 5) by model."""
    rows: list[tuple[str | Seeds, ...]] = []
    for i, name in enumerate(MEETINGS):
        rows.append((name, *(share(values[..., i]) for values in first.values())))
    title = (
        "First layer: share of the variance of a query's logits over keys (exact split, mean over"
        " heads)"
    )
    return Table(title, ("what meets what", *first), rows)


def keys_table(keys: dict[str, Tensor]) -> Table:
    """Return what tells the keys of a query apart: (seeds, layers, h, 3) by model."""
    rows: list[tuple[str | Seeds, ...]] = []
    for layer in range(keys["trained"].shape[1]):
        cells = []
        for values in keys.values():
            for i in range(len(KEYS)):
                cells.append(share(values[:, layer, :, i]))
        rows.append((f"layer {layer}", *cells))
    columns = [""]
    for model in ("trained", "random"):
        for key in KEYS:
            columns.append(f"{key}, {model}")
    title = (
        "What tells the keys of a query apart: share of the variance of its logits over keys (mean"
        " over heads)"
    )
    return Table(title, columns, rows)


# --- figures ----------------------------------------------------------------


def preferences_figure(preferred: dict[str, Tensor], data: str) -> Figure:
    """Draw whether logits follow similarity, from layer to layer, as means over heads and seeds."""
    panels = []
    for i, name in enumerate(SIMILARITIES):
        lines = {}
        for model, values in preferred.items():
            # (seeds, images, layers, h, 3) -> (seeds, layers, h) -> (seeds x heads, layers)
            means = values.mean(1)[..., i]
            lines[model] = means.transpose(1, 2).flatten(0, 1).numpy()
        zero = {"neither similar nor dissimilar": 0.0}
        title = f"logit and {name}"
        panels.append(Panel(title, lines, "correlation over keys", zero, limits=(-1, 1)))
    caption = (
        f"{data} · the query of each patch, the keys of all others; line: mean over heads and seeds,"
        " band: from the lowest head to the highest"
    )
    return layers_figure(panels, "Are the keys that a query prefers similar to it?", caption)


def split_figure(first: dict[str, Tensor], keys: dict[str, Tensor], data: str) -> Figure:
    """Draw what logits are made of, in the first layer exactly, and in each layer.

    All are means over heads and seeds.
    """
    # The first layer
    first_rows = {}
    for model, values in first.items():
        first_rows[model] = dict(zip(MEETINGS, values.mean((0, 1)).tolist(), strict=True))

    # All layers of the trained models, the outermost of those with random weights
    key_rows = {}
    for layer, shares in enumerate(keys["trained"].mean((0, 2)).tolist()):
        key_rows[f"layer {layer}"] = dict(zip(KEYS, shares, strict=True))
    random_shares = keys["random weights"].mean((0, 2)).tolist()  # (layers, 3)
    for layer in sorted({0, len(random_shares) - 1}):
        name = f"random weights, layer {layer}"
        key_rows[name] = dict(zip(KEYS, random_shares[layer], strict=True))

    panels = [
        Panel("first layer: queries and keys", first_rows),
        Panel("what of a key tells it from others", key_rows),
    ]
    caption = (
        f"{data} · shares of the variance of a query's logits over keys, mean over heads and seeds"
    )
    return shares_figure(panels, "What are logits made of?", caption)


def pairs_of_patches(trained: Trained, data: str) -> Figure:
    """Draw the queries and keys of the first layer's heads as patches, trained and random."""
    embed = trained.model.encoder.patch_embed
    root = covariance_root(trained)
    channels = min(embed.proj.weight.shape[1], 3)
    panels = {}
    for name, model in (("trained", trained.model), ("random weights", trained.initial)):
        rows = []
        notes = []
        for form in root @ pixel_forms(model.encoder).cpu().double()[:4] @ root:
            # Patches, not filters: (4, 2, P)
            queries, keys, shares = leading_pairs(form, 4)
            tiles = F.normalize(torch.stack([queries @ root, keys @ root], 1), dim=-1)
            patches = unpatchify(tiles.flatten(0, 1)[:, None], embed.patch_size, (1, 1))
            rows.append(patches.unflatten(0, (-1, 2)))

            # How much of the logits each pair is, and how similar its tiles are
            cosines = (tiles[:, 0] * tiles[:, 1]).sum(-1)
            note = []
            for share_of_logits, cosine in zip(shares, cosines, strict=True):
                note.append(f"{share_of_logits:.0%} · {cosine:+.2f}".replace("-", "−"))
            notes.append(note)
        panels[name] = (torch.stack(rows)[..., :channels, :, :], notes)
    caption = (
        f"{data}, {trained.name}, first layer · the query of a patch with more of the left tile (or"
        " of its negative) prefers keys of patches with more of the right one (or of its negative);"
        " below: how much of the head's logits that is, and the cosine of the tiles, from −1 to +1"
    )
    names = [f"head {head}" for head in range(len(panels["trained"][0]))]
    title = "Which keys do the queries of first-layer heads prefer?"
    return pairs_figure(names, panels, ("query", "key"), title, caption)
