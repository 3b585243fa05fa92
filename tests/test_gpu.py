"""On a GPU, simulated: nothing mixes devices, no step waits, losses are the CPU's, a run goes on on another device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from simulated_gpu import DeviceMismatchError, Record, simulated_gpu
from tiny import (
    CLASSIFY,
    NORMALIZE,
    RECONSTRUCT,
    autoencoder,
    dataset,
    encoder,
    noise,
    randomize,
    save_images,
    seeded,
    without_layout,
)
from torch import Tensor

import vit
import vit.data.draws
import vit.training.loop
from vit.checkpoints import save_model
from vit.cli import main
from vit.config import Config, changed
from vit.data.draws import Draws, draw_operations
from vit.data.randaugment import rand_augment
from vit.evaluation.features import knn_correct
from vit.interpret import attention_statistics, faithfulness, head_ablation, top_mass_mask
from vit.look.features import artifact_scores
from vit.look.filled import fill_in
from vit.look.panels import (
    class_relevance,
    decoder_panels,
    feature_colours,
    head_panels,
    reconstruction_relevance,
    rollout_panels,
)
from vit.look.predict import embed, nearest, predict
from vit.look.subject import with_files
from vit.runs import read_mapping
from vit.training.distributed import Distributed, gather_batch
from vit.training.dynamics import DynamicsRecorder
from vit.training.loop import train_steps
from vit.training.run import Run, find_state, setup

# 20 images: batches of 8, 8 and 4
DATA = dataset()
# epochs so many that none of the first nine steps is one whose results are written
LONG = changed(
    RECONSTRUCT, {"model.decoder_depth": 2, "train.epochs": 200, "optim.warmup_epochs": 0.0}
)
CLASSES = changed(CLASSIFY, {"train.epochs": 200, "optim.warmup_epochs": 0.0})
CONFIGS = {
    "adamw, bf16": changed(LONG, {"train.precision": "bf16"}),
    "fp16, muon": changed(LONG, {"train.precision": "fp16", "optim.name": "muon"}),
    "ema, pad": changed(LONG, {"augment.crop": "pad", "optim.ema": 0.9}),
    "muon, views, contrast, jitter": changed(
        LONG,
        {
            "augment.views": 2,
            "augment.color_jitter": 0.4,
            "augment.grayscale": 0.2,
            "reconstruct.contrast": 0.1,
            "optim.name": "muon",
        },
    ),
    "block, drop path, freeze, shuffle, parts": changed(
        LONG,
        {
            "mask.kind": "block",
            "augment.shuffle": "across",
            "model.drop_path": 0.1,
            "model.freeze": ["encoder.W_Q"],
            "run.grad_accum_steps": 2,
        },
    ),
    "classify, all": changed(
        CLASSES,
        {
            "augment.crop": "pad",
            "classify.drop_patches": 0.0,
            "classify.whole_epochs": 0.0,
            "optim.name": "muon",
            "optim.layer_decay": 1.0,
            "optim.ema": 0.9,
        },
    ),
    "classify, drop patches, layer decay": CLASSES,
}
# The most kernels of a step. Where one needs more, something is computed tensor by tensor.
KERNELS = {
    "adamw, bf16": 365,
    "fp16, muon": 510,
    "ema, pad": 255,
    "muon, views, contrast, jitter": 465,
    "block, drop path, freeze, shuffle, parts": 565,
    "classify, all": 735,
    "classify, drop patches, layer decay": 640,
}


def start(config: Config, device: str, state: dict | None = None) -> Run:
    return setup(changed(config, {"run.device": device}), DATA, state=state)


def gpu_losses(config: Config, record: Record, steps: int = 3) -> list[float]:
    """Losses of the first steps; `record` holds what the steps after the first did."""
    run = start(config, "cuda")
    assert all(parameter.is_cuda for parameter in run.objective.parameters())
    loop = train_steps(run)
    done = [next(loop)]
    record.clear()
    done += [next(loop) for _ in range(steps - 1)]
    waits = record.waits.copy()
    losses = [step.loss for step in done]
    assert record.waits.total() - waits.total() == steps  # it sees who reads a loss
    record.waits = waits
    return losses


def cpu_losses(config: Config, steps: int) -> list[float]:
    loop = train_steps(start(config, "cpu"))
    return [next(loop).loss for _ in range(steps)]


def tolerance(config: Config) -> float:
    """Largest relative difference of two losses by rounding."""
    return 1e-4 if config.train.precision == "fp32" else 1e-2


# --- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_stay_on_the_gpu_wait_for_nothing_and_have_the_losses_of_the_cpu(name):
    config = CONFIGS[name]
    with simulated_gpu() as record:
        losses = gpu_losses(config, record)
    assert record.waits == {}

    assert record.kernels.total() / 2 <= KERNELS[name], record.kernels
    assert losses == pytest.approx(cpu_losses(config, 3), rel=tolerance(config))


def test_images_that_do_not_fit_are_copied_batch_by_batch_in_the_background():
    with simulated_gpu() as record, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 100))
        losses = gpu_losses(LONG, record)
        # the images and the draws of two steps
        assert record.copies == {"in the background": 4}
    assert record.waits == {}
    assert losses == pytest.approx(cpu_losses(LONG, 3), rel=1e-4)


def test_what_watches_the_steps_waits_only_where_it_writes(tmp_path):
    with simulated_gpu() as record:
        run = start(LONG, "cuda")
        recorder = DynamicsRecorder(run.model, 1, run.total_steps, tmp_path / "dynamics.jsonl")
        loop = train_steps(run, [recorder])
        next(loop)
        record.clear()
        next(loop)
        assert record.waits == {}
        recorder.on_save()
        assert record.waits


def test_processes_exchange_rows_and_gradients_without_a_wait(monkeypatch):
    """The other process has rows of zeros, and the same gradients."""
    monkeypatch.setattr(
        torch.distributed, "all_reduce", lambda values: values.mul_(2 if values.ndim == 1 else 1)
    )
    place = torch.tensor([[1, 4], [2, 4], [-1, 4]])
    with simulated_gpu() as record:
        rows = torch.ones(3, 2).to("cuda").requires_grad_()
        matrix = torch.ones(2, 2).to("cuda").requires_grad_()
        record.clear()
        whole = gather_batch(rows, place)
        (whole @ matrix).sum().backward()
        Distributed(0, 2).sum_gradients([rows, matrix, torch.ones(1)])
        assert record.waits == {}
        assert whole.tolist() == [[0, 0], [1, 1], [1, 1], [0, 0]]
        assert rows.grad.tolist() == [[4, 4], [4, 4], [0, 0]]
        assert matrix.grad.tolist() == [[4, 4], [4, 4]]


def pageable(tensors: list[Tensor], device: torch.device) -> list[Tensor]:
    return [values.to(device) for values in tensors]


def leaves(name: str) -> Callable[[Draws, torch.device], Draws]:
    """A mutant of `Draws.to` that leaves a draw on the CPU."""
    return lambda draws, device: to(draws, device)._replace(**{name: getattr(draws, name)})


def floats_stay(values: Tensor, device: torch.device) -> Tensor:
    return values if values.is_floating_point() else values.to(device)


FINITE = Tensor.isfinite
to = Draws.to


def asks(values: Tensor) -> Tensor:
    assert bool(FINITE(values).all())
    return FINITE(values)


MUTANTS = {
    "noise of the mask": ("adamw, bf16", Draws, "to", leaves("mask_noise")),
    "box of the crop": ("adamw, bf16", Draws, "to", leaves("crop")),
    "targets": ("classify, all", vit.training.loop, "to_device", floats_stay),
    "memory not pinned": ("adamw, bf16", vit.data.draws, "all_to_device", pageable),
    "bool of a tensor": ("adamw, bf16", Tensor, "isfinite", asks),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_step_that_is_wrong_on_a_gpu_is_found(mutant, monkeypatch):
    name, owner, function, wrong = MUTANTS[mutant]
    monkeypatch.setattr(owner, function, wrong)
    with simulated_gpu() as record:
        try:
            gpu_losses(CONFIGS[name], record, steps=2)
        except DeviceMismatchError:
            return
    assert record.waits


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["muon, views, contrast, jitter", "classify, all", "fp16, muon"])
def test_a_run_goes_on_on_another_device(name, tmp_path):
    """On the GPU, then the CPU, then the GPU."""
    config = CONFIGS[name]
    losses = []
    for device in ("cuda", "cpu", "cuda"):
        with simulated_gpu():
            run = start(config, device, find_state(tmp_path, config, DATA))
            loop = train_steps(run)
            losses += [next(loop).loss for _ in range(2)]
            run.save(tmp_path)
    assert losses == pytest.approx(cpu_losses(config, 6), rel=tolerance(config))


ALL = """data.source=scenes data.limit=30 data.val_size=10 model.patch_size=8 model.embed_dim=16
model.depth=2 model.num_heads=2 model.decoder_dim=16 model.decoder_depth=1 model.decoder_heads=2
train.epochs=2 train.batch_size=8 run.device=cuda run.val_every=1 run.dynamics_every=1
run.snapshots=2 run.save_every=2 optim.ema=0.9 augment.color_jitter=0.4"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A whole run on the GPU with its pictures and its page."""
    folder = tmp_path_factory.mktemp("gpu") / "run"
    settings = [f"--{setting}" for setting in ALL.split()]
    with simulated_gpu(), without_layout():
        assert main(["train", *settings, f"--out={folder}"]) == 0
    return folder


