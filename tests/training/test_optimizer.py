"""The schedule against written lists, and which parameters decay."""

from itertools import pairwise

import pytest
import torch

from vit.config import OptimConfig
from vit.mae import MaskedAutoencoder, build_autoencoder
from vit.training.optimizer import learning_rate, make_optimizer, parameter_groups

# (total steps, warm-up steps, peak, end): the rate of every step
SCHEDULES = {
    (10, 4, 1.0, 0.0): [0.25, 0.5, 0.75, 1.0, 1.0, 0.9330127, 0.75, 0.5, 0.25, 0.0669873],
    (4, 0, 3.0, 1.0): [3.0, 2.7071068, 2.0, 1.2928932],
    (3, 3, 0.6, 0.0): [0.2, 0.4, 0.6],
    (1, 0, 0.5, 0.0): [0.5],
    (1, 1, 0.5, 0.0): [0.5],
}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_learning_rate_is_the_written_list(schedule):
    total, warmup, peak, end = schedule
    rates = [learning_rate(step, total, warmup, peak, end) for step in range(total)]
    assert rates == pytest.approx(SCHEDULES[schedule], abs=1e-7)


@pytest.mark.parametrize(("total", "warmup"), [(100, 0), (100, 1), (101, 37), (100, 99), (50, 50)])
@pytest.mark.parametrize(("peak", "end"), [(1.0, 0.0), (3e-4, 1e-6)])
def test_rate_rises_to_its_peak_then_falls_to_its_end(total, warmup, peak, end):
    rates = [learning_rate(step, total, warmup, peak, end) for step in range(total + 1)]
    rising, falling = rates[:warmup], rates[warmup:]
    assert all(one < two for one, two in pairwise(rising))
    assert all(one > two for one, two in pairwise(falling))
    assert min(rates[:-1]) > 0
    assert max(rates) == pytest.approx(peak)
    assert total == warmup or rates[total] == pytest.approx(end)


def whole_model() -> MaskedAutoencoder:
    """With every kind of parameter that there is."""
    encoder = dict(
        image_size=(8, 8), patch_size=(4, 4), embed_dim=8, depth=1, num_heads=2, registers=1, pos_embed="learned",
        layer_scale=0.1,
    )  # fmt: skip
    return build_autoencoder(encoder, dict(dim=8, depth=1, num_heads=2), norm_pix_loss=True)


def names_by_decay(model: MaskedAutoencoder) -> dict[float, set[str]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, weight_decay=0.05)
    return {group["weight_decay"]: {names[id(parameter)] for parameter in group["params"]} for group in groups}


def test_matrices_decay_and_nothing_else():
    block = {"attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"}
    matrices = {f"{part}.blocks.0.{name}" for part in ("encoder", "decoder") for name in block}
    matrices |= {"encoder.patch_embed.proj.weight", "decoder.embed.weight", "decoder.pred.weight"}
    model = whole_model()
    others = {name for name, parameter in model.named_parameters() if parameter.requires_grad} - matrices
    assert {"encoder.cls_token", "encoder.reg_token", "encoder.pos_embed", "decoder.mask_token"} < others
    assert names_by_decay(model) == {0.05: matrices, 0.0: others}


@pytest.mark.parametrize("frozen", ["", "encoder", "patch_embed", "bias"])
def test_every_learning_parameter_is_in_exactly_one_group(frozen):
    model = whole_model()
    for name, parameter in model.named_parameters():
        if frozen and frozen in name:
            parameter.requires_grad_(False)
    grouped = [id(parameter) for group in parameter_groups(model, 0.05) for parameter in group["params"]]
    learning = [id(parameter) for parameter in model.parameters() if parameter.requires_grad]
    assert sorted(grouped) == sorted(learning)
    assert len(set(grouped)) == len(grouped)


def test_optimizer_has_the_settings_of_the_configuration():
    optimizer = make_optimizer(whole_model(), OptimConfig(weight_decay=0.2, betas=(0.8, 0.9)))
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2, 0.0]
    assert all(group["betas"] == (0.8, 0.9) for group in optimizer.param_groups)
