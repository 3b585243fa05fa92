"""The recorder: every quantity against a plain computation, at the right steps.

It leaves no trace in the training; its file comes back as it was, or says why not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import RECONSTRUCT, assert_same, dataset
from torch import Tensor

from vit.config import Config, changed
from vit.training.dynamics import (
    Dynamics,
    DynamicsRecorder,
    is_recorded,
    read_dynamics,
)
from vit.training.loop import save, train_steps
from vit.training.run import Run, setup
from vit.training.run_folder import find_state
from vit.training.step import Callback, Step, restore

STEPS = 9  # 3 epochs of 20 images in batches of 8, 8 and 4
CONFIG = changed(
    RECONSTRUCT,
    {
        "augment.crop_scale": (0.2, 1.0),
        "model.depth": 3,
        "model.decoder_dim": 12,
        "model.decoder_heads": 3,
        "model.pos_embed": "learned",
        "reconstruct.norm_pix_loss": False,
        "optim.warmup_epochs": 1,
        "optim.clip_grad": 0.01,
        "optim.weight_decay": 0.5,
        "train.epochs": 3,
        "run.grad_accum_steps": 2,
        "run.dynamics_every": 4,
    },
)


CLASSIFY = changed(CONFIG, {"train.objective": "classify", "reconstruct.norm_pix_loss": True})


class Witness(Callback):
    """Keeps all gradients and weights of each step, and the first weights at step 0."""

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self.gradients: list[dict[str, Tensor]] = [{}]
        self.weights = [self.copies()]

    def copies(self) -> dict[str, Tensor]:
        return {name: value.detach().double() for name, value in self.model.named_parameters()}

    def on_gradient(self, step: int) -> None:
        gradients = {}
        for name, value in self.model.named_parameters():
            if value.grad is not None:
                gradients[name] = value.grad.double()
        self.gradients.append(gradients)

    def on_step(self, run: Run, done: Step) -> None:
        self.weights.append(self.copies())


def recording(
    config: Config, path: Path, states: Path | None = None
) -> tuple[Run, DynamicsRecorder]:
    """A run that is recorded into `path`, and its recorder; with `states`, from the last one."""
    data = dataset()
    state = None if states is None else find_state(states, config, data)
    run = setup(config, data, state=state)
    recorder = DynamicsRecorder(run.model, config.run.dynamics_every, run.total_steps, path)
    restore([recorder], run.callback_states)
    return run, recorder


def recorded(config: Config, path: Path, steps: int = STEPS) -> Dynamics:
    run, recorder = recording(config, path)
    train_to(run, recorder, steps)
    recorder.on_save()
    return read_dynamics(path)


def train_to(run: Run, recorder: Callback, steps: int) -> None:
    for done in train_steps(run, [recorder]):
        if done.step == steps:
            break


# where a matrix stands in the model, written down by hand
PLACES = {
    "W_E": "patch_embed.proj.weight",
    "pos_embed": "pos_embed",
    "head": "head.weight",
    "embed": "embed.weight",
    "pred": "pred.weight",
    "W_O": "blocks.{}.attn.proj.weight",
    "fc1": "blocks.{}.mlp.fc1.weight",
    "fc2": "blocks.{}.mlp.fc2.weight",
    **dict.fromkeys(("W_Q", "W_K", "W_V"), "blocks.{}.attn.qkv.weight"),
}


@pytest.mark.parametrize(
    "config",
    [CONFIG, changed(CLASSIFY, {"optim.name": "muon", "optim.ema": 0.9})],
    ids=["reconstruct", "classify by muon"],
)
def test_every_quantity_is_what_it_says_and_a_training_that_is_watched_is_the_same(
    config, tmp_path
):
    run, recorder = recording(config, tmp_path / "dynamics.jsonl")
    witness = Witness(run.model)
    losses = [step.loss for step in train_steps(run, [recorder, witness])]
    recorder.on_save()
    dynamics = read_dynamics(tmp_path / "dynamics.jsonl")
    assert dynamics.steps.tolist() == [1, 2, 4, 8, 9]

    for matrix in dynamics.recorded["drift"]:
        part, name = matrix.split(".")
        prefix = "" if run.model.decoder is None else f"{part}."

        def rows(values: dict[str, Tensor], key: str, name: str = name) -> Tensor:
            if name in ("W_Q", "W_K", "W_V"):
                return values[key].chunk(3)[("W_Q", "W_K", "W_V").index(name)]
            return values[key]

        for layer in range(dynamics.of("drift", name, part).shape[1]):
            key = prefix + PLACES[name].format(layer)
            first = rows(witness.weights[0], key)
            for record, step in enumerate(dynamics.steps.tolist()):
                moved = rows(witness.weights[step], key) - first
                expected = {
                    "gradient_norm": rows(witness.gradients[step], key).norm(),
                    "drift": moved.norm() / first.norm(),
                }
                for quantity, value in expected.items():
                    assert value > 0
                    seen = dynamics.of(quantity, name, part)[record, layer].item()
                    assert seen == pytest.approx(value.item(), rel=1e-4), (quantity, key, step)

    alone = setup(config, dataset())
    assert [step.loss for step in train_steps(alone)] == losses
    assert_same(run.result.state_dict(), alone.result.state_dict())


LAYER = {"W_Q", "W_K", "W_V", "W_O", "fc1", "fc2"}


@pytest.mark.parametrize(
    ("config", "encoder", "decoder"),
    [
        (
            changed(CONFIG, {"model.pos_embed": "sincos"}),
            LAYER | {"W_E"},
            LAYER | {"embed", "pred"},
        ),
        (
            changed(CLASSIFY, {"model.qkv": "identity"}),
            {"W_E", "pos_embed", "head", "W_O", "fc1", "fc2"},
            set(),
        ),
    ],
)
def test_which_matrices_there_are(config, encoder, decoder, tmp_path):
    dynamics = recorded(config, tmp_path / "dynamics.jsonl", steps=1)
    assert (dynamics.names("encoder"), dynamics.names("decoder")) == (encoder, decoder)
    assert {name: dynamics.of("drift", name).shape[1] for name in encoder} == {
        name: 3 if name in LAYER else 1 for name in encoder
    }


def test_frozen_parts_get_nothing_and_stay(tmp_path):
    config = changed(CONFIG, {"model.freeze": ["W_Q", "patch_embed", "encoder.blocks.1"]})
    dynamics = recorded(config, tmp_path / "dynamics.jsonl")
    second = [False, True, False]
    for name, frozen in {"W_Q": [True] * 3, "W_K": second, "fc2": second, "W_E": [True]}.items():
        for quantity in ("gradient_norm", "drift"):
            values = dynamics.of(quantity, name)
            assert values[:, frozen] == pytest.approx(0, abs=1e-6)
            learning = [not is_frozen for is_frozen in frozen]
            assert (values[:, learning] > 0).all()
    assert (dynamics.of("gradient_norm", "W_Q", "decoder") == 0).all()


# --- when, and at what price ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "total", "steps"),
    [
        (1, 4, [1, 2, 3, 4]),
        (20, 70, [1, 2, 4, 8, 16, 20, 40, 60, 70]),
        (100, 3, [1, 2, 3]),
        (0, 5, []),
    ],
)
def test_first_steps_every_so_many_and_the_last_are_recorded(every, total, steps):
    assert [step for step in range(1, total + 1) if is_recorded(step, every, total)] == steps


# --- resume ---------------------------------------------------------------------------------------


def test_resumed_recording_is_the_one_that_was_not_interrupted(tmp_path):
    recorded(CONFIG, tmp_path / "whole")
    run, recorder = recording(CONFIG, tmp_path / "resumed")
    for cut in (1, 3, 4, 8, STEPS):  # within and outside of records
        train_to(run, recorder, cut)
        save(run, [recorder], tmp_path / "states")
        (tmp_path / f"cut at {cut}").write_bytes((tmp_path / "resumed").read_bytes())
        run, recorder = recording(CONFIG, tmp_path / "resumed", tmp_path / "states")
    same = (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()
    assert same  # by itself: pytest would take minutes to tell how they differ
    assert read_dynamics(tmp_path / "cut at 4").steps.tolist() == [1, 2, 4]


# --- the file -------------------------------------------------------------------------------------
