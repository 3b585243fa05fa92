"""The recorder: every quantity against a plain computation, at the right steps, without a trace in the training."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tiny import RECONSTRUCT, assert_same, changed, dataset
from torch import Tensor

from vit.checkpoints import load_model, save_model
from vit.config import Config
from vit.interpret import Dynamics, DynamicsRecorder, Matrix, read_dynamics
from vit.interpret.recorder import is_recorded
from vit.mae import build_autoencoder
from vit.training.callbacks import Callback
from vit.training.loop import Step, train_steps
from vit.training.run import Run, find_state, restore, setup

STEPS = 9  # 3 epochs of 20 images in batches of 8, 8 and 4
CONFIG = changed(
    RECONSTRUCT,
    augment={"crop_scale": (0.2, 1.0)},
    model={"depth": 3, "decoder_dim": 12, "decoder_heads": 3, "pos_embed": "learned"},
    reconstruct={"norm_pix_loss": False},
    optim={"warmup_epochs": 1, "clip_grad": 0.01, "weight_decay": 0.5},
    train={"epochs": 3},
    run={"grad_accum_steps": 2, "dynamics_every": 4},
)


CLASSIFY = changed(CONFIG, train={"objective": "classify"}, reconstruct={"norm_pix_loss": True})


class Witness(Callback):
    """Keeps everything: all weights at first, and gradients and weights before and after each step."""

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self.first = self.weights()
        self.gradients: list[dict[str, Tensor]] = []
        self.befores: list[dict[str, Tensor]] = []
        self.afters: list[dict[str, Tensor]] = []

    def weights(self) -> dict[str, Tensor]:
        return {name: value.detach().double().clone() for name, value in self.model.named_parameters()}

    def on_gradient(self, step: int) -> None:
        assert step == len(self.befores) + 1
        zeros = {name: torch.zeros_like(value) for name, value in self.model.named_parameters()}
        found = {name: value.grad for name, value in self.model.named_parameters() if value.grad is not None}
        self.gradients.append({name: value.double().clone() for name, value in (zeros | found).items()})
        self.befores.append(self.weights())

    def on_step(self, run: Run, done: Step) -> None:
        assert done.step == len(self.befores)
        self.afters.append(self.weights())


def recording(config: Config, path: Path | None = None, states: Path | None = None) -> tuple[Run, DynamicsRecorder]:
    """A run that is recorded into `path`; with `states`, from the last one in there."""
    data = dataset()
    state = None if states is None else find_state(states, config, data)
    run = setup(config, data, state=state)
    recorder = DynamicsRecorder(run.model, config.run.dynamics_every, run.total_steps, path)
    run.callbacks.append(recorder)
    if state is not None:
        restore(run, state)
    return run, recorder


def recorded(config: Config, steps: int = STEPS) -> tuple[Run, Dynamics]:
    run, recorder = recording(config)
    train_to(run, steps)
    return run, recorder.read()


def train_to(run: Run, steps: int) -> None:
    for done in train_steps(run):
        if done.step == steps:
            break


PLACES = {  # where a matrix stands in the model, written down by hand
    "W_E": "patch_embed.proj",
    "head": "head",
    "embed": "embed",
    "pred": "pred",
    "W_O": "blocks.{}.attn.proj",
    "fc1": "blocks.{}.mlp.fc1",
    "fc2": "blocks.{}.mlp.fc2",
}


def parameter_of(matrix: Matrix, prefix: str) -> tuple[str, slice]:
    """The name of its parameter, and which rows of that."""
    if matrix.name == "pos_embed":
        return f"{prefix}pos_embed", slice(None)
    if matrix.name in PLACES:
        return f"{prefix}{PLACES[matrix.name].format(matrix.layer)}.weight", slice(None)
    third, dim = ("W_Q", "W_K", "W_V").index(matrix.name), DIMS[matrix.part]
    return f"{prefix}blocks.{matrix.layer}.attn.qkv.weight", slice(third * dim, (third + 1) * dim)


KINDS = {"reconstruct": CONFIG, "classify by muon": changed(CLASSIFY, optim={"name": "muon", "ema": 0.9})}
DIMS, HEADS = {"encoder": 16, "decoder": 12}, {"encoder": 2, "decoder": 3}


class Case(NamedTuple):
    """A training that was recorded, what really was, and what the names of each part's parameters begin with."""

    run: Run
    losses: list[float]
    found: Dynamics
    seen: Witness
    norms: list[float]
    parts: dict[str, str]


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def case(request) -> Case:
    run, recorder = recording(request.param)
    losses = [step.loss for step in train_steps(run)]
    found = recorder.read()
    again = setup(request.param, dataset())
    again.callbacks.append(seen := Witness(again.model))
    norms = [step.grad_norm for step in train_steps(again)]
    assert len(norms) == STEPS
    assert found.steps.tolist() == [1, 2, 4, 8, 9]
    classifies = request.param.train.objective == "classify"
    parts = {"encoder": ""} if classifies else {"encoder": "encoder.", "decoder": "decoder."}
    return Case(run, losses, found, seen, norms, parts)


