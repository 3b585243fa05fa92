"""The card's checklist: every row comes out on the CPU too, and a fault in one row leaves the others."""

import pytest
from small_jobs import MICRO

import bench.gpu_check
from bench.gpu_check import CONFIGURATIONS, _run, gpu_check
from vit.training.loop import train_steps


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations_train(name):
    steps = train_steps(_run(MICRO, CONFIGURATIONS[name], batch=8, steps=2))
    assert [done.step for done in steps] == [1, 2]


@pytest.mark.slow
def test_table_on_a_cpu(monkeypatch):
    # compiling takes a minute, and is the same for a CPU that has a compiler
    monkeypatch.setattr(bench.gpu_check, "missing_for_compile", lambda device: "a compiler")
    monkeypatch.setattr(bench.gpu_check, "find_spec", lambda name: None)
    # each of them is trained above
    few = dict(list(CONFIGURATIONS.items())[:2])
    monkeypatch.setattr(bench.gpu_check, "CONFIGURATIONS", few)
    report = gpu_check(MICRO, batches=[8], rounds=1)
    assert report["failed"] == 0

    rows = dict(report["rows"])
    assert len(rows) == len(few) + 4
    assert rows["two processes = one"].startswith("losses differ by")
    assert rows["images/s, batch 8"].startswith("not compiled ")
