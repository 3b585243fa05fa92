"""The arithmetic of a step, against what is counted by hand; the ceiling has its products."""

from dataclasses import replace

import pytest
from small_jobs import MICRO
from torch.utils.flop_counter import FlopCounterMode

from bench.contestants import build, flops_per_image
from bench.job import Job
from vit.masking import num_keep

TWO = replace(MICRO, decoder_depth=2)


def products_by_hand(job: Job) -> int:
    """FLOPs of the products with weights for an image: forward, to the weight, and but for the first layer to the input."""
    model, patches = job.config().model, (job.image_size // job.patch) ** 2
    size, values, prefix = model.filled, 3 * job.patch**2, int(job.class_token)
    visible = patches if job.labels else num_keep(patches, job.mask_ratio)
    stacks = [(visible + prefix, size["depth"], size["embed_dim"])]
    flops = 2 * 2 * visible * values * size["embed_dim"]
    if job.labels:
        flops += 3 * 2 * size["embed_dim"] * 10
    else:
        stacks.append((patches + prefix, job.decoder_depth, job.decoder_dim))
        flops += (
            3
            * 2
            * (
                (visible + prefix) * size["embed_dim"] * job.decoder_dim
                + patches * job.decoder_dim * values
            )
        )
        unread = 9 * (visible + prefix) * job.decoder_dim**2 + visible * job.decoder_dim * values
        flops -= 3 * 2 * unread
    return flops + sum(3 * 2 * depth * tokens * 12 * width**2 for tokens, depth, width in stacks)


@pytest.mark.parametrize(
    "change",
    [{}, {"mask_ratio": 0.4}, {"patch": 4}, {"objective": "classify"}, {"class_token": False}],
    ids=str,
)
def test_arithmetic_is_that_of_the_layers(change):
    job = replace(TWO, **change)
    size, patches, prefix = (
        job.config().model.filled,
        (job.image_size // job.patch) ** 2,
        int(job.class_token),
    )
    tokens = prefix + (patches if job.labels else num_keep(patches, job.mask_ratio))
    attention = 3 * 4 * size["depth"] * tokens**2 * size["embed_dim"]
    if not job.labels:
        # the visible ones ask nothing in the last block
        queries = job.decoder_depth * (patches + prefix) - tokens
        attention += 3 * 4 * queries * (patches + prefix) * job.decoder_dim
    assert flops_per_image(job) == products_by_hand(job) + attention


@pytest.mark.parametrize(
    "change",
    [{"precision": "bf16"}, {"run": {"grad_accum_steps": 2}}, {"objective": "classify"}],
    ids=str,
)
def test_the_ceiling_is_the_products_of_a_step(change):
    job = replace(TWO, contestant="ceiling", **change)
    ceiling = build(job)
    with FlopCounterMode(display=False) as counter:
        ceiling.step()
    assert counter.get_total_flops() == ceiling.products == job.batch * products_by_hand(job)
