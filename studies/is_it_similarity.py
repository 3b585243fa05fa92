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

LIKENESS = (
    "likeness of the tokens",
    "likeness of their pixels",
    "likeness of the tokens, nearness held constant",
)
FORMS = (
    "symmetric",
    "positive, of the symmetric part",
    "symmetric, weighted",
    "positive, weighted",
)
MEETINGS = (
    *(f"{query} ask for {key}" for query in ("pixels", "places") for key in ("pixels", "places")),
    "biases",
)
KEYS = ("its place", "its own patch", "what it took in from others")  # the key's
CLEAR = 3.0  # standard errors over images from which a head's preference counts
BATCH = 32  # images at a time


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    models, images = experiment.models(), experiment.study.images
    for one in models:
        require_logits(one.model.encoder)
    found = {
        "forms": trained_and_random(
            models, lambda one, model: form_shares(model.encoder, covariance_root(one))
        ),
        "liking": trained_and_random(
            models, lambda one, model: preferences(one, model.encoder, images)
        ),
        "first": trained_and_random(
            models, lambda one, model: first_layer_shares(one, model.encoder, images)
        ),
        "keys": trained_and_random(
            models, lambda one, model: key_shares(one, model.encoder, images)
        ),
    }
    plain = torch.stack(
        [preferences(one, one.model.encoder, images, identity=True) for one in models]
    )
    liking = found["liking"] | {"q = k = x": plain}
    data = models[0].data.name
    pictures = {
        "preferences": preferences_figure(liking, data),
        "split": split_figure(found["first"], found["keys"], data),
        "pairs": pairs_of_patches(models[0], data),
    }
    return Results(tables(found["forms"], liking, found["first"], found["keys"]), pictures)


# --- measures ---------------------------------------------------------------------------------------------------------------


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
    """Return how far the first layer's forms on pixels are from a similarity: (h, 4), in the order of `FORMS`."""
    forms = pixel_forms(encoder).cpu().double()
    weighted = root @ forms @ root
    return torch.stack(
        [of(form) for form in (forms, weighted) for of in (symmetric_share, positive_share)], -1
    )


