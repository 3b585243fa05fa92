"""`python -m bench` as a whole: what it prints, what it writes, what it refuses."""

import json

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
    (step,) = json.loads(written.read_text())["steps"]
    ours, whole, ceiling, *ablated = step["contestants"].values()
    assert ceiling["job"]["contestant"] == "ceiling"
    assert (ours["job"]["with_data"], whole["job"]["with_data"]) == (False, True)
    for contestant in step["contestants"].values():
        assert len(contestant["images_per_second"]) == 2
        assert min(contestant["images_per_second"]) > 0
        assert contestant["about"]["threads"] == 1
    assert 0 < min(step["share_of_ceiling"]["quartiles"]) < 1.5
    assert sum(ours["profile"].values()) == pytest.approx(1)
    # products in fp32 would be no change
    (other,) = ablated
    assert (other["about"]["precision"], other["job"]["allocator"]) == ("fp32", False)
    assert "of the ceiling" in printed
    assert "one choice changed:" in printed
