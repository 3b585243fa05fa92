"""`vit bench`: its options, and what is refused before anything is timed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from vit.cli.old_options import CommandParser, picture_path, require_folder
from vit.config import OBJECTIVES, PRESETS, ConfigError

PEERS = ("vit-pytorch", "transformers", "transformers eager")


def bench_parser() -> argparse.ArgumentParser:
    """The options of `vit bench`."""
    parser = CommandParser(
        prog="vit bench", allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Time the training step, in alternating rounds, beside the machine's own matrix products, with --peers"
        " beside other libraries on the same job, and with --ablation beside itself without each technique.",
    )  # fmt: skip
    parser.add_argument(
        "--objective", choices=[*OBJECTIVES], default=next(iter(OBJECTIVES)), help="pretraining, or fine-tuning"
    )
    parser.add_argument("--preset", choices=[*PRESETS], default="tiny", help="encoder")
    parser.add_argument("--patch", type=int, nargs="+", default=[4], help="patch sizes in pixels")
    parser.add_argument(
        "--precision", nargs="+", choices=["auto", "bf16", "fp32"], default=["auto"], help="of the products"
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[256], help="images a step")
    parser.add_argument("--image-size", type=int, default=32, help="pixels")
    parser.add_argument("--mask-ratio", type=float, default=0.75, help="share of the patches that is hidden")
    parser.add_argument("--decoder-dim", type=int, default=192, help="width of the decoder")
    parser.add_argument("--decoder-depth", type=int, default=4, help="blocks of the decoder")
    parser.add_argument("--decoder-heads", type=int, default=3, help="heads of the decoder")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], default="auto", help="where")
    parser.add_argument("--compile", choices=["auto", "on", "off"], default="off", help="torch.compile, of ours")
    parser.add_argument("--threads", type=int, default=0, help="on the CPU; 0: torch's choice")
    parser.add_argument("--rounds", type=int, default=7, help="how often each contestant has its turn, a step each")
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=[], metavar="NAME",
        help=f"others on the same job, all or some of {', '.join(PEERS)}: pip install -e '.[bench]'",
    )  # fmt: skip
    parser.add_argument("--ablation", action="store_true", help="ours without each technique")
    parser.add_argument(
        "--scaling", action="store_true", help="how cost grows with tokens, depth, width, batch, images"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the scaling: .png, .svg or .pdf")
    parser.add_argument("--json", metavar="FILE", help="write all that was measured")
    return parser


def run(argv: Sequence[str]) -> int:
    """Check the options and time what they ask for."""
    options = bench_parser().parse_args(list(argv))
    if "--peers" in argv:
        options.peers = options.peers or list(PEERS)
    for key in ("rounds", "image_size", "decoder_dim", "decoder_depth", "decoder_heads"):
        _positive(key, getattr(options, key))
    for key in ("patch", "batch"):
        for value in getattr(options, key):
            _positive(key, value)
    if options.threads < 0:
        raise ConfigError(f"--threads: {options.threads} cannot be used; 0 or a number of threads")
    if OBJECTIVES[options.objective].labels and (options.peers or options.scaling):
        raise ConfigError("--objective: classify is timed alone; leave --peers and --scaling out")
    if options.plot and not options.scaling:
        raise ConfigError("--plot: draws the scaling; give --scaling too")
    if options.plot:
        picture_path("--plot", options.plot)
    if options.json:
        if Path(options.json).is_dir():
            raise ConfigError(f"--json: {options.json!r} is a folder; name a file")
        require_folder(Path(options.json).parent, "--json")

    from vit.bench.report import bench

    bench(options)
    return 0


def _positive(key: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"--{key.replace('_', '-')}: {value} cannot be used; a positive number is needed")
