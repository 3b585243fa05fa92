"""The loop: it learns, parts of a batch add up to the batch, and nothing that is not finite gets into the weights."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import vit.mae
from vit.config import (
    AugmentConfig,
    ClassifyConfig,
    Config,
    MaskConfig,
    ModelConfig,
    OptimConfig,
    ReconstructConfig,
    RunConfig,
    TrainConfig,
)
from vit.data import Dataset, ImageSet
from vit.data.augment import Normalization
from vit.data.draws import draw_step
from vit.device import Compute
from vit.interpret import DynamicsRecorder
from vit.mae import Model
from vit.training.distributed import SINGLE, Distributed
from vit.training.loop import NonFiniteError, Step, accumulate_gradient, train_steps
from vit.training.optimizer import learning_rate, make_ema
from vit.training.run import CPU_TOKENS, Run, setup

CPU, META = torch.device("cpu"), torch.device("meta")
TINY = ModelConfig(
    image_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, decoder_dim=16, decoder_depth=1, decoder_heads=2
)
CONFIG = Config(
    augment=AugmentConfig(crop_scale=(0.5, 1.0)),
    model=TINY,
    reconstruct=ReconstructConfig(norm_pix_loss=False),
    optim=OptimConfig(blr=0.02, warmup_epochs=0.5, min_lr=1e-5),
    train=TrainConfig(epochs=2, batch_size=8, precision="fp32"),
    run=RunConfig(device="cpu"),
)
CLASSIFY = replace(  # two epochs of 8, 8 and 4 images, all that is drawn switched on
    CONFIG,
    augment=AugmentConfig(crop_scale=(0.5, 1.0), rand_augment=2, erasing=0.5),
    model=replace(TINY, drop_path=0.5),
    reconstruct=ReconstructConfig(),
    classify=ClassifyConfig(label_smoothing=0.1, mixup=0.8, cutmix=1.0, drop_patches=0.5, whole_epochs=1),
    optim=OptimConfig(blr=0.02, warmup_epochs=0.5, layer_decay=0.7),
    train=replace(CONFIG.train, objective="classify"),
)
BOTH = pytest.mark.parametrize("settings", [CONFIG, CLASSIFY], ids=["reconstruct", "classify"])


def changed(config: Config, **sections: dict) -> Config:
    """`config` with some fields of some sections changed."""
    return replace(config, **{name: replace(getattr(config, name), **fields) for name, fields in sections.items()})


def noise(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def start(settings: Config, images: Tensor | None = None, dist: Distributed = SINGLE) -> Run:
    """A run on 20 images, the last batch of an epoch having 4 of them."""
    images = noise(20) if images is None else images
    both = ImageSet(images, torch.arange(len(images)) % 3, ("ape", "bee", "cat"), "hash")
    return setup(settings, Dataset("Noise", "folder", both, both), dist)


def steps_of(settings: Config, images: Tensor | None = None) -> list[Step]:
    return list(train_steps(start(settings, images)))


def losses_of(settings: Config, images: Tensor | None = None) -> list[float]:
    return [step.loss for step in steps_of(settings, images)]


def weights(model: nn.Module) -> list[Tensor]:
    return [value.clone() for value in model.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# --- it learns -------------------------------------------------------------------------------------------------------


def test_few_images_are_learnt_by_heart():
    """Patches of independent colours: what is hidden cannot be guessed from what is seen, only known."""
    colours = torch.randint(0, 256, (16, 3, 2, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    model = ModelConfig(
        image_size=16, patch_size=8, embed_dim=64, depth=2, num_heads=4, decoder_dim=64, decoder_depth=1, decoder_heads=4
    )  # fmt: skip
    settings = Config(
        augment=AugmentConfig(crop="none", flip=0), model=model, mask=MaskConfig(ratio=0.25),
        reconstruct=ReconstructConfig(norm_pix_loss=False),
        optim=OptimConfig(blr=0.1, warmup_epochs=20, weight_decay=0),
        train=TrainConfig(epochs=250, batch_size=16, precision="fp32"), run=CONFIG.run,
    )  # fmt: skip
    losses = losses_of(settings, colours.repeat_interleave(8, 2).repeat_interleave(8, 3))
    assert sum(losses[-10:]) / 10 < 0.2 * losses[0]
    assert sum(losses[-10:]) / 10 < 0.3  # guessing the mean colour would have 1, the variance of the normalised input


def test_classes_of_few_images_are_learnt_by_heart():
    augment, optim = AugmentConfig(crop="none", flip=0), OptimConfig(blr=0.2, warmup_epochs=5, weight_decay=0)
    train = TrainConfig(objective="classify", epochs=40, batch_size=20, precision="fp32")
    steps = steps_of(Config(augment=augment, model=TINY, optim=optim, train=train, run=CONFIG.run))
    assert steps[0].loss == pytest.approx(math.log(3), rel=0.1)
    assert steps[-1].loss < 0.1
    assert steps[-1].metrics["train_accuracy"] == 1


def test_same_seed_same_run_other_seed_other_run():
    runs = []
    for seed in (0, 0, 1):
        run = start(changed(CONFIG, train={"seed": seed}))
        runs.append(([step.metrics for step in train_steps(run)], weights(run.model)))
    assert runs[0][0] == runs[1][0]
    assert same(runs[0][1], runs[1][1])
    assert runs[0][0] != runs[2][0]


# --- parts of a batch ------------------------------------------------------------------------------------------------


def gradient(count: int, parts: int) -> tuple[float, list[Tensor]]:
    settings = changed(CONFIG, train={"batch_size": count})
    objective = start(settings).objective
    inputs = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    draws = draw_step(settings, 0, count, masked=True).for_model(CPU)
    loss = accumulate_gradient(objective, inputs, None, draws, parts, Compute(CPU))["loss"].item()
    return loss, [parameter.grad for parameter in objective.parameters() if parameter.grad is not None]


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


@BOTH
@pytest.mark.parametrize("accum_steps", [3, 7])
def test_accumulation_does_not_change_a_run(settings, accum_steps):
    """20 images in batches of 8: the last batch of each epoch has 4, fewer than 7 parts."""
    whole, in_parts = steps_of(settings), steps_of(changed(settings, run={"grad_accum_steps": accum_steps}))
    assert [step.images for step in in_parts] == [8, 8, 4] * 2
    for one, other in zip(whole, in_parts, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-4)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-3)
        assert other.metrics.get("train_accuracy") == pytest.approx(one.metrics.get("train_accuracy"))


def test_parts_do_not_change_what_drop_path_draws():
    settings = changed(CONFIG, model={"drop_path": 0.6})
    whole, in_parts = (losses_of(changed(settings, run={"grad_accum_steps": n})) for n in (1, 3))
    assert in_parts == pytest.approx(whole, rel=1e-4)
    assert whole != pytest.approx(losses_of(CONFIG), rel=1e-4)


def parts_of(settings: Config, device: torch.device = CPU) -> int:
    run = start(settings, torch.zeros(3, 3, 32, 32, dtype=torch.uint8))
    run.compute = Compute(device)
    return run.grad_accum_steps


@pytest.mark.parametrize(("patch_size", "images"), [(4, 256), (2, 256), (1, 64), (2, 1)])
def test_parts_are_chosen_so_that_their_tokens_are_few_on_a_cpu(patch_size, images):
    settings = Config(model=ModelConfig(preset="micro", patch_size=patch_size), train=TrainConfig(batch_size=images))
    settings = changed(settings, train={"precision": "fp32"}, run={"device": "cpu"})
    parts = parts_of(settings)
    tokens = (32 // patch_size) ** 2 + 1
    assert 1 <= parts <= images
    assert images / parts * tokens <= CPU_TOKENS or parts == images
    assert parts == 1 or images / (parts - 1) * tokens > CPU_TOKENS  # and no fewer than that
    assert parts_of(settings, torch.device("cuda")) == 1
    asked = changed(CONFIG, model={"image_size": 32}, run={"grad_accum_steps": 5})
    assert parts_of(asked) == parts_of(asked, torch.device("cuda")) == 5


@pytest.mark.parametrize(
    ("classify", "longest"),
    [({}, 257), (dict(drop_patches=0.75), 65), (dict(drop_patches=0.75, whole_epochs=1), 257)],
    ids=["whole", "dropped", "whole at the end"],
)
def test_parts_are_chosen_for_the_longest_sequence_of_a_classifier(classify, longest):
    model = ModelConfig(preset="micro", image_size=32, patch_size=2)
    train = TrainConfig(objective="classify", precision="fp32")
    settings = Config(model=model, classify=ClassifyConfig(**classify), train=train, run=CONFIG.run)
    assert parts_of(settings) == math.ceil(256 * longest / CPU_TOKENS)


class Unheard(Distributed):
    """One of several processes, that hears nothing of the others."""

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        return values

    def broadcast_from_main(self, make):
        return make()

    def wrap(self, module: nn.Module, device: torch.device) -> nn.Module:
        return module


class Keep(torch.optim.Optimizer):
    """Keeps all gradients, and changes nothing."""

    def __init__(self, parameters: list[nn.Parameter]):
        super().__init__(parameters, {})
        self.kept: list[Tensor] = []

    def step(self) -> None:
        parameters = self.param_groups[0]["params"]
        self.kept.append(
            torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters])
        )


def gradients(settings: Config, dist: Distributed) -> tuple[Tensor, Tensor]:
    """Of every step of two epochs, what is measured and the gradient, as a process has them before it hears of others."""
    run = start(settings, dist=dist)
    run.optimizer = Keep(list(run.objective.parameters()))
    other = ("first_bad", "grad_norm")
    values = [[value for key, value in step.values.items() if key not in other] for step in train_steps(run)]
    return torch.tensor(values), torch.stack(run.optimizer.kept)


@pytest.mark.parametrize("count", [2, 3, 8])  # with 8, the last batch of an epoch has fewer images than processes
@pytest.mark.parametrize(
    "settings",
    [
        changed(CONFIG, model={"drop_path": 0.5}),
        CLASSIFY,
        changed(CLASSIFY, classify={"drop_patches": 0.0, "whole_epochs": 0.0}, run={"grad_accum_steps": 2}),
        changed(CONFIG, augment={"shuffle": "within"}),
    ],
    ids=["reconstruct", "classify", "classify, both mixed", "reconstruct, shuffled"],
)
def test_processes_add_up_to_one(settings, count):
    settings = changed(settings, optim={"clip_grad": 0.0})
    measured, gradient = gradients(settings, SINGLE)
    several = [gradients(settings, Unheard(rank, count)) for rank in range(count)]
    torch.testing.assert_close(sum(found for found, _ in several), measured, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sum(found for _, found in several) / count, gradient, rtol=1e-3, atol=1e-5)
    assert len(gradient) == 6
    assert (gradient.abs().amax(1) > 1e-3).all()


# --- how it is computed changes nothing ------------------------------------------------------------------------------

# Mean relative difference of the losses from those of the plain path: float32, one part, math; ten times as much for
# a single one. Rounding grows along a run.
WAYS = {
    "flash": (dict(run=dict(attention="flash")), 1e-5),
    "parts": (dict(run=dict(grad_accum_steps=4)), 1e-5),
    "bf16": (dict(train=dict(precision="bf16")), 1e-2),
    "bf16 flash parts": (dict(train=dict(precision="bf16"), run=dict(attention="flash", grad_accum_steps=3)), 1e-2),
}


@pytest.fixture(scope="module")
def plain() -> list[float]:
    return way_losses(run=dict(attention="math", grad_accum_steps=1))


def way_losses(**sections: dict) -> list[float]:
    settings = changed(changed(CONFIG, train=dict(epochs=50, batch_size=16)), **sections)
    return losses_of(settings, noise(64)[:, :, :2, :2].repeat_interleave(8, 2).repeat_interleave(8, 3))


@pytest.mark.slow  # a processor may take minutes for bfloat16
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_computing_has_the_losses_of_the_plain_one_over_200_steps(way, plain):
    sections, tolerance = WAYS[way]
    losses = way_losses(**sections)
    assert len(losses) == len(plain) == 200
    differences = [abs(one - other) / other for one, other in zip(losses, plain, strict=True)]
    assert sum(differences) / 200 < tolerance
    assert max(differences) < 10 * tolerance
    assert losses != plain  # it was another way
    assert plain[-1] < 0.9 * plain[0]  # and something was learnt


@pytest.mark.slow
def test_compiled_steps_have_the_losses_of_the_others_and_the_model_its_names(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    run = start(changed(CONFIG, run={"compile": "on"}))
    assert [step.loss for step in train_steps(run)] == pytest.approx(losses_of(CONFIG), rel=1e-4)
    assert set(run.model.state_dict()) == set(start(CONFIG).model.state_dict())


def test_bf16_computes_products_in_bf16_and_gives_about_the_same_loss():
    exact, run, dtypes = losses_of(CONFIG), start(changed(CONFIG, train={"precision": "bf16"})), set()
    run.model.encoder.blocks[0].mlp.fc1.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
    rounded = [step.loss for step in train_steps(run)]
    assert dtypes == {torch.bfloat16}
    assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float32}
    assert rounded == pytest.approx(exact, rel=0.02)
    assert rounded != exact


# --- nothing waits for the device ------------------------------------------------------------------------------------


class Descent(torch.optim.AdamW):
    """AdamW's fused kernel does not know the device "meta"."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    parameter.sub_(parameter.grad, alpha=group["lr"])


