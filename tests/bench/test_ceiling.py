"""The products alone: as many as the arithmetic of the layers says."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vit.bench.ceiling import product_step
from vit.bench.job import Job, linears


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("parts", [1, 2])
def test_products_are_those_of_a_step(parts, precision):
    config = Job(preset="micro", patch=8, decoder_dim=24, decoder_depth=2, decoder_heads=2).config()
    step = product_step(config, 4, parts, precision, torch.device("cpu"))
    with FlopCounterMode(display=False) as counter:
        step()
    assert counter.get_total_flops() == 4 * sum(layer.flops for layer in linears(config))
