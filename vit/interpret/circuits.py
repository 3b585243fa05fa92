"""What weights do together, without any image: row spaces, and the forms that first-layer logits are made of.

Letters: D width, h heads, d = D / h, P = C p q values a patch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def principal_angles(a: Tensor, b: Tensor) -> Tensor:
    """The principal angles between two subspaces of the same space (Björck and Golub 1973).

    Args:
        a: (m, D), its rows span the first subspace, m <= D.
        b: (n, D), its rows span the second.

    Returns:
        (min(rank a, rank b),) in degrees, the smallest first; float64.
    """
    bases = [_row_space(matrix.double()) for matrix in (a, b)]
    cosines = torch.linalg.svdvals(bases[0] @ bases[1].T)  # (min(m, n),), the largest first
    return cosines.clamp(max=1).arccos() * (180 / math.pi)


def _row_space(matrix: Tensor) -> Tensor:
    """An orthonormal basis (rank, D) of the space that the rows of (m, D) span."""
    _, sizes, rows = torch.linalg.svd(matrix, full_matrices=False)
    smallest = sizes.max() * max(matrix.shape) * torch.finfo(sizes.dtype).eps
    return rows[sizes > smallest]


def share_within(matrix: Tensor, rows: Tensor) -> float:
    """How much of a map lies in a subspace: |matrix restricted to it|^2 / |matrix|^2, from 0 to 1.

    Args:
        matrix: (m, D), whose rows are what is read.
        rows: (n, D), which span the subspace; of D dimensions, r random ones hold r / D of any map.
    """
    matrix = matrix.double()
    return float((matrix @ _row_space(rows.double()).T).square().sum() / matrix.square().sum())


def chance_angles(m: int, n: int, dim: int, draws: int = 20, seed: int = 0) -> Tensor:
    """The mean principal angles between random subspaces of m and n dimensions in `dim`: (min(m, n),) in degrees."""
    generator = torch.Generator().manual_seed(seed)
    found = [
        principal_angles(*(torch.randn(size, dim, generator=generator, dtype=torch.float64) for size in (m, n)))
        for _ in range(draws)
    ]
    return torch.stack(found).mean(0)