def on_meta(settings: Config) -> Run:
    """On "meta", a device whose tensors hold nothing, whatever would wait for a GPU raises."""
    run = start(changed(settings, run={"log_every": 1000}))
    run.objective.to(META)
    run.compute, run.normalize = Compute(META), Normalization([0.5] * 3, [0.5] * 3)
    run.optimizer = Descent(run.model.parameters())
    return run


def five_steps(run: Run) -> Step:
    """The fifth step; the sixth and last would be looked at."""
    steps = train_steps(run)
    done = [next(steps) for _ in range(5)]
    assert [step.images for step in done] == [8, 8, 4, 8, 8]
    return done[-1]


@pytest.mark.parametrize("crop", ["resized", "pad", "none"])
@pytest.mark.parametrize("kind", ["random", "block", "grid"])
def test_no_step_reads_from_the_device(crop, kind):
    settings = changed(CONFIG, model={"drop_path": 0.5}, augment={"crop": crop}, mask={"kind": kind})
    last = five_steps(on_meta(changed(settings, run={"grad_accum_steps": 2})))
    with pytest.raises((RuntimeError, NotImplementedError)):
        _ = last.loss


@pytest.mark.parametrize("shuffle", ["none", "within", "across"])
def test_nothing_of_a_classifiers_step_nor_its_average_reads_from_the_device(shuffle):
    run = on_meta(changed(CLASSIFY, augment={"shuffle": shuffle}, run={"grad_accum_steps": 2}))
    run.ema = make_ema(run.model, 0.9)
    last = five_steps(run)
    with pytest.raises((RuntimeError, NotImplementedError)):
        _ = last.metrics


