"""Contestants in processes of their own, in turn; a ratio that means nothing is not quoted."""

import os
from dataclasses import replace

import pytest
from small_jobs import MICRO

from bench.compare import Result, Spread, Worker
from bench.contestants import build
from bench.job import Job
from vit.errors import TrainingError


@pytest.mark.parametrize(
    ("values", "quartiles", "quotable"),
    [
        ([1, 2, 3, 4, 5], (2, 3, 4), False),
        ([1.0, 1.05, 1.1], (1.025, 1.05, 1.075), True),
        ([7.0], (7, 7, 7), True),
    ],
)
def test_ratio_of_pairs_that_differ_too_much_is_not_quoted(values, quartiles, quotable):
    spread = Spread.of_values(values)
    assert (spread.low, spread.median, spread.high) == pytest.approx(quartiles)
    assert spread.quotable is quotable
    assert ("too noisy to quote" in str(spread)) is not quotable
    assert (spread.to_dict()["median"] is None) is not quotable


def test_ratio_is_taken_round_by_round():
    """The machine may be three times slower in one round than in another: the pairs still agree."""
    ours, theirs = Result(MICRO, {}, [300.0, 100.0, 200.0]), Result(MICRO, {}, [150.0, 50.0, 100.0])
    assert ours.ratio_to(theirs) == Spread(2, 2, 2)


@pytest.mark.parametrize(
    ("peer", "near"),  # tables of positions count differently
    [("transformers", 0.02), ("transformers eager", 0.02), ("vit-pytorch", 0.1)],
)
def test_peers_do_the_same_job(peer, near):
    pytest.importorskip(peer.split()[0].replace("-", "_"))  # pip install -e '.[bench]'
    ours, theirs = build(MICRO), build(replace(MICRO, contestant=peer))
    assert theirs.parameters == pytest.approx(ours.parameters, rel=near)
    assert theirs.seconds_of_step() > 0


@pytest.mark.slow
def test_contestant_that_cannot_be_built_or_dies_is_one_line():
    with Worker(MICRO) as worker:
        with pytest.raises(
            TrainingError, match=r"^ours: model\.patch_size: \(5, 5\) cannot be used[^\n]*$"
        ):
            worker.ask(build, Job(patch=5))
        with pytest.raises(TrainingError, match=r"^ours: its process was killed[^\n]*$"):
            worker.ask(os._exit, 9)
