"""What weights do together, without any image: row spaces, and the forms that first-layer logits are made of.

Letters: D width, h heads, d = D / h, P = C p q values a patch.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import orth, subspace_angles
from torch import Tensor, nn

from vit.encoder import Block, VisionTransformer
from vit.interpret.layers import AttentionError


def principal_angles(a: Tensor, b: Tensor) -> Tensor:
    """The principal angles between two spaces (Björck and Golub 1973), in degrees, the smallest first.

    The rows of a (m, D) and b (n, D) span them; there are as many angles as the smaller one has dimensions.
    """
    angles = subspace_angles(*(rows.cpu().double().numpy().T for rows in (a, b)))  # the largest first
    return torch.from_numpy(np.degrees(angles[::-1]))


def share_within(matrix: Tensor, rows: Tensor) -> float:
    """How much of a map (m, D) lies in the space that rows (n, D) span, from 0 to 1.

    Of D dimensions, r random ones hold r / D of any map.
    """
    read, basis = matrix.cpu().double().numpy(), orth(rows.cpu().double().numpy().T)  # (m, D), (D, r)
    return float(np.square(read @ basis).sum() / np.square(read).sum())


def chance_angles(m: int, n: int, dim: int, draws: int = 20, seed: int = 0) -> Tensor:
    """The mean principal angles between random subspaces of m and n dimensions in `dim`: (min(m, n),) in degrees."""
    generator = torch.Generator().manual_seed(seed)
    found = [
        principal_angles(*(torch.randn(size, dim, generator=generator, dtype=torch.float64) for size in (m, n)))
        for _ in range(draws)
    ]
    return torch.stack(found).mean(0)


def pixel_forms(encoder: VisionTransformer) -> Tensor:
    """How much the pixels of two patches attract each other in the first layer: W_E W_Q W_K^T W_E^T, per head (h, P, P).

    Where x and y are the pixels of two patches, and s_x and s_y the divisors of the norm for their tokens, the contents
    alone add x F_i y^T / (s_x s_y) to the logit of head i (W_Q W_K^T is the QK circuit of Elhage et al. 2021). The norm's
    scale, its centring and the 1 / sqrt(d) of attention are in F_i; its divisors, one positive number a token, are not, and
    change no sign. An AttentionError refuses layers whose logits are no such form.
    """
    block = encoder.blocks[0]
    assert isinstance(block, Block)
    require_bilinear(block)
    written = encoder.patch_embed.W_E.detach()  # (P, D)
    written = (written - written.mean(1, keepdim=True)) * block.norm1.weight.detach()
    shape = (block.attn.num_heads, -1)
    queries = (written @ block.attn.W_Q.detach()).unflatten(1, shape).transpose(0, 1)  # (h, P, d)
    keys = (written @ block.attn.W_K.detach()).unflatten(1, shape).transpose(0, 1)
    return queries @ keys.transpose(1, 2) * queries.shape[-1] ** -0.5  # (h, P, P)


def require_bilinear(block: Block) -> None:
    """Raise where the logits of a block are no product of its normed tokens, W_Q and W_K."""
    if block.attn.qkv is None:
        raise AttentionError("attention with Q = K = V = X (qkv: identity) has no W_Q and W_K to look at")
    if not isinstance(block.attn.q_norm, nn.Identity):
        raise AttentionError(
            "attention that normalises its queries and keys (qk_norm) has no logits that split into parts"
        )


def symmetric_share(forms: Tensor) -> Tensor:
    """How much of a form (..., P, P) does not change when query and key trade places: |(F + F^T) / 2|^2 / |F|^2.

    1 of every similarity, 1/2 + 1 / (2 P) of a form of independent random numbers.
    """
    forms = forms.cpu().double()
    return ((forms + forms.mT) / 2).square().sum((-2, -1)) / forms.square().sum((-2, -1))


def positive_share(forms: Tensor) -> Tensor:
    """How much of the symmetric part of a form (..., P, P) draws like to like: its positive eigenvalues, out of all.

    From 0, opposites attract in every direction, to 1, like attracts like in every one, as in an inner product.
    """
    values = torch.linalg.eigvalsh((forms.cpu().double() + forms.cpu().double().mT) / 2)
    return values.clamp(min=0).sum(-1) / values.abs().sum(-1)


def leading_pairs(form: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs of patches that a form (P, P) is made of, strongest first: x F y^T = sum over i of s_i (x . a_i)(y . b_i).

    Returns what is asked for, a (count, P); what is found by it, b (count, P), both of length 1; and the shares s_i^2 / sum
    s^2 (count,). a and b may change their signs, but only together: here, the sum over a is positive.
    """
    asked, sizes, found = torch.linalg.svd(form.cpu().double())
    asked, found = asked.T[:count], found[:count]
    sign = torch.where(asked.sum(1, keepdim=True) < 0, -1.0, 1.0)
    return asked * sign, found * sign, sizes[:count].square() / sizes.square().sum()
