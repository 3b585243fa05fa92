"""What this machine can do: its own matrix products, at the shapes that the layers have."""

from __future__ import annotations

import time

import torch

from vit.bench.job import linears
from vit.config import Config


def product_rate(config: Config, images: int, precision: str, device: torch.device, repeats: int = 5) -> float:
    """The rate of the products that a step is made of, with nothing between them.

    For every linear layer the forward product and both backward ones (to the input and to the weight) are timed, and count
    as often as they occur. A model cannot be faster than this unless it computes less.

    Args:
        config: the model.
        images: in one part of a batch, which decides how many rows the products have.
        precision: "bf16" or "fp32".
        device: where.
        repeats: the median of so many counts.

    Returns:
        Floating-point operations a second; a multiply-add counts as two.
    """
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    flops = seconds = 0.0
    for layer in linears(config):
        rows = images * layer.tokens
        x, weight, gradient = (
            torch.randn(*shape, device=device, dtype=dtype)
            for shape in ((rows, layer.inputs), (layer.outputs, layer.inputs), (rows, layer.outputs))
        )
        times = []
        for _ in range(repeats + 2):
            begin = time.perf_counter()
            torch.nn.functional.linear(x, weight)
            gradient.T @ x
            if not layer.first:
                gradient @ weight
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        seconds += layer.count * sorted(times[2:])[repeats // 2]
        flops += layer.flops * images
    return flops / seconds
