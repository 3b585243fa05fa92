"""The linear probe: scikit-learn is the oracle; its law is that test images choose nothing."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from small import close
from tiny import seeded
from torch import Tensor

from vit.errors import UserError
from vit.evaluation.features import standardised
from vit.evaluation.probe import L2_GRID, fit_probe, linear_probe, logits_of

LAST = {"the last": [-1]}


def blobs(count: int, spread: float, dim: int = 6) -> tuple[Tensor, Tensor]:
    centres = torch.randn(4, dim, generator=seeded(1))
    labels = torch.arange(count) % 4
    return centres[labels] + spread * torch.randn(count, dim), labels


@pytest.mark.parametrize("strength", [1e-1, 1e-3, 1e-5])
def test_a_fit_is_at_its_optimum_of_nearly_collinear_features_too(strength):
    mixing = torch.linalg.qr(torch.randn(48, 48))[0] * torch.logspace(0, -3, 48)[:, None]
    hidden, labels = torch.randn(1000, 48), torch.arange(1000) % 5
    hidden[torch.arange(1000), labels] += 1
    features, _ = standardised(hidden @ mixing, hidden)
    assert torch.linalg.cond(features) > 100
    probe, converged = fit_probe(features, labels, 5, strength)
    assert converged
    weight, bias = (value.double().requires_grad_() for value in probe)
    loss = (
        F.cross_entropy(features.double() @ weight.T + bias, labels)
        + strength / 2 * weight.square().sum()
    )
    for gradient in torch.autograd.grad(loss, [weight, bias]):
        assert gradient.norm() <= 0.011 * strength * weight.detach().norm()


def test_the_probe_is_scikit_learns():
    features, labels = blobs(300, 1.5)
    theirs = LogisticRegression(C=1 / (1e-2 * len(labels)), max_iter=2000, tol=1e-8)
    expected = torch.from_numpy(theirs.fit(features, labels).predict_proba(features)).float()
    cold, _ = fit_probe(features, labels, 4, 1e-2)
    # wherever it starts
    strong, _ = fit_probe(features, labels, 4, 1e-1)
    warm, _ = fit_probe(features, labels, 4, 1e-2, strong)
    for probe in (cold, warm):
        ours = logits_of(probe, features).softmax(1)
        close(ours, expected, 2e-3)


def test_layers_and_strength_are_chosen_on_held_out_images():
    labels, test_labels = torch.arange(240) % 4, torch.arange(100) % 4
    layers, tests = torch.randn(3, 240, 6), torch.randn(3, 100, 6)
    # the last two layers know the classes only together
    for features, classes in ((layers, labels), (tests, test_labels)):
        features[1, :, 0] += 10 * (classes % 2)
        features[2, :, 0] += 10 * (classes // 2)
    choices = {"0": [0], "1": [1], "2": [-1], "both": [1, 2]}
    held_out = torch.arange(240) % 5 == 0
    logits, found = linear_probe(layers, labels, tests, held_out, 4, choices, L2_GRID)
    assert found["layers"] == "both"
    assert found["converged"]
    accuracies = found["held_out_accuracy"]
    assert accuracies.keys() == choices.keys()
    assert accuracies["both"] == max(accuracies.values())
    assert float((logits.argmax(1) == test_labels).float().mean()) > 0.95
    # which the test images have no part in
    others = 100 * tests.flip(1)
    assert linear_probe(layers, labels, others, held_out, 4, choices, L2_GRID)[1] == found
    # it is the fit to all training images, standardised by them
    bank, queries = standardised(*(torch.cat([of[1], of[2]], 1) for of in (layers, tests)))
    probe, _ = fit_probe(bank, labels, 4, found["strength"])
    again = logits_of(probe, queries).softmax(1)
    close(logits.softmax(1), again, 2e-3)


@pytest.mark.parametrize("every", [False, True])
def test_something_must_be_held_out_and_something_fitted(every):
    train, labels = blobs(40, 1.0)
    held_out = torch.full((40,), every)
    with pytest.raises(UserError, match="of 40 training images are held out"):
        linear_probe(train[None], labels, train[None], held_out, 4, LAST, L2_GRID)


def test_a_fit_that_runs_out_of_steps_says_so(monkeypatch):
    features, labels = blobs(200, 1.0)
    monkeypatch.setattr("vit.evaluation.probe.MOST_STEPS", 2)
    _, converged = fit_probe(features, labels, 4, 1e-5)
    assert not converged


def test_a_probe_of_fewer_images_than_dimensions_is_scikit_learns():
    (train, labels), (test, _) = blobs(60, 2.0, dim=200), blobs(50, 2.0, dim=200)
    held_out = torch.arange(60) % 3 == 0
    logits, _ = linear_probe(train[None], labels, test[None], held_out, 4, LAST, (1e-2,))
    train, test = standardised(train, test)
    theirs = LogisticRegression(C=1 / (1e-2 * 60), max_iter=2000, tol=1e-8).fit(train, labels)
    expected = torch.from_numpy(theirs.predict_proba(test)).float()
    close(logits.softmax(1), expected, 2e-3)


def test_strengths_too_weak_for_few_images_are_not_tried(monkeypatch):
    monkeypatch.setattr("vit.evaluation.probe.MOST_STEPS", 20)
    train, labels = blobs(120, 1.0)
    held_out = torch.arange(120) % 3 == 0
    found, fit = linear_probe(train[None], labels, train[None], held_out, 4, LAST, L2_GRID)
    tried = linear_probe(train[None], labels, train[None], held_out, 4, LAST, (1e-1, 1e-2))
    assert torch.equal(found, tried[0])
    assert fit == tried[1]
    # one at least is
    _, fit = linear_probe(train[None], labels, train[None], held_out, 4, LAST, (1e-9,))
    assert fit["strength"] == 1e-9


def test_held_out_images_have_no_part_in_the_standardisation():
    train, labels = blobs(120, 1.0)
    test, held_out = torch.randn(1, 10, 6), torch.arange(120) % 4 == 0
    train[held_out] *= 3
    _, found = linear_probe(train[None], labels, test, held_out, 4, LAST, (1e-2,))
    fitting, choosing = standardised(train[~held_out], train[held_out])
    probe, _ = fit_probe(fitting, labels[~held_out], 4, 1e-2)
    accuracy = (logits_of(probe, choosing).argmax(1) == labels[held_out]).float().mean()
    assert found["held_out_accuracy"]["the last"] == pytest.approx(float(accuracy))