def test_randaugment_of_a_whole_batch_is_that_of_its_members():
    images = noise(64, size=(12, 20))
    operations, strengths = draw_operations(64, 2, 9.0, seeded())
    expected = rand_augment(images, operations, strengths)
    draws = Draws(operations=operations, strengths=strengths)
    with simulated_gpu() as record:
        on_gpu = images.to("cuda")
        # the constants are made once
        moved = draws.to(torch.device("cuda"))
        rand_augment(on_gpu, moved.operations, moved.strengths)
        record.clear()
        moved = draws.to(torch.device("cuda"))
        result = rand_augment(on_gpu, moved.operations, moved.strengths)
        assert record.waits == {}
        # both draws in one
        assert record.copies == {"in the background": 1}
        assert torch.equal(result.cpu(), expected)


def test_neighbours_are_searched_there_and_are_those_of_the_cpu():
    features = torch.randn(1100 + 50, 8, generator=seeded())
    labels = torch.arange(1150) % 5
    # more queries than are searched for at once
    arguments = (features[:50], labels[:50], features[50:], labels[50:])
    expected = knn_correct(*arguments)
    assert 0 < expected.sum() < 1100
    with simulated_gpu() as record:
        correct = knn_correct(*arguments, device=torch.device("cuda"))
    assert torch.equal(correct, expected)
    assert record.kernels["mm"] == record.kernels["topk"] == 2


