"""The schedule against written lists, Muon against timm's, and which parameters decay."""

import copy
import functools

import pytest
import torch
from small import close
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from timm.optim import param_groups_layer_decay
from timm.optim.muon import Muon as TimmMuon
from timm.optim.muon import zeropower_via_newtonschulz
from tiny import autoencoder, encoder, seeded
from torch import nn

from vit.config import Config, DecoderConfig, OptimConfig, TrainConfig, changed
from vit.mae import MaskedAutoencoder
from vit.training.distributed import SINGLE
from vit.training.loop import learning_rate, set_learning_rate
from vit.training.muon import COEFFICIENTS, orthogonalize
from vit.training.optimizer import make_optimizer, parameter_groups

# (total steps, warm-up steps, where the rate falls from, peak): the rate of every step
SCHEDULES = {
    (10, 4, 4, 1.0): [0.25, 0.5, 0.75, 1.0, 1.0, 0.9330127, 0.75, 0.5, 0.25, 0.0669873],
    (4, 0, 0, 2.0): [2.0, 1.7071068, 1.0, 0.2928932],
    # two steps of warm-up, four of cool-down
    (10, 2, 6, 1.0): [0.5, *[1.0] * 6, 0.8535534, 0.5, 0.1464466],
}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_learning_rate_is_the_written_list(schedule):
    total, warmup, falls_from, peak = schedule
    rates = [learning_rate(step, warmup, falls_from, total, peak) for step in range(total)]
    assert rates == pytest.approx(SCHEDULES[schedule], abs=1e-7)
    assert total == falls_from or learning_rate(total, warmup, falls_from, total, peak) == 0


def test_learning_rate_is_held_until_the_cooldown():
    config = Config(optim=OptimConfig(warmup_epochs=1, cooldown=0.4), train=TrainConfig(epochs=5))
    assert config.schedule(2) == (2, 6, 10)
    # no step is in both parts
    overlapping = changed(config, {"optim.warmup_epochs": 4})
    assert overlapping.schedule(1) == (4, 4, 5)


def whole_model() -> MaskedAutoencoder:
    """With every kind of parameter that there is."""
    torch.manual_seed(1)
    decoder = DecoderConfig(dim=8, depth=1, num_heads=2)
    sizes = dict(image_size=(8, 8), embed_dim=8, depth=1)
    return autoencoder(decoder=decoder, **sizes, registers=1, pos_embed="learned", layer_scale=0.1)


def by_name(model: nn.Module, groups: list[dict], key: str) -> dict[str, float]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: group[key] for group in groups for parameter in group["params"]}


@pytest.mark.parametrize("frozen", ["nothing", "encoder"])
def test_matrices_decay_and_nothing_else_and_what_is_frozen_has_no_group(frozen):
    names = "attn.qkv attn.proj mlp.fc1 mlp.fc2"
    matrices = {f"encoder.blocks.0.{name}.weight" for name in names.split()}
    matrices |= {name.replace("encoder", "decoder") for name in matrices}
    matrices |= {"encoder.patch_embed.proj.weight", "decoder.embed.weight", "decoder.pred.weight"}
    model = whole_model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and frozen not in name)
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if frozen == "nothing":
        tokens = {f"encoder.{name}" for name in ("cls_token", "reg_token", "pos_embed")} | {
            "decoder.mask_token"
        }
        assert tokens < learning - matrices
    groups = parameter_groups(model, OptimConfig(weight_decay=0.05))
    assert by_name(model, groups, "weight_decay") == {
        name: 0.05 * (name in matrices) for name in learning
    }
    assert sum(len(group["params"]) for group in groups) == len(learning)


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        (dict(class_token=False, global_pool="avg"), dict(class_token=False)),
        (dict(init_values=0.1), dict(layer_scale=0.1)),
    ],
)
@pytest.mark.parametrize("depth", [1, 4])
def test_layer_decay_is_timms(depth, settings, same):
    """But for the last norm, which timm counts to the last block; BEiT, MAE and we to the head."""
    sizes = dict(patch_size=4, embed_dim=8, depth=depth, num_heads=2, num_classes=3)
    timms = TimmVisionTransformer(img_size=8, reg_tokens=1, **sizes, **settings)
    plain = timms.no_weight_decay()
    expected = param_groups_layer_decay(timms, 0.05, layer_decay=0.7, no_weight_decay_list=plain)
    ours = encoder(**sizes | dict(image_size=(8, 8), patch_size=(4, 4), registers=1), **same)
    groups = parameter_groups(ours, OptimConfig(weight_decay=0.05, layer_decay=0.7))
    last = ("norm.weight", "norm.bias", "fc_norm.weight", "fc_norm.bias")
    for key in ("lr_scale", "weight_decay"):
        of_ours = by_name(ours, groups, key)
        of_timms = by_name(timms, expected, key)
        for name in last:
            of_ours.pop(name, None)
            of_timms.pop(name, None)
        assert of_ours == pytest.approx(of_timms)
    scales = by_name(ours, groups, "lr_scale")
    assert scales["norm.weight"] == scales["norm.bias"] == 1
    assert len(set(scales.values())) == depth + 2


