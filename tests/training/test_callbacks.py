"""Callbacks: metrics.jsonl has whole lines, each step once; scores along the way; progress."""

import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tiny import CLASSIFY, RECONSTRUCT, dataset

from vit.config import Config, changed
from vit.data.images import spread
from vit.evaluation import evaluate
from vit.train import measure
from vit.training.callbacks import MetricsFile, Progress, Validation, snapshot_steps, summarize
from vit.training.loop import train_steps
from vit.training.run import Run, setup
from vit.training.step import Step


def done_at(step: int, epoch: float, loss: float = 1.0) -> Step:
    values = {"first_bad": 0.0, "loss": loss, "grad_norm": loss}
    tensors = {name: torch.tensor(value) for name, value in values.items()}
    return Step(step, epoch, 1e-3, 8, tensors)


def run_at(step: int, total: int) -> SimpleNamespace:
    """What a callback reads of a run of two epochs."""
    config = Config.from_settings({"train.epochs": 2, "optim.warmup_epochs": 0, "data.val_size": 1})
    run = SimpleNamespace(
        step=step, seconds=0.0, total_steps=total, config=config, callback_states=None
    )
    run.has_line = partial(Run.has_line, run)
    return run


# --- metrics.jsonl --------------------------------------------------------------------------------


def test_a_line_comes_every_so_many_steps_and_has_the_speed_since_the_last(tmp_path):
    run = run_at(0, total=101)
    file = MetricsFile(tmp_path / "metrics.jsonl", run)
    lines = {}
    for step in range(1, 102):
        run.seconds += 2
        if line := file.on_step(run, done_at(step, step / 3)):
            lines[step] = line
    assert [*lines] == [1, *range(2, 101, 2), 101]
    assert {line["images_per_second"] for line in lines.values()} == {4.0}
    assert set(lines[1]) == {"loss", "lr", "grad_norm", "images_per_second"}


def test_snapshots_begin_at_the_start_and_end_at_the_end_and_are_closer_at_first():
    assert snapshot_steps(1000, 5) == [0, 62, 250, 562, 1000]
    assert (snapshot_steps(9, 0), snapshot_steps(9, 1)) == ([], [9])


# --- scores ---------------------------------------------------------------------------------------


def trained(config: Config, **settings: object) -> Run:
    measured = {"data.val_size": 1, "run.val_every": 2}
    run = setup(
        changed(config, measured | settings),
        replace(dataset(16, 9), tested_on="held-out training images"),
    )
    for _ in train_steps(run):
        pass
    return run


def validated(run: Run) -> dict[str, float]:
    validation = Validation(partial(measure, baselines=False))
    # at the end of every second epoch, of two steps each
    assert validation.on_step(run, done_at(2, 1.0)) is None
    return validation.on_step(run, done_at(4, 2.0))


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_classifier_along_the_way_and_at_the_end(ema):
    run = trained(CLASSIFY, **{"optim.ema": ema})
    measured = measure(run)
    (row,) = measured["head"]
    assert validated(run) == {"val_loss": row["cross_entropy"], "val_accuracy": row["accuracy"]}
    summary = summarize(run, [], measured)
    assert summary["weights"] == ("the average over the steps" if ema else "those of the last step")
    assert summary["data"]["tested_on"] == "held-out training images"


def test_a_pretraining_along_the_way_and_at_the_end():
    """The neighbours are searched among some of the images; every view is an image."""
    run = trained(RECONSTRUCT, **{"run.knn_images": 5, "augment.views": 2})
    measured = measure(run)
    (neighbours,) = measured["knn"]
    assert validated(run) == {
        "val_loss": measured["reconstruction"][0]["loss"],
        "val_knn_accuracy": neighbours["accuracy"],
    }
    data = replace(run.data, train=run.data.train.subset(spread(16, 5)))
    expected = evaluate(run.result, data, ["knn"], run.compute).scores["knn"]
    assert [neighbours] == expected

    # of the last epoch, and of steps: a callback's line is none
    steps = [{"step": 1, "epoch": 0.5, "loss": 3.0, "lr": 0.1}]
    steps += [{"step": 4, "epoch": 2.0, "loss": 1.0, "lr": 0.0}, {"step": 4, "loss": 7.0}]
    summary = summarize(run, steps, measured)
    assert summary["final_train_loss"] == 1
    assert summary["images_per_second"] * run.seconds == pytest.approx(2 * 16 * 2)

    # without labels there are none
    run.data = replace(run.data, train=replace(run.data.train, class_names=()))
    assert list(validated(run)) == ["val_loss"]


# --- progress: a bar on a terminal, plain lines elsewhere -----------------------------------------

LINE = re.compile(r"epoch (\d+)/2  loss (\d+\.\d{4})  [\d,]+ images/s  step (\d+)/10  [\d:]+ left")


@pytest.mark.parametrize(
    ("start", "seconds", "shown"), [(0, 60, [2, 10]), (5, 1e-9, [7, 8, 9, 10]), (9, 60, [10])]
)
def test_without_a_terminal_there_are_plain_lines_at_both_ends_and_when_their_time_has_come(
    start, seconds, shown, monkeypatch, capsys
):
    monkeypatch.setattr("vit.training.callbacks.SECONDS_BETWEEN_LINES", seconds)
    run = run_at(start, total=10)
    progress = Progress(run)
    for step in range(start + 1, 11):
        progress.on_step(run, done_at(step, step / 5, 1 / step))
    progress.close()
    lines = [LINE.fullmatch(line) for line in capsys.readouterr().err.splitlines()]
    assert [int(line[3]) for line in lines] == shown
    assert (lines[-1][1], float(lines[-1][2])) == ("2", 0.1)  # never a third of two epochs
