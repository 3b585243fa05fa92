"""The battery: many random tries of what must always hold, each a test with random numbers of its own.

    pytest -m slow tests/battery --battery-tries 10 --battery-seed 1

tries ten times as often as .ci/run does, with other random numbers.
"""

import random

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tries(n): how often a test of the battery tries")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "draw" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("tries")
        tries = mark.args[0] * metafunc.config.getoption("--battery-tries")
        metafunc.parametrize("draw", range(max(1, round(tries))), indirect=True)


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    """The random numbers of a try."""
    return random.Random(f"{request.config.getoption('--battery-seed')} {request.param}")