@BOTH
def test_watching_reads_nothing_from_the_device(settings):
    """Recorded steps neither; what they measured is read when it is asked for."""
    run = on_meta(settings)
    recorder = DynamicsRecorder(run.model, 1, 6)
    run.callbacks.append(recorder)
    five_steps(run)
    with pytest.raises((RuntimeError, NotImplementedError)):
        recorder.read()


# --- what is not finite ----------------------------------------------------------------------------------------------

AT = 4


def moments_of(run: Run) -> list[Tensor]:
    values = [value for state in run.optimizer.state.values() for value in state.values()]
    return [value.clone() for value in values if isinstance(value, Tensor)]  # a step count, momentum, ...


def spoil_prediction(model: Model) -> None:
    model.decoder.pred.register_forward_hook(lambda module, inputs, output: output * math.nan)


def spoil_one_image(model: Model) -> None:
    def hook(module: object, inputs: object, output: Tensor) -> Tensor:
        return output.index_fill(0, torch.tensor([2]), math.inf)

    model.decoder.pred.register_forward_hook(hook)


def spoil_gradient(model: Model) -> None:
    model.encoder.norm.weight.register_hook(lambda gradient: gradient * math.inf)


@pytest.mark.parametrize("spoil", [spoil_prediction, spoil_one_image, spoil_gradient])
@pytest.mark.parametrize("optim", [{}, dict(clip_grad=0.0), dict(name="muon")], ids=str)
def test_step_that_is_not_finite_changes_nothing(spoil, optim):
    run = start(replace(CONFIG, optim=OptimConfig(**optim)))
    steps = train_steps(run)
    done = [next(steps) for _ in range(AT - 1)]
    before = weights(run.model)
    moments = moments_of(run)
    spoil(run.model)
    with pytest.raises(NonFiniteError, match=rf"^step {AT}: ") as caught:
        next(steps)
    assert caught.value.exit_code == 1
    assert "nan" in str(caught.value) or "inf" in str(caught.value)
    assert done[-1].step == run.step == AT - 1
    assert same(weights(run.model), before)
    assert same(moments_of(run), moments)
    assert list(steps) == []  # and it is over


