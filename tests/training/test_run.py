"""A run that was cut and continued is the run that was not, to the bit."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vit.config
import vit.data.draws
import vit.device
import vit.training.initial
import vit.training.run
from vit.checkpoints import load_model, save_model
from vit.config import (
    AugmentConfig,
    ClassifyConfig,
    Config,
    ConfigError,
    ModelConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
)
from vit.data import Dataset, ImageSet
from vit.data.images import content_hash
from vit.interpret import DynamicsRecorder
from vit.runs import read_metrics
from vit.training.callbacks import Callback, MetricsFile
from vit.training.distributed import Distributed
from vit.training.loop import NonFiniteError, train_and_save, train_steps
from vit.training.objectives import objective_class
from vit.training.run import Run, find_state, restore, setup
from vit.training.state import StateError, load_state, save_state, saved_states, state_path

IMAGES = 20  # in batches of 8: two whole ones and one of 4
PER_EPOCH, EPOCHS = 3, 3
STEPS = PER_EPOCH * EPOCHS
CUTS = {"after step 1": 1, "mid-epoch": 5, "at an epoch's end": 6, "before the last step": 8, "after the last": 9}

CONFIG = Config(
    model=ModelConfig(
        image_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, decoder_dim=16, decoder_depth=1, decoder_heads=2,
        drop_path=0.3, freeze=["W_Q"],
    ),
    optim=OptimConfig(blr=0.02, warmup_epochs=1, min_lr=1e-5),
    train=TrainConfig(epochs=EPOCHS, batch_size=8, precision="fp32"),
    run=RunConfig(grad_accum_steps=2),
)  # fmt: skip
CLASSIFY = dataclasses.replace(
    CONFIG,
    augment=AugmentConfig(rand_augment=2, erasing=0.5),
    optim=OptimConfig(blr=0.02, layer_decay=0.7, ema=0.9),
    train=dataclasses.replace(CONFIG.train, objective="classify"),
    classify=ClassifyConfig(label_smoothing=0.1, mixup=0.8, cutmix=1.0, drop_patches=0.5, whole_epochs=1),
)
BOTH = pytest.mark.parametrize("config", [CONFIG, CLASSIFY], ids=["reconstruct", "classify"])


def changed(config: Config, **sections: dict) -> Config:
    """`config` with some fields of some sections changed."""
    new = {name: dataclasses.replace(getattr(config, name), **fields) for name, fields in sections.items()}
    return dataclasses.replace(config, **new)


def image_set(count: int, seed: int) -> ImageSet:
    draws = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=draws)
    labels = torch.randint(0, 2, (count,), generator=draws)
    return ImageSet(images, labels, ("one", "other"), content_hash(images, labels))


def dataset(seed: int = 0) -> Dataset:
    return Dataset("Noise", "folder", image_set(IMAGES, seed), image_set(4, 1000 + seed))


def begin(config: Config, states: Path | None = None, data: Dataset | None = None, dynamics: bool = False) -> Run:
    """A run at its first step, or where a state in `states` left it."""
    data = data or dataset()
    state = None if states is None else find_state(states, config, data)
    run = setup(config, data, state=state)
    if dynamics and config.run.dynamics_every:
        run.callbacks.append(DynamicsRecorder(run.model, config.run.dynamics_every, run.total_steps))
    if state is not None:
        restore(run, state)
    return run


def go(run: Run, steps: int | None = None) -> list[float]:
    """The losses of the next `steps` steps, or of all that remain."""
    losses = []
    for step in train_steps(run) if steps is None or steps > 0 else ():
        losses.append(step.loss)
        if len(losses) == steps:
            break
    return losses


def assert_same(one: object, other: object) -> None:
    """Equal to the bit, tensors included."""
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)
        assert not one.isnan().any()
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


def cut_and_continued(config: Config, cuts: list[int], folder: Path) -> tuple[list[float], Run]:
    """The losses of a run that ended after each of `cuts` and went on from its saved state, and the run at its end."""
    run, losses = begin(config, folder), []
    for cut in cuts:
        losses += go(run, cut - run.step)
        run.save(folder)
        torch.manual_seed(cut)  # whatever the next process has drawn before
        torch.rand(cut)
        seconds = run.seconds
        run = begin(config, folder)
        assert (run.step, run.seconds, run.notes) == (cut, seconds, [])
    return losses + go(run), run


def assert_resumes(config: Config, cuts: list[int], folder: Path) -> None:
    whole = begin(config)
    losses = go(whole)
    assert len(losses) == STEPS
    losses_cut, resumed = cut_and_continued(config, cuts, folder)
    assert losses_cut == losses
    assert_same(resumed.objective.state_dict(), whole.objective.state_dict())
    assert_same(resumed.optimizer.state_dict(), whole.optimizer.state_dict())
    assert_same(resumed.result.state_dict(), whole.result.state_dict())
    if whole.ema is not None:
        assert_same(resumed.ema.state_dict(), whole.ema.state_dict())
    assert resumed.step == whole.step == STEPS


# --- exact resume ----------------------------------------------------------------------------------------------------

MODEL = dict(class_token=False, registers=2, pos_embed="learned", layer_scale=0.1, freeze=["patch_embed"])
OTHERS = {
    **{
        f"{kind} masks, crop {crop}": changed(CONFIG, mask={"kind": kind}, augment={"crop": crop}, model=MODEL)
        for kind in ("block", "grid")
        for crop in ("pad", "none")
    },
    "bf16": changed(CONFIG, train={"precision": "bf16"}),
    "shuffled": changed(CONFIG, augment={"shuffle": "across"}),
    "uniformity": changed(CONFIG, reconstruct={"uniformity": 0.1}, run={"grad_accum_steps": 0}, optim={"ema": 0.5}),
    "muon": changed(CONFIG, optim={"name": "muon"}),
    "classify": changed(CLASSIFY, optim={"ema": 0.0}),
    "classify, averaged": CLASSIFY,
    "classify by muon": changed(CLASSIFY, optim={"name": "muon"}),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_cut_run_continues_as_if_it_had_not_been(cut, tmp_path):
    assert_resumes(CONFIG, [cut], tmp_path)


def test_run_cut_at_every_step(tmp_path):
    assert_resumes(CONFIG, list(range(1, STEPS)), tmp_path)


@pytest.mark.parametrize("config", OTHERS.values(), ids=OTHERS)
def test_other_runs_continue_too(config, tmp_path):
    assert_resumes(config, [1, 5, 6, 8], tmp_path)


def test_run_from_a_checkpoint_continues_without_it(tmp_path):
    before = begin(CONFIG, data=dataset(seed=7))
    save_model(tmp_path / "before", before.model, before.normalize)
    config = changed(CLASSIFY, model={"init": str(tmp_path / "before")})
    whole = begin(config)
    assert torch.equal(whole.model.norm.weight, before.model.encoder.norm.weight)
    losses, cut = go(whole), begin(config)
    first = go(cut, 4)
    cut.save(tmp_path / "states")
    shutil.rmtree(tmp_path / "before")
    resumed = begin(config, tmp_path / "states")
    assert first + go(resumed) == losses
    assert_same(resumed.result.state_dict(), whole.result.state_dict())
    assert (resumed.normalize.mean, resumed.normalize.std) == (before.normalize.mean, before.normalize.std)
    assert resumed.init == whole.init != ""


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_every_image_comes_once_an_epoch_across_a_cut(cut, tmp_path, monkeypatch):
    seen = []
    batch_indices = vit.data.draws.batch_indices

    def recording(seed: int, step: int, *sizes: int) -> Tensor:
        indices = batch_indices(seed, step, *sizes)
        seen.append((step, indices.tolist()))
        return indices

    monkeypatch.setattr(vit.data.draws, "batch_indices", recording)
    cut_and_continued(CONFIG, [cut], tmp_path)
    assert [step for step, _ in seen] == list(range(STEPS))
    epochs = [[i for step, ids in seen if step // PER_EPOCH == epoch for i in ids] for epoch in range(EPOCHS)]
    for ids in epochs:
        assert sorted(ids) == list(range(IMAGES))
    assert epochs[0] != epochs[1] != epochs[2]


def test_frozen_part_stays_as_it_began_across_cuts(tmp_path):
    def queries(run: Run) -> Tensor:
        return torch.cat([block.attn.qkv.weight.detach().chunk(3)[0] for block in run.model.encoder.blocks])

    def keys(run: Run) -> Tensor:
        return torch.cat([block.attn.qkv.weight.detach().chunk(3)[1] for block in run.model.encoder.blocks])

    first = begin(CONFIG)
    _, end = cut_and_continued(CONFIG, [2, 5], tmp_path)
    assert torch.equal(queries(first), queries(end))
    assert not torch.equal(keys(first), keys(end))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"reconstruct": {"uniformity": 0.1}, "run": {"grad_accum_steps": 0}}, "reconstruct.uniformity"),
        ({"augment": {"shuffle": "across"}}, "augment.shuffle"),
    ],
)
def test_what_compares_images_is_refused_among_several_processes(change, key, monkeypatch):
    monkeypatch.setattr(Distributed, "broadcast_from_main", lambda dist, make: make())
    with pytest.raises(ConfigError, match=rf"^{key}: [^\n]* one process$"):
        setup(changed(CONFIG, **change), dataset(), Distributed(0, 2))


# --- an objective that somebody adds ---------------------------------------------------------------------------------


@pytest.fixture
def centre(monkeypatch) -> Config:
    """Settings of an objective registered here: each image's features against a moving mean, kept in a buffer."""

    class Centre(objective_class("reconstruct")):
        def __init__(self, model, config, data):
            super().__init__(model, config, data)
            self.register_buffer("mean", torch.zeros(16))
            self.seen = torch.zeros(16)
            self.compares_images = "train.objective"

        def forward(self, images, targets, draws):
            loss, _ = super().forward(images, targets, draws)
            features = self.model.encoder(images, None, draws.drop_path).mean((0, 1))  # drop path draws nothing itself
            self.seen = features.detach()
            distance = (features - self.mean).square().mean()
            return loss + distance, {"distance": distance}

        def after_step(self, step):
            self.mean.lerp_(self.seen, 1 / step)

    info = vit.config.OBJECTIVES["reconstruct"]
    monkeypatch.setitem(vit.config.OBJECTIVES, "centre", info)
    for module in (vit.training.run, vit.training.initial):
        monkeypatch.setattr(module, "objective_class", lambda name: {"centre": Centre}[name])
    return changed(CONFIG, train={"objective": "centre"}, run={"grad_accum_steps": 1})


