"""`vit bench`: time the training step against peers and the machine's limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal, get_args

from vit.bench.job import Job, JobOptions, Peer
from vit.cli.options import PrintsFigures, WritesFiles, naming_options, output_file, print_json, read_options, talk
from vit.config import ConfigError, Positive


@dataclass(frozen=True)
class BenchOptions(PrintsFigures, WritesFiles):
    """Time the training step in alternating rounds against the machine's own matrix products; with --peers against other
    libraries on the same job, with --ablation against itself without each technique."""

    patch: list[Positive] = field(default_factory=lambda: [4])
    """patch sizes in pixels"""
    precision: list[Literal["auto", "bf16", "fp32"]] = field(default_factory=lambda: ["auto"])
    """of the matrix products"""
    batch: list[Positive] = field(default_factory=lambda: [256])
    """images per step"""
    rounds: Positive = 7
    """rounds, with one step of each contestant"""
    peers: list[Peer] | None = None
    """time other libraries on the same job, all or some: pip install -e '.[bench]'"""
    ablation: bool = False
    """time ours without each technique"""
    scaling: bool = False
    """measure how cost grows with tokens, depth, width, batch, images"""
    plot: Path | None = None
    """draw the scaling: .png, .svg or .pdf"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plot is not None:
            if not self.scaling:
                raise ConfigError("--plot: draws the scaling; give --scaling too")
            output_file(self.plot, option="--plot", overwrite=self.overwrite)


OPTIONS = (BenchOptions, JobOptions)


def run(argv: Sequence[str]) -> int:
    """Run the benchmark."""
    options, job = read_options("vit bench", argv, *OPTIONS)
    if job.labels and (options.peers is not None or options.scaling):
        raise ConfigError(f"--objective: {job.objective} is timed alone; leave --peers and --scaling out")

    from vit.bench.report import bench

    varied = product(options.patch, options.precision, options.batch)
    jobs = [Job(**vars(job), patch=patch, precision=precision, batch=batch) for patch, precision, batch in varied]
    peers = () if options.peers is None else options.peers or get_args(Peer)
    with talk(options.json), naming_options():
        report = bench(jobs, options.rounds, peers, options.ablation, options.scaling, options.plot)
    if options.json:
        print_json(report)
    return 0
