"""Runs that tests of the pages share."""

from pathlib import Path

import pytest
from small_runs import make_run


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory) -> Path:
    """A finished pretraining with snapshots, that recorded its dynamics; not to be changed."""
    return make_run(tmp_path_factory.mktemp("runs") / "pretrained", dynamics_every=2, pictures=True)


@pytest.fixture(scope="session")
def classifier(tmp_path_factory) -> Path:
    """A finished classification with snapshots and pictures; not to be changed."""
    return make_run(tmp_path_factory.mktemp("runs") / "classifier", "classify", pictures=True)
