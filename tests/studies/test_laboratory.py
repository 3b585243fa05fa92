"""Models for studies: trained once, found again, the same as train.py's, changed where a study says so."""

from dataclasses import replace

import pytest
import torch

from vit.atomic import PARTIAL
from vit.interpret import read_dynamics
from vit.studies import attention_or_cause, identity_case, is_it_similarity, one_hot, who_trains_them
from vit.studies import static_and_contextual as static
from vit.studies.laboratory import Laboratory, Learned
from vit.training import loop
from vit.training.loop import train_steps
from vit.training.run import Run, setup


def test_a_model_is_what_the_trainer_makes_of_the_same_settings(laboratory, plan, learned):
    config = replace(plan.training, train=replace(plan.training.train, seed=0))
    run = setup(config, laboratory.data(config))
    moments = {0: {name: value.clone() for name, value in run.model.state_dict().items()}}
    for step in train_steps(run):
        moments[step.step] = {name: value.clone() for name, value in run.model.state_dict().items()}
    for one, at in ((learned.initial, 0), (learned.halfway, run.total_steps // 2), (learned.model, run.total_steps)):
        for name, value in one.state_dict().items():
            assert torch.equal(value, moments[at][name]), (at, name)
        assert not one.training


def test_weights_are_the_averaged_ones_and_dynamics_are_there_where_they_are_asked_for(tmp_path, plan):
    optim, train = replace(plan.training.optim, ema=0.9), replace(plan.training.train, seed=0)
    config = replace(plan.training, optim=optim, train=train, run=replace(plan.training.run, dynamics_every=2))
    learned = Laboratory(tmp_path).learn(config, 0)
    run = setup(config, learned.data)
    for _ in train_steps(run):
        pass
    for (name, value), plain in zip(learned.model.state_dict().items(), run.model.state_dict().values(), strict=True):
        assert torch.equal(value, run.result.state_dict()[name])
        assert name.endswith("pos_embed") or not torch.equal(value, plain)
    assert read_dynamics(learned.folder / "dynamics.safetensors").steps[-1] == run.total_steps


def test_it_is_trained_once_and_found_again_also_where_the_data_has_moved(laboratory, plan, monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(laboratory, "tell", told.append)
    laboratory.learn(plan.training, 0)
    moved = replace(plan.training, data=replace(plan.training.data, root="elsewhere"))
    assert laboratory.learn(moved, 0).folder == laboratory.learn(plan.training, 0).folder
    assert not told
    other = replace(plan.training, model=replace(plan.training.model, freeze=["W_V"]))
    assert laboratory.learn(other, 0, "another").folder != laboratory.learn(plan.training, 0).folder
    assert told == ["training: another, seed 0, Scenes"]


def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path, plan, learned, monkeypatch):
    config = replace(plan.training, run=replace(plan.training.run, save_every=3))

    def cut(run: Run):
        for step in train_steps(run):
            yield step
            if step.step == 5:
                raise KeyboardInterrupt

    begun: list[int] = []

    def watched(run: Run):
        begun.append(run.step)
        yield from train_steps(run)

    monkeypatch.setattr(loop, "train_steps", cut)
    with pytest.raises(KeyboardInterrupt):
        Laboratory(tmp_path).learn(config, 0)
    monkeypatch.setattr(loop, "train_steps", watched)
    resumed = Laboratory(tmp_path).learn(config, 0)
    assert begun == [3]
    for name, value in learned.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name
    for name, value in learned.initial.state_dict().items():
        assert torch.equal(resumed.initial.state_dict()[name], value), name
    assert not list(tmp_path.rglob(f"{PARTIAL}*"))


def test_a_study_may_change_the_model_before_the_first_step(laboratory, plan):
    def silence(model):
        for block in model.encoder.blocks:
            block.attn.W_Q.data.zero_()

    config = replace(plan.training, model=replace(plan.training.model, freeze=["encoder.W_Q"]))
    changed, usual = laboratory.learn(config, 0, "silent", silence), laboratory.learn(plan.training, 0)
    for one in (changed.initial, changed.model):  # and frozen parts stay as it left them
        assert all(block.attn.W_Q.abs().max() == 0 for block in one.encoder.blocks)
    here, there = changed.initial.state_dict(), usual.initial.state_dict()
    differ = {name for name in there if not torch.equal(here[name], there[name])}
    assert differ == {f"encoder.blocks.{i}.attn.qkv.weight" for i in range(len(usual.model.encoder.blocks))}
    assert not torch.equal(changed.model.encoder.attention(0).W_K, usual.model.encoder.attention(0).W_K)


def test_a_study_may_show_other_images(laboratory, plan):
    shuffled = replace(plan.training, augment=replace(plan.training.augment, shuffle="across"))
    mixed, usual = laboratory.learn(shuffled, 0, "shuffled"), laboratory.learn(plan.training, 0)
    assert torch.equal(mixed.initial.encoder.patch_embed.proj.weight, usual.initial.encoder.patch_embed.proj.weight)
    assert mixed.scores.loss > usual.scores.loss  # images were never seen


def test_scores_are_measured_once_and_learning_helps(laboratory, plan, learned, monkeypatch):
    scores = learned.scores
    assert 0 < scores.loss < 1.1
    assert 0 <= scores.neighbours <= 1
    assert 0.1 < scores.linear <= 1
    again = laboratory.learn(plan.training, 0)
    assert scores.loss < learned.init_scores.loss
    monkeypatch.setattr(type(again), "_measure", lambda *_: pytest.fail("measured twice"))
    assert again.scores == scores
    assert again.init_scores == learned.init_scores


@pytest.fixture
def sorted_by_class(learned) -> Learned:
    """The same model beside the same images, sorted as those of a folder are."""
    parts = {"train": learned.data.train, "test": learned.data.test}
    parts["train"] = parts["train"].subset(torch.arange(256).repeat(8))  # more than any study takes
    in_order = {name: part.subset(part.labels.argsort(stable=True)) for name, part in parts.items()}
    return replace(learned, data=replace(learned.data, **in_order))


def test_a_sample_is_spread_over_the_classes(sorted_by_class):
    assert len(sorted_by_class.sample(10**6)) == 256
    for split in ("test", "train"):
        part = getattr(sorted_by_class.data, split)
        sample = sorted_by_class.sample(20, split)
        found = [int(part.labels[(part.images == image).flatten(1).all(1)][0]) for image in sample]
        assert len(sample) == 20
        assert set(found) == set(range(10))


LOOKS = {
    "attention-or-cause": lambda one: attention_or_cause._batches(one, 20),
    "is-it-similarity": lambda one: is_it_similarity._batches(one, 20),
    "is-it-similarity, keys": lambda one: is_it_similarity.read(one, one.model.encoder, 80, torch.eye(48).double()),
    "is-it-similarity, covariance": is_it_similarity.spread,
    "identity-case": lambda one: identity_case.by_layer(one, one.model.encoder, 20),
    "one-hot, rows": one_hot.one_hot_difference,
    "one-hot, convolution": one_hot.convolution_difference,
    "one-hot, tables": lambda one: one_hot.table_errors(one, 20),
    "who-trains-them": lambda one: who_trains_them.pull_of([one], 20),
    "static-and-contextual": static.design_of,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_studies_look_at_images_of_all_classes(sorted_by_class, monkeypatch, look):
    seen: list[torch.Tensor] = []
    prepare = Learned.prepare

    def watched(one: Learned, images: torch.Tensor) -> torch.Tensor:
        seen.append(images)
        return prepare(one, images)

    monkeypatch.setattr(Learned, "prepare", watched)
    monkeypatch.setattr(one_hot, "SIZES", (2,))
    look(sorted_by_class)
    found = {image.numpy().tobytes() for part in seen for image in part}
    shown = {}
    for name in ("train", "test"):
        part = getattr(sorted_by_class.data, name)
        pairs = zip(part.images, part.labels.tolist(), strict=True)
        shown[name] = {label for image, label in pairs if image.numpy().tobytes() in found}
    assert any(shown.values())
    assert all(labels == set(range(10)) for labels in shown.values() if labels)
