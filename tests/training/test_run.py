"""A run that was cut and continued is the run that was not, to the bit."""

import shutil

import pytest
import tiny
import torch
from tiny import RECONSTRUCT, begin, dataset, same

import vit.machine
import vit.training.run
from vit.checkpoints import load_model, save_model
from vit.config import changed
from vit.data import Dataset
from vit.device import Compute
from vit.errors import ConfigError, RunError
from vit.training.distributed import Distributed
from vit.training.loop import train_and_save, train_steps
from vit.training.run import Run, setup
from vit.training.run_folder import RunFolder, state_path

IMAGES = 20  # in batches of 8: two whole ones and one of 4
EPOCHS = 3

CONFIG = changed(
    RECONSTRUCT,
    {
        "model.drop_path": 0.3,
        "model.freeze": ["W_Q"],
        "optim.warmup_epochs": 1,
        "train.epochs": EPOCHS,
        "run.grad_accum_steps": 2,
        "run.save_every": 1000,
    },
)
CLASSIFY = changed(
    tiny.CLASSIFY,
    {
        "model.freeze": ["W_Q"],
        "optim.name": "muon",
        "optim.ema": 0.9,
        "train.epochs": EPOCHS,
        "run.grad_accum_steps": 2,
        "run.save_every": 1000,
    },
)
GRID = {
    "mask.kind": "grid",
    "augment.crop": "none",
    "augment.shuffle": "across",
    "model.class_token": False,
    "model.registers": 2,
    "model.pos_embed": "learned",
    "model.layer_scale": 0.1,
    "model.freeze": ["patch_embed"],
}
CONTRAST = {
    "augment.views": 2,
    "augment.color_jitter": 0.4,
    "augment.grayscale": 0.2,
    "reconstruct.contrast": 0.1,
    "run.grad_accum_steps": 0,
}
RUNS = {
    "reconstruct": (CONFIG, range(1, 10)),  # every step
    "grid masks, shuffled": (changed(CONFIG, GRID), [4]),
    "bf16": (changed(CONFIG, {"train.precision": "bf16"}), [4]),
    "contrast": (changed(CONFIG, CONTRAST), [3]),
    "classify by muon": (CLASSIFY, [4, 5]),
    "classify by adamw": (changed(CLASSIFY, {"optim.name": "adamw"}), [4]),
}


def go(run: Run, until: int = 0) -> list[float]:
    """The losses of the steps up to `until`, or of all that remain."""
    losses = []
    for step in train_steps(run):
        losses.append(step.loss)
        if step.step == until:
            break
    return losses


def assert_equal(one: Run, other: Run) -> None:
    """The same weights, averages and moments."""
    assert one.step == other.step
    for part in ("objective", "optimizer", "result"):
        same(getattr(one, part), getattr(other, part))


@pytest.mark.parametrize(("config", "cuts"), RUNS.values(), ids=RUNS)
def test_run_that_was_cut_continues_as_if_it_had_not_been(config, cuts, tmp_path):
    whole = begin(config)
    losses = go(whole)
    resumed = begin(config)
    losses_cut = []
    for cut in cuts:
        losses_cut += go(resumed, cut)
        resumed.save(tmp_path)
        torch.rand(cut)  # whatever the next process has drawn before
        seconds = resumed.seconds
        resumed = begin(config, tmp_path)
        assert (resumed.step, resumed.seconds, resumed.notes) == (cut, seconds, [])
    assert losses_cut + go(resumed) == losses
    assert_equal(resumed, whole)


def test_run_from_a_checkpoint_continues_without_it(tmp_path):
    before = begin(CONFIG, data=dataset(IMAGES, seed=7))
    save_model(tmp_path / "before", before.model, before.origin)
    config = changed(CLASSIFY, {"model.init": str(tmp_path / "before")})
    whole = begin(config)
    assert torch.equal(whole.model.norm.weight, before.model.encoder.norm.weight)
    losses = go(whole)
    cut = begin(config)
    first = go(cut, 4)
    cut.save(tmp_path / "states")
    shutil.rmtree(tmp_path / "before")
    resumed = begin(config, tmp_path / "states")
    assert first + go(resumed) == losses
    assert_equal(resumed, whole)
    assert resumed.normalize.mean == before.normalize.mean
    assert resumed.init_hash == whole.init_hash != ""


