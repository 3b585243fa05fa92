"""The loop: it learns, parts of a batch add up to the batch, and nothing that is not finite gets into the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import vit.mae
from vit.attention import set_kernel
from vit.config import ClassifyConfig, Config, DataConfig, MaskConfig, ModelConfig, OptimConfig, TrainConfig
from vit.data.augment import Normalization
from vit.device import Compute
from vit.encoder import VisionTransformer
from vit.interpret import DynamicsRecorder
from vit.mae import MaskedAutoencoder, build_autoencoder
from vit.masking import make_mask
from vit.training.average import WeightAverage
from vit.training.loop import (
    CPU_TOKENS,
    NonFiniteError,
    Step,
    accumulate_gradient,
    choose_parts,
    total_steps,
    train_steps,
)
from vit.training.muon import Muon
from vit.training.optimizer import learning_rate, make_optimizer
from vit.training.distributed import ALONE, Processes
from vit.training.tasks import Classification, Reconstruction, Task

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
    return build_autoencoder(model.vit_config(), model.decoder_config(), settings.reconstruct.norm_pix_loss)


def start(settings: Config, images: Tensor, compute: Compute = CPU) -> tuple[MaskedAutoencoder, Iterator[Step]]:
    model = model_of(settings)
    optimizer = make_optimizer(model, settings.optim)
    task = Reconstruction(model, settings)
    return model, train_steps(task, optimizer, images, Normalization.of(images), compute)


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
    loss = accumulate_gradient(Reconstruction(model, settings), inputs, mask, parts, CPU)[0].item()
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


def test_parts_do_not_change_what_drop_path_draws():
    model = replace(TINY, drop_path=0.6)
    whole, in_parts = ([step.loss for step in start(config(model, accumulate=n), noise(20))[1]] for n in (1, 3))
    assert in_parts == pytest.approx(whole, rel=1e-4)
    assert whole != pytest.approx([step.loss for step in start(config(), noise(20))[1]], rel=1e-4)


def test_parts_are_chosen_so_that_their_tokens_are_few_on_a_cpu():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    for patch_size, images in ((4, 256), (2, 256), (1, 64), (2, 1)):
        settings = config(ModelConfig(patch_size=patch_size), batch_size=256)
        parts = choose_parts(settings, images, cpu)
        tokens = (32 // patch_size) ** 2 + 1
        assert 1 <= parts <= images
        assert images / parts * tokens <= CPU_TOKENS or parts == images
        assert parts == 1 or images / (parts - 1) * tokens > CPU_TOKENS  # and no fewer than that
        assert choose_parts(settings, images, gpu) == 1
    assert choose_parts(config(accumulate=5), 8, cpu) == choose_parts(config(accumulate=5), 8, gpu) == 5


# --- how it is computed changes nothing ------------------------------------------------------------------------------

# Mean relative difference of the losses from those of the plain path: float32, one part, math; ten times as much for
# a single one. Rounding grows along a run.
WAYS = {
    "flash": (dict(attention="flash"), 1e-5),
    "parts": (dict(accumulate=4), 1e-5),
    "bf16": (dict(precision="bf16"), 1e-2),
    "bf16 flash parts": (dict(precision="bf16", attention="flash", accumulate=3), 1e-2),
}


@pytest.fixture(scope="module")
def plain() -> list[float]:
    return way_losses(attention="math", accumulate=1)


def way_losses(**train: object) -> list[float]:
    settings = config(epochs=50, batch_size=16, **train)
    compute = Compute(torch.device("cpu"), "bf16" if train.get("precision") == "bf16" else "fp32")
    images = noise(64)[:, :, :2, :2].repeat_interleave(8, 2).repeat_interleave(8, 3)
    model = model_of(settings)
    set_kernel(model, settings.run.attention)
    optimizer = make_optimizer(model, settings.optim)
    steps = train_steps(Reconstruction(model, settings), optimizer, images, Normalization.of(images), compute)
    return [step.loss for step in steps]


@pytest.mark.slow  # a processor may take minutes for bfloat16
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_computing_has_the_losses_of_the_plain_one_over_200_steps(way, plain):
    train, tolerance = WAYS[way]
    losses = way_losses(**train)
    assert len(losses) == len(plain) == 200
    differences = [abs(one - other) / other for one, other in zip(losses, plain, strict=True)]
    assert sum(differences) / 200 < tolerance
    assert max(differences) < 10 * tolerance
    assert losses != plain  # it was another way
    assert plain[-1] < 0.9 * plain[0]  # and something was learnt


class Descent(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    parameter.sub_(parameter.grad, alpha=group["lr"])


@pytest.mark.parametrize("crop", ["resized", "pad", "none"])
@pytest.mark.parametrize("kind", ["random", "block", "grid"])
def test_no_step_reads_from_the_device(crop, kind):
    """On "meta", a device whose tensors hold nothing, whatever would wait for a GPU raises."""
    settings = config(replace(TINY, drop_path=0.5), log_every=1000, accumulate=2)
    settings = replace(settings, data=DataConfig(crop=crop), mask=MaskConfig(kind=kind))
    model = model_of(settings).to("meta")
    optimizer = Descent(model.parameters(), {})  # AdamW's fused kernel does not know this device
    normalize = Normalization([0.5] * 3, [0.5] * 3)
    steps = train_steps(Reconstruction(model, settings), optimizer, noise(20), normalize, Compute(torch.device("meta")))
    done = [next(steps) for _ in range(5)]
    assert [step.images for step in done] == [8, 8, 4, 8, 8]
    with pytest.raises((RuntimeError, NotImplementedError)):
        _ = done[-1].loss


@pytest.mark.slow
def test_compiled_steps_have_the_losses_of_the_others_and_the_model_its_names(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    exact = [step.loss for step in start(config(), noise(20))[1]]
    model, steps = start(config(), noise(20), Compute(torch.device("cpu"), compile=True))
    assert [step.loss for step in steps] == pytest.approx(exact, rel=1e-4)
    assert set(model.state_dict()) == set(model_of(config()).state_dict())


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
    steps = train_steps(Reconstruction(model, settings), optimizer, images, Normalization.of(images), CPU)
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


def test_what_is_not_finite_is_kept_out_also_where_nobody_looks_until_later(monkeypatch):
    """As on a GPU, which is not waited for: the flag stays on the device, and no later step updates either."""
    settings, images = config(log_every=1000), noise(20)
    model = model_of(settings)
    optimizer = make_optimizer(model, settings.optim)
    monkeypatch.setattr(Step, "check", lambda step: None)
    steps = train_steps(Reconstruction(model, settings), optimizer, images, Normalization.of(images), CPU)
    done = [next(steps) for _ in range(AT - 1)]
    before = weights(model)
    with monkeypatch.context() as spoilt:
        spoilt.setattr(vit.mae, "masked_patch_loss", lambda *_: next(model.parameters()).sum() * math.nan)
        done.append(next(steps))
    done.append(next(steps))
    assert math.isnan(done[AT - 1].loss)
    assert math.isfinite(done[AT].loss)
    assert same(weights(model), before)
    monkeypatch.undo()
    for step in done[: AT - 1]:
        step.check()
    for step in done[AT - 1 :]:
        with pytest.raises(NonFiniteError, match=rf"^step {AT}: "):
            step.check()


def test_the_average_takes_in_no_step_that_is_not_finite():
    settings, images = classify(log_every=1000), noise(20)
    task = task_of(settings)
    optimizer, average = make_optimizer(task.model, settings.optim), WeightAverage(task.model, 0.5)
    steps = train_steps(task, optimizer, images, Normalization.of(images), CPU, average=average)
    assert len([next(steps) for _ in range(AT - 1)]) == AT - 1
    before = weights(average.model)
    assert not same(before, weights(task.model))
    task.model.head.register_forward_hook(lambda module, inputs, output: output * math.nan)
    with pytest.raises(NonFiniteError, match=rf"^step {AT}: "):
        next(steps)
    assert same(weights(average.model), before)


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
    for step in train_steps(Reconstruction(model, settings), optimizer, noise(20), Normalization.of(noise(20)), CPU):
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


# --- classification --------------------------------------------------------------------------------------------------

EVERYTHING = ClassifyConfig(label_smoothing=0.1, mixup=0.8, cutmix=1.0, drop_patches=0.5, whole_epochs=1)
LABELS = torch.arange(20) % 3


def classify(settings: ClassifyConfig = EVERYTHING, **train: object) -> Config:
    """Two epochs of 8, 8 and 4 images, all that is drawn switched on."""
    return Config(
        DataConfig(crop_scale=(0.5, 1.0), rand_augment=2, erasing=0.5), replace(TINY, drop_path=0.5),
        optim=OptimConfig(blr=0.02, warmup_epochs=0.5, layer_decay=0.7), classify=settings,
        train=TrainConfig(**{"task": "classify", "epochs": 2, "batch_size": 8} | train),
    )  # fmt: skip


def task_of(settings: Config) -> Task:
    if settings.train.objective == "reconstruct":
        return Reconstruction(model_of(settings), settings)
    torch.manual_seed(1)
    model = VisionTransformer(settings.model.vit_config(num_classes=3))
    return Classification(model, settings, LABELS, 3)


def classified(settings: Config, images: Tensor | None = None) -> list[Step]:
    images, task = noise(20) if images is None else images, task_of(settings)
    return list(train_steps(task, make_optimizer(task.model, settings.optim), images, Normalization.of(images), CPU))


def test_classes_of_few_images_are_learnt_by_heart():
    data, optim = DataConfig(crop="none", flip=0), OptimConfig(blr=0.2, warmup_epochs=5, weight_decay=0)
    train = TrainConfig(task="classify", epochs=40, batch_size=20)
    steps = classified(Config(data, TINY, optim=optim, train=train))
    assert steps[0].loss == pytest.approx(math.log(3), rel=0.1)
    assert steps[-1].loss < 0.1
    assert steps[-1].metrics["train_accuracy"] == 1


@pytest.mark.parametrize("accumulate", [3, 7])
def test_accumulation_does_not_change_what_a_classifier_learns(accumulate):
    whole, in_parts = classified(classify()), classified(classify(accumulate=accumulate))
    assert [step.images for step in in_parts] == [8, 8, 4] * 2
    for one, other in zip(whole, in_parts, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-4)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-3)
        assert other.metrics["train_accuracy"] == pytest.approx(one.metrics["train_accuracy"])


class Unheard(Processes):
    """One of several that hears nothing of the others."""

    def sum(self, values: Tensor) -> Tensor:
        return values

    def parallel(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        return module


class Keep(torch.optim.Optimizer):
    """Keeps all gradients, and changes nothing."""

    def __init__(self, parameters: list[torch.nn.Parameter]):
        super().__init__(parameters, {})
        self.kept: list[Tensor] = []

    def step(self) -> None:
        parameters = self.param_groups[0]["params"]
        self.kept.append(
            torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters])
        )


def gradients(settings: Config, processes: Processes) -> tuple[Tensor, Tensor]:
    """Of every step of two epochs, what is measured and the gradient, as a process has them before it hears of others."""
    task = task_of(settings)
    task.eval()
    optimizer = Keep(list(task.parameters()))
    steps = list(train_steps(task, optimizer, noise(20), Normalization.of(noise(20)), CPU, processes=processes))
    return torch.stack([step.measured[2:] for step in steps]), torch.stack(optimizer.kept)


@pytest.mark.parametrize("count", [2, 3, 8])  # with 8, the last batch of an epoch has fewer images than processes
@pytest.mark.parametrize("task", ["reconstruct", "classify", "classify, both mixed"])
def test_processes_add_up_to_one(task, count):
    settings = config(replace(TINY, drop_path=0.5)) if task == "reconstruct" else classify()
    if task == "classify, both mixed":
        settings = classify(replace(EVERYTHING, drop_patches=0.0, whole_epochs=0), accumulate=2)
    settings = replace(settings, optim=replace(settings.optim, clip_grad=0.0))
    measured, gradient = gradients(settings, ALONE)
    several = [gradients(settings, Unheard(rank, count)) for rank in range(count)]
    torch.testing.assert_close(sum(found for found, _ in several), measured, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sum(found for _, found in several) / count, gradient, rtol=1e-3, atol=1e-5)
    assert len(gradient) == 6
    assert (gradient.abs().amax(1) > 1e-3).all()


def test_nothing_of_a_classifiers_step_reads_from_the_device():
    """Nor does its average. See the same test of reconstruction."""
    task = task_of(classify(log_every=1000, accumulate=2)).to("meta")
    optimizer, average = Descent(task.parameters(), {}), WeightAverage(task.model, 0.9)
    meta, normalize = Compute(torch.device("meta")), Normalization([0.5] * 3, [0.5] * 3)
    steps = train_steps(task, optimizer, noise(20), normalize, meta, average=average)
    done = [next(steps) for _ in range(5)]  # the last one is looked at
    assert [step.images for step in done] == [8, 8, 4, 8, 8]
    with pytest.raises((RuntimeError, NotImplementedError)):
        _ = done[-1].metrics


@pytest.mark.parametrize("task", ["reconstruct", "classify"])
def test_watching_reads_nothing_from_the_device(task):
    """Recorded steps neither; what they measured is read when it is asked for."""
    settings = config(log_every=1000) if task == "reconstruct" else classify(log_every=1000)
    task = task_of(settings).to("meta")
    recorder = DynamicsRecorder(task.model, 1, 6)
    meta, normalize = Compute(torch.device("meta")), Normalization([0.5] * 3, [0.5] * 3)
    steps = train_steps(task, Descent(task.parameters(), {}), noise(20), normalize, meta, watch=recorder)
    assert len([next(steps) for _ in range(5)]) == 5
    with pytest.raises((RuntimeError, NotImplementedError)):
        recorder.read()


def test_nothing_of_muon_reads_from_the_device():
    settings = config(log_every=1000)
    model = model_of(settings)
    weights = {name: value for name, value in model.named_parameters() if ".blocks." in name and value.ndim == 2}
    optimizer = Muon(
        [{"params": list(weights.values()), "weight_decay": 0.1, "muon": True, "matrices": 1}], 0.1, (0.9, 0.9)
    )
    model.to("meta")
    optimizer.param_groups[0]["params"] = [model.get_parameter(name) for name in weights]
    meta, normalize = Compute(torch.device("meta")), Normalization([0.5] * 3, [0.5] * 3)
    steps = train_steps(Reconstruction(model, settings), optimizer, noise(20), normalize, meta)
    assert len([next(steps) for _ in range(5)]) == 5
    assert len(optimizer.state) == len(weights)


def test_every_layer_has_its_rate():
    settings = classify()
    task = task_of(settings)
    optimizer = make_optimizer(task.model, settings.optim)
    for step in train_steps(task, optimizer, noise(20), Normalization.of(noise(20)), CPU):
        scales = {group["lr_scale"]: group["lr"] for group in optimizer.param_groups}
        assert scales == {scale: step.lr * scale for scale in scales}
        assert sorted(scales) == pytest.approx([0.7**3, 0.7**2, 0.7, 1])
        assert set(step.metrics) == {"step", "epoch", "loss", "train_accuracy", "lr", "grad_norm"}


def test_uniformity_is_measured_and_its_weight_is_in_the_loss():
    settings = replace(config(), mask=MaskConfig(uniformity=0.5, norm_pix_loss=False))
    for step in start(settings, noise(20))[1]:
        found = step.metrics
        assert found["loss"] == pytest.approx(found["masked_loss"] + 0.5 * found["uniformity"], rel=1e-5)
        assert 0 < found["uniformity"] <= 1


def test_average_is_of_the_weights_after_each_step():
    settings = classify()
    task, seen = task_of(settings), []
    average = WeightAverage(task.model, 0.5)
    expected = [value.detach().clone() for value in task.model.parameters()]
    optimizer = make_optimizer(task.model, settings.optim)
    for step in train_steps(task, optimizer, noise(20), Normalization.of(noise(20)), CPU, average=average):
        decay = min(0.5, step.step / (9 + step.step))
        expected = [
            decay * a + (1 - decay) * b.detach() for a, b in zip(expected, task.model.parameters(), strict=True)
        ]
        for found, value in zip(average.model.parameters(), expected, strict=True):
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-6)
        seen.append(step.loss)
    assert seen == [step.loss for step in classified(settings)]  # it only looks on


def test_parts_are_chosen_for_the_longest_sequence_of_a_classifier():
    model, cpu = ModelConfig(image_size=32, patch_size=2), torch.device("cpu")
    parts = {
        name: choose_parts(Config(model=model, classify=ClassifyConfig(**found), train=TrainConfig(task="classify")), 256, cpu)
        for name, found in {
            "whole": {}, "dropped": dict(drop_patches=0.75), "whole at the end": dict(drop_patches=0.75, whole_epochs=1),
        }.items()
    }  # fmt: skip
    assert parts["whole"] == parts["whole at the end"] == math.ceil(256 * 257 / CPU_TOKENS)
    assert parts["dropped"] == math.ceil(256 * 65 / CPU_TOKENS)
