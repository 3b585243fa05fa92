"""What attention scores are made of: forms on pixels, exact splits, a share of similarity.

A softmax over keys ignores what is the same for all keys of a query, so variances and correlations
are over the keys of each query. With W_Q = W_K = W_V = I (`model.qkv: identity`) a head's scores
are X X^T / sqrt(d) of its slice of X.

Letters: B batch, h heads, d = D / h, L patches, N tokens (prefix + L), P = C p q values a patch.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from studies.analysis.correlation import correlation
from vit.encoder import Block, VisionTransformer
from vit.errors import AttentionError
from vit.patches import patchify, unpatchify

# --- forms: the scores of the first layer, without any image --------------------------------------


def first_block(encoder: VisionTransformer) -> Block:
    """Return the first block, if its logits are products of normed tokens, W_Q and W_K."""
    block = cast(Block, encoder.blocks[0])
    if block.attn.qkv is None:
        raise AttentionError(
            "attention with Q = K = V = X (qkv: identity) has no W_Q and W_K to look at"
        )
    if not isinstance(block.attn.q_norm, nn.Identity):
        raise AttentionError(
            "attention that normalises queries and keys (qk_norm) has no scores that split"
        )
    return block


def pixel_forms(encoder: VisionTransformer) -> Tensor:
    """Return F = W_E W_Q W_K^T W_E^T of the first layer, per head: (h, P, P).

    The pixels x and y of two patches add x F y^T / (s_x s_y) to a head's score (W_Q W_K^T is the QK
    circuit of Elhage et al. 2021). The norm's scale and centring and attention's 1 / sqrt(d) are in
    F; s_x and s_y, the norm's divisors for the two tokens, are not, and change no sign.
    """
    block = first_block(encoder)
    written = encoder.patch_embed.W_E.detach()  # (P, D)
    written = (written - written.mean(1, keepdim=True)) * block.norm1.weight.detach()
    shape = (block.attn.num_heads, -1)
    queries = (written @ block.attn.W_Q.detach()).unflatten(1, shape).transpose(0, 1)  # (h, P, d)
    keys = (written @ block.attn.W_K.detach()).unflatten(1, shape).transpose(0, 1)
    return queries @ keys.transpose(1, 2) * queries.shape[-1] ** -0.5  # (h, P, P)


def symmetric_share(forms: Tensor) -> Tensor:
    """Return |(F + F^T) / 2|^2 / |F|^2 of forms (..., P, P).

    It is 1 for a similarity, 1/2 + 1 / (2 P) for random numbers.
    """
    forms = forms.cpu().double()
    return ((forms + forms.mT) / 2).square().sum((-2, -1)) / forms.square().sum((-2, -1))


def positive_share(forms: Tensor) -> Tensor:
    """Return the share of positive eigenvalues in the symmetric part of forms (..., P, P).

    1: like attracts like in every direction, as in an inner product; 0: opposites attract.
    """
    values = torch.linalg.eigvalsh((forms.cpu().double() + forms.cpu().double().mT) / 2)
    return values.clamp(min=0).sum(-1) / values.abs().sum(-1)


def leading_pairs(form: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split a form (P, P) into pairs of patches, strongest first.

    x F y^T = sum over i of s_i (x . a_i)(y . b_i)

    Returns a (count, P), the side of the query; b (count, P), that of the key, both of length 1;
    and s_i^2 / sum s^2 (count,). Only the joint sign of a and b is free: the sum over a is
    positive.
    """
    left, sizes, right = torch.linalg.svd(form.cpu().double())
    left = left.T[:count]
    right = right[:count]
    sign = torch.where(left.sum(1, keepdim=True) < 0, -1.0, 1.0)
    return left * sign, right * sign, sizes[:count].square() / sizes.square().sum()


# --- scores of images -----------------------------------------------------------------------------


class QueriesAndKeys(NamedTuple):
    """A layer's normed tokens (B, N, D), and their queries and keys (B, h, N, d)."""

    tokens: Tensor
    queries: Tensor
    keys: Tensor

    @property
    def logits(self) -> Tensor:
        """(B, h, N, N): batch, head, query, key."""
        return self.queries @ self.keys.mT * self.queries.shape[-1] ** -0.5


