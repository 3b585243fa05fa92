"""`vit evaluate`: measure a pretrained model in minutes, without a training run."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import torch

from vit.atomic import make_folder, write_json
from vit.cli.options import load
from vit.cli.outputs import aligned, messages_to_stderr, print_json, score_table
from vit.commandline import named_data, refuse_among_images, require_folder, require_free
from vit.config import DataConfig
from vit.data import Dataset
from vit.data.images import seen_by
from vit.data.sources import load_data
from vit.device import device_name
from vit.errors import ConfigError, one_line, plural
from vit.evaluation import Options, evaluate, obstacles
from vit.machine import versions
from vit.mae import Model
from vit.metrics import MEASURES, mistakes_of
from vit.report.pictures import draw_classification
from vit.runs import RunFiles
from vit.weights import checkpoint_hash

READ = ("every_layer", "labels", "holdout", "knn_images", "seeds", "views")
"""Options of the measurements; each reads those that concern it."""
FEW_LABELS = (
    "this model was fine-tuned on classes, perhaps with more labels: this is not what these few"
    " labels give"
)
FEW_IMAGES = 2000
"""Below so many images, those held out are too few to compare models by."""
RESULTS = "results.json"
PICTURES = ("confusion.png", "reliability.png", "mistakes.png")


def run(options: Namespace) -> None:
    """Measure, print the results, and with `--out` write them to files."""
    # Refuse what cannot be done before anything is computed
    config = DataConfig(
        **named_data(options.data, options.root),
        name=options.name,
        on_bad_image=options.on_bad_image,
        limit=options.limit,
        val_size=options.val_size,
    )
    out = options.out
    if out is not None:
        require_folder(out)
        if RunFiles(out).has_begun:
            message = f"{out} is a run with its own figures; name e.g. {out / 'evaluation'}"
            raise ConfigError(f"--out: {message}")
        require_free([out / name for name in (RESULTS, *PICTURES)], options.overwrite)
        refuse_among_images(out, options.data)

    # With --json, all but the JSON goes to stderr
    with messages_to_stderr(options.json):
        results = measure(options, config)
    if options.json:
        print_json(results)


def measure(options: Namespace, config: DataConfig) -> dict[str, Any]:
    """Measure, print and write the results, and return them as results.json holds them."""
    # Model and data
    model = load(options)
    origin = model.origin
    trained_on = origin.trained_on
    data = load_data(config, origin.image_size, prepared=origin.prepared, trained_on=trained_on)

    # What a model has learned from is no test of it
    taught = knows_classes(model, data)
    notes = seen_by(trained_on, data)
    if data.is_chosen and taught and origin.may_have_seen(data.test.content_hash):
        notes.append(
            "nothing says which images this model was trained on: if they are from the same data, "
            f"some of the {data.tested} are among them"
        )
    if options.labels < 1 and taught:
        notes.append(FEW_LABELS)

    # The methods that apply, and their options
    reasons = obstacles(model, data)
    named = [name for name in reasons if options.method in ("all", name)]
    methods = [name for name in named if not reasons[name]]
    if not methods:
        each_once = dict.fromkeys(reasons[name] for name in named)
        raise ConfigError(f"--method {options.method}: {'; '.join(each_once)}")
    used = {name: getattr(options, name) for name in READ}

    # Of few images each counts, unless options say which, or the model may know their labels
    known = int(torch.isin(data.train.image_hashes, trained_on).sum())
    may_know = taught and (known or not len(trained_on))
    total = len(data.train) + len(data.test)
    used["cross_validate"] = (
        data.is_chosen
        and total < FEW_IMAGES
        and options.labels == 1
        and not (options.val_size or options.knn_images or may_know)
    )
    if used["cross_validate"] and {"knn", "linear"} & set(methods):
        note = f"few images: k-NN and probe are cross-validated over all {total:,}"
        if known:
            note += f", {known:,} of which this model was trained on, without labels"
        notes.append(note)

    # Measure, in float32, where the model is
    evaluation = evaluate(model, data, methods, options=Options(**used))

    # The scores, and what they depend on
    asked = [] if options.method == "all" else [options.method]
    settings = {"methods": asked, **used, "device": options.device, "threads": options.threads}
    results: dict[str, Any] = {
        "checkpoint": origin.source,
        "content_hash": checkpoint_hash(model),
        "trained_on": origin.data,
        "data": data.facts,
        "settings": settings,
        "note": "; ".join(notes),
        "scores": evaluation.scores,
        "seconds": evaluation.seconds,
        "device": device_name(next(model.parameters()).device),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "command": options.command_line,
    }

    # On the terminal, and in files
    print_results(results, data)
    if options.out is not None:
        write_results(options.out, results, data)
    return results


def print_results(results: Mapping[str, Any], data: Dataset) -> None:
    """Print the data, the notes on it, the scores, and the time they took."""
    # The data
    print(one_line(data.description))
    for note in data.notes:
        print(f"note: {one_line(note)}")
    if results["note"]:
        print(f"note: {results['note']}")

    # The scores
    print(score_table(results["scores"]))
    mistakes = mistakes_of(results["scores"])[:5]
    if mistakes:
        print("surest mistakes:")
        print(indent(aligned(mistakes), "  "))
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in results["seconds"].items())
    print(f"on {results['device']}, threads {results['threads']}: {times}")


def write_results(out: Path, results: dict[str, Any], data: Dataset) -> None:
    """Write results.json and the figures into a folder."""
    make_folder(out)
    names = [RESULTS]
    # the model's own head counts more than a probe
    scores = results["scores"]
    method = "head" if "head" in scores else "linear"
    if method in scores:
        label = MEASURES[method, "accuracy"].label
        row = scores[method][0]
        tested = data.tested
        if row["images"] > len(data.test):
            tested = plural(row["images"], "image")
        # their answers count together in the figures
        if "seeds" in row:
            tested += f", {len(row['seeds'])} seeds together"
        caption = f"{Path(results['checkpoint']).name} · {data.name}, {tested} · {label}"
        names += draw_classification(row, data.test, out, caption)

    # Other figures belong to the results that are replaced
    if (out / RESULTS).exists():
        for name in set(PICTURES) - set(names):
            (out / name).unlink(missing_ok=True)
    write_json(out / RESULTS, results)
    print(f"In {out}: {', '.join(names)}")


def knows_classes(model: Model, data: Dataset) -> bool:
    """Return whether a model was fine-tuned on as many classes as this data has, perhaps its own.

    The head of its checkpoint counts even if loading left it out.
    """
    # Our config.json names the classes' number within the encoder's, transformers' has names
    details = model.origin.details
    names = details.get("id2label") or ()
    counts = [model.encoder.config.num_classes, details.get("num_classes"), len(names)]
    encoder = details.get("encoder")
    if isinstance(encoder, dict):
        counts.append(encoder.get("num_classes"))

    # No model was fine-tuned on data without classes
    classes = len(data.test.class_names)
    return classes > 0 and classes in counts
