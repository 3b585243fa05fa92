"""`vit evaluate`: measure a pretrained model in minutes, without a training run."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.atomic import write_json
from vit.cli.common import choose_device, load_options, naming_options, require_data
from vit.cli.outputs import print_json, require_folder, require_free, talk
from vit.config import DataConfig, named_data
from vit.errors import ConfigError, one_line
from vit.load_options import LoadOptions
from vit.metrics import aligned, results_lines
from vit.pretrained import located
from vit.runs import RunFiles

if TYPE_CHECKING:
    from vit.data import Dataset
    from vit.evaluate import Evaluation
    from vit.mae import Model

USED_BY = {
    "every_layer": ("linear",),
    "labels": ("knn", "linear"),
    "holdout": ("linear",),
    "knn_images": ("knn",),
    "seeds": ("knn", "linear"),
    "flip": ("head",),
}
"""The methods that each option affects."""
PICTURES = ("confusion.png", "reliability.png")


def run(options: Namespace) -> int:
    """Measure, print the results, and with `--out` write them to files."""
    load = load_options(options)
    require_data(options)
    if len(set(options.seeds)) < len(options.seeds):
        seeds = ",".join(map(str, options.seeds))
        raise ConfigError(f"--seeds: {seeds!r} cannot be used; each seed once")
    if options.out is not None:
        require_folder(options.out)
        if RunFiles(options.out).summary.exists() or RunFiles(options.out).config.exists():
            example = options.out / "evaluation"
            message = f"{options.out} is a run with its own pictures; name e.g. {example}"
            raise ConfigError(f"--out: {message}")
        files = [options.out / name for name in ("results.json", *PICTURES)]
        require_free(files, options.overwrite)
    with talk(options.json):
        results = measure(options, load)
    if options.json:
        print_json(results)
    return 0


def data_config(options: Namespace) -> DataConfig:
    """Return the data section of a run on these images."""
    return DataConfig(
        **named_data(options.data, str(options.root)),
        name=options.name,
        on_bad_image=options.on_bad_image,
        limit=options.limit,
        val_size=options.val_size,
        subset_seed=options.seeds[0],
    )


def measure(options: Namespace, load: LoadOptions) -> dict[str, Any]:
    """Measure, print and write the results, and return them as results.json holds them."""
    config = data_config(options)
    located(options.checkpoint)

    import torch

    from vit.checkpoints import load_trained
    from vit.data.sources import load_data
    from vit.device import device_name, versions
    from vit.evaluate import EvaluationError, Options, evaluate, obstacles
    from vit.weights import weights_hash

    # Model and data
    model = load_trained(options.checkpoint, load)
    origin = model.origin
    compute = choose_device(options, options.threads)
    with naming_options():
        data = load_data(config, origin.image_size, prepared=origin.prepared)
    taught = knows_classes(model, data)
    if data.held_out and taught and not origin.was_tested_on(data.test.content_hash):
        ways = "train it with the same data.val_size and data.subset_seed"
        raise EvaluationError(
            f"this model may have been taught these {len(data.test):,} images' classes; {ways}"
        )

    # The methods that apply, and their options
    reasons = obstacles(model, data)
    if reason := reasons.get(options.method):
        raise EvaluationError(f"--method {options.method}: {reason}")
    methods = [name for name in reasons if options.method in ("all", name) and not reasons[name]]
    if not methods:
        raise EvaluationError(f"nothing can be measured: {'; '.join(reasons.values())}")
    asked = {name: getattr(options, name) for name in USED_BY}
    for name, users in USED_BY.items():
        of_val = name == "seeds" and options.val_size and len(options.seeds) == 1
        if asked[name] != getattr(Options, name) and not of_val and not set(users) & set(methods):
            why = next((f"; {reasons[user]}" for user in users if reasons[user]), "")
            raise EvaluationError(
                f"--{name.replace('_', '-')}: only applies to {' and '.join(users)}, not measured here{why}"
            )

    # Measure
    prepare = partial(origin.inputs, whole=data.prepared)
    evaluation = evaluate(
        model.to(compute.device), data, methods, prepare, compute, Options(**asked)
    )
    if "head" in evaluation.figures:
        evaluation.figures["head"]["classes_named"] = bool(origin.class_names)

    # The figures, and what they depend on
    facts = (
        "name",
        "source",
        "train_images",
        "test_images",
        "tested_on",
        "content_hash",
        "warning",
    )
    note = "this model has been taught classes, perhaps with more labels: it does not show what these few give"
    results: dict[str, Any] = {
        "checkpoint": origin.source,
        "content_hash": weights_hash(model),
        "trained_on": origin.data,
        "data": {key: data.facts[key] for key in facts},
        "settings": {
            "methods": [] if options.method == "all" else [options.method],
            **asked,
            "device": options.device,
            "threads": options.threads,
        },
        "note": note if options.labels < 1 and taught else "",
        **evaluation.figures,
        "seconds": evaluation.seconds,
        "device": device_name(compute.device),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "command": options.command_line,
    }
    print(one_line(data.description))
    if data.warning:
        print(f"WARNING: {one_line(data.warning)}")
    for note in data.notes:
        print(f"note: {one_line(note)}")
    if results["note"]:
        print(f"note: {results['note']}")
    print("\n".join(aligned(results_lines(results))))
    seconds = ", ".join(f"{name} {spent:.0f} s" for name, spent in evaluation.seconds.items())
    print(f"on {results['device']}, threads {results['threads']}: {seconds}")

    # Files
    if options.out is not None:
        written = ["results.json"]
        if evaluation.logits is not None:
            written += draw(evaluation, results, data, options.out)
        if (options.out / "results.json").exists():  # other pictures belong to the replaced results
            for name in set(PICTURES) - set(written):
                (options.out / name).unlink(missing_ok=True)
        write_json(options.out / "results.json", results)
        print(f"In {options.out}: {', '.join(written)}")
    return results


def knows_classes(model: Model, data: Dataset) -> bool:
    """Return whether a model was taught as many classes as this data has, perhaps with the very labels of its training images.

    The head of its checkpoint counts even if loading left it out.
    """
    said = model.origin.details
    own, names = said.get("encoder"), said.get("id2label")  # our config.json and transformers'
    taught = (
        model.encoder.config.num_classes,
        said.get("num_classes"),
        isinstance(own, dict) and own.get("num_classes"),
        isinstance(names, dict) and len(names),
    )
    return bool(data.test.class_names) and len(data.test.class_names) in taught


def draw(evaluation: Evaluation, results: dict[str, Any], data: Dataset, out: Path) -> list[str]:
    """Write confusion.png and reliability.png, and return which; the logits of several seeds are pooled."""
    from vit.evaluate.classification import confusion, reliability
    from vit.figures import confusion_figure, reliability_figure, save_figure, why_not_drawn

    # What they show
    assert evaluation.logits is not None
    measured = results.get("head") or results["linear"]
    seeds = len(evaluation.logits) // len(data.test)
    together = f", {seeds} seeds pooled" if seeds > 1 else ""
    about = f"{Path(results['checkpoint']).name} · {evaluation.classifier} · {data.name}, {len(data.test):,} {data.tested_on}"
    about += f" · accuracy {measured['accuracy']:.2%}{together}"

    # Both pictures
    labels = data.test.labels.repeat(seeds)
    counts, (bins, error) = (
        confusion(evaluation.logits, labels),
        reliability(evaluation.logits, labels),
    )
    save_figure(
        reliability_figure(bins, error, "Can its confidence be trusted?", about), out / PICTURES[1]
    )
    if sentence := why_not_drawn(len(counts)):
        print(sentence)
        return [PICTURES[1]]
    save_figure(
        confusion_figure(counts, data.test.class_names, "Confusion matrix", about),
        out / PICTURES[0],
    )
    return [*PICTURES]
