"""What this machine can do: its own matrix products, at the shapes that the layers have."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vit.bench.job import linears
from vit.config import Config


def product_step(config: Config, images: int, parts: int, precision: str, device: torch.device) -> Callable[[], None]:
    """All products with weights of a training step, forward and backward, with nothing between them.

    For every linear layer the forward product and both backward ones (to the input and to the weight), as often as they
    occur. A model cannot be faster than this unless it computes less.

    Args:
        config: the model.
        images: in a batch.
        parts: in which the batch is computed, which decides how many rows the products have.
        precision: "bf16" or "fp32".
        device: where.
    """
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    layers = []
    for layer in linears(config):
        rows = round(images * layer.tokens / parts)  # parts need not divide the batch
        shapes = ((rows, layer.inputs), (layer.outputs, layer.inputs), (rows, layer.outputs))
        x, weight, gradient = (torch.randn(*shape, device=device, dtype=dtype) for shape in shapes)
        layers.append((layer, x, weight, gradient))

    def step() -> None:
        for layer, x, weight, gradient in layers:
            for _ in range(layer.count * parts):
                torch.nn.functional.linear(x, weight)
                gradient.T @ x
                if not layer.first:
                    gradient @ weight

    return step
