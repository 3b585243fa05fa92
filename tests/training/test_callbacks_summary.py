"""Scores of a run, along the way and at its end: on whole images, of the model that is saved."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from tiny import CLASSIFY, RECONSTRUCT, dataset

from vit.config import Config, changed
from vit.evaluation import evaluate
from vit.train import measure
from vit.training.callbacks import Validation, summarize
from vit.training.loop import train_steps
from vit.training.run import Run, setup
from vit.training.step import Step


def trained(config: Config, **settings: object) -> Run:
    measured = {"data.val_size": 1, "run.val_every": 1}
    run = setup(changed(config, measured | settings), replace(dataset(16, 9), held_out=True))
    for _ in train_steps(run):
        pass
    return run


def validated(run: Run) -> dict[str, float]:
    line = Validation(partial(measure, baselines=False)).on_step(
        run, Step(run.step, 2.0, 0.0, 0, {})
    )
    assert (line.pop("step"), line.pop("epoch")) == (run.step, 2)
    return line


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_classifier_along_the_way_and_at_the_end(ema):
    run = trained(CLASSIFY, **{"optim.ema": ema})
    measured = measure(run)
    test = run.data.test
    with torch.no_grad():
        model = run.result.eval()
        logits = model.forward_head(model(run.prepare(test.images)))
    (row,) = measured["head"]
    accuracy = float((logits.argmax(1) == test.labels).float().mean())
    assert row["accuracy"] == pytest.approx(accuracy)
    assert validated(run) == {"val_loss": row["cross_entropy"], "val_accuracy": row["accuracy"]}
    for confidence, share, count in zip(*row["reliability"].values(), strict=True):
        assert (confidence is None) == (share is None) == (count == 0)  # JSON has no nan
    summary = summarize(run, [], measured)
    assert summary["weights"] == ("the average over the steps" if ema else "those of the last step")
    assert summary["data"]["tested_on"] == "held-out training images"


@pytest.mark.parametrize(("searched", "bank"), [(0, range(16)), (5, range(0, 15, 3))])
def test_a_pretraining_along_the_way_and_at_the_end(searched, bank):
    """The neighbours are searched among all images, or some at equal distances."""
    run = trained(RECONSTRUCT, **{"run.knn_images": searched})
    measured = measure(run)
    (neighbours,) = measured["knn"]
    assert validated(run) == {
        "val_loss": measured["reconstruction"][0]["loss"],
        "val_knn_accuracy": neighbours["accuracy"],
    }
    data = replace(run.data, train=run.data.train.subset(torch.tensor(bank)))
    expected = evaluate(run.result, data, ["knn"], run.prepare, run.compute).scores["knn"]
    assert [neighbours] == expected
    assert neighbours["bank"] == len(bank)
    # without labels there are none
    run.data = replace(run.data, train=replace(run.data.train, class_names=()))
    assert list(validated(run)) == ["val_loss"]


@pytest.mark.parametrize("views", [1, 2])
def test_every_view_is_an_image_that_takes_its_time(views):
    run = trained(RECONSTRUCT, **{"augment.views": views, "reconstruct.contrast": views - 1.0})
    steps = [{"step": 1, "epoch": 0.5, "loss": 3.0, "lr": 0.1}]
    steps += [{"step": 4, "epoch": 2.0, "loss": 1.0, "lr": 0.0}, {"step": 4, "loss": 7.0}]
    summary = summarize(run, steps, measure(run))
    assert summary["images_per_second"] * run.seconds == pytest.approx(2 * 16 * views)
    # of the last epoch, and of steps: a callback's line is none
    assert summary["final_train_loss"] == 1
