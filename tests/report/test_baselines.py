"""Baselines are measured as the run is: same first weights, same images, same nearest neighbours."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import RECONSTRUCT, image_set, noise

from vit.checkpoints import load_model
from vit.config import changed
from vit.data import Dataset
from vit.report import baselines
from vit.report.baselines import compare_losses, measure_baselines, untrained
from vit.train import measure
from vit.training.loop import train_steps
from vit.training.run import Run, setup


def trained(class_names: tuple[str, ...] = ("cat", "dog", "ship")) -> Run:
    """A run of 6 steps on noise."""
    parts = [image_set(noise(count, seed), class_names) for seed, count in enumerate((24, 12))]
    run = setup(RECONSTRUCT, Dataset("Noise", "folder", *parts))
    for _ in train_steps(run, []):
        pass
    return run


def test_the_untrained_network_has_the_weights_that_the_run_began_with():
    run = trained()
    first = setup(run.config, run.data).model.encoder.state_dict()
    state = torch.get_rng_state()
    again = untrained(run).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert first.keys() == again.keys()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["blocks.0.attn.qkv.weight"],
                           run.result.encoder.state_dict()["blocks.0.attn.qkv.weight"])  # fmt: skip


def test_on_few_images_the_accuracies_are_those_of_the_run_and_pairs_agree_with_them():
    run = trained()
    neighbours = measure(run)["neighbours"]
    compared = measure_baselines(run)["knn"]
    assert (compared["queries"], compared["bank"], compared["k"]) == (12, 24, neighbours["k"])
    shares = {name: count / 12 for name, count in compared["correct"].items()}
    assert shares["model"] == pytest.approx(neighbours["encoder_accuracy"])
    assert shares["raw_pixels"] == pytest.approx(neighbours["raw_pixel_accuracy"])
    assert compared["pairs"].keys() == {"raw_pixels", "untrained"}
    for name, (only_model, only_other) in compared["pairs"].items():
        difference = compared["correct"]["model"] - compared["correct"][name]
        assert only_model - only_other == difference


def test_each_bar_of_the_measuring_names_its_own_measurement(monkeypatch):
    run = trained()
    shipped = load_model("vit-tiny-p4-cifar10", part="encoder")
    titles = []

    def listed(items, title, **_):
        titles.append(title)
        return items

    monkeypatch.setattr("vit.evaluation.features.track", listed)
    measure(run)
    measure_baselines(run, shipped)
    titles = [title for title in titles if title != "neighbours"]  # a search of any of them
    assert len(titles) == len({*titles}) >= 9
    assert len([title for title in titles if "2 of 3" in title]) == 2  # training and test images


def test_differences_of_losses_are_those_of_the_measured_means():
    run = trained()
    measured = measure(run)
    compared = compare_losses(run)
    assert compared["images"] == 12
    for name, loss in measured["test_loss_of_baselines"].items():
        assert compared[name]["mean"] == pytest.approx(loss - measured["test_loss"], rel=1e-4)
        assert 0 < compared[name]["standard_error"] < math.inf


def test_without_two_classes_neighbours_are_skipped_with_a_reason():
    compared = measure_baselines(trained(()))
    assert "no labels" in compared["knn"]["skipped"]
    assert "one class" in measure_baselines(trained(("cat",)))["knn"]["skipped"]
    assert compared["reconstruction"]["images"] == 12


def test_of_many_images_some_are_compared(monkeypatch):
    monkeypatch.setattr(baselines, "MOST", 6)
    run = trained()
    compared = measure_baselines(run)
    assert (compared["knn"]["queries"], compared["knn"]["bank"]) == (6, 6)
    assert compared["reconstruction"]["images"] == 6
    run.config = changed(run.config, {"run.knn_images": 4})
    assert measure_baselines(run)["knn"]["bank"] == 4
