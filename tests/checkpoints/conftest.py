"""What tests of checkpoints share."""

import pytest
import torch
from torch import Tensor


@pytest.fixture
def images() -> Tensor:
    """Two images of the size that the models of small.py take."""
    return torch.randn(2, 3, 16, 16)