# --- Muon -----------------------------------------------------------------------------------------

MUON = OptimConfig(name="muon", weight_decay=0.1)


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, seeds: range, lr: float = 0.01
) -> None:
    for seed in seeds:
        draws = seeded(seed)
        for value in model.parameters():
            value.grad = torch.randn(value.shape, generator=draws) if value.requires_grad else None
        set_learning_rate(optimizer, lr)
        optimizer.step()


def test_update_of_muon_is_timms():
    """Timm's iterations in float64; its own type, bfloat16, is further away than that."""
    draws = seeded(0)
    for shape in [(24, 8), (8, 8), (8, 32), (1, 5)]:
        gradient = torch.randn(3, *shape, generator=draws)
        exact = [
            zeropower_via_newtonschulz(one.double(), 5, list(COEFFICIENTS), dtype=torch.float64)
            for one in gradient
        ]
        close(orthogonalize(1e4 * gradient, torch.float32).double(), torch.stack(exact), 1e-4)
    # a matrix that has had no gradient yet
    assert orthogonalize(torch.zeros(1, 3, 4), torch.float32).count_nonzero() == 0


@pytest.mark.parametrize(
    ("shape", "dtype"), [((48, 16), torch.bfloat16), ((16, 64), torch.float16)]
)
def test_muon_in_half_precision_is_the_same_up_to_rounding_also_where_singular_values_are_tiny(
    shape, dtype
):
    gradient = torch.randn(3, *shape, generator=seeded(0))
    gradient *= torch.logspace(0, -4, shape[1])  # as a gradient's singular values are
    exact = orthogonalize(gradient, torch.float32)
    rounded = orthogonalize(gradient, dtype)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).norm() < 0.1 * exact.norm()
    assert torch.linalg.matrix_norm(rounded, ord=2).max() < 1.2


def test_muon_steps_as_timms_does_and_goes_on_from_its_state(monkeypatch):
    # timm's own type is bfloat16
    exact = functools.partial(zeropower_via_newtonschulz, dtype=torch.float32)
    monkeypatch.setattr("timm.optim.muon.zeropower_via_newtonschulz", exact)
    models = [whole_model(), whole_model()]
    ours = make_optimizer(models[0], MUON, torch.float32, SINGLE)
    groups = parameter_groups(models[1], MUON)
    for group in groups:
        # with Nesterov, timm's fallback is NAdam
        group |= {"nesterov": not group["use_fallback"], "eps": 1e-8}
    timms = TimmMuon(
        groups,
        lr=0.0,
        momentum=0.9,
        nesterov=True,
        adjust_lr_fn="match_rms_adamw",
        betas=MUON.betas,
    )
    for _ in range(2):
        step(models[0], ours, range(3), lr=0.01)
        step(models[1], timms, range(3), lr=0.01)
        timms_weights = dict(models[1].named_parameters())
        for name, weights in models[0].named_parameters():
            torch.testing.assert_close(weights, timms_weights[name], rtol=1e-4, atol=1e-6)
        models[0].load_state_dict(models[1].state_dict())
        # its groups have other keys
        state = copy.deepcopy(timms.state_dict()["state"])
        ours.load_state_dict(ours.state_dict() | {"state": state})