def test_every_quantity_is_what_it_says(case):
    found, seen, parts = case.found, case.seen, case.parts
    for place, matrix in enumerate(found.matrices):
        key, rows = parameter_of(matrix, parts[matrix.part])
        first = seen.first[key].squeeze(0)[rows].flatten(1)
        for record, step in enumerate(found.steps.tolist()):
            gradient, before, now = (
                values[step - 1][key].squeeze(0)[rows].flatten(1)
                for values in (seen.gradients, seen.befores, seen.afters)
            )
            singular = torch.linalg.svdvals(now)
            expected = {
                "gradient_norm": gradient.norm(),
                "update_ratio": (now - before).norm() / before.norm(),
                "drift": (now - first).norm() / first.norm(),
                "cosine": (now * first).sum() / (now.norm() * first.norm()),
                "stable_rank": singular.square().sum() / singular[0].square(),
            }
            for quantity, value in expected.items():
                assert value > 0
                got = found.recorded[quantity][record, place].item()
                assert got == pytest.approx(value.item(), rel=1e-4), (quantity, matrix, step)


def test_every_product_of_a_head_is_what_it_says(case):
    found, seen, parts = case.found, case.seen, case.parts
    for part, prefix in parts.items():
        products, size = found.recorded[f"{part}.products"], DIMS[part] // HEADS[part]
        assert products.shape == (5, 3 if part == "encoder" else 1, HEADS[part])
        for record, layer, head in torch.cartesian_prod(*map(torch.arange, products.shape)).tolist():
            columns, formed = slice(head * size, (head + 1) * size), []
            for weights in (seen.afters[found.steps[record] - 1], seen.first):
                query, key, _ = (w.T[:, columns] for w in weights[f"{prefix}blocks.{layer}.attn.qkv.weight"].chunk(3))
                formed.append(query @ key.T)
            expected = (formed[0] - formed[1]).norm() / formed[1].norm()
            assert products[record, layer, head].item() == pytest.approx(expected.item(), rel=1e-3)


def test_every_third_of_a_bias_is_what_it_says(case):
    found, seen, parts = case.found, case.seen, case.parts
    assert sum("bias" in name for name in found.recorded) == 2 * len(parts)
    for part, prefix in parts.items():
        for kind, values in (("bias_gradients", seen.gradients), ("bias_norms", seen.afters)):
            measured = found.recorded[f"{part}.{kind}"]  # (records, layers, 3)
            for record, layer in torch.cartesian_prod(*map(torch.arange, measured.shape[:2])).tolist():
                thirds = values[found.steps[record] - 1][f"{prefix}blocks.{layer}.attn.qkv.bias"].chunk(3)
                expected = torch.stack([third.norm() for third in thirds])
                torch.testing.assert_close(measured[record, layer].double(), expected, rtol=1e-5, atol=0)


def test_gradient_is_the_whole_batchs_before_clipping(case):
    """All gradients together have the length that a step tells, which is far above the one they are clipped to."""
    seen = [torch.stack([value.norm() for value in of.values()]).norm().item() for of in case.seen.gradients]
    assert case.norms == pytest.approx(seen, rel=1e-5)
    assert min(case.norms) > 5 * CONFIG.optim.clip_grad


LAYER = {"W_Q", "W_K", "W_V", "W_O", "fc1", "fc2"}


@pytest.mark.parametrize(
    ("config", "encoder", "decoder"),
    [
        (changed(CONFIG, model={"pos_embed": "sincos"}), LAYER | {"W_E"}, LAYER | {"embed", "pred"}),
        (changed(CLASSIFY, model={"qkv": "identity"}), {"W_E", "pos_embed", "head", "W_O", "fc1", "fc2"}, set()),
    ],
)
def test_which_matrices_there_are(config, encoder, decoder):
    found = recorded(config, steps=1)[1]
    assert (found.names("encoder"), found.names("decoder")) == (encoder, decoder)
    assert ("encoder.products" in found.recorded) == ("W_Q" in encoder)
    assert ("decoder.bias_norms" in found.recorded) == bool(decoder)