def test_images_that_exchange_patches_are_refused_among_several_processes():
    with pytest.raises(ConfigError, match=r"^augment\.shuffle: [^\n]* one process$"):
        setup(changed(CONFIG, {"augment.shuffle": "across"}), dataset(), Distributed(0, 2))


# --- which state ----------------------------------------------------------------------------------


def test_other_data_and_other_settings_are_refused(tmp_path):
    run = begin(CONFIG)
    run.save(tmp_path)
    data = run.data
    turned = data.train.subset(torch.arange(IMAGES).flip(0))
    for other in (dataset(IMAGES, seed=1), Dataset(data.name, data.source, turned, data.test)):
        hashes = f"was {data.content_hash} and is now {other.content_hash};"
        with pytest.raises(RunError, match=f"data has changed .* {hashes}"):
            begin(CONFIG, tmp_path, other)
    # of a rate that falls from the start, nothing is held
    for key, value in {"train.epochs": 4, "model.freeze": [], "optim.name": "muon"}.items():
        with pytest.raises(ConfigError, match=f"^{key}: the run in .* has .*, not .*--out"):
            begin(changed(CONFIG, {key: value}), tmp_path)


WHOLE_AT_LAST = {"classify.drop_patches": 0.5, "classify.whole_epochs": 1}


@pytest.mark.parametrize(
    ("config", "cut"),
    [(CONFIG, False), (changed(CLASSIFY, WHOLE_AT_LAST), True)],
    ids=["finished", "cut in its last phase"],
)
def test_a_run_goes_on_from_before_its_last_phase_as_one_that_was_longer(config, cut, tmp_path):
    """It is longer in the end, to the bit, and can become longer again."""
    config = changed(config, {"optim.cooldown": 0.3})
    states = tmp_path / "checkpoints"
    run = begin(config)
    assert 0 < run.held_steps < run.total_steps
    train_and_save(run, [], states, lambda: cut and run.step == run.held_steps + 1)
    for epochs in (EPOCHS + 1, EPOCHS + 2):
        held = run.held_steps
        config = changed(config, {"train.epochs": epochs})
        whole = begin(config)
        go(whole)
        run = begin(config, states)
        assert run.step == held
        assert any(f"continues from step {held}" in note for note in run.notes)
        RunFolder(tmp_path).forget_later_steps(run.step)
        train_and_save(run, [], states)
        assert_equal(run, whole)

    # one that would not have made these steps, or whose held state is lost, is refused
    for epochs in (1, EPOCHS + 3):
        with pytest.raises(ConfigError, match=r"^train\.epochs: [^\n]*are not kept; [^\n]*$"):
            begin(changed(config, {"train.epochs": epochs}), states)
        state_path(states, run.held_steps).unlink(missing_ok=True)


def test_automatic_precision_stays_what_it_was(tmp_path, monkeypatch):
    config = changed(CONFIG, {"train.precision": "auto"})
    for began, now in (("fp32", True), ("bf16", False)):
        monkeypatch.setattr(vit.machine, "bf16_pays", lambda device, began=began: began == "bf16")
        run = begin(config)
        assert run.compute.precision == began
        run.save(tmp_path / began)
        monkeypatch.setattr(vit.machine, "bf16_pays", lambda device, now=now: now)
        assert begin(config, tmp_path / began).compute.precision == began
    # without bf16, as on another GPU
    compute = Compute(torch.device("cpu"), "fp32")
    monkeypatch.setattr(vit.training.run, "choose_compute", lambda *_, **__: compute)
    run = begin(config, tmp_path / "bf16")
    assert [note.rpartition("; ")[2] for note in run.notes] == ["from here it computes in fp32"]
    go(run, 1)


def test_state_loads_as_the_model_that_its_run_leaves(tmp_path):
    """The weights are averaged: that is the average."""
    run = begin(CLASSIFY)
    go(run, 2)
    run.save(tmp_path)
    state = load_model(state_path(tmp_path, 2))
    same(state, run.result)
    for name in ("class_names", "data"):
        assert getattr(state.origin, name) == getattr(run.origin, name) != ""
    assert state.origin.normalize.mean == run.normalize.mean
