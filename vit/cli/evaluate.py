"""`vit evaluate`: its options, and the files that hold what came out."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from vit.cli.options import CommandParser, count, loading_arguments, loading_parser, natural, require_folder, share
from vit.config import ConfigError, DataConfig

MEANT = {
    "knn": {"labels", "bank", "seeds"},
    "linear": {"every_layer", "labels", "holdout", "seeds"},
    "reconstruction": set(),
    "head": {"flip"},
}
"""The options that mean something for each method."""


def evaluate_parser() -> argparse.ArgumentParser:
    """The options of `vit evaluate`."""
    parser = CommandParser(
        prog="vit evaluate", allow_abbrev=False, parents=[loading_parser()],
        description="Measure what a pretrained model is worth, without training it any further. The test images are looked at"
        " once; what is chosen is chosen on training images.",
    )  # fmt: skip
    parser.add_argument(
        "--data", required=True, metavar="NAME", help="cifar10, cifar100, scenes, or a folder of images"
    )
    parser.add_argument("--root", default="data", metavar="DIR", help="where CIFAR's archive lies (default: data)")
    parser.add_argument("--name", default="", metavar="TEXT", help="what the data is called in outputs")
    parser.add_argument(
        "--limit", type=natural, default=0, metavar="N", help="only so many images of each split; 0: all"
    )
    parser.add_argument(
        "--method", choices=["all", "knn", "linear", "reconstruction", "head"], default="all",
        help="nearest neighbours, a linear probe, filling in hidden patches, the model's own head (default: all that apply)",
    )  # fmt: skip
    parser.add_argument(
        "--every-layer", action="store_true", help="probe each layer, choose on held-out training images"
    )
    parser.add_argument(
        "--labels", type=share, default=1.0, metavar="SHARE", help="of the training labels that may be used"
    )
    parser.add_argument(
        "--holdout", type=count, default=5000, metavar="N", help="training images that choose (default: 5000)"
    )
    parser.add_argument(
        "--tuning", type=natural, default=0, metavar="N",
        help="to choose settings: measure on so many training images, held out as data.val_size does, not on the test images",
    )  # fmt: skip
    parser.add_argument("--flip", action="store_true", help="its head also on images and mirror images together")
    parser.add_argument("--bank", type=natural, default=0, metavar="N", help="training images for neighbours; 0: all")
    parser.add_argument(
        "--seeds", type=_naturals, default=(0,), metavar="N,N",
        help="of the label subset and the held-out images (of --tuning, the first alone); of several, the mean and the spread"
        " (default: 0)",
    )  # fmt: skip
    parser.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], default="auto", help="where")
    parser.add_argument("--threads", type=natural, default=0, metavar="N", help="on the CPU; 0: torch's choice")
    parser.add_argument("--out", metavar="DIR", help="folder for results.json, confusion.png and reliability.png")
    return parser


def run(argv: Sequence[str]) -> int:
    """Check the options, measure, and write what came out: on the terminal, and with `--out` into files."""
    parser = evaluate_parser()
    options = parser.parse_args(list(argv))
    known = ("cifar10", "cifar100", "scenes")
    source, root = (options.data, options.root) if options.data in known else ("folder", options.data)
    if source == "folder" and not os.path.isdir(os.path.expanduser(root)):
        raise ConfigError(f"--data: {root!r} is neither {', '.join(known)} nor a folder of images")
    config = DataConfig(
        source=source, root=root, name=options.name, limit=options.limit, holdout=options.tuning,  # type: ignore[arg-type]
        subset_seed=options.seeds[0],
    )  # fmt: skip
    if options.out == "":
        raise ConfigError("--out: '' cannot be used; name a folder")
    out = Path(options.out) if options.out else None
    if out is not None:
        require_folder(out)
        if any(os.path.exists(out / name) for name in ("summary.json", "config.yaml")):
            raise ConfigError(
                f"--out: {out} is a run, whose own pictures would be lost; name {out / 'evaluation'}, say"
            )
    for name in sorted(set().union(*MEANT.values()) - MEANT.get(options.method, set().union(*MEANT.values()))):
        if name == "seeds" and options.tuning and len(options.seeds) == 1:  # of the images that are held out for it
            continue
        if getattr(options, name) != parser.get_default(name):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: means nothing for --method {options.method}; leave it out")

    from vit.evaluate import commands

    measure = commands.Measure(
        **{field.name: getattr(options, field.name) for field in fields(commands.Measure) if field.name != "methods"},
        methods=() if options.method == "all" else (options.method,),
    )
    outcome = commands.evaluate(options.checkpoint, config, loading_arguments(options), measure)
    print("\n".join(commands.describe(outcome.results)))
    if out is not None:
        from vit.atomic import write_json

        names = ("confusion.png", "reliability.png")
        if outcome.logits is not None:
            from vit.evaluate.classification import confusion, reliability
            from vit.figures import confusion_figure, reliability_figure, save_figure

            about = commands.caption(outcome)
            table, found = confusion(outcome.logits, outcome.labels), reliability(outcome.logits, outcome.labels)
            figure = confusion_figure(table, outcome.class_names, "What is taken for what", about)
            save_figure(figure, out / names[0])
            figure = reliability_figure(
                found.confidence, found.accuracy, found.count, found.error, "Can its confidence be believed?", about
            )
            save_figure(figure, out / names[1])
        elif os.path.exists(out / "results.json"):  # the pictures belong to the results that are replaced
            for name in names:
                (out / name).unlink(missing_ok=True)
        write_json(out / "results.json", outcome.results | {"command": f"vit evaluate {shlex.join(argv)}"})
        print(f"In {out}: {', '.join(['results.json', *(names if outcome.logits is not None else ())])}")
    return 0


def _naturals(text: str) -> tuple[int, ...]:
    numbers = tuple(natural(part) for part in text.split(","))
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} cannot be used; each seed once")
    return numbers
