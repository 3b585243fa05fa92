"""`vit evaluate`: measure a pretrained model in minutes, without a training run of its own."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.cli.old_options import CommandParser, count, loading_arguments, loading_parser, natural, require_folder, share
from vit.config import ConfigError, DataConfig
from vit.errors import UserError, one_line
from vit.runs import RunFiles, aligned, results_lines

if TYPE_CHECKING:
    from vit.data import Dataset
    from vit.evaluate import Evaluation
    from vit.mae import Model

MEANT = {
    "knn": {"labels", "bank", "seeds"},
    "linear": {"every_layer", "labels", "holdout", "seeds"},
    "reconstruction": set(),
    "head": {"flip"},
}
"""The options that mean something for each method."""
PICTURES = ("confusion.png", "reliability.png")


class EvaluationError(UserError):
    """A checkpoint and data that cannot be measured so; the message is one line."""


def evaluate_parser() -> argparse.ArgumentParser:
    """The options of `vit evaluate`."""
    parser = CommandParser(
        prog="vit evaluate", allow_abbrev=False, parents=[loading_parser()],
        description="Measure a pretrained model without training it any further. The test images are looked at"
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
        source=source, root=root, name=options.name, limit=options.limit, val_size=options.tuning,  # type: ignore[arg-type]
        subset_seed=options.seeds[0],
    )  # fmt: skip
    if options.out == "":
        raise ConfigError("--out: '' cannot be used; name a folder")
    out = Path(options.out) if options.out else None
    if out is not None:
        require_folder(out)
        if any(os.path.exists(path) for path in (RunFiles(out).summary, RunFiles(out).config)):
            raise ConfigError(
                f"--out: {out} is a run, whose own pictures would be lost; name {out / 'evaluation'}, say"
            )
    for name in sorted(set().union(*MEANT.values()) - MEANT.get(options.method, set().union(*MEANT.values()))):
        if name == "seeds" and options.tuning and len(options.seeds) == 1:  # of the images that are held out for it
            continue
        if getattr(options, name) != parser.get_default(name):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: means nothing for --method {options.method}; leave it out")

    evaluation, results, data = measure(options, config)
    print("\n".join(describe(results)))
    if out is not None:
        from vit.atomic import write_json

        names = PICTURES if evaluation.logits is not None else ()
        if names:
            draw(evaluation, results, data, out)
        elif os.path.exists(out / "results.json"):  # the pictures belong to the results that are replaced
            for name in PICTURES:
                (out / name).unlink(missing_ok=True)
        write_json(out / "results.json", results | {"command": f"vit evaluate {shlex.join(argv)}"})
        print(f"In {out}: {', '.join(['results.json', *names])}")
    return 0


def measure(options: argparse.Namespace, config: DataConfig) -> tuple[Evaluation, dict[str, Any], Dataset]:
    """Load the checkpoint and the data and measure what applies.

    Returns:
        The evaluation; the content of results.json, with all that is needed to measure it again; and the data.

    Raises:
        EvaluationError: what is asked for cannot be measured here.
    """
    import torch
    import torchvision

    from vit import __version__
    from vit.checkpoints import load_trained
    from vit.checkpoints.native import fingerprint
    from vit.config import RunConfig
    from vit.data import load_data
    from vit.device import choose_compute, device_name
    from vit.evaluate import Options, evaluate

    # Model and data
    model = load_trained(options.checkpoint, **loading_arguments(options))
    origin = model.origin
    compute = choose_compute(RunConfig(device=options.device, threads=options.threads), "fp32")
    try:
        data = load_data(config, origin.image_size)
    except ConfigError as error:
        raise EvaluationError(str(error).replace("data.val_size", "--tuning")) from error
    methods = applicable(model, data, () if options.method == "all" else (options.method,), options.flip)
    note = ""
    if options.labels < 1 and _knows_classes(model, data):
        note = "this model has been taught classes, perhaps by more labels: it does not show what these few give"

    # Measure
    how = Options(
        labels=options.labels, seeds=options.seeds, knn_images=options.bank, every_layer=options.every_layer,
        holdout=options.holdout, flip=options.flip,
    )  # fmt: skip
    evaluation = evaluate(model.to(compute.device), data, methods, origin.inputs, compute, how)
    if "head" in evaluation.figures:
        evaluation.figures["head"]["classes_named"] = bool(origin.class_names)

    # The figures, and what they come from
    asked = ("every_layer", "labels", "holdout", "bank", "seeds", "flip", "device", "threads")
    results: dict[str, Any] = {
        "checkpoint": origin.source,
        "fingerprint": fingerprint(model),
        "trained_on": origin.data,
        "data": {"name": data.name, "source": data.source, "train_images": len(data.train),
                 "test_images": len(data.test), "tested_on": data.tested_on, "stamp": data.stamp, "warning": data.warning},
        "settings": {"methods": [] if options.method == "all" else [options.method],
                     **{name: getattr(options, name) for name in asked}},
        "note": note,
        **evaluation.figures,
        "seconds": evaluation.seconds,
        "device": device_name(compute.device),
        "threads": torch.get_num_threads(),
        "versions": {
            "vit-patch-trainer": __version__, "torch": str(torch.__version__), "torchvision": torchvision.__version__,
            "python": sys.version.split()[0],
        },
    }  # fmt: skip
    return evaluation, results, data


def applicable(model: Model, data: Dataset, asked: Sequence[str], flip: bool) -> list[str]:
    """Return the methods that were asked for, or all that apply.

    Raises:
        EvaluationError: one that was asked for does not apply, or none does.
    """
    from vit.evaluate import METHODS

    encoder, names = model.encoder, data.test.class_names
    classes, own_names = encoder.config.num_classes, model.origin.class_names
    if data.held_out and _knows_classes(model, data) and not model.origin.was_tested_on(data.test.stamp):
        ways = "train it with data.val_size, as many and with the same data.subset_seed"
        raise EvaluationError(f"this model may have been taught these {len(data.test):,} images' classes; {ways}")

    # Why each method does not apply; "" where it does
    unlabelled = "" if data.train.labelled and data.test.labelled else f"{data.name} has no labels"
    if not classes or classes != len(names):
        head = f"this model has a head of {classes} classes, {data.name} {len(names)}"
    elif own_names and own_names != names:
        head = f"the classes of this model ({', '.join(own_names[:3])}, ...) are not those of {data.name}"
    else:
        head = ""
    decoder = "" if model.decoder is not None else "this model has no decoder"
    if not decoder and math.prod(encoder.patch_embed.grid_size) < 2:
        decoder = "this model has one patch: none to hide and one to see"
    obstacles = {"knn": unlabelled, "linear": unlabelled, "reconstruction": decoder, "head": head}

    for method in asked:
        if obstacles[method]:
            raise EvaluationError(f"--method {method}: {obstacles[method]}")
    methods = [method for method in METHODS if method in (asked or METHODS) and not obstacles[method]]
    if not methods:
        raise EvaluationError(f"nothing can be measured: {'; '.join(why for why in obstacles.values() if why)}")
    if flip and "head" not in methods:
        raise EvaluationError(f"--flip: is about a model's own head; {obstacles['head']}")
    return methods


def _knows_classes(model: Model, data: Dataset) -> bool:
    """Whether a model was taught as many classes as this data has, perhaps those of its training images.

    The head of its checkpoint counts, also if it was left out in loading.
    """
    own = model.origin.details.get("encoder")
    taught = own.get("num_classes") if isinstance(own, dict) else model.encoder.config.num_classes
    return taught == len(data.test.class_names) > 0


def describe(results: dict[str, Any]) -> list[str]:
    """Return results in lines for a terminal."""
    data = results["data"]
    count = f"{data['train_images']:,} training and {data['test_images']:,} {data['tested_on']}"
    lines = [f"{one_line(data['name'])}: {count}, stamp {data['stamp']}"]
    if data["warning"]:
        lines.append(f"WARNING: {one_line(data['warning'])}")
    if results["note"]:
        lines.append(f"note: {results['note']}")
    seconds = ", ".join(f"{name} {spent:.0f} s" for name, spent in results["seconds"].items())
    machine = f"on {results['device']}, threads {results['threads']}: {seconds}"
    return [*lines, *aligned(results_lines(results)), machine]


def draw(evaluation: Evaluation, results: dict[str, Any], data: Dataset, out: Path) -> None:
    """Write confusion.png and reliability.png; the logits of several seeds count together."""
    from vit.evaluate.classification import confusion, reliability
    from vit.figures import confusion_figure, reliability_figure, save_figure

    assert evaluation.logits is not None
    measured = results.get("head") or results["linear"]
    images = f"{data.name}, {len(data.test):,} {data.tested_on}"
    seeds = len(evaluation.logits) // len(data.test)
    together = f", {seeds} seeds together" if seeds > 1 else ""
    about = f"{Path(results['checkpoint']).name} · {evaluation.classifier} · {images}"
    about += f" · accuracy {measured['accuracy']:.2%}{together}"
    labels = data.test.labels.repeat(seeds)
    counts, bins = confusion(evaluation.logits, labels), reliability(evaluation.logits, labels)
    save_figure(confusion_figure(counts, data.test.class_names, "What is taken for what", about), out / PICTURES[0])
    figure = reliability_figure(
        bins.confidence, bins.accuracy, bins.count, bins.error, "Can its confidence be believed?", about
    )
    save_figure(figure, out / PICTURES[1])


def _naturals(text: str) -> tuple[int, ...]:
    numbers = tuple(natural(part) for part in text.split(","))
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} cannot be used; each seed once")
    return numbers
