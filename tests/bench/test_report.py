"""`vit bench` as a whole: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
import re

import pytest

import vit.bench.report
from vit.cli import main

SMALL = ["--preset", "micro", "--patch", "8", "--batch", "4", "--rounds", "2", "--precision", "fp32", "--device", "cpu",
         "--decoder-dim", "24", "--decoder-depth", "1", "--decoder-heads", "2", "--threads", "1"]  # fmt: skip


@pytest.mark.slow
def test_report_is_printed_and_written(tmp_path, capsys, monkeypatch):
    few = ("products in bf16", "products in fp32", "freed memory given back to the system")
    monkeypatch.setattr(vit.bench.report, "ABLATIONS", {name: vit.bench.report.ABLATIONS[name] for name in few})
    path = tmp_path / "bench.json"
    assert main(["bench", *SMALL, "--ablation", "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    (step,) = report["steps"]
    ours, whole, ceiling = step["contestants"]
    assert ceiling["job"]["contestant"] == "ceiling"
    assert (ours["job"]["with_data"], whole["job"]["with_data"]) == (False, True)
    assert len(ours["images_per_second"]) == report["rounds"] == 2
    assert min(step["ceiling_gflops"]["quartiles"]) > 0
    assert 0 < min(step["share_of_ceiling"]["quartiles"]) < 1.5
    assert step["precision"] == "fp32"
    assert sum(step["profile"].values()) == pytest.approx(1)
    assert "products in bf16" in step["ablations"]
    assert "products in fp32" not in step["ablations"]  # that is no change
    assert step["ablations"]["products in bf16"]["about"]["precision"] == "bf16"
    assert step["ablations"]["freed memory given back to the system"]["job"]["allocator"] is False
    assert {"device", "cores", "threads", "versions", "date"} == set(report["machine"])
    printed = capsys.readouterr().out
    assert re.search(r"ceiling +[\d,]+ GFLOP/s", printed)
    assert "of the ceiling" in printed
    assert "one choice changed:" in printed
    assert max(map(len, printed.splitlines())) <= 128


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--patch", "5"], "model.patch_size"),
        (["--patch", "0"], "--patch: 0"),
        (["--rounds", "0"], "--rounds: 0"),
        (["--mask-ratio", "1"], "--mask-ratio: 1.0"),
        (["--precision", "fp8"], "--precision"),
        (["--peers", "nobody"], "--peers"),
        (["--wrong"], "--wrong"),
        (["--plot", "a.png"], "--scaling"),
        (["--json", "/dev/null/a.json"], "/dev/null is not a folder"),
        (["--scaling", "--plot", "a.jpg"], "--plot: 'a.jpg'"),
        (["--batch", "x"], "--batch"),
        (["--threads", "-1"], "--threads: -1"),
        (["--json", "/"], "is a folder"),
        (["--objective", "classify", "--peers"], "--objective: classify is timed alone"),
        (["--objective", "classify", "--scaling"], "--objective: classify is timed alone"),
        (["--scaling", "--image-size", "36", "--patch", "4"], "model.patch_size: 8"),
    ],
)
def test_what_cannot_be_done_is_one_line(argv, says, capsys):
    assert main(["bench", *argv]) == 2
    captured = capsys.readouterr()
    assert re.fullmatch(r"vit: error: [^\n]+\n", captured.err)
    assert says in captured.err
