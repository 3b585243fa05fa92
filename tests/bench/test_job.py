"""The arithmetic of a step: against figures that were counted elsewhere, and against torch's own counter."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vit.bench.contestants import run_of
from vit.bench.job import Job, flops_per_image, linears
from vit.config import ConfigError
from vit.data.draws import draw_step
from vit.mae import build_autoencoder


@pytest.mark.parametrize(("patch", "gflop"), [(4, 1.286), (2, 5.545)])
def test_the_job_costs_what_it_is_known_to_cost(patch, gflop):
    assert flops_per_image(Job(patch=patch).config()) / 1e9 == pytest.approx(gflop, rel=0.002)


@pytest.mark.parametrize("ratio", [0.75, 0.4])
@pytest.mark.parametrize("patch", [4, 8])
def test_arithmetic_is_what_torch_counts(patch, ratio):
    job = Job(preset="micro", patch=patch, mask_ratio=ratio, decoder_dim=24, decoder_depth=2, decoder_heads=2, batch=3)
    config, objective = job.config(), run_of(job).objective
    inputs = torch.randn(job.batch, 3, 32, 32)
    draws = draw_step(config, 0, job.images, masked=True)
    with FlopCounterMode(display=False) as counter:
        objective(inputs, None, draws)[0].backward()
    assert flops_per_image(config) * job.batch == counter.get_total_flops()


def test_every_linear_layer_of_the_model_is_counted():
    config = Job(preset="micro").config()
    model = build_autoencoder(config.model.vit_config(), config.model.decoder_config(), True)
    shapes = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, torch.nn.Linear)]
    embed = model.encoder.patch_embed.proj.weight
    shapes.append((embed[0].numel(), len(embed)))
    counted = [shape for layer in linears(config) for shape in [(layer.inputs, layer.outputs)] * layer.count]
    assert sorted(counted) == sorted(shapes)


def test_job_that_cannot_be_done_is_refused():
    with pytest.raises(ConfigError, match="patch_size"):
        Job(patch=5).config()
