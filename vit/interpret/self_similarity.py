"""Is attention self-similarity? A layer's logits beside the cosines of the tokens that they were made of.

With W_Q = W_K = W_V = I (`model.qkv: identity`) a head's logits are X X^T / sqrt(d) of its slice of X: symmetric, and large
where tokens are alike, above all between a token and itself. Learned matrices may make anything of them.

Letters: B batch, N tokens, D width, h heads, d = D / h.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from vit.interpret.correlation import correlation, partial_correlation


def self_share(weights: Tensor, num_prefix_tokens: int = 0) -> Tensor:
    """How much of its attention a token gives to itself, mean over tokens; 1 / N when it is even.

    Args:
        weights: (B, h, N, N).
        num_prefix_tokens: leave out so many tokens that ask: the class token and registers, for patches alone.

    Returns:
        (B, h), from 0 to 1.
    """
    return weights.diagonal(dim1=-2, dim2=-1)[..., num_prefix_tokens:].mean(-1)


def correlation_with_cosine(logits: Tensor, vectors: Tensor, given: Tensor | None = None) -> Tensor:
    """Whether a query's logits follow how similar the keys are to it: Pearson's correlation, mean over queries.

    For each query it is taken over all other tokens: with itself, of cosine 1, there would always be some. Softmax loses a
    number that is the same for all keys of a query; so does the correlation: it is that of the logarithm of the weights too.

    Args:
        logits: (B, h, N, N).
        vectors: (B, N, D), the tokens that they were made of, or others that may be alike.
        given: (N, N), of query and key, what is held constant, or None.

    Returns:
        (B, h), from -1 to 1; 0 for a query whose logits are all the same.
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
    """Whether two tokens ask each other alike: (|S|^2 - |A|^2) / (|S|^2 + |A|^2) of the symmetric and antisymmetric parts.

    What a token has with all others, as a query and as a key, is taken away first: pairs are left.

    Args:
        logits: (B, h, N, N).

    Returns:
        (B, h): 1 where a logit is the same both ways, 0 where one way says nothing of the other, -1 where it is the opposite.
    """
    pairs = logits - logits.mean(-1, keepdim=True) - logits.mean(-2, keepdim=True) + logits.mean((-2, -1), keepdim=True)
    # |S|^2 - |A|^2 of S, A = (Z +- Z^T) / 2 is the sum of Z times Z^T, |S|^2 + |A|^2 that of Z squared.
    return (pairs * pairs.transpose(-2, -1)).sum((-2, -1)) / pairs.square().sum((-2, -1)).clamp(min=1e-20)
