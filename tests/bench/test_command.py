"""`vit bench` as a whole: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import vit.bench.report
import vit.bench.scaling
from vit.cli import main

SMALL = """bench --preset micro --patch 8 --batch 4 --rounds 2 --precision fp32 --device cpu --threads 1
    --decoder-dim 24 --decoder-depth 1 --decoder-heads 2"""


@pytest.mark.slow
def test_report_is_printed_and_written(tmp_path, capsys, monkeypatch):
    few = ("products in bf16", "products in fp32", "freed memory given back to the system", "torch.compile")
    monkeypatch.setattr(vit.bench.report, "missing_for_compile", lambda device: "a compiler")  # so it is left out
    monkeypatch.setattr(vit.bench.report, "ABLATIONS", {name: vit.bench.report.ABLATIONS[name] for name in few})
    axes = {"batch": ("batch", (2, 4)), "images": ("images", (16, 32))}
    monkeypatch.setattr(vit.bench.report, "AXES", axes)
    monkeypatch.setattr(vit.bench.scaling, "AXES", axes)
    plot = tmp_path / "scaling.svg"
    assert main([*SMALL.split(), "--ablation", "--scaling", "--plot", str(plot), "--json"]) == 0
    out, printed = capsys.readouterr()

    # The step
    report = json.loads(out)
    (step,) = report["steps"]
    ours, whole, ceiling, *ablated = step["contestants"].values()
    assert ceiling["job"]["contestant"] == "ceiling"
    assert (ours["job"]["with_data"], whole["job"]["with_data"]) == (False, True)
    assert len(ours["images_per_second"]) == report["rounds"] == 2
    assert min(step["ceiling_gflops"]["quartiles"]) > 0
    assert 0 < min(step["share_of_ceiling"]["quartiles"]) < 1.5
    assert step["job"]["precision"] == "fp32"
    assert sum(ours["profile"].values()) == pytest.approx(1)
    assert [each["about"]["precision"] for each in ablated] == ["bf16", "fp32"]  # in fp32 would be no change
    assert [each["job"]["allocator"] for each in ablated] == [True, False]
    assert {"device", "threads", "versions", "date"} == set(report["machine"])
    assert re.search(r"ceiling +[\d,]+ GFLOP/s", printed)
    assert "of the ceiling" in printed
    assert "one choice changed:" in printed
    ours, whole, ceiling, *ablated = step["contestants"].values()
    rates = zip(step["contestants"], step["contestants"].values(), strict=True)
    faster = [
        name.removeprefix("- ")
        for name, found in rates
        if name.startswith("-") and all(np.greater(found["images_per_second"], ours["images_per_second"]))
    ]
    assert f"faster than ours in every round: {', '.join(faster) or 'none of these'}\n" in printed
    assert max(map(len, printed.splitlines())) <= 128

    # How it grows
    scaling = report["scaling"]
    assert set(scaling) == {"batch", "images"}
    assert [axis["expected_slope"] for axis in scaling.values()] == pytest.approx([1, 1])
    assert all(seconds > 0 for axis in scaling.values() for seconds in axis["seconds"])
    assert printed.count("/ 1.00") == 2
    assert "<svg" in plot.read_text()