@torch.no_grad()
def queries_and_keys_by_layer(encoder: VisionTransformer, images: Tensor) -> list[QueriesAndKeys]:
    """Return the queries and keys of images (B, C, H, W), layer by layer."""
    layers = []
    x = encoder.embed(encoder.patchify(images))
    for block in encoder.blocks:
        assert isinstance(block, Block)
        tokens = block.norm1(x)
        queries, keys, _ = block.attn.project(tokens)
        layers.append(QueriesAndKeys(tokens, queries, keys))
        x = block(x)
    return layers


@torch.no_grad()
def split_first_logits(encoder: VisionTransformer, images: Tensor) -> Tensor:
    """Split the first layer's scores by part of query and key: (4, 4, B, h, N, N), summing to them.

    A token is content + position + rest: a patch's pixels times W_E (the class token itself), its
    row of the position table, and the embedding's bias. The norm's centring is linear and its
    divisor is applied to all three, so the split is exact. The norm's bias belongs to the rest. The
    parts of queries and of keys are those of content and position, their own bias, and the rest.
    """
    # Each token in three parts, through the norm
    block = first_block(encoder)
    attention, norm = block.attn, block.norm1
    x = encoder.embed(encoder.patchify(images))  # (B, N, D)
    position, rest = torch.zeros_like(x), torch.zeros_like(x)
    position[:, x.shape[1] - encoder.pos_embed.shape[1] :] = encoder.pos_embed
    if (bias := encoder.patch_embed.proj.bias) is not None:
        rest[:, encoder.num_prefix_tokens :] = bias
    scale = norm.weight / (x.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()  # (B, N, D)
    own_bias = torch.zeros_like(x)  # is added below: it is none of the tokens'
    parts = torch.stack([x - position - rest, position, own_bias, rest])  # (4, B, N, D)
    parts = (parts - parts.mean(-1, keepdim=True)) * scale
    parts[3] += norm.bias

    # Each part's queries and keys
    sides = []
    for third, matrix in enumerate((attention.W_Q, attention.W_K)):
        side = parts @ matrix
        if attention.qkv is not None and attention.qkv.bias is not None:
            side[2] += attention.qkv.bias.chunk(3)[third]
        sides.append(rearrange(side, "part b n (h d) -> part b h n d", h=attention.num_heads))
    queries, keys = sides
    return queries[:, None] @ keys[None].mT * keys.shape[-1] ** -0.5


def variance_parts(terms: Tensor) -> Tensor:
    """Divide a sum's variance over keys among terms (terms, B, h, queries, keys): (h, terms).

    Each gets its covariance with the sum, which is negative if it works against the others.
    """
    terms = terms - terms.mean(-1, keepdim=True)
    return (terms * terms.sum(0)).mean(-1).sum((1, 3)).T


@torch.no_grad()
def split_keys(encoder: VisionTransformer, images: Tensor, others: Tensor, seed: int = 0) -> Tensor:
    """Split what distinguishes keys into position, own patch and context: (layers, h, 3).

        q . key = q . (mean key at that place)
                + q . (mean key of that patch - the mean key at that place)
                + q . (key - the mean key of that patch)

    The mean key at a place is over other images; the mean key of a patch is its key when pasted
    there into other images. These are drawn independently of the patch, so a single draw leaves the
    shares unbiased.

    Args:
        encoder: only patches count as queries and keys, not prefix tokens.
        images: (B, C, H, W), normalised.
        others: (A, C, H, W), other images.
        seed: of the draws.
    """
    # Mean keys of places, and keys of patches in other images
    generator = torch.Generator().manual_seed(seed)
    prefix, embed = encoder.num_prefix_tokens, encoder.patch_embed
    average = [
        layer.keys[:, :, prefix:].mean(0) for layer in queries_and_keys_by_layer(encoder, others)
    ]  # (h, L, d) each
    own = queries_and_keys_by_layer(encoder, images)
    alone = [torch.zeros_like(layer.keys[:, :, prefix:]) for layer in own]  # (B, h, L, d) each
    patches, hosts = patchify(images, embed.patch_size), patchify(others, embed.patch_size)
    for place in range(patches.shape[1]):
        mixed = hosts[torch.randint(len(hosts), (len(images),), generator=generator)]
        mixed[:, place] = patches[:, place]
        elsewhere = queries_and_keys_by_layer(
            encoder, unpatchify(mixed, embed.patch_size, embed.grid_size)
        )
        for keys, layer in zip(alone, elsewhere, strict=True):
            keys[:, :, place] = layer.keys[:, :, prefix + place]

    # The three parts of each layer's scores
    shares = []
    for layer, position, patch in zip(own, average, alone, strict=True):
        queries, keys = layer.queries[:, :, prefix:], layer.keys[:, :, prefix:]
        parts = torch.stack(
            [position.expand_as(keys), patch - position, keys - patch]
        )  # (3, B, h, L, d)
        shares.append(variance_parts(queries @ parts.mT * queries.shape[-1] ** -0.5))
    return torch.stack(shares)


def self_share(weights: Tensor, num_prefix_tokens: int = 0) -> Tensor:
    """Return the share of attention (B, h, N, N) that patches give to themselves: (B, h)."""
    return weights.diagonal(dim1=-2, dim2=-1)[..., num_prefix_tokens:].mean(-1)


def correlation_with_cosine(logits: Tensor, vectors: Tensor, given: Tensor | None = None) -> Tensor:
    """Correlate logits (B, h, N, N) over keys with the cosines of `vectors` (B, N, D): (B, h).

    A token's own key, of cosine 1, is left out. With `given` (N, N), keys are compared only with
    those of which it is the same, such as those at the same distance from the query.
    """
    unit = F.normalize(vectors, dim=-1)
    scores = _others(logits)  # (B, h, N, N - 1)
    cosines = _others(unit @ unit.mT)[:, None]  # (B, 1, N, N - 1)
    if given is not None:
        groups = F.one_hot(_others(given).unique(return_inverse=True)[1]).to(scores)
        scores = _within(scores, groups)
        cosines = _within(cosines, groups)
    return correlation(scores, cosines).mean(-1)


def _within(values: Tensor, groups: Tensor) -> Tensor:
    """Return values (B, h, N, n) less the mean of their group, of groups (N, n, G) per query."""
    means = torch.einsum("bhqk,qkg->bhqg", values, groups) / groups.sum(1).clamp(min=1)
    left = values - torch.einsum("bhqg,qkg->bhqk", means, groups)
    # A group of one leaves only rounding
    return torch.where(left.abs() > 1e-5 * values.abs().amax(-1, keepdim=True), left, 0.0)


def _others(square: Tensor) -> Tensor:
    """Return the rows without the diagonal: (..., N, N) -> (..., N, N - 1)."""
    size = square.shape[-1]
    after = square.flatten(-2)[..., 1:].unflatten(
        -1, (size - 1, size + 1)
    )  # each row begins after a diagonal entry
    return after[..., :-1].reshape(*square.shape[:-1], size - 1)


def symmetry(logits: Tensor) -> Tensor:
    """Return (|S|^2 - |A|^2) / (|S|^2 + |A|^2) of scores (B, h, N, N): (B, h).

    S is their symmetric part, A the antisymmetric one, after the means of each query and of each
    key are subtracted. 1: a score is the same both ways; 0: the two are unrelated; -1: it
    is the opposite.
    """
    pairs = (
        logits
        - logits.mean(-1, keepdim=True)
        - logits.mean(-2, keepdim=True)
        + logits.mean((-2, -1), keepdim=True)
    )
    # with S, A = (Z +- Z^T) / 2, |S|^2 - |A|^2 is the sum of Z times Z^T, |S|^2 + |A|^2 that of Z^2
    return (pairs * pairs.transpose(-2, -1)).sum((-2, -1)) / pairs.square().sum((-2, -1)).clamp(
        min=1e-20
    )