def test_new_objective_trains_and_its_state_is_saved_and_restored(centre, tmp_path):
    assert_resumes(centre, [1, 4, 8], tmp_path)
    whole, resumed = begin(centre), begin(centre, tmp_path)
    metrics = [step.metrics for step in train_steps(whole)]
    assert all({"loss", "distance"} < set(line) for line in metrics)
    assert metrics[0]["distance"] > 0
    assert whole.objective.mean.abs().max() > 0
    assert torch.equal(load_state(state_path(tmp_path, 8))["objective"]["mean"], resumed.objective.mean)
    assert not torch.equal(resumed.objective.mean, whole.objective.mean)
    assert not torch.equal(resumed.objective.mean, begin(centre).objective.mean)


class Counting(Callback):
    """A callback with a state of its own."""

    name = "counting"

    def __init__(self):
        self.seen: list[int] = []
        self.gradients = 0

    def on_gradient(self, step):
        self.gradients += 1

    def on_step(self, run, done):
        assert (run.step, self.gradients) == (done.step, done.step)
        self.seen.append(done.step)

    def state_dict(self):
        return {"seen": list(self.seen), "gradients": self.gradients}

    def load_state_dict(self, state):
        if state is not None:
            self.seen, self.gradients = list(state["seen"]), state["gradients"]


