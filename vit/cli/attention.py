"""`vit attention`: its options, and which of them mean something for which method."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from vit.cli.old_options import (
    CommandParser,
    loading_arguments,
    loading_parser,
    refuse_idle_options,
    require_folder,
    share,
    shown_parser,
    whole,
)
from vit.config import ConfigError

MEANT = {
    "weights": {"layer", "head", "query", "mask", "keep", "film", "overlay", "scale"},
    "rollout": {"layer", "query", "mask", "discard", "overlay", "scale"},
    "relevance": {"mask", "label", "overlay", "scale"},
    "distance": {"layer"},
}
"""The options that mean something for each method."""


def attention_parser() -> argparse.ArgumentParser:
    """The options of `vit attention`."""
    parser = CommandParser(
        prog="vit attention", allow_abbrev=False, parents=[loading_parser(), shown_parser()],
        description="Draw what a model's attention looks at, and write the numbers beside each picture as .npz.",
    )  # fmt: skip
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the pictures")
    parser.add_argument(
        "--layer",
        type=_layer,
        default="auto",
        metavar="N|all",
        help="from 0; -1 is the last (default; for distance, all); all: one map a layer",
    )
    parser.add_argument("--head", type=_head, default="all", metavar="N|mean|all", help="from 0 (default: all)")
    parser.add_argument(
        "--query", type=_query, default="auto", metavar="cls|R,C|mean|auto",
        help="who looks: the class token, the patch in row R and column C, all patches on average, 'register N'; auto: the"
        " class token, or the middle patch where there is none",
    )  # fmt: skip
    parser.add_argument(
        "--method", choices=["weights", "rollout", "relevance", "distance"], default="weights",
        help="the weights (default), what came through all layers, what a class rests on, how far heads look",
    )  # fmt: skip
    parser.add_argument("--scale", choices=["shared", "row", "log"], default="shared", help="of the colours")
    parser.add_argument("--overlay", action="store_true", help="lay the maps over the images")
    parser.add_argument("--keep", type=share, metavar="SHARE", help="also the patches that hold it: 0.6, as DINO draws")
    parser.add_argument("--label", metavar="CLASS", help="relevance for this class, a number or a name")
    parser.add_argument(
        "--discard", type=float, default=0.0, metavar="SHARE", help="rollout without the weakest weights"
    )
    parser.add_argument("--film", action="store_true", help="also the first image over a run's snapshots, as a GIF")
    parser.add_argument("--format", choices=["png", "svg", "pdf"], default="png", help="of the pictures")
    parser.add_argument("--dark", action="store_true", help="for a dark page or slide")
    return parser


def run(argv: Sequence[str]) -> int:
    """Check the options and draw."""
    parser = attention_parser()
    options = parser.parse_intermixed_args(list(argv))
    refuse_idle_options(options, parser)
    given = {name for name in ("layer", "head", "query", "mask", "label", "discard", "keep", "film", "overlay", "scale")
             if getattr(options, name) != parser.get_default(name)}  # fmt: skip
    meant = MEANT[options.method] | ({"query"} if options.mask is not None and options.method == "relevance" else set())
    for name in sorted(given - meant):
        raise ConfigError(f"--{name}: has no meaning for --method {options.method}; leave it out")
    if options.film and (options.mask is not None or options.scale == "row"):
        raise ConfigError("--film: shows whole images on one scale; leave --mask and --scale row out")
    if options.layer == "auto":
        options.layer = None if options.method == "distance" else -1
    require_folder(Path(options.out))

    from vit.interpret import commands

    look = commands.Look(
        **{field.name: getattr(options, field.name) for field in fields(commands.Look) if field.name != "out"},
        out=Path(options.out),
    )
    shown = (options.checkpoint, options.images, options.data, options.root, options.count)
    return commands.attention(*shown, loading_arguments(options), look)


def _layer(text: str) -> int | str | None:
    return text if text == "auto" else None if text == "all" else whole(text)


def _head(text: str) -> int | str:
    return text if text in ("all", "mean") else whole(text)


def _query(text: str) -> str | tuple[int, int]:
    """ "3,4" as (row, column); words as they are."""
    if text in ("auto", "cls", "mean") or re.fullmatch(r"register \d{1,4}", text):
        return text
    match = re.fullmatch(r"(\d{1,6}),(\d{1,6})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} cannot be used; auto, cls, mean, 'register N', or ROW,COLUMN")
    return int(match[1]), int(match[2])
