"""Linear probe: how well a linear map separates classes by frozen features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.errors import UserError
from vit.evaluation.classification import accuracy
from vit.evaluation.features import standardised
from vit.progress import track

L2_GRID = tuple(10.0**power for power in range(-1, -6, -1))
"""L2 strengths to try, strongest first; each fit starts from the one before."""
MOST_STEPS = 1000
"""Steps of L-BFGS at the most."""
LEAST_REGULARISATION = 0.1
"""Least strength to try times the number of images; 1 is what scikit-learn's C = 1 gives.

On few images, less only makes a fit long: it separates them, and the weights grow.
"""
TOLERANCE = 1e-2
"""The gradient's norm at convergence, as a share of that of the regularisation alone."""


def fit_probe(
    features: Tensor,
    labels: Tensor,
    classes: int,
    strength: float,
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[tuple[Tensor, Tensor], bool]:
    """Fit multinomial logistic regression with L2 on the weights, to convergence.

    By L-BFGS over all images at once. A trained model's features are nearly collinear, and in their
    own coordinates a fit takes very many steps. So the weights are fitted in coordinates where all
    directions are about equally steep (a preconditioner); the optimum is the same.

    Args:
        features: standardised, (N, D).
        labels: (N,), below `classes`.
        strength: factor of half the weights' squared norm, which is added to the mean
            cross-entropy.
        start: the initial probe; None for zeros.

    Returns:
        The probe: weight (classes, D) and bias (classes,), float64; and whether the fit converged,
        that is ended because the gradient vanished, not for lack of steps.
    """
    # in float32, rounding hides the slope near the optimum of a weak regularisation
    features = features.double()
    dim = features.shape[1]
    identity = torch.eye(dim, dtype=torch.double)

    # The curvature of the cross-entropy at zero weights, and the root of the whole loss's. In terms
    # of weight @ root, the loss is about equally curved in every direction.
    curvature = (classes - 1) / classes**2 * features.T @ features / len(features)  # (D, D)
    root = torch.linalg.cholesky(curvature + strength * identity)  # (D, D)
    inverse_root = torch.linalg.solve_triangular(root, identity, upper=False)
    features = features @ inverse_root.T  # (N, D)

    # a neighbouring strength's solution is a good start
    weight, bias = start or (features.new_zeros(classes, dim), features.new_zeros(classes))
    scaled = (weight @ root).requires_grad_()
    bias = bias.clone().requires_grad_()

    # steps between two checks for convergence, which L-BFGS itself cannot do: it sees the gradient
    # of the scaled weights only
    steps = min(MOST_STEPS, 20)
    optimizer = torch.optim.LBFGS(
        [scaled, bias],
        max_iter=steps,
        max_eval=2 * steps,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        """Compute the loss and its gradient."""
        optimizer.zero_grad()
        with torch.enable_grad():
            weight = scaled @ inverse_root
            cross_entropy = F.cross_entropy(features @ scaled.T + bias, labels)
            value = cross_entropy + strength / 2 * weight.square().sum()
            value.backward()
        return value

    converged = False
    for _ in range(0, MOST_STEPS, steps):
        optimizer.step(loss)

        # the gradient with respect to the weights themselves, against that of the regularisation
        loss()
        assert scaled.grad is not None
        assert bias.grad is not None
        gradient = torch.cat([(scaled.grad @ root.T).flatten(), bias.grad])
        regularisation = strength * (scaled.detach() @ inverse_root).norm()
        converged = bool(gradient.norm() <= max(TOLERANCE * float(regularisation), 1e-9))
        if converged:
            break
    return ((scaled @ inverse_root).detach(), bias.detach()), converged


def fit_inputs(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Standardise features (N, D) and (M, D) for `fit_probe`; of few images, in their own span.

    The optimal weights lie in it, and among N < D coordinates a step is cheap.
    """
    train, test = standardised(train, test)
    if len(train) < train.shape[1]:
        basis = torch.linalg.qr(train.double().T).Q  # (D, N)
        return train.double() @ basis, test.double() @ basis
    return train, test


def logits_of(probe: tuple[Tensor, Tensor], features: Tensor) -> Tensor:
    """Map standardised features (N, D) to a probe's logits (N, classes)."""
    weight, bias = probe
    return (features.double() @ weight.T + bias).float()


def linear_probe(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    held_out: Tensor,
    classes: int,
    choices: Mapping[str, Sequence[int]],
    strengths: tuple[float, ...],
) -> tuple[Tensor, dict[str, Any]]:
    """Choose layers and strength on held-out training images, then measure the test images once.

    The final probe is fitted to all training images. Between equally good strengths the strongest
    wins, between equally good layers the first.

    Args:
        train, test: features of the training and test images, (layers, N, D) and (layers, M, D).
        labels: of the training images.
        held_out: bool (N,), training images to choose by, which only the final fit uses.
        classes: their number, including classes without a label here.
        choices: by name the indices of layers; the features of several stand side by side.
        strengths: to choose from, strongest first; all too weak for LEAST_REGULARISATION are left
            out.

    Returns:
        The test images' logits (M, classes), from a probe fitted to all training images; and how it
        was found: how many "labels", of which "held_out" chose; "layers" (a name of `choices`),
        "strength", "converged", and for each choice the best accuracy on held-out images,
        "held_out_accuracy".
    """
    count = int(held_out.sum())
    if count in (0, len(labels)):
        raise UserError(
            f"linear probe: {count} of {len(labels)} training images are held out; "
            "some must be, and not all: use more labels, or --method knn"
        )

    def side_by_side(features: Tensor, layers: Sequence[int]) -> Tensor:
        """Return (layers, N, D) as (N, D for each of these layers)."""
        return torch.cat([features[layer] for layer in layers], dim=1)

    least = LEAST_REGULARISATION / (len(labels) - count)
    strengths = tuple(strength for strength in strengths if strength >= least) or strengths[:1]

    # the best strength of each choice, by accuracy; each fit starts from the one before
    best: dict[str, tuple[float, float]] = {}
    fits = track(None, "linear probe", len(choices) * len(strengths) + 1, " fits")
    for name, layers in choices.items():
        features = side_by_side(train, layers)
        fitting, choosing = fit_inputs(features[~held_out], features[held_out])
        results = []
        probe = None
        for strength in strengths:
            probe, _ = fit_probe(fitting, labels[~held_out], classes, strength, probe)
            fits.update()
            results.append((accuracy(logits_of(probe, choosing), labels[held_out]), strength))
        best[name] = max(results)

    # the best layers, the first of equals, fitted to all training images
    name = max(best, key=lambda name: best[name][0])
    strength = best[name][1]
    of_both = [side_by_side(features, choices[name]) for features in (train, test)]
    fitting, testing = fit_inputs(*of_both)
    probe, converged = fit_probe(fitting, labels, classes, strength)
    fits.close()
    return logits_of(probe, testing), {
        "labels": len(labels),
        "held_out": count,
        "layers": name,
        "strength": strength,
        "converged": converged,
        "held_out_accuracy": {name: accuracy for name, (accuracy, _) in best.items()},
    }
