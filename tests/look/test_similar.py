"""The nearest images are those of the largest cosines, as NumPy computes them."""

import numpy as np
import pytest
import torch

from vit.look.predict import nearest


def test_cosines_are_those_of_numpy():
    features = torch.randn(50, 8)
    query = torch.randn(8)
    found = nearest(features, query, 7)
    vectors = features.numpy().astype(np.float64)
    cosines = vectors @ query.double().numpy()
    cosines /= np.linalg.norm(vectors, axis=1) * np.linalg.norm(query.double().numpy())
    order = np.argsort(-cosines)
    assert found.numbers.tolist() == order[:7].tolist()
    np.testing.assert_allclose(found.similarities, cosines[order[:7]], rtol=1e-12)
    assert found.median == pytest.approx(np.median(cosines))


def test_length_does_not_matter_and_more_than_all_are_all():
    query = torch.tensor([1.0, 2.0])
    features = torch.stack([-query, 3 * query, torch.tensor([-2.0, 1.0]), torch.zeros(2)])
    found = nearest(features, query, 9)
    assert found.numbers.tolist() == [1, 2, 3, 0]
    torch.testing.assert_close(found.similarities, torch.tensor([1.0, 0, 0, -1]).double())
    assert found.similarities.abs().max() <= 1
