"""The loop: it learns; parts of a batch add up to the batch; weights stay finite."""

import math
from copy import deepcopy

import pytest
import torch
from tiny import CLASSIFY, RECONSTRUCT, assert_same, begin, image_set, noise, seeded
from torch import Tensor

import vit.mae
from vit.config import Config, OptimConfig, changed
from vit.data import Dataset
from vit.errors import TrainingError
from vit.mae import Model
from vit.training.loop import train_steps
from vit.training.run import Run
from vit.training.step import Step

# two epochs of 8, 8 and 4 images, as in CLASSIFY
CONFIG = changed(RECONSTRUCT, {"reconstruct.norm_pix_loss": False})


def start(settings: Config, images: Tensor | None = None) -> Run:
    """A run on 20 images, the last batch of an epoch having 4 of them."""
    both = image_set(noise(20) if images is None else images)
    return begin(settings, data=Dataset("Noise", "folder", both, both))


def losses_of(settings: Config, images: Tensor | None = None) -> list[float]:
    return [step.loss for step in train_steps(start(settings, images))]


def kept(run: Run) -> list[dict]:
    """Copies of the weights, of their average, and of all that the optimizer keeps."""
    models = [dict(model.state_dict()) for model in (run.model, run.result)]
    return deepcopy([*models, run.optimizer.state_dict()["state"]])


# --- it learns ------------------------------------------------------------------------------------


def test_few_images_are_learnt_by_heart():
    """Patches of independent colours: what is masked cannot be guessed, only known."""
    colours = torch.randint(0, 256, (16, 3, 2, 2), generator=seeded(), dtype=torch.uint8)
    settings = changed(
        CONFIG,
        {
            "augment.crop": "none",
            "augment.flip": 0,
            "model.patch_size": 8,
            "model.embed_dim": 64,
            "model.num_heads": 4,
            "model.decoder_dim": 64,
            "model.decoder_heads": 4,
            "mask.ratio": 0.25,
            "optim.blr": 0.1,
            "optim.warmup_epochs": 5,
            "optim.weight_decay": 0,
            "train.epochs": 120,
            "train.batch_size": 16,
        },
    )
    losses = losses_of(settings, colours.repeat_interleave(8, 2).repeat_interleave(8, 3))
    assert sum(losses[-10:]) / 10 < 0.2 * losses[0]
    # guessing the mean colour would have 1, the variance of the normalised input
    assert sum(losses[-10:]) / 10 < 0.3


# --- parts of a batch -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "accum_steps"),
    [(changed(CONFIG, {"model.drop_path": 0.6}), 3), (CLASSIFY, 7)],
    ids=["reconstruct", "classify"],
)
def test_accumulation_does_not_change_a_run(settings, accum_steps):
    """20 images in batches of 8: the last batch of each epoch has 4, fewer than 7 parts."""
    whole = train_steps(start(settings))
    in_parts = train_steps(start(changed(settings, {"run.grad_accum_steps": accum_steps})))
    for one, other in zip(whole, in_parts, strict=True):
        assert other.metrics == pytest.approx(one.metrics, rel=1e-3)
        assert other.loss == pytest.approx(one.loss, rel=1e-4)


# --- how it is computed changes nothing -----------------------------------------------------------


@pytest.mark.slow
def test_compiled_steps_have_the_losses_of_the_others_and_the_model_its_names():
    small = changed(CONFIG, {"model.depth": 1})
    run = start(changed(small, {"run.compile": "on"}))
    assert [step.loss for step in train_steps(run)] == pytest.approx(losses_of(small), rel=1e-4)
    assert set(run.model.state_dict()) == set(start(small).model.state_dict())


@pytest.mark.parametrize(
    ("precision", "dtype", "tolerance"),
    [("bf16", torch.bfloat16, 0.02), ("fp16", torch.float16, 0.01)],
)
def test_half_precision_computes_products_in_it_and_gives_about_the_same_loss(
    precision, dtype, tolerance
):
    """In float16, of gradients that would be 0 without a scale."""
    longer = changed(CONFIG, {"train.epochs": 4})
    exact = losses_of(longer)
    run = start(changed(longer, {"train.precision": precision}))
    dtypes = set()
    run.model.encoder.blocks[0].mlp.fc1.register_forward_hook(
        lambda module, inputs, output: dtypes.add(output.dtype)
    )
    rounded = [step.loss for step in train_steps(run)]
    assert dtypes == {dtype}
    assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float32}
    assert rounded == pytest.approx(exact, rel=tolerance)
    assert rounded != exact


# --- what is not finite ---------------------------------------------------------------------------

AT = 4