def preferences(
    trained: Trained, encoder: VisionTransformer, images: int, identity: bool = False
) -> Tensor:
    """Return how far heads prefer keys that are like the query: (images, layers, h, 3), over a quarter of the images.

    In the order of `LIKENESS`: a patch's logits are correlated over all other patches with the cosine of the two tokens as they
    enter attention, of their pixels, and of the tokens at equal distance. With `identity`, q = k = x, a head's slice of it.
    """
    prefix, embed = encoder.num_prefix_tokens, encoder.patch_embed
    found = []
    for part in batches(trained, images // 4):
        nearness = -grid_distances(embed.grid_size, part.device)  # (L, L)
        pixels = patchify(part, embed.patch_size)
        layers = []
        for layer in asking(encoder, part):
            if identity:
                sliced = rearrange(layer.tokens, "b n (h d) -> b h n d", h=layer.queries.shape[1])
                layer = Asking(layer.tokens, sliced, sliced)
            logits, tokens = layer.logits[..., prefix:, prefix:], layer.tokens[:, prefix:]
            three = (
                correlation_with_cosine(logits, tokens),
                correlation_with_cosine(logits, pixels),
                correlation_with_cosine(logits, tokens, nearness),
            )
            layers.append(torch.stack(three, -1))  # (B, h, 3)
        found.append(torch.stack(layers, 1))
    return torch.cat(found).cpu()


def leaning(liking: Tensor) -> tuple[Tensor, Tensor]:
    """Return which heads clearly prefer like keys, and which unlike ones: bool (seeds, layers, h) each."""
    tokens = liking[..., 0]
    error = (tokens.std(1) / math.sqrt(tokens.shape[1])).clamp(min=1e-9)
    return tokens.mean(1) / error > CLEAR, tokens.mean(1) / error < -CLEAR


def tables(
    forms: dict[str, Tensor],
    liking: dict[str, Tensor],
    first: dict[str, Tensor],
    keys: dict[str, Tensor],
) -> list[Table]:
    """Return shares and correlations, trained and with random weights."""

    def share(of: Tensor) -> Seeds:
        return seeds(of.double(), share=True)

    def preferred(layers: slice) -> list[Seeds]:
        found = [of[:, :, layers] for of in liking.values()]
        shares = [share(heads) for of in found[:2] for heads in leaning(of)]
        return [*shares, *(seeds(of[..., 0].double()) for of in found)]

    depth = keys["trained"].shape[1]
    return [
        Table(
            "First layer, W_E W_Q W_K^T W_E^T as a form on pixels; weighted: by how patches vary (mean over heads)",
            ("share", *forms, "a similarity"),
            [
                (name, *(share(of[..., i]) for of in forms.values()), "100%")
                for i, name in enumerate(FORMS)
            ],
        ),
        Table(
            "Heads that prefer keys like or unlike the query: the correlation over keys of logit and cosine of the two tokens"
            f" is above or below 0 by {CLEAR:g} standard errors over images, and its mean",
            (
                "heads",
                *(f"{which}, {of}" for of in ("trained", "random") for which in ("like", "unlike")),
                "correlation, trained",
                "random",
                "q = k = x",
            ),
            [
                *(
                    (f"layer {layer}", *preferred(slice(layer, layer + 1)))
                    for layer in range(depth)
                ),
                ("all", *preferred(slice(None))),
            ],
        ),
        Table(
            "First layer: share of the variance of a query's logits over keys (exact split, mean over heads)",
            ("what meets what", *first),
            [
                (name, *(share(of[..., i]) for of in first.values()))
                for i, name in enumerate(MEETINGS)
            ],
        ),
        Table(
            "What tells the keys of a query apart: share of the variance of its logits over keys (mean over heads)",
            ("", *(f"{key}, {of}" for of in ("trained", "random") for key in KEYS)),
            [
                (
                    f"layer {layer}",
                    *(share(of[:, layer, :, i]) for of in keys.values() for i in range(len(KEYS))),
                )
                for layer in range(depth)
            ],
        ),
    ]


# --- figures ----------------------------------------------------------------------------------------------------------------


def preferences_figure(liking: dict[str, Tensor], data: str) -> Figure:
    """Draw whether logits follow likeness, from layer to layer; a line is the mean over heads and seeds."""
    panels = [
        Panel(
            f"logit and {name}",
            # (seeds, images, layers, h, 3) -> (seeds x heads, layers)
            {
                model: of.mean(1)[..., i].transpose(1, 2).flatten(0, 1).numpy()
                for model, of in liking.items()
            },
            "correlation over keys",
            {"neither like nor unlike": 0.0},
            limits=(-1, 1),
        )
        for i, name in enumerate(LIKENESS)
    ]
    about = f"{data} · each patch asks all others; line: mean over heads and seeds, band: from the lowest head to the highest"
    return layers_figure(panels, "Are the keys that a query prefers like it?", about)


def split_figure(first: dict[str, Tensor], keys: dict[str, Tensor], data: str) -> Figure:
    """Draw what logits are made of, in the first layer exactly, and in each layer; means over heads and seeds."""
    heads = {name: of.mean((0, 1)).tolist() for name, of in first.items()}
    layers = {
        f"layer {layer}": shares.tolist()
        for layer, shares in enumerate(keys["trained"].mean((0, 2)))
    }
    start = keys["random weights"].mean((0, 2))  # (layers, 3)
    layers |= {
        f"random weights, layer {layer}": start[layer].tolist()
        for layer in sorted({0, len(start) - 1})
    }
    panels = [
        Panel(title, {name: dict(zip(parts, shares, strict=True)) for name, shares in rows.items()})
        for title, parts, rows in (
            ("first layer: what asks for what", MEETINGS, heads),
            ("what of a key tells it from others", KEYS, layers),
        )
    ]
    about = (
        f"{data} · shares of the variance of a query's logits over keys, mean over heads and seeds"
    )
    return shares_figure(panels, "What are logits made of?", about)


def pairs_of_patches(trained: Trained, data: str) -> Figure:
    """Draw what the heads of the first layer ask for, beside what answers, trained and with random weights."""
    embed, root = trained.model.encoder.patch_embed, covariance_root(trained)
    channels = min(embed.proj.weight.shape[1], 3)
    panels = {}
    for name, model in (("trained", trained.model), ("random weights", trained.initial)):
        rows, notes = [], []
        for form in root @ pixel_forms(model.encoder).cpu().double()[:4] @ root:
            asked, found, shares = leading_pairs(form, 4)
            tiles = F.normalize(
                torch.stack([asked @ root, found @ root], 1), dim=-1
            )  # (4, 2, P), patches, not filters
            rows.append(
                unpatchify(tiles.flatten(0, 1)[:, None], embed.patch_size, (1, 1)).unflatten(
                    0, (-1, 2)
                )
            )
            alike = (tiles[:, 0] * tiles[:, 1]).sum(-1)
            notes.append(
                [
                    f"{share:.0%} · {cosine:+.2f}".replace("-", "−")
                    for share, cosine in zip(shares, alike, strict=True)
                ]
            )
        panels[name] = (torch.stack(rows)[..., :channels, :, :], notes)
    about = (
        f"{data}, {trained.name}, first layer · a patch with more of the left tile (or of its negative) asks"
        " for patches with more of the right one (or of its negative); below: how much of the head's logits that is, and"
        " how alike the tiles are, from −1 to +1"
    )
    names = [f"head {head}" for head in range(len(panels["trained"][0]))]
    return pairs_figure(
        names, panels, ("asks", "is found"), "What do first-layer heads ask for?", about
    )
