"""Does q · k measure similarity? Scores against the cosine of tokens, forms on pixels and tokens,
what distinguishes keys.

A similarity gives equal vectors a high score, whatever their direction (positive: 100%; trace: 1),
and is the same both ways (symmetric: 100%; a random matrix: half). The first table tells whether
scores follow the cosine of the two tokens; Q = K = V = X is what a plain similarity would have.
Near patches are similar, so the keys are also compared with others at the same distance only; and
tokens of one place are similar, so the mean token of each place is also subtracted first. The
second has each head. The next two describe W_Q W_K^T: as a form on the pixels of two patches in the
first layer, and as a form on the tokens that each layer reads. A trace of 1 is a similarity, of -1
its opposite, 0 is chance. Weighted by how patches or tokens vary, a direction in which they do not
differ counts for nothing. The last two tables split the scores of a query over its keys into their
parts. Random weights show what an untrained model has.

*Limits.* The forms are those of contents; biases are in the split of the scores. The forms on
pixels leave out the norm's divisor, one number per token, which changes no sign. A correlation is
an average over queries and keys: a head may prefer similar keys in one direction and opposite ones
in another. Scores say where a token attends, not what is done with what it receives.
"""

# python -m studies is-it-similarity --checkpoint vit-tiny-p4-cifar10 --data cifar10
# Three minutes on one thread. Expect, at equal distance: 0.4 in layer 1, 0.2 in 3 and 4, about 0 in
# 0 and 2; in layer 5 heads of -0.5, -0.5 and 0.3 (Q = K = V = X, all keys: 0.79 to 0.89).
# Without --checkpoint it trains three small models, in 26 minutes.

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from studies.analysis.logits import (
    QueriesAndKeys,
    correlation_with_cosine,
    leading_pairs,
    pixel_forms,
    positive_share,
    queries_and_keys_by_layer,
    split_first_logits,
    split_keys,
    symmetric_share,
    variance_parts,
)
from studies.experiment import NARROW, XAVIER, Experiment, Trained, trained_and_random
from studies.figures import Panel, layers_figure, pairs_figure, shares_figure
from studies.tables import Results, Seeds, Table, seeds
from vit.encoder import Block, VisionTransformer
from vit.errors import RunError
from vit.figures.style import Figure
from vit.patches import grid_distances, patchify, unpatchify

IDENTITY = "Q = K = V = X"
EQUAL, WITHOUT_PLACES = "at equal distance", "without the places' means"
BOTH = f"{EQUAL}, {WITHOUT_PLACES}"
SIMILARITIES = ("tokens", EQUAL, WITHOUT_PLACES, BOTH, "pixels")
"""Whose similarity scores are correlated with."""
FORMS = (
    "symmetric",
    "positive, of the symmetric part",
    "symmetric, weighted",
    "positive, weighted",
    "strongest pair, weighted",
    "symmetric, weighted, without brightness",
)
SIMILAR_FORMS = ("dot product of pixels", "W_E W_E^T")
"""Similarities, for comparison."""
TOKEN_FORMS = (
    "symmetric",
    "trace",
    "symmetric, weighted",
    "trace, weighted",
    "strongest pair, weighted",
)
SCORE_PARTS = (
    "query of pixels, key of pixels",
    "query of pixels, key of places",
    "query of places, key of pixels",
    "query of places, key of places",
    "bias of the queries, key of pixels",
    "bias of the queries, key of places",
    "other biases",
)
"""The parts of the first layer's scores."""
KEYS = ("its own patch", "its position", "its context")
"""The parts of a key, in the order and the colours of the page on static and contextual tokens."""
PAIRS = 2
"""Of patches, drawn per head: those that follow are a few percent of a trained head, or less."""
BATCH = 32
"""Images at a time."""


