"""Models for studies: trained once, found again, the same as the trainer's; an arm changes what it names and nothing else."""

from dataclasses import replace

import pytest
import torch
from tiny import captured, same, seeded

from studies import experiment as module
from studies.experiment import Arm
from vit.atomic import PARTIAL
from vit.config import changed
from vit.masking import make_mask
from vit.training import loop
from vit.training.dynamics import read_dynamics
from vit.training.loop import train_steps
from vit.training.run import Run, setup


def test_a_model_is_what_the_trainer_makes_of_the_same_settings(tmp_path, one_seed):
    """Its averaged weights where these are asked for, and dynamics likewise."""
    settings = {"optim.ema": 0.9, "run.dynamics_every": 2, "train.seed": 0}
    config = Arm(settings=settings).config(one_seed.config)
    (learned,) = replace(one_seed, folder=tmp_path, config=config).models()
    run = setup(config, learned.data)
    same(learned.initial, run.model)
    for _ in train_steps(run):
        pass
    same(learned.model, run.result)
    assert not learned.initial.training
    assert not learned.model.training
    averaged, plain = learned.model.encoder, run.model.encoder
    assert not torch.equal(averaged.attention(0).W_K, plain.attention(0).W_K)
    steps, _ = read_dynamics(learned.folder / "dynamics.jsonl")
    assert steps[-1] == run.total_steps


def test_it_is_trained_once_and_found_again_also_where_the_data_has_moved(
    one_seed, trained, monkeypatch
):
    monkeypatch.setattr(one_seed, "tell", pytest.fail)
    (moved,) = one_seed.models(config=changed(one_seed.config, {"data.root": "elsewhere"}))
    assert moved.folder == trained.folder


def test_an_interrupted_training_goes_on_to_the_same_weights(
    tmp_path, one_seed, trained, monkeypatch
):
    config = changed(one_seed.config, {"run.save_every": 3})
    cut_short = replace(one_seed, folder=tmp_path, config=config)

    def cut(run: Run, callbacks):
        for step in train_steps(run, callbacks):
            yield step
            if step.step == 5:
                raise KeyboardInterrupt

    begun: list[int] = []

    def watched(run: Run, callbacks):
        begun.append(run.step)
        yield from train_steps(run, callbacks)

    monkeypatch.setattr(loop, "train_steps", cut)
    with pytest.raises(KeyboardInterrupt):
        cut_short.models()
    monkeypatch.setattr(loop, "train_steps", watched)
    (resumed,) = cut_short.models()
    assert begun == [3]
    same(resumed.model, trained.model)
    same(resumed.initial, trained.initial)
    assert not list(tmp_path.rglob(f"{PARTIAL}*"))


def test_scores_are_measured_once_and_learning_helps(one_seed, trained, monkeypatch):
    scores = trained.scores
    assert 0 < scores["loss"] < 1.1
    assert 0 <= scores["knn"] <= 1
    assert 0.1 < scores["linear"] <= 1
    assert scores["loss"] < trained.initial_scores["loss"]
    (again,) = one_seed.models()
    monkeypatch.setattr(module, "evaluate", lambda *_: pytest.fail("measured twice"))
    assert again.scores == scores
    assert again.initial_scores == trained.initial_scores


# --- arms -----------------------------------------------------------------------------------------------------------------


def test_uniform_attention_is_uniform_and_starts_with_the_other_usual_weights(one_seed, trained):
    (learned,) = one_seed.models("uniform attention")
    here, there = learned.initial.state_dict(), trained.initial.state_dict()
    differ = {name for name in there if not torch.equal(here[name], there[name])}
    assert differ == {name for name in there if name.endswith("attn.qkv.weight")}
    images = learned.prepare(learned.data.test.images[:4])
    mask = make_mask("random", 4, (8, 8), 0.75, seeded(0))
    for part, tokens in ((learned.model.encoder, 17), (learned.model.decoder, 65)):
        maps = captured(part, images, mask, run=learned.model)
        for weights in maps.weights.values():
            assert torch.equal(weights, torch.full_like(weights, 1 / tokens))


def test_without_positions_in_the_encoder_a_token_does_not_know_its_place(one_seed):
    images = torch.randn(3, 3, 32, 32, generator=seeded(0))
    rolled = images.roll(4, dims=3)  # by one patch
    for arm, blind in (("no positions in the encoder", True), ("all learn", False)):
        (learned,) = one_seed.models(arm)
        with torch.no_grad():
            here, there = (
                learned.model.encoder(one)[:, 1:].unflatten(1, (8, 8)) for one in (images, rolled)
            )
        assert torch.allclose(here.roll(1, dims=2), there, atol=1e-4) == blind


def test_without_any_positions_all_hidden_patches_are_filled_in_alike(one_seed):
    mask = make_mask("random", 4, (8, 8), 0.75, seeded(0))
    for arm, alike in (("no positions at all", True), ("no positions in the encoder", False)):
        (learned,) = one_seed.models(arm)
        with torch.no_grad():
            prediction = learned.model(learned.prepare(learned.data.test.images[:4]), mask)
        for one, hidden in zip(prediction, mask.mask > 0, strict=True):
            spread = one[hidden].std(0).max() / one[hidden].std()
            assert (spread < 1e-3) == alike


# --- images ---------------------------------------------------------------------------------------------------------------


def test_a_sample_is_spread_over_the_classes_of_a_folder(trained):
    test = trained.data.test
    in_order = test.subset(test.labels.argsort(stable=True))
    sample = replace(trained, data=replace(trained.data, test=in_order)).sample(20)
    found = [int(test.labels[(test.images == image).flatten(1).all(1)][0]) for image in sample]
    assert len(found) == 20
    assert set(found) == set(range(10))
