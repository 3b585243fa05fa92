"""What the logits of attention are made of, and whether they follow how similar the tokens are.

A softmax over keys ignores what is the same for all keys of a query, so that variance and correlation are over the keys of
each query. With W_Q = W_K = W_V = I (`model.qkv: identity`) a head's logits are X X^T / sqrt(d) of its slice of X: symmetric,
and large where tokens are alike, above all between a token and itself. Learned matrices may make anything of them.

Letters: B batch, h heads, d = D / h, L patches, N tokens (prefix + L).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit.encoder import Block, VisionTransformer
from vit.patches import patchify, unpatchify
from vit.studies.analysis.circuits import require_bilinear
from vit.studies.analysis.correlation import correlation, partial_correlation


class Asking(NamedTuple):
    """A layer's normed tokens (B, N, D), and the queries and keys (B, h, N, d) that they become."""

    tokens: Tensor
    queries: Tensor
    keys: Tensor

    @property
    def logits(self) -> Tensor:
        """(B, h, N, N): batch, head, query, key."""
        return self.queries @ self.keys.mT * self.queries.shape[-1] ** -0.5


@torch.no_grad()
def asking(encoder: VisionTransformer, images: Tensor) -> list[Asking]:
    """What the tokens of images (B, C, H, W) ask for and are found by, layer by layer."""
    found, x = [], encoder.embed(encoder.patchify(images))
    for block in encoder.blocks:
        assert isinstance(block, Block)
        tokens = block.norm1(x)
        queries, keys, _ = block.attn.project(tokens)
        found.append(Asking(tokens, queries, keys))
        x = block(x)
    return found


