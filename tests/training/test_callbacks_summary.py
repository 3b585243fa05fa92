"""Scores of a run, along the way and at its end: on whole images, of the model that is saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tiny import RECONSTRUCT, dataset
from torch import Tensor

from vit.config import AugmentConfig, ClassifyConfig, RunConfig, changed
from vit.evaluation import evaluate
from vit.inputs import to_float
from vit.train import measure
from vit.training.callbacks import Validation, summarize
from vit.training.loop import train_steps
from vit.training.run import Run, setup
from vit.training.step import Step


def trained(task: str, ema: float = 0.0, views: int = 1) -> Run:
    config = changed(
        changed(RECONSTRUCT, {"augment": AugmentConfig(views=views)}),
        {
            "reconstruct.contrast": views - 1.0,
            "optim.blr": 0.05,
            "optim.ema": ema,
            "train.objective": task,
        },
    )
    if task == "classify":
        config = changed(config, {"classify": ClassifyConfig(drop_patches=0.5)})
    run = setup(config, replace(dataset(16, 9), held_out=True))
    for _ in train_steps(run):
        pass
    return run


def validated(run: Run) -> dict[str, float]:
    run.config = changed(run.config, {"data.val_size": 1, "run.val_every": 1})
    line = Validation().on_step(run, Step(run.step, 2.0, 0.0, 0, {}))
    assert (line.pop("step"), line.pop("epoch")) == (run.step, 2)
    return line


def prepare(run: Run) -> Callable[[Tensor], Tensor]:
    """Images as the model takes them."""
    return lambda images: run.normalize(to_float(images, (16, 16)))


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_classifier_along_the_way_and_at_the_end(ema):
    run = trained("classify", ema)
    measured = measure(run)
    logits = evaluate(run.result, run.data, ["head"], prepare(run), run.compute).logits
    test = run.data.test
    inputs = run.normalize(to_float(test.images, (16, 16)))
    model = run.ema.module if ema else run.model
    model.eval()
    with torch.no_grad():
        expected = model.forward_head(model(inputs))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    (row,) = measured["head"]
    assert row["accuracy"] == pytest.approx(float((logits.argmax(1) == test.labels).float().mean()))
    along_the_way = validated(run)
    assert along_the_way == {
        "val_loss": row["cross_entropy"],
        "val_accuracy": row["accuracy"],
    }
    for confidence, accuracy, count in zip(*row["reliability"].values(), strict=True):
        assert (confidence is None) == (accuracy is None) == (count == 0)  # JSON has no nan
    summary = summarize(run, [], measured)
    assert summary["weights"] == ("the average over the steps" if ema else "those of the last step")
    assert (summary["data"]["tested_on"], summary["objective"]) == (
        "held-out training images",
        "classify",
    )


@pytest.mark.parametrize("searched", [0, 5, 99])
def test_a_pretraining_along_the_way_and_at_the_end(searched):
    run = trained("reconstruct")
    run.config = changed(run.config, {"run": RunConfig(knn_images=searched)})
    measured = measure(run)
    along_the_way = validated(run)
    (neighbours,) = measured["knn"]
    assert along_the_way == {
        "val_loss": measured["reconstruction"][0]["loss"],
        "val_knn_accuracy": neighbours["accuracy"],
    }
    # of 16 images, five at equal distances
    bank = torch.arange(16)
    if searched == 5:
        bank = torch.tensor([0, 3, 6, 9, 12])
    data = replace(run.data, train=run.data.train.subset(bank))
    expected = evaluate(run.result, data, ["knn"], prepare(run), run.compute).scores["knn"]
    assert [neighbours] == expected
    assert neighbours["bank"] == len(bank)


@pytest.mark.parametrize("methods", [["knn"], ["knn", "linear"]])
def test_neighbours_are_searched_in_all_classes_of_a_data_set_that_repeats_them(methods):
    """Of ten classes in turn, every tenth image was of one class."""
    run = trained(RECONSTRUCT)
    labels = torch.arange(200) % 10
    train = ImageSet(noise(10)[labels], labels, tuple("abcdefghij"), "train")
    test = replace(train, content_hash="test")
    data = replace(run.data, source="dataset", train=train, test=test)
    options = Options(knn_images=20)
    measured = evaluate(run.result, data, methods, run.prepare, run.compute, options).scores
    (scores,) = measured["knn"]
    assert scores["bank"] == 20
    assert scores["baselines"]["raw_pixels"] > 0.6


@pytest.mark.parametrize("views", [1, 2])
def test_every_view_is_an_image_that_takes_its_time(views):
    run = trained("reconstruct", views=views)
    summary = summarize(run, [], measure(run))
    assert summary["images_per_second"] * run.seconds == pytest.approx(
        run.step * run.config.images_per_step
    )
    assert summary["images_per_second"] * run.seconds == pytest.approx(2 * 16 * views)