def test_frozen_parts_get_nothing_and_stay():
    found = recorded(changed(CONFIG, model={"freeze": ["W_Q", "patch_embed", "encoder.blocks.1"]}))[1]
    second = [False, True, False]
    for name, frozen in {"W_Q": [True] * 3, "W_K": second, "fc2": second, "W_E": [True]}.items():
        assert found.frozen(name).tolist() == frozen, name
        for quantity, still in (("gradient_norm", 0), ("update_ratio", 0), ("drift", 0), ("cosine", 1)):
            values = found.of(quantity, name)
            assert values[:, frozen] == pytest.approx(still, abs=1e-6)
            assert quantity == "cosine" or (values[:, [not one for one in frozen]] > 0).all()
    assert found.frozen("W_Q", "decoder").all()
    assert (found.recorded["encoder.bias_gradients"][:, :, 0] == 0).all()
    assert (found.recorded["encoder.products"][:, [0, 2]] > 0).all()  # by the keys
    assert (found.recorded["encoder.products"][:, 1] == 0).all()


def test_key_bias_has_no_gradient_but_rounding(case):
    gradients = case.found.recorded["encoder.bias_gradients"]  # (records, layers, 3)
    assert (gradients > 0).any()
    assert (gradients[:, :, 1] < 1e-4 * gradients[:, :, [0, 2]].amin(2)).all()


def test_drift_of_a_fine_tuning_is_from_the_loaded_weights(tmp_path):
    before = setup(CONFIG, dataset())
    assert len(list(train_steps(before))) == STEPS
    save_model(tmp_path / "before", before.model, before.normalize)
    config = changed(CLASSIFY, model={"init": str(tmp_path / "before")})
    run, found = recorded(config)
    start = load_model(tmp_path / "before", part="encoder").patch_embed.W_E
    expected = (run.model.patch_embed.W_E - start).norm() / start.norm()
    assert found.of("drift", "W_E")[-1].item() == pytest.approx(expected.item(), rel=1e-4)
    torch.testing.assert_close(found.of("drift", "W_K")[0], found.of("update_ratio", "W_K")[0])  # of the first step


# --- when, and at what price -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "total", "steps"),
    [(1, 4, [1, 2, 3, 4]), (20, 70, [1, 2, 4, 8, 16, 20, 40, 60, 70]), (100, 3, [1, 2, 3]), (0, 5, [])],
)
def test_first_steps_every_so_many_and_the_last_are_recorded(every, total, steps):
    assert [step for step in range(1, total + 1) if is_recorded(step, every, total)] == steps


def test_a_training_that_is_watched_is_the_same_to_the_bit(case):
    alone = setup(case.run.config, dataset())
    assert [step.loss for step in train_steps(alone)] == case.losses
    assert_same(case.run.result.state_dict(), alone.result.state_dict())


def test_nothing_is_measured_between_records(monkeypatch):
    """A step that is not recorded costs a comparison of numbers."""
    model = build_autoencoder(CONFIG.model.vit_config(), CONFIG.model.decoder_config(), True)
    recorder = DynamicsRecorder(model, 100, 1000)
    monkeypatch.setattr(torch, "stack", lambda *_: pytest.fail("it copies"))
    for step in (3, 99, 101, 999):
        recorder.on_gradient(step)
        recorder.on_step(None, Step(step, 0.0, 0.0, 0, {}))
    with pytest.raises(pytest.fail.Exception):
        recorder.on_gradient(100)
    monkeypatch.undo()
    recorder.on_gradient(200)  # of a step that was not made, as its gradient was not finite
    assert recorder.read().steps.tolist() == []


# --- resume ----------------------------------------------------------------------------------------------------------


def test_resumed_recording_is_the_one_that_was_not_interrupted(tmp_path):
    whole, recorder = recording(CONFIG, tmp_path / "whole")
    train_to(whole, STEPS)
    recorder.on_save()
    run, _ = recording(CONFIG, tmp_path / "resumed")
    for cut in (1, 3, 4, 8, STEPS):  # within and outside of records
        train_to(run, cut)
        run.save(tmp_path / "states")
        (tmp_path / "resumed").rename(tmp_path / f"cut at {cut}")
        run, recorder = recording(CONFIG, tmp_path / "resumed", tmp_path / "states")
    recorder.on_save()
    same = (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()
    assert same  # by itself: pytest would take minutes to tell how they differ
    assert read_dynamics(tmp_path / "cut at 4").steps.tolist() == [1, 2, 4]


def test_records_after_the_last_state_are_made_again(tmp_path):
    """As after a kill: the file is ahead of the state, until it is written again."""
    run, recorder = recording(CONFIG)
    steps = train_steps(run)
    for _ in range(3):
        next(steps)
    run.save(tmp_path)
    list(steps)
    assert recorder.read().steps.tolist() == [1, 2, 4, 8, 9]
    _, resumed = recording(CONFIG, states=tmp_path)
    assert resumed.read().steps.tolist() == [1, 2]
