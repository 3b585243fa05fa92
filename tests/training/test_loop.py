"""The loop: it learns, parts of a batch add up to the batch, and nothing that is not finite gets into the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from vit.config import Config, DataConfig, MaskConfig, ModelConfig, OptimConfig, TrainConfig
from vit.data.augment import Normalization
from vit.mae import MaskedAutoencoder, build_autoencoder
from vit.masking import make_mask
from vit.training.device import Compute
from vit.training.loop import MaskedLoss, NonFiniteError, Step, accumulate_gradient, total_steps, train_steps
from vit.training.optimizer import learning_rate, make_optimizer

CPU = Compute(torch.device("cpu"))
TINY = ModelConfig(
    image_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, decoder_dim=16, decoder_depth=1, decoder_heads=2
)


def config(model: ModelConfig = TINY, **train: object) -> Config:
    data, optim = DataConfig(crop_scale=(0.5, 1.0)), OptimConfig(blr=0.02, warmup_epochs=0.5, min_lr=1e-5)
    return Config(
        data, model, MaskConfig(norm_pix_loss=False), optim, TrainConfig(**{"epochs": 2, "batch_size": 8} | train)
    )


def noise(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def model_of(settings: Config) -> MaskedAutoencoder:
    torch.manual_seed(1)
    model = settings.model
    return build_autoencoder(model.encoder_arguments(), model.decoder_arguments(), settings.mask.norm_pix_loss)


def start(settings: Config, images: Tensor, compute: Compute = CPU) -> tuple[MaskedAutoencoder, Iterator[Step]]:
    model = model_of(settings)
    optimizer = make_optimizer(model, settings.optim)
    return model, train_steps(model, optimizer, images, Normalization.of(images), settings, compute)


def weights(model: torch.nn.Module) -> list[Tensor]:
    return [value.clone() for value in model.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# --- it learns -------------------------------------------------------------------------------------------------------


def test_few_images_are_learnt_by_heart():
    """Patches of independent colours: what is hidden cannot be guessed from what is seen, only known."""
    colours = torch.randint(0, 256, (16, 3, 2, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images = colours.repeat_interleave(8, 2).repeat_interleave(8, 3)
    model = ModelConfig(
        image_size=16, patch_size=8, embed_dim=64, depth=2, num_heads=4, decoder_dim=64, decoder_depth=1, decoder_heads=4
    )  # fmt: skip
    settings = Config(
        DataConfig(crop="none", flip=0), model, MaskConfig(ratio=0.25, norm_pix_loss=False),
        OptimConfig(blr=0.1, warmup_epochs=20, weight_decay=0), TrainConfig(epochs=250, batch_size=16),
    )  # fmt: skip
    losses = [step.loss for step in start(settings, images)[1]]
    assert sum(losses[-10:]) / 10 < 0.2 * losses[0]
    assert sum(losses[-10:]) / 10 < 0.3  # guessing the mean colour would have 1, the variance of the normalised input


def test_same_seed_same_run_other_seed_other_run():
    runs = []
    for seed in (0, 0, 1):
        model, steps = start(config(seed=seed), noise(20))
        runs.append(([step.metrics for step in steps], weights(model)))
    assert runs[0][0] == runs[1][0]
    assert same(runs[0][1], runs[1][1])
    assert runs[0][0] != runs[2][0]


# --- parts of a batch ------------------------------------------------------------------------------------------------


def gradient(count: int, parts: int) -> tuple[float, list[Tensor]]:
    settings = config()
    model = model_of(settings)
    inputs = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    mask = make_mask("random", count, (4, 4), 0.75, torch.Generator().manual_seed(3))
    loss = accumulate_gradient(MaskedLoss(model), inputs, mask, parts, CPU).item()
    return loss, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("count", [14, 13, 8, 5, 1])
@pytest.mark.parametrize("parts", [3, 7])
def test_parts_of_a_batch_add_up_to_its_gradient(count, parts):
    loss, whole = gradient(count, 1)
    loss_of_parts, summed = gradient(count, parts)
    assert loss_of_parts == pytest.approx(loss, abs=1e-6)
    assert len(whole) > 10
    for one, other in zip(whole, summed, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("accumulate", [3, 7])
def test_accumulation_does_not_change_a_run(accumulate):
    """20 images in batches of 8: the last batch of each epoch has 4, fewer than 7 parts."""
    whole = list(start(config(), noise(20))[1])
    in_parts = list(start(config(accumulate=accumulate), noise(20))[1])
    assert [step.images for step in in_parts] == [8, 8, 4] * 2
    for one, other in zip(whole, in_parts, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-4)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-3)


# --- what is not finite ----------------------------------------------------------------------------------------------

AT = 4


def spoil_prediction(model: MaskedAutoencoder) -> None:
    model.decoder.pred.register_forward_hook(lambda module, inputs, output: output * math.nan)


def spoil_one_image(model: MaskedAutoencoder) -> None:
    def hook(module: object, inputs: object, output: Tensor) -> Tensor:
        return output.index_fill(0, torch.tensor([2]), math.inf)

    model.decoder.pred.register_forward_hook(hook)


def spoil_gradient(model: MaskedAutoencoder) -> None:
    model.encoder.norm.weight.register_hook(lambda gradient: gradient * math.inf)


@pytest.mark.parametrize("spoil", [spoil_prediction, spoil_one_image, spoil_gradient])
@pytest.mark.parametrize("clip_grad", [1.0, 0.0])
def test_step_that_is_not_finite_changes_nothing(spoil, clip_grad):
    settings = config()
    settings = Config(settings.data, TINY, settings.mask, OptimConfig(clip_grad=clip_grad), settings.train)
    images = noise(20)
    model = model_of(settings)
    optimizer = make_optimizer(model, settings.optim)
    steps = train_steps(model, optimizer, images, Normalization.of(images), settings, CPU)
    done = [next(steps) for _ in range(AT - 1)]
    before = weights(model)
    moments = [value.clone() for state in optimizer.state.values() for value in state.values()]
    spoil(model)
    with pytest.raises(NonFiniteError, match=rf"^step {AT}: ") as caught:
        next(steps)
    assert caught.value.exit_code == 1
    assert "nan" in str(caught.value) or "inf" in str(caught.value)
    assert done[-1].step == AT - 1
    assert same(weights(model), before)
    assert same([value for state in optimizer.state.values() for value in state.values()], moments)
    assert list(steps) == []  # and it is over


# --- what a step says ------------------------------------------------------------------------------------------------


def test_steps_are_counted_and_have_the_schedules_learning_rate():
    settings = config(epochs=3)
    steps = list(start(settings, noise(20))[1])
    assert len(steps) == total_steps(settings, 20) == 9
    peak = settings.optim.blr * settings.train.batch_size / 256
    warmup = round(0.5 * 3)  # half an epoch of three steps
    for number, step in enumerate(steps, start=1):
        assert step.step == number
        assert step.epoch == pytest.approx(number / 3)
        assert step.lr == learning_rate(number - 1, 9, warmup, peak, settings.optim.min_lr)
        assert set(step.metrics) == {"step", "epoch", "loss", "lr", "grad_norm"}
    assert [step.images for step in steps] == [8, 8, 4] * 3
    assert max(step.lr for step in steps) == peak


def test_yielded_rate_is_the_one_that_was_used():
    settings = config()
    model = model_of(settings)
    optimizer = make_optimizer(model, settings.optim)
    for step in train_steps(model, optimizer, noise(20), Normalization.of(noise(20)), settings, CPU):
        assert {group["lr"] for group in optimizer.param_groups} == {step.lr}


def test_gradient_norm_is_that_before_clipping():
    norms = []
    for clip_grad in (0.0, 1e-3):
        settings = config()
        settings = Config(settings.data, TINY, settings.mask, OptimConfig(clip_grad=clip_grad), settings.train)
        norms.append(next(start(settings, noise(20))[1]).grad_norm)
    assert norms[0] == norms[1] > 1e-3


def test_each_gradient_serves_one_step():
    model, steps = start(config(), noise(20))
    for _ in steps:
        assert all(parameter.grad is None for parameter in model.parameters())


def test_bf16_computes_products_in_bf16_and_gives_about_the_same_loss():
    images = noise(20)
    exact = [step.loss for step in start(config(), images)[1]]
    model, steps = start(config(), images, Compute(torch.device("cpu"), "bf16"))
    dtypes = set()
    model.encoder.blocks[0].mlp.fc1.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
    rounded = [step.loss for step in steps]
    assert dtypes == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert rounded == pytest.approx(exact, rel=0.02)
    assert rounded != exact
