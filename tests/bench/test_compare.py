"""Contestants in processes of their own, in turn; a ratio that means nothing is not quoted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vit.bench.compare import Result, Spread, compare
from vit.bench.job import Job
from vit.bench.worker import GROUPS, BenchError, Worker, shares

MICRO = Job(
    preset="micro", depth=1, patch=8, batch=8, precision="fp32", decoder_dim=24, decoder_depth=1, decoder_heads=2,
    images=64, threads=1, device="cpu",
)  # fmt: skip


def test_spread_is_the_quartiles():
    spread = Spread.of([1, 2, 3, 4, 5])
    assert (spread.low, spread.median, spread.high) == (2, 3, 4)
    assert Spread.of([7.0]) == Spread(7, 7, 7)


@pytest.mark.parametrize(("values", "quotable"), [([1.0, 1.05, 1.1], True), ([1.0, 1.5, 2.0], False)])
def test_ratio_of_pairs_that_differ_too_much_is_not_quoted(values, quotable):
    spread = Spread.of(values)
    assert spread.quotable is quotable
    assert ("too noisy to quote" in str(spread)) is not quotable
    assert (spread.to_dict()["median"] is None) is not quotable
    assert ("reason" in spread.to_dict()) is not quotable


def test_ratio_is_taken_round_by_round():
    """The machine may be three times slower in one round than in another: the pairs still agree."""
    ours, theirs = Result(MICRO, {}, [300.0, 100.0, 200.0]), Result(MICRO, {}, [150.0, 50.0, 100.0])
    assert ours.ratio_to(theirs) == Spread(2, 2, 2)


def test_shares_are_of_all_the_time_and_each_operator_counts_once():
    events = {"aten::addmm": 4.0, "aten::bmm": 2.0, "aten::_softmax": 1.0, "aten::copy_": 1.0, "aten::magic": 2.0}
    found = shares(events)
    assert found == pytest.approx(
        {**dict.fromkeys(GROUPS, 0), "products": 0.4, "attention": 0.3, "copies": 0.1, "other": 0.2}
    )
    assert shares({"aten::native_layer_norm_backward": 1.0})["normalisation"] == 1
    assert shares({"aten::_fused_adamw_": 3.0, "aten::gelu_backward": 1.0})["optimizer"] == 0.75


@pytest.mark.slow
def test_contestants_take_turns_and_switches_reach_them():
    jobs = [
        MICRO,
        replace(MICRO, with_data=True),
        replace(MICRO, run={"grad_accum_steps": 4, "attention": "flash"}),
    ]
    results = compare(jobs, rounds=3, profiled=True)
    assert [len(result.images_per_second) for result in results] == [3, 3, 3]
    assert all(rate > 0 for result in results for rate in result.images_per_second)
    assert all(50 < result.peak_mb < 20_000 for result in results)
    assert [result.about["about"].partition(" parts")[0][-1] for result in results] == ["1", "1", "4"]
    assert ["attention flash" in result.about["about"] for result in results] == [False, False, True]
    assert {result.about["threads"] for result in results} == {1}
    assert sum(results[0].profile.values()) == pytest.approx(1)
    assert results[0].profile["products"] > 0.05
    assert results[1].profile is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("peer", "package", "near"),  # their position tables do not count alike
    [
        ("transformers", "transformers", 0.02),
        ("transformers eager", "transformers", 0.02),
        ("vit-pytorch", "vit_pytorch", 0.1),
    ],
)
def test_peer_does_the_same_job(peer, package, near):
    pytest.importorskip(package, reason="comes with pip install -e '.[bench]'")
    with Worker(MICRO) as ours, Worker(replace(MICRO, contestant=peer)) as theirs:
        assert theirs.about["parameters"] == pytest.approx(ours.about["parameters"], rel=near)
        assert theirs.step()["seconds"] > 0


@pytest.mark.slow
def test_contestant_that_cannot_be_built_is_one_line():
    with pytest.raises(BenchError, match=r"^ours: model\.patch_size: 5 cannot be used[^\n]*$"):
        Worker(Job(patch=5))


@pytest.mark.slow
def test_contestant_that_dies_is_one_line():
    with Worker(MICRO) as worker:
        worker._process.kill()
        worker._process.join()
        with pytest.raises(BenchError, match=r"^ours: its process ended: -9$"):
            worker.step()
