"""A run that was cut and continued is the run that was not, to the bit."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vit.device
import vit.training.loop
from vit.checkpoints import load_model, save_model
from vit.config import (
    ClassifyConfig,
    Config,
    ConfigError,
    DataConfig,
    MaskConfig,
    ModelConfig,
    OptimConfig,
    TrainConfig,
)
from vit.data import Dataset, ImageSet
from vit.data.images import content_stamp
from vit.interpret import DynamicsRecorder
from vit.training.loop import NonFiniteError
from vit.training.metrics import read_metrics
from vit.training.distributed import Processes
from vit.training.run import TrainingRun, begin_run
from vit.training.run_folder import RunFolder
from vit.training.state import StateError, load_state, save_state, saved_states, state_path
from vit.training.stopping import StopRequests

IMAGES = 20  # in batches of 8: two whole ones and one of 4
PER_EPOCH, EPOCHS = 3, 3
STEPS = PER_EPOCH * EPOCHS
CUTS = {"after step 1": 1, "mid-epoch": 5, "at an epoch's end": 6, "before the last step": 8, "after the last": 9}

CONFIG = Config(
    DataConfig(),
    ModelConfig(
        image_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, decoder_dim=16, decoder_depth=1, decoder_heads=2,
        drop_path=0.3, freeze=["W_Q"],
    ),
    MaskConfig(),
    OptimConfig(blr=0.02, warmup_epochs=1, min_lr=1e-5),
    TrainConfig(epochs=EPOCHS, batch_size=8, accumulate=2, precision="fp32"),
)  # fmt: skip
CLASSIFY = dataclasses.replace(
    CONFIG,
    data=DataConfig(rand_augment=2, erasing=0.5),
    optim=OptimConfig(blr=0.02, layer_decay=0.7, ema=0.9),
    train=dataclasses.replace(CONFIG.train, task="classify"),
    classify=ClassifyConfig(label_smoothing=0.1, mixup=0.8, cutmix=1.0, drop_patches=0.5, whole_epochs=1),
)


def changed(config: Config, **sections: dict) -> Config:
    """`config` with some fields of some sections changed."""
    new = {name: dataclasses.replace(getattr(config, name), **fields) for name, fields in sections.items()}
    return dataclasses.replace(config, **new)


def image_set(count: int, seed: int) -> ImageSet:
    draws = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=draws)
    labels = torch.randint(0, 2, (count,), generator=draws)
    return ImageSet(images, labels, ("one", "other"), content_stamp(images, labels))


def dataset(seed: int = 0) -> Dataset:
    return Dataset("Noise", "folder", image_set(IMAGES, seed), image_set(4, 1000 + seed))


def go(run: TrainingRun, steps: int | None = None) -> list[float]:
    """The losses of the next `steps` steps, or of all that remain."""
    losses = []
    for step in run.steps() if steps is None or steps > 0 else ():
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


def cut_and_continued(config: Config, cuts: list[int], folder: Path) -> tuple[list[float], TrainingRun]:
    """The losses of a run that ended after each of `cuts` and went on from its saved state, and the run at its end."""
    run, losses = begin_run(config, dataset(), folder), []
    for cut in cuts:
        losses += go(run, cut - run.step)
        run.save(folder)
        torch.manual_seed(cut)  # whatever the next process has drawn before
        torch.rand(cut)
        seconds = run.seconds
        run = begin_run(config, dataset(), folder)
        assert (run.step, run.seconds, run.notes) == (cut, seconds, [])
    return losses + go(run), run


def assert_resumes(config: Config, cuts: list[int], folder: Path) -> None:
    whole = begin_run(config, dataset())
    losses = go(whole)
    assert len(losses) == STEPS
    losses_cut, resumed = cut_and_continued(config, cuts, folder)
    assert losses_cut == losses
    assert_same(resumed.model.state_dict(), whole.model.state_dict())
    assert_same(resumed.optimizer.state_dict(), whole.optimizer.state_dict())
    assert_same(resumed.result.state_dict(), whole.result.state_dict())
    assert resumed.step == whole.step == STEPS


# --- exact resume ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_cut_run_continues_as_if_it_had_not_been(cut, tmp_path):
    assert_resumes(CONFIG, [cut], tmp_path)


def test_run_cut_at_every_step(tmp_path):
    assert_resumes(CONFIG, list(range(1, STEPS)), tmp_path)


@pytest.mark.parametrize("kind", ["block", "grid"])
@pytest.mark.parametrize("crop", ["pad", "none"])
def test_other_masks_and_crops_continue_too(kind, crop, tmp_path):
    model = {
        "class_token": False,
        "registers": 2,
        "pos_embed": "learned",
        "layer_scale": 0.1,
        "freeze": ["patch_embed"],
    }
    assert_resumes(changed(CONFIG, mask={"kind": kind}, data={"crop": crop}, model=model), [2, 7], tmp_path)


def test_bf16_run_continues_too(tmp_path):
    assert_resumes(changed(CONFIG, train={"precision": "bf16"}), [4], tmp_path)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_cut_classification_continues_as_if_it_had_not_been(ema, tmp_path):
    assert_resumes(changed(CLASSIFY, optim={"ema": ema}), [1, 5, 6, 8], tmp_path)


@pytest.mark.parametrize("config", [CONFIG, CLASSIFY], ids=["reconstruction", "classification"])
def test_cut_run_of_muon_continues_too(config, tmp_path):
    assert_resumes(changed(config, optim={"name": "muon"}), [1, 5], tmp_path)


def test_run_that_learns_uniformity_continues_too(tmp_path):
    config = changed(CONFIG, mask={"uniformity": 0.1}, train={"accumulate": 0}, optim={"ema": 0.5})
    assert_resumes(config, [4], tmp_path)


def test_run_from_a_checkpoint_continues_without_it(tmp_path):
    before = begin_run(CONFIG, dataset(seed=7))
    save_model(tmp_path / "before", before.model, before.normalize)
    config = changed(CLASSIFY, model={"init": str(tmp_path / "before")})
    whole = begin_run(config, dataset())
    assert torch.equal(whole.model.norm.weight, before.model.encoder.norm.weight)
    losses, cut = go(whole), begin_run(config, dataset())
    first = go(cut, 4)
    cut.save(tmp_path / "states")
    shutil.rmtree(tmp_path / "before")
    resumed = begin_run(config, dataset(), tmp_path / "states")
    assert first + go(resumed) == losses
    assert_same(resumed.result.state_dict(), whole.result.state_dict())
    assert (resumed.normalize.mean, resumed.normalize.std) == (before.normalize.mean, before.normalize.std)


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_every_image_comes_once_an_epoch_across_a_cut(cut, tmp_path, monkeypatch):
    seen = []
    batch_indices = vit.training.loop.batch_indices

    def recording(seed: int, step: int, *sizes: int) -> Tensor:
        indices = batch_indices(seed, step, *sizes)
        seen.append((step, indices.tolist()))
        return indices

    monkeypatch.setattr(vit.training.loop, "batch_indices", recording)
    cut_and_continued(CONFIG, [cut], tmp_path)
    assert [step for step, _ in seen] == list(range(STEPS))
    epochs = [[i for step, ids in seen if step // PER_EPOCH == epoch for i in ids] for epoch in range(EPOCHS)]
    for ids in epochs:
        assert sorted(ids) == list(range(IMAGES))
    assert epochs[0] != epochs[1] != epochs[2]


def test_frozen_part_stays_as_it_began_across_cuts(tmp_path):
    def queries(run: TrainingRun) -> Tensor:
        return torch.cat([block.attn.qkv.weight.detach().chunk(3)[0] for block in run.model.encoder.blocks])

    def keys(run: TrainingRun) -> Tensor:
        return torch.cat([block.attn.qkv.weight.detach().chunk(3)[1] for block in run.model.encoder.blocks])

    begin = begin_run(CONFIG, dataset())
    _, end = cut_and_continued(CONFIG, [2, 5], tmp_path)
    assert torch.equal(queries(begin), queries(end))
    assert not torch.equal(keys(begin), keys(end))


def test_uniformity_is_refused_among_several_processes():
    """Also of torchrun, of which no setting speaks."""
    config = changed(CONFIG, mask={"uniformity": 0.1}, train={"accumulate": 0})
    with pytest.raises(ConfigError, match=r"^mask\.uniformity: [^\n]* one process$"):
        begin_run(config, dataset(), processes=Processes(0, 2))


# --- which state -----------------------------------------------------------------------------------------------------


def saved_run(folder: Path, *cuts: int) -> None:
    run = begin_run(CONFIG, dataset())
    for cut in cuts:
        go(run, cut - run.step)
        run.save(folder)


def test_run_without_a_state_begins_at_its_first_step(tmp_path):
    for states in (None, tmp_path, tmp_path / "missing"):
        run = begin_run(CONFIG, dataset(), states)
        assert (run.step, run.seconds, run.notes) == (0, 0.0, [])
        assert run.total_steps == STEPS


def test_damaged_newest_state_is_named_and_the_one_before_taken(tmp_path):
    saved_run(tmp_path, 3, 5)
    newest = state_path(tmp_path, 5)
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    run = begin_run(CONFIG, dataset(), tmp_path)
    assert run.step == 3
    assert len(run.notes) == 1
    assert str(newest) in run.notes[0]

    whole = begin_run(CONFIG, dataset())
    assert go(run) == go(whole)[3:]
    assert_same(run.model.state_dict(), whole.model.state_dict())


def test_run_with_damaged_states_only_is_refused(tmp_path):
    saved_run(tmp_path, 3, 5)
    for path in saved_states(tmp_path):
        path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(StateError, match="no usable state"):
        begin_run(CONFIG, dataset(), tmp_path)


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
            begin_run(CONFIG, data, tmp_path)
        assert one.stamp in str(caught.value)
        assert data.stamp in str(caught.value)


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
        ({"data": {"erasing": 0.5}}, "augment.erasing"),
        ({"train": {"dynamics_every": 5}}, "run.dynamics_every: the run began with 0, not 5"),
        ({"mask": {"uniformity": 0.1}, "train": {"accumulate": 0}}, "reconstruct.uniformity"),
    ],
)
def test_other_settings_are_refused(tmp_path, change, key):
    saved_run(tmp_path, 3)
    with pytest.raises(StateError, match=key):
        begin_run(changed(CONFIG, **change), dataset(), tmp_path)


def test_settings_that_came_later_do_not_stop_an_older_run(tmp_path):
    saved_run(tmp_path, 3)
    state = load_state(state_path(tmp_path, 3))
    del state["config"]["train"]["knn_images"]
    save_state(tmp_path, 3, state)
    assert begin_run(CONFIG, dataset(), tmp_path).step == 3


def test_run_of_a_version_that_recorded_nothing_cannot_begin_to(tmp_path):
    saved_run(tmp_path, 3)
    state = load_state(state_path(tmp_path, 3))
    del state["config"]["train"]["dynamics_every"]
    save_state(tmp_path, 3, state)
    assert begin_run(CONFIG, dataset(), tmp_path, make_watch=DynamicsRecorder).watch is None
    with pytest.raises(StateError, match=r"^train\.dynamics_every: [^\n]+ leave it out$"):
        begin_run(changed(CONFIG, train={"dynamics_every": 5}), dataset(), tmp_path, make_watch=DynamicsRecorder)


def test_automatic_precision_stays_what_it_was(tmp_path, monkeypatch):
    config = changed(CONFIG, train={"precision": "auto"})
    for began, now in (("fp32", True), ("bf16", False)):
        monkeypatch.setattr(vit.device, "bf16_pays", lambda device, began=began: began == "bf16")
        run = begin_run(config, dataset())
        assert run.compute.precision == began
        go(run, 2)
        run.save(tmp_path / began)
        monkeypatch.setattr(vit.device, "bf16_pays", lambda device, now=now: now)
        assert begin_run(config, dataset(), tmp_path / began).compute.precision == began


@pytest.mark.parametrize("key", ["computed_on", "torch"])
def test_other_machine_is_said(tmp_path, key):
    saved_run(tmp_path, 3)
    state = load_state(state_path(tmp_path, 3))
    save_state(tmp_path, 3, state | {key: "something else"})
    run = begin_run(CONFIG, dataset(), tmp_path)
    assert run.step == 3
    assert len(run.notes) == 1
    assert "something else" in run.notes[0]


# --- a state is a model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [CONFIG, CLASSIFY], ids=["reconstruction", "classification"])
@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_state_loads_as_the_model_that_its_run_leaves(config, ema, tmp_path):
    """Where the weights are averaged that is the average."""
    config = changed(config, optim={"ema": ema}, train={"dynamics_every": 2})
    run = begin_run(config, dataset(), make_watch=DynamicsRecorder)
    go(run, 5)
    run.save(tmp_path / "states")
    save_model(tmp_path / "model", run.result, run.normalize, run.data.train.class_names, run.data.name)
    state, model = load_model(state_path(tmp_path / "states", 5)), load_model(tmp_path / "model")
    assert_same(dict(state.state_dict()), dict(model.state_dict()))
    assert_same(dict(state.state_dict()), dict(run.result.state_dict()))
    assert (run.average is None) == (ema == 0)
    same = all(torch.equal(value, run.model.state_dict()[name]) for name, value in state.state_dict().items())
    assert same == (ema == 0)
    for name in ("class_names", "data"):
        assert getattr(state.origin, name) == getattr(model.origin, name) != ""
    assert state.origin.normalize.mean == model.origin.normalize.mean == run.normalize.mean


def test_frozen_parts_of_a_classifier_stay():
    run = begin_run(changed(CLASSIFY, model={"freeze": ["patch_embed", "blocks.0.mlp", "W_K"]}), dataset())
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


def train_py():
    spec = importlib.util.spec_from_file_location("train_py", Path(__file__).resolve().parents[2] / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_step_that_is_not_finite_is_neither_saved_nor_logged(tmp_path, bad):
    config = changed(CONFIG, train={"save_every": 1, "log_every": 1})
    folder = RunFolder(tmp_path)
    run = begin_run(config, dataset())
    calls = []

    def spoil_fifth_step(module: object, inputs: object, output: Tensor) -> Tensor:
        calls.append(module)
        return output * (bad if len(calls) > 4 * config.run.grad_accum_steps else 1)

    run.model.decoder.pred.register_forward_hook(spoil_fifth_step)
    with pytest.raises(NonFiniteError, match=r"^step 5: "):
        train_py().train(run, folder, StopRequests())
    assert [load_state(path)["step"] for path in saved_states(folder.checkpoints)] == [3, 4]
    assert [line["step"] for line in read_metrics(folder.metrics)] == [1, 2, 3, 4]

    resumed, whole = begin_run(config, dataset(), folder.checkpoints), begin_run(config, dataset())
    assert go(resumed) == go(whole)[4:]
    assert_same(resumed.model.state_dict(), whole.model.state_dict())