@pytest.mark.slow  # the pictures
def test_a_run_ends_with_its_pictures(trained):
    assert read_mapping(trained / "summary.json")["device"] == "Simulated GPU"
    for name in ("reconstructions.png", "attention.png", "curves.png", "dynamics.png"):
        assert (trained / name).stat().st_size > 1000
    assert "</html>" in (trained / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["evaluate --method=knn", "evaluate --method=reconstruction", "embed --out={}"]
)
def test_commands_compute_there(command, trained, tmp_path):
    name, *options = command.format(tmp_path / "features.npz").split()
    options += ["--data=scenes", "--limit=16", "--device=cuda"]
    with simulated_gpu() as record:
        assert main([name, str(trained), *options]) == 0
    assert record.kernels["attention"] >= 2


def on_both(look: Callable[[str], list[Tensor]]) -> None:
    """What is looked at is the same on the CPU and on a GPU without float64, as Apple's are."""
    by_cpu = look("cpu")
    with simulated_gpu(float64=False):
        by_gpu = [x.cpu() for x in look("cuda")]
    for one, other in zip(by_cpu, by_gpu, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-5, equal_nan=True)


@pytest.fixture
def files(tmp_path) -> list[Path]:
    save_images(tmp_path / "images", noise(2).permute(0, 2, 3, 1).numpy())
    return sorted((tmp_path / "images").iterdir())


def test_an_autoencoder_that_was_moved_is_looked_into_there(files, tmp_path):
    save_model(tmp_path, randomize(autoencoder()), NORMALIZE)

    def look(device: str) -> list[Tensor]:
        subject = with_files(vit.load_model(tmp_path).to(device), files)
        masked = subject.with_mask(0.75, seed=0, visible=(0, 0))
        hidden = masked.middle_patches(masked.masked)
        masked.query = (0, 0)
        maps = head_panels(subject).maps
        tokens = subject.model.encoder(subject.inputs)
        return [
            maps,
            top_mass_mask(maps).float(),
            head_panels(masked, layer=None).maps,
            decoder_panels(masked, hidden).maps,
            rollout_panels(masked, discard=0.5).maps,
            reconstruction_relevance(masked, hidden).maps,
            fill_in(masked).filled,
            attention_statistics(subject.model.encoder, subject.batches()).distance_spread,
            feature_colours(subject),
            artifact_scores(tokens, subject.geometry.num_prefix_tokens),
            nearest(tokens[:, 0], tokens[0, 0], 1).similarities,
            *embed(subject.model, files),
        ]

    on_both(look)


def test_a_classifier_that_was_moved_predicts_and_explains_there(files, tmp_path):
    save_model(tmp_path, randomize(encoder(num_classes=3)), NORMALIZE, ("ape", "bee", "cat"))

    def look(device: str) -> list[Tensor]:
        subject = with_files(vit.load_model(tmp_path).to(device), files)
        encoder = subject.model.encoder

        @torch.no_grad()
        def logits(images: Tensor) -> Tensor:
            return encoder.forward_head(encoder(images))

        explained, _, _ = class_relevance(subject)
        by_input = class_relevance(subject, method="legrad")[0].maps
        areas = faithfulness(logits, subject.inputs, by_input[:, 0], 1).deletion_area
        silenced = head_ablation(
            subject.model, lambda: subject.model(subject.inputs).square().mean()
        )
        return [explained.maps, by_input, areas, predict(subject.model, files), silenced]

    on_both(look)