def test_callbacks_see_every_step_once_and_are_saved_with_the_run(tmp_path):
    for cut in (3, 7, STEPS):
        state, counting = find_state(tmp_path, CONFIG, dataset()), Counting()
        run = setup(CONFIG, dataset(), state=state)
        run.callbacks.append(counting)
        if state is not None:
            restore(run, state)
        go(run, cut - run.step)
        run.save(tmp_path)
    assert counting.seen == list(range(1, STEPS + 1))


# --- which state -----------------------------------------------------------------------------------------------------


def saved_run(folder: Path, *cuts: int) -> None:
    run = begin(CONFIG)
    for cut in cuts:
        go(run, cut - run.step)
        run.save(folder)


def test_run_without_a_state_begins_at_its_first_step(tmp_path):
    for states in (None, tmp_path, tmp_path / "missing"):
        run = begin(CONFIG, states)
        assert (run.step, run.seconds, run.notes) == (0, 0.0, [])
        assert run.total_steps == STEPS


def test_damaged_newest_state_is_named_and_the_one_before_taken(tmp_path):
    saved_run(tmp_path, 3, 5)
    newest = state_path(tmp_path, 5)
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    run = begin(CONFIG, tmp_path)
    assert run.step == 3
    assert len(run.notes) == 1
    assert str(newest) in run.notes[0]

    whole = begin(CONFIG)
    assert go(run) == go(whole)[3:]
    assert_same(run.model.state_dict(), whole.model.state_dict())