def study(experiment: Experiment) -> Results:
    """Return the measurements; the docstring of the module says how to read them."""
    models = experiment.models()
    images = experiment.study.images
    for trained in models:
        require_logits(trained.model.encoder)

    # What W_Q W_K^T compares, which keys get high scores, and what scores are made of
    forms = trained_and_random(
        models,
        lambda trained, model: form_shares(
            model.encoder, covariance_root(trained), covariance_root(trained, leave_out=1)
        ),
    )
    similarities = torch.stack([similarity_shares(trained) for trained in models])
    for i, name in enumerate(SIMILAR_FORMS):
        forms[name] = similarities[:, i, None]
    on_tokens = trained_and_random(
        models, lambda trained, model: token_form_shares(trained, model.encoder, images)
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
    preferred[IDENTITY] = torch.stack(plain)

    data = models[0].data.name
    pictures = {
        "preferences": preferences_figure(preferred, data),
        "split": split_figure(keys, data),
        "pairs": pairs_of_patches(models[0], data),
    }
    tables = [
        preferences_table(preferred),
        heads_table(preferred["trained"]),
        forms_table(forms),
        token_forms_table(on_tokens),
        first_layer_table(first),
        keys_table(keys),
    ]
    return Results(tables, pictures)


# --- measures ----------------------------------------------------------------


def require_logits(encoder: VisionTransformer) -> None:
    """Refuse a model with a head whose scores are of no pair of patches, as under uniform
    attention."""
    for number, block in enumerate(encoder.blocks):
        assert isinstance(block, Block)
        heads = torch.stack([block.attn.W_Q, block.attn.W_K]).unflatten(
            -1, (block.attn.num_heads, -1)
        )  # (2, D, h, d)
        if not heads.any(-1).any(1).all():
            raise RunError(
                f"in layer {number}, W_Q or W_K of a head is zero: its scores compare nothing; "
                "take another model"
            )


def batches(trained: Trained, images: int) -> tuple[Tensor, ...]:
    """Return test images, at least two, as batches of the model's input."""
    return trained.inputs(max(images, 2)).split(BATCH)


def first_layer_shares(trained: Trained, encoder: VisionTransformer, images: int) -> Tensor:
    """Return the shares of the first layer's scores, over a quarter of the images: (h, 7), in the
    order of `SCORE_PARTS`."""
    prefix = encoder.num_prefix_tokens
    total = torch.zeros(())
    for part in batches(trained, images // 4):
        terms = split_first_logits(encoder, part)[..., prefix:, prefix:]
        total = total + variance_parts(terms.flatten(0, 1))  # (h, 16)
    # Queries of pixels, places and the bias, with keys of pixels and places
    parts = total.unflatten(1, (4, 4))[:, :3, :2].flatten(1)  # (h, 6)
    others = total.sum(1, keepdim=True) - parts.sum(1, keepdim=True)
    shares = torch.cat([parts, others], 1)
    return (shares / shares.sum(1, keepdim=True)).cpu()


def key_shares(trained: Trained, encoder: VisionTransformer, images: int) -> Tensor:
    """Return the shares of all layers' scores, over a 20th of the images: (layers, h, 3), in the
    order of `KEYS`."""
    others = trained.inputs(256, "train")
    parts = enumerate(batches(trained, images // 20))
    keys = torch.stack([split_keys(encoder, part, others, seed=i) for i, part in parts]).sum(0)
    # split_keys has the position first
    keys = keys[..., [1, 0, 2]]
    return (keys / keys.sum(-1, keepdim=True)).cpu()


def covariance_root(trained: Trained, leave_out: int = 0) -> Tensor:
    """Return the symmetric root (P, P) of the patches' covariance, float64.

    Args:
        leave_out: so many of the strongest components count as not varying. The first is
            brightness.
    """
    patches = trained.patches(1000, "train").flatten(0, 1)
    return symmetric_root(torch.cov(patches.cpu().double().T), leave_out)


def symmetric_root(covariance: Tensor, leave_out: int = 0) -> Tensor:
    """Return the symmetric root of a covariance (D, D), without its `leave_out` strongest
    components."""
    values, vectors = torch.linalg.eigh(covariance)
    sizes = values.clamp(min=0).sqrt()
    sizes[len(sizes) - leave_out :] = 0
    return vectors * sizes @ vectors.T


def form_shares(encoder: VisionTransformer, root: Tensor, without_brightness: Tensor) -> Tensor:
    """Return how far the first layer's forms on pixels are from a similarity.

    Args:
        root: of the patches' covariance, (P, P).
        without_brightness: the same root, but brightness counts as not varying.

    Returns:
        (h, 6), in the order of `FORMS`.
    """
    return shares_of_forms(pixel_forms(encoder).cpu().double(), root, without_brightness)


def similarity_shares(trained: Trained) -> Tensor:
    """Return the same of two similarities, dot products of pixels and of what W_E writes: (2, 6).

    They are in the order of `SIMILAR_FORMS`.
    """
    written = trained.model.encoder.patch_embed.W_E.detach().cpu().double()  # (P, D)
    forms = torch.stack([torch.eye(len(written)).double(), written @ written.T])
    return shares_of_forms(forms, covariance_root(trained), covariance_root(trained, leave_out=1))


def shares_of_forms(forms: Tensor, root: Tensor, without_brightness: Tensor) -> Tensor:
    """Return how far forms (n, P, P) are from a similarity: (n, 6); see `form_shares`."""
    weighted = root @ forms @ root
    shares = (
        symmetric_share(forms),
        positive_share(forms),
        symmetric_share(weighted),
        positive_share(weighted),
        strongest_share(weighted),
        symmetric_share(without_brightness @ forms @ without_brightness),
    )
    return torch.stack(shares, -1)


def strongest_share(forms: Tensor) -> Tensor:
    """Return the share of the strongest singular pair in |F|^2 of forms (..., P, P)."""
    sizes = torch.linalg.svdvals(forms).square()
    return sizes[..., 0] / sizes.sum(-1)


def signed_trace(forms: Tensor) -> Tensor:
    """Return the trace over the largest that the singular values allow, of forms (..., D, D).

    1: a similarity; -1: its opposite; near 0: random numbers.
    """
    trace = forms.diagonal(dim1=-2, dim2=-1).sum(-1)
    return trace / torch.linalg.svdvals(forms).sum(-1)


def token_form_shares(trained: Trained, encoder: VisionTransformer, images: int) -> Tensor:
    """Return how far W_Q W_K^T of each layer and head is from a similarity, over a quarter of the
    images.

    It is a form on the normed tokens that the layer reads, and weighted by how these vary.

    Returns:
        (layers, h, 5), in the order of `TOKEN_FORMS`.
    """
    # The tokens that each layer reads, without prefix tokens
    read: list[list[Tensor]] = [[] for _ in encoder.blocks]
    for part in batches(trained, images // 4):
        for tokens, layer in zip(read, queries_and_keys_by_layer(encoder, part), strict=True):
            tokens.append(layer.tokens[:, encoder.num_prefix_tokens :].flatten(0, 1).cpu())

    shares = []
    for tokens, block in zip(read, encoder.blocks, strict=True):
        assert isinstance(block, Block)
        root = symmetric_root(torch.cov(torch.cat(tokens).double().T))  # (D, D)
        heads = (block.attn.num_heads, -1)
        queries = block.attn.W_Q.detach().cpu().double().unflatten(1, heads).transpose(0, 1)
        keys = block.attn.W_K.detach().cpu().double().unflatten(1, heads).transpose(0, 1)
        forms = queries @ keys.mT  # (h, D, D)
        weighted = root @ forms @ root
        layer_shares = (
            symmetric_share(forms),
            signed_trace(forms),
            symmetric_share(weighted),
            signed_trace(weighted),
            strongest_share(weighted),
        )
        shares.append(torch.stack(layer_shares, -1))
    return torch.stack(shares)


def preferences(
    trained: Trained, encoder: VisionTransformer, images: int, identity: bool = False
) -> Tensor:
    """Return how far heads give higher scores to keys that are similar to the query, over a quarter
    of the images.

    A patch's scores are correlated over all other patches with the cosine of the two tokens as they
    enter attention, and of their pixels. The mean token of a place is that of other images.

    Args:
        identity: with q = k = x, a head's slice of it, in place of learned queries and keys.

    Returns:
        (images, layers, h, 5), the last in the order of `SIMILARITIES`.
    """
    prefix = encoder.num_prefix_tokens
    embed = encoder.patch_embed
    others = queries_and_keys_by_layer(encoder, trained.inputs(256, "train"))
    typical = [layer.tokens[:, prefix:].mean(0) for layer in others]  # (L, D) each
    correlations = []
    for part in batches(trained, images // 4):
        distances = grid_distances(embed.grid_size, part.device)  # (L, L)
        pixels = patchify(part, embed.patch_size)
        layers = []
        for layer, mean in zip(queries_and_keys_by_layer(encoder, part), typical, strict=True):
            scores = layer.logits
            if identity:
                heads = layer.queries.shape[1]
                sliced = rearrange(layer.tokens, "b n (h d) -> b h n d", h=heads)
                scores = QueriesAndKeys(layer.tokens, sliced, sliced).logits
            scores = scores[..., prefix:, prefix:]  # (B, h, L, L)
            tokens = layer.tokens[:, prefix:]
            by_similarity = (
                correlation_with_cosine(scores, tokens),
                correlation_with_cosine(scores, tokens, distances),
                correlation_with_cosine(scores, tokens - mean),
                correlation_with_cosine(scores, tokens - mean, distances),
                correlation_with_cosine(scores, pixels),
            )
            layers.append(torch.stack(by_similarity, -1))  # (B, h, 5)
        correlations.append(torch.stack(layers, 1))
    return torch.cat(correlations).cpu()


# --- tables ----------------------------------------------------------------


def share(values: Tensor) -> Seeds:
    """Return shares (seeds, ...) as a cell; bool counts as 0 and 1."""
    return seeds(values.double(), share=True)


def forms_table(forms: dict[str, Tensor]) -> Table:
    """Return how far the first layer's forms are from a similarity: (seeds, h, 6) by model or
    similarity."""
    rows: list[tuple[str | Seeds, ...]] = []
    for i, name in enumerate(FORMS):
        rows.append((name, *(share(values[..., i]) for values in forms.values())))
    title = (
        "First layer, W_E W_Q W_K^T W_E^T as a form on pixels; weighted: by how patches vary (mean"
        " over heads)"
    )
    return Table(title, ("share", *forms), rows)


def token_forms_table(forms: dict[str, Tensor]) -> Table:
    """Return how far W_Q W_K^T is from a similarity, layer by layer: (seeds, layers, h, 5) by
    model."""
    rows: list[tuple[str | Seeds, ...]] = []
    for model, values in forms.items():
        for layer in range(values.shape[1]):
            cells = []
            for i, name in enumerate(TOKEN_FORMS):
                heads = values[:, layer, :, i]
                if "trace" in name:
                    cells.append(seeds(heads, digits=2))
                else:
                    cells.append(share(heads))
            rows.append((model, str(layer), *cells))
    title = "W_Q W_K^T as a form on the tokens that a layer reads; weighted: by how these vary"
    title += " (mean over heads)"
    return Table(title, ("model", "layer", *TOKEN_FORMS), rows)


def preferences_table(preferred: dict[str, Tensor]) -> Table:
    """Return whether scores follow similarity: (seeds, images, layers, h, 5) by model.

    The models are trained, with random weights, and Q = K = V = X.
    """
    depth = preferred["trained"].shape[2]
    layers = {f"layer {layer}": slice(layer, layer + 1) for layer in range(depth)}
    layers["all"] = slice(None)
    rows = []
    for name, chosen in layers.items():
        trained = preferred["trained"][:, :, chosen]
        values = [trained[..., i] for i in range(len(SIMILARITIES))]
        values += [preferred[model][:, :, chosen, :, 0] for model in (XAVIER, NARROW, IDENTITY)]
        rows.append((name, *(seeds(measure.double(), digits=2) for measure in values)))
    title = (
        "Correlation over keys of a query's score with the cosine of the two tokens, mean over"
        " heads and images"
    )
    others = (EQUAL, WITHOUT_PLACES, BOTH, "with the cosine of the pixels")
    return Table(title, ("heads", "trained", *others, XAVIER, NARROW, IDENTITY), rows)


def heads_table(trained: Tensor) -> Table:
    """Return the same of each head of trained models: (seeds, images, layers, h, 5)."""
    # Heads of different seeds have nothing in common but their rank
    ranked = trained.mean(1).sort(2).values  # (seeds, layers, h, 5)
    rows = []
    for name in (EQUAL, BOTH):
        for layer in range(ranked.shape[1]):
            of_heads = ranked[:, layer, :, SIMILARITIES.index(name)].T
            rows.append((name, layer, *(seeds(head, digits=2) for head in of_heads)))
    heads = [f"head of rank {rank}" for rank in range(1, ranked.shape[2] + 1)]
    title = "The same of each head, as trained, from the lowest to the highest of a layer"
    return Table(title, ("keys compared", "layer", *heads), rows)


def first_layer_table(first: dict[str, Tensor]) -> Table:
    """Return what the first layer's scores are made of: (seeds, h, 7) by model."""
    rows: list[tuple[str | Seeds, ...]] = []
    for i, name in enumerate(SCORE_PARTS):
        rows.append((name, *(share(values[..., i]) for values in first.values())))
    title = (
        "First layer: share of the variance of a query's scores over keys (exact split, mean over"
        " heads)"
    )
    return Table(title, ("query and key", *first), rows)


def keys_table(keys: dict[str, Tensor]) -> Table:
    """Return what distinguishes the keys of a query: (seeds, layers, h, 3) by model."""
    rows: list[tuple[str | Seeds, ...]] = []
    for layer in range(keys["trained"].shape[1]):
        cells = []
        for values in keys.values():
            for i in range(len(KEYS)):
                cells.append(share(values[:, layer, :, i]))
        rows.append((f"layer {layer}", *cells))
    columns = [""]
    for model in keys:
        for key in KEYS:
            columns.append(f"{key}, {model}")
    title = (
        "What distinguishes the keys of a query: share of the variance of its scores over keys"
        " (mean over heads)"
    )
    return Table(title, columns, rows)


# --- figures ----------------------------------------------------------------


def preferences_figure(preferred: dict[str, Tensor], data: str) -> Figure:
    """Draw whether scores follow the similarity of tokens, layer by layer, as means over heads and
    seeds."""
    # Each head of each seed: (seeds x heads, layers, 5)
    heads = {
        name: values.mean(1).transpose(1, 2).flatten(0, 1) for name, values in preferred.items()
    }
    trained = {name: heads["trained"][..., SIMILARITIES.index(name)] for name in (EQUAL, BOTH)}
    compared = {name: heads[name][..., 0] for name in (IDENTITY, XAVIER, NARROW)}
    panels = []
    for title, lines in (
        ("trained", {"trained": heads["trained"][..., 0], **trained}),
        ("for comparison", compared),
    ):
        drawn = {name: values.numpy() for name, values in lines.items()}
        zero = {"no relation": 0.0}
        panels.append(Panel(title, drawn, "correlation over keys", zero, limits=(-0.6, 1)))
    caption = f"{data} · line: mean over heads and seeds; band: from the lowest head to the highest"
    return layers_figure(panels, "Do scores follow the similarity of the two tokens?", caption)


def split_figure(keys: dict[str, Tensor], data: str) -> Figure:
    """Draw what distinguishes the keys of a query, layer by layer, as means over heads and
    seeds."""
    # All layers of the trained models, the outermost of those with random weights
    rows = {}
    for layer, shares in enumerate(keys["trained"].mean((0, 2)).tolist()):
        rows[f"layer {layer}"] = dict(zip(KEYS, shares, strict=True))
    for model in (XAVIER, NARROW):
        random_shares = keys[model].mean((0, 2)).tolist()  # (layers, 3)
        for layer in sorted({0, len(random_shares) - 1}):
            rows[f"{model}, layer {layer}"] = dict(zip(KEYS, random_shares[layer], strict=True))
    caption = f"{data} · shares of the variance of a query's scores over its keys, mean over heads"
    return shares_figure([Panel("", rows)], "What distinguishes the keys of a query?", caption)


def pairs_of_patches(trained: Trained, data: str) -> Figure:
    """Draw the queries and keys of the first layer's heads as patches, trained and random."""
    embed = trained.model.encoder.patch_embed
    root = covariance_root(trained)
    channels = min(embed.proj.weight.shape[1], 3)
    panels = {}
    for name, model in (
        ("trained", trained.model),
        (XAVIER, trained.initial),
    ):
        rows = []
        notes = []
        for form in root @ pixel_forms(model.encoder).cpu().double()[:4] @ root:
            # Patches, not filters: (pairs, 2, P)
            queries, keys, shares = leading_pairs(form, PAIRS)
            tiles = F.normalize(torch.stack([queries @ root, keys @ root], 1), dim=-1)
            patches = unpatchify(tiles.flatten(0, 1)[:, None], embed.patch_size, (1, 1))
            rows.append(patches.unflatten(0, (-1, 2)))

            # How much of the scores each pair is, and how similar its tiles are
            cosines = (tiles[:, 0] * tiles[:, 1]).sum(-1)
            note = []
            for share_of_scores, cosine in zip(shares, cosines, strict=True):
                note.append(f"{share_of_scores:.0%} · {cosine:+.2f}".replace("-", "−"))
            notes.append(note)
        panels[name] = (torch.stack(rows)[..., :channels, :, :], notes)
    caption = (
        f"{data}, first layer · patches with more of the left tile (or of its negative) give higher"
        " scores to patches with more of the right one (or of its negative); below: the pair's"
        " share of the head's form, and the cosine of the tiles, from −1 to +1"
    )
    names = [f"head {head}" for head in range(len(panels["trained"][0]))]
    title = "Which pairs of patches get high scores in the first layer?"
    return pairs_figure(names, panels, ("query", "key"), title, caption)
