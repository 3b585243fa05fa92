"""Muon against singular values, torch's own Muon, and AdamW for what is no matrix."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.optim._muon
from torch import Tensor, nn
from vit.training.muon import NEWTON_SCHULZ, Muon, orthogonalised

from vit.config import DecoderConfig, OptimConfig, ViTConfig
from vit.mae import MaskedAutoencoder, build_autoencoder
from vit.training.freeze import freeze, restore_frozen_rows
from vit.training.optimizer import make_optimizer

SHAPES = [(8, 8), (8, 24), (24, 8), (1, 8)]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def muon(weights: list[nn.Parameter], lr: float = 0.1, decay: float = 0.0, matrices: int = 1, **group: Any) -> Muon:
    return Muon(
        [{"params": weights, "weight_decay": decay, "muon": True, "matrices": matrices, **group}], lr, (0.9, 0.95)
    )


def give_gradients(weights: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for value in weights:
        value.grad = torch.randn(value.shape, generator=generator)


def small_model() -> MaskedAutoencoder:
    torch.manual_seed(1)
    encoder = dict(image_size=(8, 8), patch_size=(4, 4), embed_dim=8, depth=2, num_heads=2)
    return build_autoencoder(ViTConfig(**encoder), DecoderConfig(dim=8, depth=1, num_heads=2), norm_pix_loss=True)


def learning(model: nn.Module) -> list[nn.Parameter]:
    return [value for value in model.parameters() if value.requires_grad]


def go(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, lr: float = 0.01) -> None:
    for step in steps:
        give_gradients(learning(model), step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()


# --- orthogonal matrices ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_vectors_stay_and_singular_values_become_nearly_one(shape):
    short = min(shape)
    left, _ = torch.linalg.qr(torch.randn(5, shape[0], short))
    right, _ = torch.linalg.qr(torch.randn(5, shape[1], short))
    values = torch.rand(5, short) * 0.95 + 0.05
    found = orthogonalised(3e-4 * left * values[:, None] @ right.mT)  # gradients are small
    inner = left.mT @ found @ right  # diagonal, when the vectors are the same
    assert found.shape == (5, *shape)
    diagonal = inner.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(inner, torch.diag_embed(diagonal), rtol=0, atol=1e-3)
    torch.testing.assert_close(left @ inner @ right.mT, found, rtol=0, atol=1e-3)
    assert diagonal.min() > 0.6
    assert diagonal.max() < 1.3


def test_each_matrix_of_a_batch_is_computed_by_itself():
    batch = torch.randn(3, 8, 24)
    torch.testing.assert_close(orthogonalised(batch), torch.cat([orthogonalised(one[None]) for one in batch]))
    assert not orthogonalised(torch.zeros(1, 8, 24)).any()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_iteration_is_torchs_but_for_its_rounding(shape):
    """torch rounds to bfloat16 at every step."""
    matrix = torch.randn(shape)
    expected = torch.optim._muon._zeropower_via_newtonschulz(matrix, NEWTON_SCHULZ, 5, 1e-7).float()
    assert (orthogonalised(matrix[None])[0] - expected).norm() < 0.03 * expected.norm()


# --- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_steps_are_those_of_torchs_muon(shape, monkeypatch):
    """With our iteration in theirs, so that momentum, decay and length are compared without its rounding."""
    monkeypatch.setattr(
        torch.optim._muon, "_zeropower_via_newtonschulz", lambda grad, *_: orthogonalised(grad[None])[0]
    )
    ours = weight(*shape)
    theirs = copy.deepcopy(ours)
    oracle = torch.optim.Muon(
        [theirs], lr=0.1, weight_decay=0.3, momentum=0.9, ns_coefficients=NEWTON_SCHULZ, adjust_lr_fn="match_rms_adamw"
    )
    optimizer = muon([ours], lr=0.1, decay=0.3)
    for step in range(6):
        for value in (ours, theirs):
            give_gradients([value], step)
        optimizer.step()
        oracle.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(32, 32), (32, 128), (128, 32)], ids=str)
def test_updates_are_as_long_as_adamws(shape):
    value = weight(*shape)
    before, optimizer = value.detach().clone(), muon([value], lr=0.5)
    give_gradients([value], 0)
    optimizer.step()
    change = (value.detach() - before).square().mean().sqrt()
    assert 0.6 * 0.2 * 0.5 < change < 1.3 * 0.2 * 0.5


def test_thirds_of_a_fused_layer_are_matrices_of_their_own():
    fused = weight(24, 8)
    thirds = [nn.Parameter(third.clone()) for third in fused.detach().chunk(3)]
    optimizers = muon([fused], decay=0.1, matrices=3), muon(thirds, decay=0.1)
    for step in range(3):
        give_gradients([fused], step)
        for third, gradient in zip(thirds, fused.grad.chunk(3), strict=True):
            third.grad = gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(fused.detach(), torch.cat(thirds).detach(), rtol=1e-5, atol=1e-6)
    whole = copy.deepcopy(fused)
    give_gradients([whole], 9)
    give_gradients([fused], 9)
    muon([whole], matrices=1).step()
    muon([fused], matrices=3).step()
    assert not torch.allclose(whole, fused, atol=1e-3)  # of which it would know nothing as one matrix


def test_layers_of_one_shape_do_not_mix():
    together = [weight(8, 8), weight(8, 24), weight(8, 8)]
    alone = copy.deepcopy(together)
    optimizers = [muon(together), *(muon([value]) for value in alone)]
    for step in range(3):
        give_gradients(together, step)
        for value, other in zip(alone, together, strict=True):
            value.grad = other.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for value, other in zip(together, alone, strict=True):
        torch.testing.assert_close(value, other, rtol=1e-5, atol=1e-6)


def test_weight_decay_is_decoupled():
    plain = weight(8, 8)
    shrunk, before = copy.deepcopy(plain), plain.detach().clone()
    for value, decay in ((plain, 0.0), (shrunk, 0.3)):
        give_gradients([value], 0)
        muon([value], lr=0.1, decay=decay).step()
    torch.testing.assert_close(plain.detach() - shrunk.detach(), 0.1 * 0.3 * before, rtol=1e-4, atol=1e-6)


def test_weight_without_gradient_stays_and_gets_no_state():
    values = [weight(8, 8), weight(8, 8)]
    before, optimizer = values[1].detach().clone(), muon(values, decay=0.5)
    give_gradients(values[:1], 0)
    optimizer.step()
    assert torch.equal(values[1], before)
    assert values[1] not in optimizer.state


# --- of a whole model ------------------------------------------------------------------------------------------------

CONFIG = OptimConfig(name="muon", weight_decay=0.1)


def test_what_is_no_matrix_of_a_block_learns_as_with_adamw():
    models = [small_model(), small_model()]
    for model, name in zip(models, ("muon", "adamw"), strict=True):
        go(model, make_optimizer(model, OptimConfig(name=name, weight_decay=0.1)), range(4))
    for (name, one), other in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other) == (not (".blocks." in name and one.ndim == 2)), name


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = [value.clone() for state in optimizer.state.values() for value in state.values()]
    return [*(value.detach().clone() for value in model.parameters()), *states]


def test_found_inf_changes_nothing_whatever_the_gradient():
    model = small_model()
    optimizer = make_optimizer(model, CONFIG)
    go(model, optimizer, range(2))
    before = everything(model, optimizer)
    for value in learning(model):
        value.grad.fill_(torch.nan)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, everything(model, optimizer), strict=True))
    optimizer.found_inf = torch.zeros(())
    go(model, optimizer, range(2, 3))
    other = small_model()
    go(other, make_optimizer(other, CONFIG), range(3))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_optimizer_that_was_saved_continues_to_the_bit():
    whole, cut = small_model(), small_model()
    go(whole, make_optimizer(whole, CONFIG), range(5))
    optimizer = make_optimizer(cut, CONFIG)
    go(cut, optimizer, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    resumed = make_optimizer(cut, CONFIG)
    resumed.load_state_dict(saved)
    assert resumed.state_dict().keys() == saved.keys()
    go(cut, resumed, range(3, 5))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), cut.parameters(), strict=True))


def test_frozen_parts_stay():
    model, untouched = small_model(), small_model()
    rows = freeze(model, ["encoder.W_K", "decoder.mlp"])
    optimizer = make_optimizer(model, CONFIG)
    restore_frozen_rows(optimizer, rows)
    go(model, optimizer, range(3))
    for (name, value), before in zip(model.named_parameters(), untouched.parameters(), strict=True):
        if name.startswith("encoder") and ".qkv." in name:
            same = [torch.equal(a, b) for a, b in zip(value.chunk(3), before.chunk(3), strict=True)]
            assert same == [False, True, False], name
        elif name.startswith("decoder") and ".mlp." in name:
            assert torch.equal(value, before), name
        elif value.requires_grad:
            assert not torch.equal(value, before), name
