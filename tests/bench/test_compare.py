"""Contestants in processes of their own, in turn; a ratio that means nothing is not quoted."""

from __future__ import annotations

import atexit
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bench.compare import GROUPS, Result, Spread, Worker, shares
from bench.contestants import build
from bench.job import Job

DECODER = dict(decoder_dim=24, decoder_depth=1, decoder_heads=2)
MICRO = Job(
    preset="micro",
    patch=8,
    batch=8,
    precision="fp32",
    images=64,
    threads=1,
    device="cpu",
    **DECODER,
)


HERE = replace(MICRO, threads=0)
"""In the process of the tests, whose threads stay."""


@pytest.mark.parametrize(
    ("values", "quartiles", "quotable"),
    [
        ([1, 2, 3, 4, 5], (2, 3, 4), False),
        ([1.0, 1.05, 1.1], (1.025, 1.05, 1.075), True),
        ([7.0], (7, 7, 7), True),
    ],
)
def test_ratio_of_pairs_that_differ_too_much_is_not_quoted(values, quartiles, quotable):
    spread = Spread.of(values)
    assert (spread.low, spread.median, spread.high) == pytest.approx(quartiles)
    assert spread.quotable is quotable
    assert ("too noisy to quote" in str(spread)) is not quotable
    assert (spread.to_dict()["median"] is None) is not quotable


def test_ratio_is_taken_round_by_round():
    """The machine may be three times slower in one round than in another: the pairs still agree."""
    ours, theirs = Result(MICRO, {}, [300.0, 100.0, 200.0]), Result(MICRO, {}, [150.0, 50.0, 100.0])
    assert ours.ratio_to(theirs) == Spread(2, 2, 2)


def test_shares_are_of_all_the_time_and_each_operator_counts_once():
    events = {
        "aten::addmm": 4.0,
        "aten::bmm": 2.0,
        "aten::_softmax": 1.0,
        "aten::copy_": 1.0,
        "aten::magic": 2.0,
    }
    found = shares(events)
    assert found == pytest.approx(
        {**dict.fromkeys(GROUPS, 0), "products": 0.4, "attention": 0.3, "copies": 0.1, "other": 0.2}
    )
    assert shares({"aten::native_layer_norm_backward": 1.0})["normalisation"] == 1
    assert shares({"aten::_fused_adamw_": 3.0, "aten::gelu_backward": 1.0})["optimizer"] == 0.75


@pytest.mark.parametrize(
    ("peer", "near"),  # tables of positions count differently
    [("transformers", 0.02), ("transformers eager", 0.02), ("vit-pytorch", 0.1)],
)
def test_peers_do_the_same_job(peer, near):
    pytest.importorskip(peer.split()[0].replace("-", "_"))  # pip install -e '.[bench]'
    ours, theirs = build(HERE), build(replace(HERE, contestant=peer))
    assert theirs.parameters == pytest.approx(ours.parameters, rel=near)
    assert theirs.seconds_of_step() > 0


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_a_process_ends_by_itself_but_is_killed_at_its_work_when_another_failed(tmp_path, fails):
    with suppress(KeyError), Worker(MICRO) as worker:
        worker.ask(atexit.register, Path.touch, tmp_path / "ended")
        if fails:
            worker._pool.submit(time.sleep, 20)
            raise KeyError
    assert (tmp_path / "ended").exists() is not fails