def spoil_one_image(model: Model) -> None:
    def hook(module: object, inputs: object, output: Tensor) -> Tensor:
        return output.index_fill(0, torch.tensor([2]), math.inf)

    model.decoder.pred.register_forward_hook(hook)


def spoil_gradient(model: Model) -> None:
    model.encoder.norm.weight.register_hook(lambda gradient: gradient * math.inf)


@pytest.mark.parametrize(
    ("spoil", "optim"),
    [(spoil_one_image, dict(clip_grad=0.0, ema=0.5)), (spoil_gradient, dict(name="muon"))],
)
def test_step_that_is_not_finite_changes_nothing(spoil, optim):
    """Neither the weights, nor their average, nor what the optimizer keeps."""
    run = start(changed(CONFIG, {"optim": OptimConfig(**optim)}))
    steps = train_steps(run)
    done = [next(steps) for _ in range(AT - 1)]
    before = kept(run)
    spoil(run.model)
    with pytest.raises(TrainingError, match=rf"^step {AT}: ") as caught:
        next(steps)
    assert caught.value.exit_code == 1
    assert done[-1].step == run.step == AT - 1
    assert_same(kept(run), before)
    assert list(steps) == []  # and it is over


def test_what_is_not_finite_is_kept_out_also_where_nobody_looks_until_later(monkeypatch):
    """As on a GPU, which is not waited for: the flag stays there, and no later step updates."""
    monkeypatch.setattr(Run, "has_line", lambda run, step: False)
    run = start(CONFIG)
    monkeypatch.setattr(Step, "check", lambda step: None)
    steps = train_steps(run)
    done = [next(steps) for _ in range(AT - 1)]
    before = kept(run)
    with monkeypatch.context() as spoilt:
        spoilt.setattr(
            vit.mae.F, "mse_loss", lambda *_: next(run.model.parameters()).sum() * math.nan
        )
        done.append(next(steps))
    done.append(next(steps))
    assert math.isnan(done[AT - 1].loss)
    assert math.isfinite(done[AT].loss)
    assert_same(kept(run), before)
    monkeypatch.undo()
    for step in done[: AT - 1]:
        step.check()
    for step in done[AT - 1 :]:
        with pytest.raises(TrainingError, match=rf"^step {AT}: "):
            step.check()


# --- float16 ---------------------------------------------------------------------------------------

HALF = changed(CONFIG, {"train.precision": "fp16", "train.epochs": 4})


@pytest.mark.parametrize("optim", ["adamw", "muon"])
def test_a_gradient_that_overflows_in_fp16_makes_no_update_and_halves_the_scale(optim, tmp_path):
    run = start(changed(HALF, {"optim.name": optim}))
    steps = train_steps(run)
    next(steps)
    scale = run.loss_scale.get_scale()
    before = kept(run)
    hook = run.model.encoder.norm.weight.register_hook(lambda gradient: gradient * math.inf)
    done = next(steps)
    hook.remove()
    assert_same(kept(run), before)
    assert run.loss_scale.get_scale() == scale / 2
    # JSON has no infinity
    assert math.isfinite(done.loss)
    assert "grad_norm" not in done.metrics
    # the next step learns again, and a resumed run goes on with this scale
    assert math.isfinite(next(steps).metrics["grad_norm"])
    assert not torch.equal(run.model.decoder.mask_token, before[0]["decoder.mask_token"])
    run.save(tmp_path)
    resumed = begin(run.config, tmp_path, run.data)
    assert resumed.loss_scale.state_dict() == run.loss_scale.state_dict()
    assert next(train_steps(resumed)).loss == next(steps).loss


def test_a_gradient_that_is_not_finite_at_any_scale_ends_a_run_in_fp16():
    run = start(changed(HALF, {"train.epochs": 20}))
    spoil_gradient(run.model)
    with pytest.raises(TrainingError, match=r"^step 17: "):
        list(train_steps(run))


# --- what a step says -----------------------------------------------------------------------------


def test_average_is_of_the_weights_after_each_step():
    run = start(changed(CLASSIFY, {"optim.ema": 0.5}))
    losses = []
    expected = [value.detach().clone() for value in run.model.parameters()]
    for step in train_steps(run):
        decay = min(0.5, step.step / (9 + step.step))
        expected = [
            decay * a + (1 - decay) * b.detach()
            for a, b in zip(expected, run.model.parameters(), strict=True)
        ]
        for average, value in zip(run.result.parameters(), expected, strict=True):
            torch.testing.assert_close(average, value, rtol=1e-4, atol=1e-6)
        losses.append(step.loss)
    # the average changes nothing in the training itself
    assert losses == losses_of(CLASSIFY)
