"""`python -m bench` as a whole: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import bench.report
from bench.__main__ import main

SMALL = """--preset micro --patch 8 --batch 4 --rounds 2 --precision fp32 --device cpu --threads 1
    --decoder-dim 24 --decoder-depth 1 --decoder-heads 2"""


@pytest.mark.slow
def test_report_is_printed_and_written(tmp_path, capsys, monkeypatch):
    few = ("products in fp32", "freed memory given back to the system", "torch.compile")
    # so it is left out
    monkeypatch.setattr(bench.report, "missing_for_compile", lambda device: "a compiler")
    monkeypatch.setattr(
        bench.report, "ABLATIONS", {name: bench.report.ABLATIONS[name] for name in few}
    )
    written = tmp_path / "report.json"
    assert main([*SMALL.split(), "--ablation", "--json", str(written)]) == 0
    printed = capsys.readouterr().out

    # The step
    report = json.loads(written.read_text())
    (step,) = report["steps"]
    ours, whole, ceiling, *ablated = step["contestants"].values()
    assert ceiling["job"]["contestant"] == "ceiling"
    assert (ours["job"]["with_data"], whole["job"]["with_data"]) == (False, True)
    assert report["rounds"] == 2
    for contestant in step["contestants"].values():
        assert len(contestant["images_per_second"]) == 2
        assert min(contestant["images_per_second"]) > 0
        assert 50 < contestant["peak_mb"] < 20_000
        assert contestant["about"]["threads"] == 1
    assert min(step["ceiling_gflops"]["quartiles"]) > 0
    assert 0 < min(step["share_of_ceiling"]["quartiles"]) < 1.5
    assert step["job"]["precision"] == "fp32"
    assert sum(ours["profile"].values()) == pytest.approx(1)
    assert ours["profile"]["products"] > 0.05
    assert not whole["profile"]
    # products in fp32 would be no change
    (other,) = ablated
    assert (other["about"]["precision"], other["job"]["allocator"]) == ("fp32", False)
    assert {"device", "threads", "versions", "date"} == set(report["machine"])
    assert re.search(r"ceiling +[\d,]+ GFLOP/s", printed)
    assert "of the ceiling" in printed
    assert "one choice changed:" in printed
    rates = zip(step["contestants"], step["contestants"].values(), strict=True)
    faster = [
        name.removeprefix("- ")
        for name, found in rates
        if name.startswith("-")
        and all(np.greater(found["images_per_second"], ours["images_per_second"]))
    ]
    assert f"faster than ours in every round: {', '.join(faster) or 'none of these'}\n" in printed
    assert max(map(len, printed.splitlines())) <= 128