def test_what_is_not_finite_is_kept_out_also_where_nobody_looks_until_later(monkeypatch):
    """As on a GPU, which is not waited for: the flag stays on the device, and no later step updates either."""
    run = start(changed(CONFIG, run={"log_every": 1000}))
    monkeypatch.setattr(Step, "check", lambda step: None)
    steps = train_steps(run)
    done = [next(steps) for _ in range(AT - 1)]
    before = weights(run.model)
    with monkeypatch.context() as spoilt:
        spoilt.setattr(vit.mae, "masked_patch_loss", lambda *_: next(run.model.parameters()).sum() * math.nan)
        done.append(next(steps))
    done.append(next(steps))
    assert math.isnan(done[AT - 1].loss)
    assert math.isfinite(done[AT].loss)
    assert same(weights(run.model), before)
    monkeypatch.undo()
    for step in done[: AT - 1]:
        step.check()
    for step in done[AT - 1 :]:
        with pytest.raises(NonFiniteError, match=rf"^step {AT}: "):
            step.check()


def test_the_average_takes_in_no_step_that_is_not_finite():
    run = start(changed(CLASSIFY, optim={"ema": 0.5}, run={"log_every": 1000}))
    steps = train_steps(run)
    assert len([next(steps) for _ in range(AT - 1)]) == AT - 1
    before = weights(run.result)
    assert not same(before, weights(run.model))
    run.model.head.register_forward_hook(lambda module, inputs, output: output * math.nan)
    with pytest.raises(NonFiniteError, match=rf"^step {AT}: "):
        next(steps)
    assert same(weights(run.result), before)


