"""`python -m bench`: read the options, and time the training step."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import product

from bench.job import Job
from vit.atomic import make_folder, write_json
from vit.commandline import OneLineParser, Place, output_file, start, typed
from vit.config import OBJECTIVES, PRESETS, BelowOne, Positive
from vit.errors import ConfigError

PROGRAM = "python -m bench"
PEERS = ("vit-pytorch", "transformers", "transformers eager")
WHAT = (
    "Time the training step in alternating rounds against the machine's own matrix products;"
    " with --peers against other libraries on the same job, with --ablation against itself without"
    " each technique."
)


def bench_parser() -> argparse.ArgumentParser:
    """Return the parser of all options."""
    positive = typed(Positive)
    parser = OneLineParser(prog=PROGRAM, description=WHAT, allow_abbrev=False)

    # Several values of these: each combination is timed
    add = parser.add_argument
    add(
        "--patch",
        type=positive,
        nargs="+",
        default=[4],
        metavar="N",
        help="patch sizes in pixels (default 4)",
    )
    add(
        "--precision",
        nargs="+",
        default=["auto"],
        choices=("auto", "bf16", "fp16", "fp32"),
        help="of the matrix products",
    )
    add(
        "--batch",
        type=positive,
        nargs="+",
        metavar="N",
        help="images per step; by default 256, with --gpu-check also 1024 and 4096",
    )

    # The job
    add(
        "--objective",
        choices=tuple(OBJECTIVES),
        default="reconstruct",
        help="classify: with every augmentation (default reconstruct)",
    )
    add(
        "--preset",
        choices=tuple(PRESETS),
        default="tiny",
        help="size of the encoder (default tiny)",
    )
    add("--image-size", type=positive, default=32, metavar="N", help="pixels (default 32)")
    add(
        "--mask-ratio",
        type=typed(BelowOne),
        default=0.75,
        metavar="X",
        help="fraction of the patches to mask (default 0.75)",
    )
    add(
        "--decoder-dim",
        type=positive,
        default=192,
        metavar="N",
        help="width of the decoder (default 192)",
    )
    add(
        "--decoder-depth",
        type=positive,
        default=4,
        metavar="N",
        help="layers of the decoder (default 4)",
    )
    add(
        "--decoder-heads",
        type=positive,
        default=3,
        metavar="N",
        help="heads of the decoder (default 3)",
    )
    add(
        "--no-class-token",
        dest="class_token",
        action="store_false",
        help="leave the class token out, as vit-pytorch does",
    )
    add("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help="where to run")
    add(
        "--compile",
        choices=("auto", "on", "off"),
        default="auto",
        help="torch.compile for ours (default auto: on a GPU that can)",
    )
    add("--threads", type=int, default=0, metavar="N", help="CPU threads; 0: torch's choice")

    # Actions
    add(
        "--rounds",
        type=positive,
        default=7,
        metavar="N",
        help="with one step of each contestant (default 7)",
    )
    add(
        "--peers",
        nargs="*",
        choices=PEERS,
        help="other libraries, all or some: pip install -e '.[bench]'",
    )
    add("--ablation", action="store_true", help="time ours without each technique")
    add(
        "--gpu-check",
        action="store_true",
        help="run the checks that need a GPU (three minutes), print a table, and time nothing else",
    )
    add("--json", type=typed(Place), metavar="FILE", help="write all measurements")
    add("--overwrite", action="store_true", help="replace existing files")
    return parser


def refuse_beside_gpu_check(options: argparse.Namespace) -> None:
    """Refuse options that --gpu-check does not read: it checks one pretraining, in all modes.

    Raises:
        ConfigError: naming the option.
    """
    if OBJECTIVES[options.objective].labels:
        raise ConfigError("--objective: --gpu-check is of pretraining; leave it out")
    if options.peers is not None or options.ablation:
        raise ConfigError("--peers, --ablation: not read beside --gpu-check; leave them out")
    if options.compile != "auto":
        raise ConfigError("--compile: --gpu-check tries each way; leave it out")
    for name in ("patch", "precision"):
        if len(getattr(options, name)) > 1:
            raise ConfigError(f"--{name}: --gpu-check takes one")


def run(argv: Sequence[str]) -> int:
    """Read the options and run the benchmark."""
    options = bench_parser().parse_args(argv)

    # Refuse what cannot be done before anything is timed
    if OBJECTIVES[options.objective].labels and options.peers is not None:
        raise ConfigError(f"--objective: {options.objective} is timed alone; leave --peers out")
    if options.gpu_check:
        refuse_beside_gpu_check(options)
    if options.json is not None:
        output_file(options.json, (".json",), option="--json", overwrite=options.overwrite)

    batches = options.batch
    if batches is None:
        batches = [256]
        if options.gpu_check:
            batches = [256, 1024, 4096]

    # Every combination is a job
    job_settings = {
        name: getattr(options, name)
        for name in (
            "objective",
            "preset",
            "image_size",
            "mask_ratio",
            "decoder_dim",
            "decoder_depth",
            "decoder_heads",
            "class_token",
            "device",
            "compile",
            "threads",
        )
    }
    jobs = []
    for patch, precision, batch in product(options.patch, options.precision, batches):
        jobs.append(Job(**job_settings, patch=patch, precision=precision, batch=batch))
    peers = options.peers
    if peers == []:
        peers = PEERS

    # These import torch, which reads the environment that `start` has set
    if options.gpu_check:
        from bench.gpu_check import gpu_check

        report = gpu_check(jobs[0], batches, options.rounds)
    else:
        from bench.report import bench

        report = bench(jobs, options.rounds, peers or (), options.ablation)
    if options.json is not None:
        make_folder(options.json.parent)
        write_json(options.json, report)
    # a failed check is also the exit code
    return int(bool(report.get("failed")))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    return start(PROGRAM, run, words)


if __name__ == "__main__":
    sys.exit(main())
