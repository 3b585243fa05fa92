"""`vit explore`: its options, and what is refused before a model is loaded."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from vit.cli.old_options import (
    CommandParser,
    loading_arguments,
    loading_parser,
    page_path,
    refuse_idle_options,
    shown_parser,
    whole,
)


def explore_parser() -> argparse.ArgumentParser:
    """The options of `vit explore`."""
    parser = CommandParser(
        prog="vit explore", allow_abbrev=False, parents=[loading_parser(), shown_parser()],
        description="Write one self-contained page to look around in a model's attention: it opens from disk, without"
        " a server or a network.",
    )  # fmt: skip
    parser.add_argument("--out", required=True, metavar="PAGE.html", help="file to write")
    parser.add_argument(
        "--layers", type=_numbers, metavar="N,N", help="only these: 0,5,-1, say; -1 is the last (default: all)"
    )
    parser.add_argument("--snapshots", action="store_true", help="a slider over a run's snapshots")
    parser.add_argument("--numbers", action="store_true", help="write the weights beside the page, as .npz")
    return parser


def run(argv: Sequence[str]) -> int:
    """Check the options and write the page."""
    parser = explore_parser()
    options = parser.parse_intermixed_args(list(argv))
    refuse_idle_options(options, parser)

    out = page_path(options.out)

    from vit.interpret.page import explore

    return explore(
        options.checkpoint, options.images, options.data, options.root, options.count, loading_arguments(options),
        out, options.layers, options.mask, options.seed, options.snapshots, options.numbers,
    )  # fmt: skip


def _numbers(text: str) -> list[int]:
    return [whole(part) for part in text.split(",")]