def test_run_with_damaged_states_only_is_refused(tmp_path):
    saved_run(tmp_path, 3, 5)
    for path in saved_states(tmp_path):
        path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(StateError, match="no usable state"):
        begin(CONFIG, tmp_path)


def test_other_data_is_refused(tmp_path):
    saved_run(tmp_path, 3)
    one, other = dataset(), dataset(seed=1)
    for data in (
        other,
        dataclasses.replace(one, test=other.test),
        dataclasses.replace(one, train=one.train.subset(torch.arange(IMAGES).flip(0))),
        dataclasses.replace(one, train=dataclasses.replace(other.train, labels=one.train.labels)),
    ):
        with pytest.raises(StateError, match="data has changed") as caught:
            begin(CONFIG, tmp_path, data)
        assert one.content_hash in str(caught.value)
        assert data.content_hash in str(caught.value)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"train": {"epochs": 4}}, "train.epochs: the run began with 3, not 4"),
        ({"model": {"embed_dim": 32}}, "model.embed_dim: the run began with 16, not 32"),
        ({"model": {"freeze": []}}, r"model.freeze: the run began with \['W_Q'\], not \[\]"),
        ({"optim": {"betas": (0.5, 0.9)}}, "optim.betas"),
        ({"optim": {"ema": 0.5}}, "optim.ema: the run began with 0.0, not 0.5"),
        ({"optim": {"layer_decay": 0.5}}, "optim.layer_decay"),
        ({"optim": {"name": "muon"}}, "optim.name: the run began with 'adamw', not 'muon'"),
        ({"augment": {"erasing": 0.5}}, "augment.erasing"),
        ({"reconstruct": {"uniformity": 0.1}, "run": {"grad_accum_steps": 0}}, "reconstruct.uniformity"),
    ],
)
def test_other_settings_are_refused(tmp_path, change, key):
    saved_run(tmp_path, 3)
    with pytest.raises(StateError, match=key):
        begin(changed(CONFIG, **change), tmp_path)


def test_where_a_run_computes_and_what_it_writes_may_change(tmp_path):
    saved_run(tmp_path, 3)
    moved = changed(CONFIG, data={"root": "elsewhere", "limit": 7}, run={"grad_accum_steps": 1, "save_every": 7})
    run, whole = begin(moved, tmp_path), begin(CONFIG)
    assert ["last bits may differ" in note for note in run.notes] == [True]
    assert go(run) == pytest.approx(go(whole)[3:], rel=1e-4)


def test_settings_that_came_later_do_not_stop_an_older_run(tmp_path):
    saved_run(tmp_path, 3)
    state = load_state(state_path(tmp_path, 3))
    del state["config"]["train"]["seed"], state["config"]["augment"]["shuffle"]
    save_state(tmp_path, 3, state)
    assert begin(CONFIG, tmp_path).step == 3


def test_state_of_an_earlier_layout_is_refused(tmp_path):
    saved_run(tmp_path, 3)
    state = load_state(state_path(tmp_path, 3))
    del state["callbacks"]
    save_state(tmp_path, 3, state)
    with pytest.raises(
        StateError, match=r"^the states in [^\n]+ are an earlier version's; finish the run with that one$"
    ):
        begin(CONFIG, tmp_path)


def test_run_that_recorded_nothing_cannot_begin_to(tmp_path):
    saved_run(tmp_path, 3)
    assert begin(CONFIG, tmp_path, dynamics=True).callbacks == []
    with pytest.raises(StateError, match=r"^run\.dynamics_every: [^\n]+ leave it out$"):
        begin(changed(CONFIG, run={"dynamics_every": 5}), tmp_path, dynamics=True)


