"""What to do next, in a few plain sentences, from what a run measured."""

from __future__ import annotations

from vit.config import FEW_STEPS
from vit.errors import plural
from vit.evaluation.classification import read_confusion
from vit.metrics import FEW_IMAGES, METRICS, summary_values, tested_images
from vit.report.record import RunRecord
from vit.report.text import enumerated
from vit.report.verdicts import judge_constant_guess, loss_verdicts, neighbour_verdicts

FEW_TO_TRAIN_ON = 5000
"""Below so many training images, beginning with trained weights is worth a try."""
WIDE_GAP = 0.05
"""From this calibration error on, a confidence should not be taken for a probability."""


def next_steps(record: RunRecord) -> list[str]:
    """Return what to do after a run, most urgent first."""
    if not record.summary:
        return ["Continue this run with --resume: its pictures and scores come at its end."]

    # What is wrong with the images comes first: it touches every score
    steps = steps_on_the_images(record)
    if record.summary["steps"] < FEW_STEPS:
        steps.append(
            f"Make more than {plural(record.summary['steps'], 'step')}: a smaller batch"
            " (train.batch_size) makes more of them of as many images."
        )
    if "test_confusion" in record.summary:
        steps += steps_of_a_classifier(record)
    else:
        steps += steps_of_a_pretraining(record)
    return steps


def steps_on_the_images(record: RunRecord) -> list[str]:
    """Say what is wrong with the images that the run was measured on."""
    steps = []

    # Other images than the user meant
    if record.data.get("warning"):
        steps.append("Read the warning above first: these are not the images that were meant.")

    # Too few to see small differences
    count = tested_images(record.summary)
    if count < FEW_IMAGES:
        step = f"Measure on more images: {plural(count, 'image')} cannot show small differences."
        if record.data.get("source") == "folder":
            step += " They go into a folder named test, beside one named train."
        steps.append(step)

    # No labels, or a single class
    baselines = record.summary.get("baselines") or {}
    if "skipped" in baselines.get("knn", {}):
        step = "Put some of the images into class folders"
        if record.samples and len(record.samples.class_names) == 1:
            step = "Add images of another class in a folder of their own"
        steps.append(
            f"{step}, train and test alike, to see whether the features tell the classes apart."
            " Training itself needs no labels."
        )
    return steps


def steps_of_a_pretraining(record: RunRecord) -> list[str]:
    """Say what would make a pretrained model better, and what it can be used for."""
    summary = record.summary
    epochs = record.settings["train.epochs"]
    losses = loss_verdicts(summary)
    neighbours = neighbour_verdicts(summary)
    shipped = ((summary.get("baselines") or {}).get("knn") or {}).get("shipped")
    steps = []

    # It has not learned enough; few images alone do not say so
    fills_in_worse = "worse" in losses.values()
    not_better = {"worse"}
    if tested_images(summary) >= FEW_IMAGES:
        not_better.add("unclear")
    names = {"raw_pixels": "raw pixels", "untrained": "the untrained network"}
    ahead = [name for key, name in names.items() if neighbours.get(key) in not_better]
    if fills_in_worse:
        steps.append(
            f"Train longer than {plural(epochs, 'epoch')} ({way_to_train_longer(record)}), or with"
            " another learning rate (optim.blr): a guess without a model fills in better."
        )
    elif ahead:
        steps.append(
            f"Train longer than {plural(epochs, 'epoch')} ({way_to_train_longer(record)}): its"
            f" features do not tell classes apart better than {enumerated(ahead)}; that takes"
            " longer to learn than filling in."
        )

    # Another start
    few = record.data["train_images"] < FEW_TO_TRAIN_ON
    begins_new = not record.settings["model.init"]
    if neighbours.get("shipped") == "worse":
        steps.append(
            f"Begin with {shipped} (model.init): its features tell these classes apart better"
            " although it never saw such images."
        )
    elif shipped and few and begins_new:
        images = plural(record.data["train_images"], "training image")
        steps.append(
            f"Compare with a run that begins with {shipped} (model.init): {images} are few."
        )

    # It can be used
    steps.append(
        "Look inside with vit explore: what each head attends to, layer by layer, and what the"
        " model fills in."
    )
    if not fills_in_worse and "knn_accuracy" in summary_values(summary):
        settings = "finetune_cifar10_tiny_p4"
        if record.data.get("source") == "folder":
            settings = "finetune"
        steps.append(f"Fine-tune it with the labels: the settings {settings} do so.")
    return steps


def way_to_train_longer(record: RunRecord) -> str:
    """Return how a finished run gets more epochs."""
    if record.settings["optim.cooldown"] < 1:
        epochs = 2 * record.settings["train.epochs"]
        return f"--resume --train.epochs {epochs} goes on from before its learning rate fell"
    return "another run with more train.epochs: the learning rate of this one fell from the start"


def steps_of_a_classifier(record: RunRecord) -> list[str]:
    """Say what would make a classifier better, and how far to trust it."""
    summary = record.summary
    table = read_confusion(summary["test_confusion"]).to_sparse().coalesce()
    steps = []

    # It has not learned enough
    if judge_constant_guess(table) == "worse":
        steps.append(
            f"Train longer ({way_to_train_longer(record)}), or begin with pretrained weights"
            " (model.init): always guessing the most common class is right more often."
        )

    # It is too sure, or not sure enough; few images say little about either
    gap = summary_values(summary)["calibration_error"]
    enough = tested_images(summary) >= FEW_IMAGES
    if enough and gap > WIDE_GAP:
        text = METRICS["calibration_error"].write(gap, brief=True)
        steps.append(
            f"Do not take its confidence for a probability: the two differ by {text} on average."
        )

    # It can be used, and compared
    steps.append(
        "Train once more with another seed (train.seed) before believing a difference between two"
        " settings: vit compare puts runs that differ only in the seed into one row."
    )
    steps.append("Classify images of your own with vit predict.")
    return steps
