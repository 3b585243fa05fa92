"""Linear probe: how well a linear map separates classes by frozen features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.evaluate.classification import accuracy
from vit.evaluate.features import EvaluationError, standardised
from vit.progress import work_bar

L2_GRID = tuple(10.0**power for power in range(-1, -6, -1))
"""L2 strengths to try, strongest first; each fit starts from the one before."""
MOST_STEPS, TOLERANCE = 1000, 1e-2
"""L-BFGS: most steps, and the gradient's norm at convergence, as a share of that of the regularisation alone."""


@dataclass(frozen=True)
class Probe:
    """A linear classifier of standardised features.

    Attributes:
        weight: float64 (classes, D).
        bias: float64 (classes,).
        converged: whether the fit ended because the gradient vanished, not because it ran out of steps.
    """

    weight: Tensor
    bias: Tensor
    converged: bool

    def __call__(self, features: Tensor) -> Tensor:
        """Map standardised features (N, D) to logits (N, classes)."""
        return (features.double() @ self.weight.T + self.bias).float()


@dataclass(frozen=True)
class ProbeResult:
    """The result of a linear probe.

    Attributes:
        layer: index of the chosen layer.
        strength: the chosen L2 regularisation.
        held_out: for each layer, the best accuracy on held-out training images, and its strength.
        logits: (N, classes) of the test images, from a probe fitted to all training images.
        converged: whether that fit converged.
    """

    layer: int
    strength: float
    held_out: list[tuple[float, float]]
    logits: Tensor
    converged: bool


def fit_probe(
    features: Tensor,
    labels: Tensor,
    classes: int,
    strength: float,
    start: Probe | None = None,
    pulse: Callable[[], None] | None = None,
) -> Probe:
    """Fit multinomial logistic regression with L2 on the weights, to convergence, by L-BFGS over all images at once.

    A trained model's features are nearly collinear, and in their own coordinates a fit takes very many steps. So the weights
    are fitted in coordinates where all directions are about equally steep; the optimum is the same.

    Args:
        features: standardised.
        labels: below `classes`.
        strength: factor of half the weights' squared norm, which is added to the mean cross-entropy.
        start: the initial probe; None for zeros.
        pulse: called often during the fit.
    """
    features = (
        features.double()
    )  # in float32, rounding hides the slope near the optimum of a weak regularisation
    identity = torch.eye(features.shape[1], dtype=torch.double)
    # of the cross-entropy, at zero weights: (D, D)
    curvature = (classes - 1) / classes**2 * features.T @ features / len(features)
    steepness = torch.linalg.cholesky(
        curvature + strength * identity
    )  # (D, D); scaled = weight @ steepness
    back = torch.linalg.solve_triangular(steepness, identity, upper=False)
    features = features @ back.T
    scaled = (
        torch.zeros(classes, len(back), dtype=torch.double)
        if start is None
        else start.weight @ steepness
    )
    bias = torch.zeros(classes, dtype=torch.double) if start is None else start.bias.clone()
    parameters = [scaled.requires_grad_(), bias.requires_grad_()]
    steps = min(
        MOST_STEPS, 20
    )  # between checks of the gradient with respect to the weights themselves
    settings: dict[str, Any] = dict(
        tolerance_grad=0.0, tolerance_change=0.0, history_size=20, line_search_fn="strong_wolfe"
    )
    optimizer = torch.optim.LBFGS(parameters, max_iter=steps, max_eval=2 * steps, **settings)

    def loss() -> Tensor:
        if pulse is not None:
            pulse()
        optimizer.zero_grad()
        with torch.enable_grad():
            weight = scaled @ back
            value = (
                F.cross_entropy(features @ scaled.T + bias, labels)
                + strength / 2 * weight.square().sum()
            )
            value.backward()
        return value

    converged = False
    for _ in range(0, MOST_STEPS, steps):
        optimizer.step(loss)
        loss()
        assert scaled.grad is not None
        assert bias.grad is not None
        length = torch.cat([(scaled.grad @ steepness.T).flatten(), bias.grad]).norm()
        pull = strength * (scaled.detach() @ back).norm()
        converged = bool(length <= max(TOLERANCE * float(pull), 1e-9))
        if converged:
            break
    return Probe((scaled @ back).detach(), bias.detach(), converged)


def linear_probe(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    held_out: Tensor,
    classes: int,
    strengths: tuple[float, ...] = L2_GRID,
) -> ProbeResult:
    """Choose layer and strength on held-out training images, fit to all training images, and look at the test images once.

    Between equally good strengths the strongest wins, between equally good layers the first.

    Args:
        train, test: features of the training and test images, (layers, N, D) and (layers, M, D).
        labels: of the training images.
        held_out: bool (N,), training images to choose by, which only the final fit uses.
        classes: their number, including classes without a label here.
        strengths: to choose from, strongest first.

    Raises:
        EvaluationError: there is nothing to fit, or nothing held out.
    """
    if not bool(held_out.any()) or bool(held_out.all()):
        held = f"{int(held_out.sum())} of {len(labels)} training images are held out"
        raise EvaluationError(
            f"linear probe: {held}; some must be, and not all: use more labels, or --method knn"
        )

    # The best strength of each layer
    best: list[tuple[float, float]] = []
    fits = work_bar("linear probe", len(train) * len(strengths) + 1, " fits")
    for features in train:
        fitting, choosing = standardised(features[~held_out], features[held_out])
        probe, found = None, []
        for strength in strengths:
            probe = fit_probe(
                fitting, labels[~held_out], classes, strength, probe, lambda: fits.update(0)
            )
            fits.update()
            found.append((accuracy(probe(choosing), labels[held_out]), strength))
        best.append(max(found))

    # The best layer, fitted to all training images
    layer = max(range(len(best)), key=lambda index: best[index][0])
    strength = best[layer][1]
    fitting, testing = standardised(train[layer], test[layer])
    probe = fit_probe(fitting, labels, classes, strength, pulse=lambda: fits.update(0))
    fits.close()
    return ProbeResult(layer, strength, best, probe(testing), probe.converged)