def test_automatic_precision_stays_what_it_was(tmp_path, monkeypatch):
    config = changed(CONFIG, train={"precision": "auto"})
    for began, now in (("fp32", True), ("bf16", False)):
        monkeypatch.setattr(vit.device, "bf16_pays", lambda device, began=began: began == "bf16")
        run = begin(config)
        assert run.compute.precision == began
        go(run, 2)
        run.save(tmp_path / began)
        monkeypatch.setattr(vit.device, "bf16_pays", lambda device, now=now: now)
        assert begin(config, tmp_path / began).compute.precision == began


@pytest.mark.parametrize("key", ["computed_on", "torch"])
def test_other_machine_is_said(tmp_path, key):
    saved_run(tmp_path, 3)
    state = load_state(state_path(tmp_path, 3))
    save_state(tmp_path, 3, state | {key: "something else"})
    run = begin(CONFIG, tmp_path)
    assert run.step == 3
    assert len(run.notes) == 1
    assert "something else" in run.notes[0]


# --- a state is a model ----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_state_loads_as_the_model_that_its_run_leaves(config, ema, tmp_path):
    """Where the weights are averaged that is the average."""
    run = begin(changed(config, optim={"ema": ema}, run={"dynamics_every": 2}), dynamics=True)
    go(run, 5)
    run.save(tmp_path / "states")
    run.save_model(tmp_path / "model")
    state, model = load_model(state_path(tmp_path / "states", 5)), load_model(tmp_path / "model")
    assert_same(dict(state.state_dict()), dict(model.state_dict()))
    assert_same(dict(state.state_dict()), dict(run.result.state_dict()))
    assert (run.ema is None) == (ema == 0)
    same = all(torch.equal(value, run.model.state_dict()[name]) for name, value in state.state_dict().items())
    assert same == (ema == 0)
    for name in ("class_names", "data"):
        assert getattr(state.origin, name) == getattr(model.origin, name) != ""
    assert state.origin.normalize.mean == model.origin.normalize.mean == run.normalize.mean


def test_frozen_parts_of_a_classifier_stay():
    run = begin(changed(CLASSIFY, model={"freeze": ["patch_embed", "blocks.0.mlp", "W_K"]}))
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    go(run)
    for name, value in run.model.state_dict().items():
        if "qkv" in name:
            same = [torch.equal(a, b) for a, b in zip(value.chunk(3), before[name].chunk(3), strict=True)]
            assert same == [False, True, False]
        else:
            frozen = name.startswith(("patch_embed", "blocks.0.mlp", "pos_embed"))
            assert torch.equal(value, before[name]) == frozen, name


# --- a run that goes wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_step_that_is_not_finite_is_neither_saved_nor_logged(tmp_path, bad):
    config = changed(CONFIG, run={"save_every": 1, "log_every": 1})
    run = begin(config)
    run.callbacks.append(MetricsFile(tmp_path / "metrics.jsonl", run))
    calls = []

    def spoil_fifth_step(module: object, inputs: object, output: Tensor) -> Tensor:
        calls.append(module)
        return output * (bad if len(calls) > 4 * config.run.grad_accum_steps else 1)

    run.model.decoder.pred.register_forward_hook(spoil_fifth_step)
    with pytest.raises(NonFiniteError, match=r"^step 5: "):
        train_and_save(run, tmp_path / "checkpoints")
    assert [load_state(path)["step"] for path in saved_states(tmp_path / "checkpoints")] == [3, 4]
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]

    resumed, whole = begin(config, tmp_path / "checkpoints"), begin(config)
    assert go(resumed) == go(whole)[4:]
    assert_same(resumed.model.state_dict(), whole.model.state_dict())


@pytest.mark.parametrize(
    ("every", "stop_at", "saved"), [(4, 99, [8, 9]), (2, 99, [8, 9]), (100, 3, [3]), (100, 9, [9])]
)
def test_states_are_saved_every_so_many_steps_at_the_end_and_at_a_stop(tmp_path, every, stop_at, saved):
    run = begin(changed(CONFIG, run={"save_every": every}))
    train_and_save(run, tmp_path, lambda: run.step == stop_at)
    assert [load_state(path)["step"] for path in saved_states(tmp_path)] == saved
    assert run.step == saved[-1]