@torch.no_grad()
def split_first_logits(encoder: VisionTransformer, images: Tensor) -> Tensor:
    """The logits of the first layer as a sum: what of the query meets what of the key, (3, 3, B, h, N, N).

    A token is content + position + rest: of a patch, its pixels times W_E, its row of the position table, and the bias of
    the embedding; of the class token, itself, its row, nothing. The norm's centring is linear and its divisor, one number a
    token, is applied to all three alike, so that the split is exact: the sum over the first two dimensions, part of the
    query and part of the key, is what the softmax is taken of. The norm's bias goes to the rest of queries and keys, as do
    their own. An AttentionError refuses what `pixel_forms` does.
    """
    block = encoder.blocks[0]
    assert isinstance(block, Block)
    require_bilinear(block)
    attention, norm = block.attn, block.norm1
    x = encoder.embed(encoder.patchify(images))  # (B, N, D)
    position, rest = torch.zeros_like(x), torch.zeros_like(x)
    position[:, x.shape[1] - encoder.pos_embed.shape[1] :] = encoder.pos_embed
    if (bias := encoder.patch_embed.proj.bias) is not None:
        rest[:, encoder.num_prefix_tokens :] = bias
    scale = norm.weight / (x.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()  # (B, N, D)
    parts = torch.stack([x - position - rest, position, rest])  # (3, B, N, D)
    parts = (parts - parts.mean(-1, keepdim=True)) * scale
    parts[2] += norm.bias
    sides = []
    for third, matrix in enumerate((attention.W_Q, attention.W_K)):
        side = parts @ matrix
        if attention.qkv is not None and attention.qkv.bias is not None:
            side[2] += attention.qkv.bias.chunk(3)[third]
        sides.append(rearrange(side, "part b n (h d) -> part b h n d", h=attention.num_heads))
    queries, keys = sides
    return queries[:, None] @ keys[None].mT * keys.shape[-1] ** -0.5


def variance_parts(terms: Tensor) -> Tensor:
    """The variance over keys of a sum of terms (terms, B, h, queries, keys), divided among them: (h, terms).

    Each gets its covariance with the sum, summed over images and queries; a term that works against the others has a
    negative part.
    """
    terms = terms - terms.mean(-1, keepdim=True)
    return (terms * terms.sum(0)).mean(-1).sum((1, 3)).T


@torch.no_grad()
def split_keys(encoder: VisionTransformer, images: Tensor, others: Tensor, seed: int = 0) -> Tensor:
    """What tells the keys of a query apart, in every layer: the key's position, its own patch, or what it has taken in.

    A patch of an image is put, at its place, into other images, and what its key is there on average is what its patch says.
    The key at that place, averaged over the other images as they are, is what the position says. So

        q . key = q . (key at that place)  +  q . (key of that patch - key at that place)  +  q . (key - key of that patch)

    and the three share the variance of the logits over the keys of each query. Which other images a patch is put into has
    nothing to do with its own, so that taking one leaves the shares unbiased.

    Args:
        encoder: any; patches ask patches, prefix tokens are left out.
        images: (B, C, H, W), normalised.
        others: (A, C, H, W), other images.
        seed: of the draws.

    Returns:
        (layers, h, 3): parts of the variance as `variance_parts` gives them: position, patch, context; in the first layer
        a key knows nothing but its patch and position.
    """
    generator = torch.Generator().manual_seed(seed)
    prefix, embed = encoder.num_prefix_tokens, encoder.patch_embed
    average = [layer.keys[:, :, prefix:].mean(0) for layer in asking(encoder, others)]  # (h, L, d) each
    own = asking(encoder, images)
    alone = [torch.zeros_like(layer.keys[:, :, prefix:]) for layer in own]  # (B, h, L, d) each
    patches, hosts = patchify(images, embed.patch_size), patchify(others, embed.patch_size)
    for place in range(patches.shape[1]):
        mixed = hosts[torch.randint(len(hosts), (len(images),), generator=generator)]
        mixed[:, place] = patches[:, place]
        elsewhere = asking(encoder, unpatchify(mixed, embed.patch_size, embed.grid_size))
        for keys, layer in zip(alone, elsewhere, strict=True):
            keys[:, :, place] = layer.keys[:, :, prefix + place]
    found = []
    for layer, position, patch in zip(own, average, alone, strict=True):
        queries, keys = layer.queries[:, :, prefix:], layer.keys[:, :, prefix:]
        parts = torch.stack([position.expand_as(keys), patch - position, keys - patch])  # (3, B, h, L, d)
        found.append(variance_parts(queries @ parts.mT * queries.shape[-1] ** -0.5))
    return torch.stack(found)


def self_share(weights: Tensor, num_prefix_tokens: int = 0) -> Tensor:
    """The share of its attention (B, h, N, N) that a token gives to itself, mean over tokens but the prefix: (B, h)."""
    return weights.diagonal(dim1=-2, dim2=-1)[..., num_prefix_tokens:].mean(-1)


def correlation_with_cosine(logits: Tensor, vectors: Tensor, given: Tensor | None = None) -> Tensor:
    """How a query's logits (B, h, N, N) correlate with how similar the keys are to it, mean over queries: (B, h).

    For each query it is taken over all other tokens: with itself, of cosine 1, there would always be some. Softmax loses a
    number that is the same for all keys of a query; so does the correlation: it is that of the logarithm of the weights
    too. `vectors` (B, N, D) are the tokens that the logits were made of, or others that may be alike; `given` (N, N) is
    held constant.
    """
    unit = F.normalize(vectors, dim=-1)
    asked, cosines = _others(logits), _others(unit @ unit.mT)[:, None]  # (B, h or 1, N, N - 1)
    found = correlation(asked, cosines) if given is None else partial_correlation(asked, cosines, _others(given))
    return found.mean(-1)


def _others(square: Tensor) -> Tensor:
    """(..., N, N) -> (..., N, N - 1): rows without what each has for itself."""
    size = square.shape[-1]
    after = square.flatten(-2)[..., 1:].unflatten(-1, (size - 1, size + 1))  # each begins after one of the diagonal
    return after[..., :-1].reshape(*square.shape[:-1], size - 1)


def symmetry(logits: Tensor) -> Tensor:
    """Whether two tokens ask each other alike, by logits (B, h, N, N): (B, h).

    That is (|S|^2 - |A|^2) / (|S|^2 + |A|^2) of the symmetric and antisymmetric parts. What a token has with all others, as
    a query and as a key, is taken away first: pairs are left. 1 where a logit is the same both ways, 0 where one way says
    nothing of the other, -1 where it is the opposite.
    """
    pairs = logits - logits.mean(-1, keepdim=True) - logits.mean(-2, keepdim=True) + logits.mean((-2, -1), keepdim=True)
    # |S|^2 - |A|^2 of S, A = (Z +- Z^T) / 2 is the sum of Z times Z^T, |S|^2 + |A|^2 that of Z squared.
    return (pairs * pairs.transpose(-2, -1)).sum((-2, -1)) / pairs.square().sum((-2, -1)).clamp(min=1e-20)