# --- what a step says ------------------------------------------------------------------------------------------------


def test_steps_are_counted_and_have_the_schedules_learning_rate():
    run = start(changed(CONFIG, train={"epochs": 3}))
    steps = list(train_steps(run))
    assert len(steps) == run.total_steps == run.step == 9
    peak = CONFIG.optim.blr * CONFIG.train.batch_size / 256
    warmup = round(0.5 * 3)  # half an epoch of three steps
    for number, step in enumerate(steps, start=1):
        assert step.step == number
        assert step.epoch == pytest.approx(number / 3)
        assert step.lr == learning_rate(number - 1, 9, warmup, peak, CONFIG.optim.min_lr)
        assert set(step.metrics) == {"step", "epoch", "loss", "lr", "grad_norm"}
    assert [step.images for step in steps] == [8, 8, 4] * 3
    assert max(step.lr for step in steps) == peak


def test_yielded_rate_is_the_one_that_was_used():
    run = start(CONFIG)
    for step in train_steps(run):
        assert {group["lr"] for group in run.optimizer.param_groups} == {step.lr}


def test_every_layer_has_its_rate():
    run = start(CLASSIFY)
    for step in train_steps(run):
        scales = {group["lr_scale"]: group["lr"] for group in run.optimizer.param_groups}
        assert scales == {scale: step.lr * scale for scale in scales}
        assert sorted(scales) == pytest.approx([0.7**3, 0.7**2, 0.7, 1])
        assert set(step.metrics) == {"step", "epoch", "loss", "train_accuracy", "lr", "grad_norm"}


def test_gradient_norm_is_that_before_clipping():
    norms = [
        next(train_steps(start(replace(CONFIG, optim=OptimConfig(clip_grad=clip))))).grad_norm for clip in (0.0, 1e-3)
    ]
    assert norms[0] == norms[1] > 1e-3


def test_each_gradient_serves_one_step():
    run = start(CONFIG)
    for _ in train_steps(run):
        assert all(parameter.grad is None for parameter in run.model.parameters())


def test_uniformity_is_measured_and_its_weight_is_in_the_loss():
    for step in steps_of(changed(CONFIG, reconstruct={"uniformity": 0.5})):
        found = step.metrics
        assert found["loss"] == pytest.approx(found["masked_loss"] + 0.5 * found["uniformity"], rel=1e-5)
        assert 0 < found["uniformity"] <= 1


def test_average_is_of_the_weights_after_each_step():
    run, seen = start(changed(CLASSIFY, optim={"ema": 0.5})), []
    expected = [value.detach().clone() for value in run.model.parameters()]
    for step in train_steps(run):
        decay = min(0.5, step.step / (9 + step.step))
        expected = [decay * a + (1 - decay) * b.detach() for a, b in zip(expected, run.model.parameters(), strict=True)]
        for found, value in zip(run.result.parameters(), expected, strict=True):
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-6)
        seen.append(step.loss)
    assert seen == losses_of(CLASSIFY)  # it only looks on
