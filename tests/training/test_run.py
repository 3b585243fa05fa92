"""A run that was cut and continued is the run that was not, to the bit."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import tiny
import torch
from tiny import RECONSTRUCT, assert_same, dataset

import vit.data.draws
import vit.device
import vit.machine
import vit.training.loop
import vit.training.run
from vit.checkpoints import load_model, save_model
from vit.config import Config, changed, flat_settings
from vit.data import Dataset
from vit.device import Compute
from vit.errors import ConfigError, RunError, UserError
from vit.runs import read_metrics
from vit.training.callbacks import MetricsFile
from vit.training.distributed import Distributed
from vit.training.dynamics import DynamicsRecorder
from vit.training.loop import train_and_save, train_steps
from vit.training.run import Run, setup
from vit.training.run_folder import (
    RunFolder,
    find_state,
    load_state,
    saved_states,
    state_path,
)
from vit.training.step import Callback, restore

IMAGES = 20  # in batches of 8: two whole ones and one of 4
PER_EPOCH, EPOCHS = 3, 3
STEPS = PER_EPOCH * EPOCHS

CONFIG = changed(
    RECONSTRUCT,
    {
        "model.drop_path": 0.3,
        "model.freeze": ["W_Q"],
        "optim.warmup_epochs": 1,
        "train.epochs": EPOCHS,
        "run.grad_accum_steps": 2,
    },
)
CLASSIFY = changed(
    tiny.CLASSIFY,
    {"model.freeze": ["W_Q"], "optim.ema": 0.9, "train.epochs": EPOCHS, "run.grad_accum_steps": 2},
)


def begin(
    config: Config,
    states: Path | None = None,
    data: Dataset | None = None,
    dynamics: Path = Path("unused"),
) -> Run:
    """A run at its first step, or where a state in `states` left it."""
    data = data or dataset(IMAGES)
    state = None if states is None else find_state(states, config, data)
    init = load_model(config.model.init) if config.model.init and state is None else None
    run = setup(config, data, state=state, init=init)
    if config.run.dynamics_every:
        recorder = DynamicsRecorder(run.model, config.run.dynamics_every, run.total_steps, dynamics)
        restore([recorder], run.callback_states)
        run.callback_states = {recorder.name: recorder.state_dict()}
    return run


def go(run: Run, steps: int | None = None) -> list[float]:
    """The losses of the next `steps` steps, or of all that remain."""
    losses = []
    for step in train_steps(run) if steps is None or steps > 0 else ():
        losses.append(step.loss)
        if len(losses) == steps:
            break
    return losses


def go_and_save(run: Run, states: Path, until: int | None = None) -> None:
    """Make the steps up to `until`, or all, and save the states that a run saves."""
    run.config = changed(run.config, {"run.save_every": 1000})
    train_and_save(run, [], states, lambda: run.step == until)


def assert_resumes(config: Config, cuts: list[int], folder: Path) -> None:
    """Cut after each of `cuts`, saved and begun anew, a run is the one that was not cut.

    It has the same losses, weights and moments.
    """
    whole = begin(config)
    losses = go(whole)
    steps = EPOCHS * config.steps_per_epoch(IMAGES)
    assert len(losses) == steps
    resumed, losses_cut = begin(config, folder), []
    for cut in cuts:
        losses_cut += go(resumed, cut - resumed.step)
        resumed.save(folder)
        torch.manual_seed(cut)  # whatever the next process has drawn before
        torch.rand(cut)
        seconds = resumed.seconds
        resumed = begin(config, folder)
        assert (resumed.step, resumed.seconds, resumed.notes) == (cut, seconds, [])
    assert losses_cut + go(resumed) == losses
    parts = [
        (run.objective, run.optimizer, run.result, *([run.ema] if run.ema else []))
        for run in (resumed, whole)
    ]
    for one, other in zip(*parts, strict=True):
        assert_same(one.state_dict(), other.state_dict())
    assert resumed.step == whole.step == steps


# --- exact resume ---------------------------------------------------------------------------------

MODEL = dict(
    class_token=False, registers=2, pos_embed="learned", layer_scale=0.1, freeze=["patch_embed"]
)
CONTRAST = {
    "augment.views": 2,
    "augment.color_jitter": 0.4,
    "augment.grayscale": 0.2,
    "reconstruct.contrast": 0.1,
    "run.grad_accum_steps": 0,
}
RUNS = {
    "grid masks, shuffled": changed(
        CONFIG,
        {
            "mask.kind": "grid",
            "augment.crop": "none",
            "augment.shuffle": "across",
            **flat_settings({"model": MODEL}),
        },
    ),
    "bf16": changed(CONFIG, {"train.precision": "bf16"}),
    "contrast": changed(CONFIG, CONTRAST),
    "classify, averaged": CLASSIFY,
    "classify by muon": changed(CLASSIFY, {"optim.name": "muon"}),
}


@pytest.mark.parametrize("config", RUNS.values(), ids=RUNS)
def test_run_that_was_cut_continues_as_if_it_had_not_been(config, tmp_path):
    assert_resumes(config, [3, 4, 5], tmp_path)  # within and at the end of an epoch


def test_run_may_be_cut_at_every_step(tmp_path):
    assert_resumes(CONFIG, list(range(1, STEPS + 1)), tmp_path)


def test_run_from_a_checkpoint_continues_without_it(tmp_path):
    before = begin(CONFIG, data=dataset(IMAGES, seed=7))
    save_model(tmp_path / "before", before.model, before.normalize)
    config = changed(CLASSIFY, {"model.init": str(tmp_path / "before")})
    whole = begin(config)
    assert torch.equal(whole.model.norm.weight, before.model.encoder.norm.weight)
    losses, cut = go(whole), begin(config)
    first = go(cut, 4)
    cut.save(tmp_path / "states")
    shutil.rmtree(tmp_path / "before")
    resumed = begin(config, tmp_path / "states")
    assert first + go(resumed) == losses
    assert_same(resumed.result.state_dict(), whole.result.state_dict())
    assert (resumed.normalize.mean, resumed.normalize.std) == (
        before.normalize.mean,
        before.normalize.std,
    )
    assert resumed.init_hash == whole.init_hash != ""


def test_images_that_exchange_patches_are_refused_among_several_processes(monkeypatch):
    monkeypatch.setattr(Distributed, "broadcast_from_main", lambda dist, make: make())
    with pytest.raises(ConfigError, match=r"^augment\.shuffle: [^\n]* one process$"):
        setup(changed(CONFIG, {"augment.shuffle": "across"}), dataset(), Distributed(0, 2))


# --- which state ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """States of steps 3 and 5."""
    folder, run = tmp_path_factory.mktemp("saved"), begin(CONFIG)
    for cut in (3, 5):
        go(run, cut - run.step)
        run.save(folder)
    return folder


@pytest.fixture
def states(saved, tmp_path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(saved, tmp_path / "states"))


def test_damaged_newest_state_is_named_and_the_one_before_taken(states):
    newest = state_path(states, 5)
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    run = begin(CONFIG, states)
    assert run.step == 3
    assert len(run.notes) == 1
    assert str(newest) in run.notes[0]


def test_other_data_is_refused(saved):
    before = dataset(IMAGES)
    other = dataset(IMAGES, seed=1)
    turned = before.train.subset(torch.arange(IMAGES).flip(0))
    for data in (
        other,
        dataclasses.replace(before, test=other.test),
        dataclasses.replace(before, train=turned),
    ):
        with pytest.raises(RunError, match="data has changed") as caught:
            begin(CONFIG, saved, data)
        assert before.content_hash in str(caught.value)
        assert data.content_hash in str(caught.value)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"train.epochs": 4}, "train.epochs: the run in .* has 3, not 4"),
        ({"model.freeze": []}, r"model.freeze: the run in .* has \['W_Q'\], not \[\]"),
        ({"optim.name": "muon"}, "optim.name: the run in .* has 'adamw', not 'muon'"),
        # nothing was recorded
        ({"run.dynamics_every": 5}, r"^run\.dynamics_every: [^\n]+ leave it out$"),
    ],
)
def test_other_settings_are_refused(saved, change, key):
    with pytest.raises(UserError, match=key):
        begin(changed(CONFIG, change), saved)


MUON = changed(CONFIG, {"optim.name": "muon", "optim.ema": 0.9, "augment.views": 2})
WHOLE_AT_LAST = changed(CLASSIFY, {"classify.drop_patches": 0.5, "classify.whole_epochs": 1})


@pytest.mark.parametrize("config", [CONFIG, MUON, WHOLE_AT_LAST], ids=["mae", "muon", "classify"])
@pytest.mark.parametrize("cut", [None, 1], ids=["finished", "cut in its last phase"])
def test_a_run_goes_on_from_before_its_last_phase_as_one_that_was_longer(config, cut, tmp_path):
    """It is longer in the end, to the bit, and can become longer again."""
    held = changed(config, {"optim.cooldown": 0.3})
    states = tmp_path / "checkpoints"
    run = begin(held)
    count = run.held_steps
    assert 0 < count < run.total_steps
    if cut:
        go_and_save(run, states, count + cut)
    else:
        go_and_save(run, states)
    for epochs in (EPOCHS + 2, EPOCHS + 3):
        other = changed(held, {"train.epochs": epochs})
        whole = begin(other)
        go(whole)
        resumed = begin(other, states)
        assert resumed.step == count
        assert any(f"goes on from step {count}" in note for note in resumed.notes)
        RunFolder(tmp_path).forget_later_steps(resumed.step)
        go_and_save(resumed, states)
        assert resumed.step == epochs * other.steps_per_epoch(IMAGES)
        assert_same(resumed.result.state_dict(), whole.result.state_dict())
        assert_same(resumed.optimizer.state_dict(), whole.optimizer.state_dict())
        count = resumed.held_steps


def test_a_run_whose_steps_a_shorter_or_a_falling_one_would_not_have_made_is_refused(tmp_path):
    """Nor can one go on whose state from before the last phase is lost."""
    held = changed(CONFIG, {"optim.cooldown": 0.3})
    states = tmp_path / "run" / "checkpoints"
    run = begin(held)
    go_and_save(run, states)
    with pytest.raises(ConfigError, match=r"^train\.epochs: [^\n]*are not kept; [^\n]*$"):
        begin(changed(held, {"train.epochs": 1}), states)
    state_path(states, run.held_steps).unlink()
    with pytest.raises(ConfigError, match=r"^train\.epochs: [^\n]*are not kept; [^\n]*$"):
        begin(changed(held, {"train.epochs": 4}), states)


def test_automatic_precision_stays_what_it_was(tmp_path, monkeypatch):
    config = changed(CONFIG, {"train.precision": "auto"})
    for began, now in (("fp32", True), ("bf16", False)):
        monkeypatch.setattr(vit.machine, "bf16_pays", lambda device, began=began: began == "bf16")
        run = begin(config)
        assert run.compute.precision == began
        go(run, 2)
        run.save(tmp_path / began)
        monkeypatch.setattr(vit.machine, "bf16_pays", lambda device, now=now: now)
        assert begin(config, tmp_path / began).compute.precision == began
    # without bf16, as on another GPU
    compute = Compute(torch.device("cpu"), "fp32")
    monkeypatch.setattr(vit.training.run, "choose_compute", lambda *_, **__: compute)
    run = begin(config, tmp_path / "bf16")
    assert [note.rpartition("; ")[2] for note in run.notes] == ["from here it computes in fp32"]
    go(run, 1)


# --- a state is a model ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "ema"), [(CONFIG, 0.0), (CLASSIFY, 0.9)], ids=["reconstruct", "classify"]
)
def test_state_loads_as_the_model_that_its_run_leaves(config, ema, tmp_path):
    """Where the weights are averaged that is the average."""
    run = begin(
        changed(config, {"optim.ema": ema, "run.dynamics_every": 2}),
        dynamics=tmp_path / "dynamics",
    )
    go(run, 5)
    run.save(tmp_path / "states")
    run.save_model(tmp_path / "model")
    state, model = load_model(state_path(tmp_path / "states", 5)), load_model(tmp_path / "model")
    assert_same(dict(state.state_dict()), dict(model.state_dict()))
    assert_same(dict(state.state_dict()), dict(run.result.state_dict()))
    assert (run.ema is None) == (ema == 0)
    same = all(
        torch.equal(value, run.model.state_dict()[name])
        for name, value in state.state_dict().items()
    )
    assert same == (ema == 0)
    for name in ("class_names", "data"):
        assert getattr(state.origin, name) == getattr(model.origin, name) != ""
    assert state.origin.normalize.mean == model.origin.normalize.mean == run.normalize.mean
