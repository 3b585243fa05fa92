"""Model cards (Mitchell et al. 2019), from the files of the run and nothing else."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from vit.checkpoints.reading import CheckpointError
from vit.errors import one_line
from vit.pretrained import shipped_models
from vit.runs import (
    Line,
    RunFiles,
    RunRecord,
    is_about,
    last_part,
    read_folder,
    read_mapping,
    results_lines,
    summary_lines,
    without_paths,
)

# Of summary.json, what config.json of a converted model keeps.
KEPT = (
    "objective", "init", "test_loss", "test_loss_of_baselines", "test_mask", "neighbours", "test_accuracy",
    "test_accuracy_with_flip", "test_calibration_error", "epochs", "steps", "weights", "seed", "seconds", "device",
    "precision", "versions", "content_hash",
)  # fmt: skip
METHODS = ("knn", "linear", "head", "reconstruction")
LARGE = ("confusion", "reliability")
"""Of what a method measured, what config.json leaves out."""


def read_finished(folder: str | Path, results: Sequence[str | Path] = ()) -> RunRecord:
    """Read a finished run for its card, without the paths of its machine.

    Args:
        folder: of the run, with config.yaml and summary.json.
        results: folders that `vit evaluate --out` wrote about its model, with results.json.

    Raises:
        CheckpointError: the run has not ended, or results are missing or about other weights.
        RunError: a file is damaged.
    """
    record = _public(read_folder(Path(folder)))
    if not record.sections or not record.summary:
        raise CheckpointError(f"{folder} is no finished run with config.yaml and summary.json: nothing says what it is")
    for place in results:
        if not (measured := read_mapping(Path(place) / "results.json")):
            raise CheckpointError(f"no results.json in {place}; `vit evaluate ... --out {place}` writes one")
        if not is_about(record.summary, measured):
            raise CheckpointError(
                f"what is in {place} was measured on other weights than those of {folder}; measure these"
            )
        record.results[str(place)] = measured
    return record


def _public(record: RunRecord) -> RunRecord:
    return replace(record, sections=without_paths(record.sections), summary=without_paths(record.summary))


def model_card(folder: str | Path, name: str) -> str:
    """Return the card of a run, or of a folder that `convert --to safetensors` wrote.

    Args:
        folder: with config.json and, where it is a run, config.yaml and summary.json.
        name: see `card_of`.

    Raises:
        CheckpointError: there is no config.json, or a value in these files is of a wrong kind.
        RunError: one of these files is damaged.
    """
    folder = Path(folder)
    config = read_mapping(RunFiles(folder).model_config)
    if not config:
        raise CheckpointError(f"no config.json in {folder}: there is nothing to describe")
    with damage_named(f"{folder}: config.json, config.yaml or summary.json"):
        return card_of(config, _public(read_folder(folder)), name)


def card_of(config: dict[str, Any], run: RunRecord, name: str, half: bool = False, note: str = "") -> str:
    """Return the card of a model, in the hub's form.

    Args:
        config: of config.json.
        run: that trained it; empty if nothing is known of it.
        name: ORGANISATION/NAME on the hub, or what a model of the package is called.
        half: whether its weights are stored in half precision.
        note: a sentence on the data.
    """
    encoder, decoder = config["encoder"], config.get("decoder")
    classes = encoder.get("num_classes")
    front = {
        **({"license": "apache-2.0"} if run.sections else {}),  # a converted model is under the terms of those who trained it
        "library_name": "vit-patch-trainer",
        "pipeline_tag": "image-classification" if classes else "image-feature-extraction",
        "tags": ["vision-transformer", *(["masked-autoencoder", "self-supervised"] if decoder else [])],
    }  # fmt: skip
    figures = summary_lines(run.summary)
    measured = list(_results(run))
    sections = [
        _what(config, run, half),
        _use(f"hf/{name}" if "/" in name else name),
        "## Data\n\n" + " ".join(_data(config, run, note)),
    ]
    if run.sections:
        sections.append("\n\n".join(["## Recipe", *_recipe(run)]))
    if figures or measured:
        tested = (run.summary.get("data") or {}).get("tested_on", "test images")
        own = [f"On {_text(tested)}, at the end of the run:\n\n{_table(figures)}"] if figures else []
        sections.append("\n\n".join(["## Figures", *own, *measured]))
    sections.append("## Limits\n\n" + " ".join(_limits(config, run, bool(figures or measured), half)))
    if run.sections:
        sections.append(
            "## Licence\n\nThe weights are under Apache-2.0; the images they were trained on have terms of their own."
        )
    title = name.rpartition("/")[2]
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n# {_text(title)}\n\n" + "\n\n".join(sections) + "\n"


def figures_of(run: RunRecord) -> dict[str, Any]:
    """Return what a run measured, in plain values for config.json, by the names of summary.json and results.json.

    Returns:
        Those of KEPT that are known; train_images, test_images, tested_on and data_content_hash; measured, of each of
        `run.results` the name of its data, what was tested on, the command, and METHODS without LARGE.
    """
    data = run.summary.get("data") or {}
    known = {key: run.summary[key] for key in KEPT if run.summary.get(key) not in (None, "")}
    known |= {key: data[key] for key in ("train_images", "test_images", "tested_on") if key in data}
    if "content_hash" in data:
        known["data_content_hash"] = data["content_hash"]
    measured = [
        {
            "command": _command(found),
            "data": found["data"]["name"],
            **{key: found["data"][key] for key in ("test_images", "tested_on")},
            "data_content_hash": found["data"]["content_hash"],
            **{method: _without_large(found[method]) for method in METHODS if method in found},
        }
        for found in run.results.values()
    ]
    return known | ({"measured": measured} if measured else {})


def _what(config: dict[str, Any], run: RunRecord, half: bool) -> str:
    encoder, decoder = config["encoder"], config.get("decoder")
    p, q = encoder["patch_size"]
    height, width = encoder["image_size"]
    kind = "masked autoencoder (He et al. 2022)" if decoder else "vision transformer (Dosovitskiy et al. 2021)"
    sentences = [
        f"A {kind}: width {encoder['embed_dim']}, {encoder['depth']} blocks, {encoder['num_heads']} heads, "
        f"patches of {p} x {q} pixels on images of {height} x {width}."
    ]
    if decoder:
        target = "normalised pixels" if config.get("norm_pix_loss") else "pixels"
        size = f"width {decoder['dim']}, {decoder['depth']} blocks, {decoder['num_heads']} heads"
        sentences.append(f"Its decoder ({size}) predicts the {target} of hidden patches.")
    elif "test_mask" in run.summary:
        sentences.append("It was trained with a decoder, which is left out here.")
    if encoder.get("num_classes"):
        sentences.append(f"Its head tells {encoder['num_classes']} classes apart.")
    if run.summary.get("weights"):
        sentences.append(f"The weights are {_text(run.summary['weights'])}.")
    if half:
        sentences.append("They are stored in half precision, and loaded as float32.")
    return " ".join(sentences)


def _use(name: str) -> str:
    code = f"from vit.checkpoints import load_model\n\nmodel = load_model({json.dumps(name)})"
    code += "\ninputs = model.origin.normalize(images)  # images from 0 to 1"
    shell = f"vit attention {shlex.quote(one_line(name))} photo.jpg --out look"
    return f"## Use\n\n{_fenced(code, 'python')}\n\n{_fenced(shell)}"


def _data(config: dict[str, Any], run: RunRecord, note: str) -> Iterator[str]:
    if config.get("data"):
        yield f"Trained on {_text(config['data'])}."
    if note:
        yield _text(note.rstrip().rstrip(".")) + "."
    mean, std = (", ".join(f"{v:.4f}" for v in config[key]) for key in ("mean", "std"))
    yield f"Input is normalised by mean ({mean}) and standard deviation ({std}), channel by channel."
    if data := run.summary.get("data"):
        tested = data.get("tested_on", "test images")
        yield f"{data['train_images']:,} training and {data['test_images']:,} {_text(tested)}."
        if data.get("content_hash"):
            yield f"Exactly these images have the content hash {_text(data['content_hash'])}."
    if config.get("class_names"):
        yield f"Classes: {_text(', '.join(config['class_names']))}."


def _recipe(run: RunRecord) -> Iterator[str]:
    """Yield the command that trains it again, all settings, and facts about the run."""
    given = []
    if run.sections.get("data", {}).get("source") == "folder":
        given.append("--data.root IMAGES")
    if _is_place(init := str(run.sections.get("model", {}).get("init") or "")):
        given.append("--model.init CHECKPOINT")
    command = " ".join(["python train.py --config config.yaml", *given])
    where = ["`config.yaml` is what follows, all settings"]
    where += ["IMAGES is the folder of the images"] if "--data.root IMAGES" in given else []
    where += [f"CHECKPOINT is what it began with, {_text(init)}"] if "--model.init CHECKPOINT" in given else []
    yield f"{_fenced(command)}\n\n{'; '.join(where)}:"
    yield _fenced(yaml.safe_dump(run.sections, sort_keys=False, default_flow_style=None, width=120).rstrip(), "yaml")
    rows = [
        f"| {name} | {_text(form.format(run.summary[key]))} |"
        for name, key, form in (
            ("epochs", "epochs", "{}"), ("steps", "steps", "{:,}"), ("seconds of training", "seconds", "{:,.0f}"),
            ("images per second", "images_per_second", "{:,.0f}"), ("device", "device", "{}"),
            ("precision", "precision", "{}"), ("threads", "threads", "{}"), ("processes", "processes", "{}"),
            ("seed", "seed", "{}"),
        )
        if run.summary.get(key) is not None
    ]  # fmt: skip
    rows += [f"| {_text(name)} | {_text(version)} |" for name, version in (run.summary.get("versions") or {}).items()]
    if rows:
        yield "\n".join(["| of the run | |", "|---|---|", *rows])


def _results(run: RunRecord) -> Iterator[str]:
    """Yield what each `vit evaluate` measured, with its command."""
    for found in run.results.values():
        data = found["data"]
        about = f"On {_text(data['name'])}, {data['test_images']:,} {_text(data['tested_on'])}, by"
        if found.get("note"):
            about = f"Note: {_text(found['note'])}.\n\n{about}"
        yield f"{about}\n\n{_fenced(_command(found))}\n\n{_table(results_lines(found))}"


def _table(lines: Sequence[Line]) -> str:
    rows = [
        f"| {_text(line.figure.label)}{f' ({_text(line.how)})' if line.how else ''} | {_text(line.value)} |"
        for line in lines
    ]
    return "\n".join(["| figure | value |", "|---|---|", *rows])


def _limits(config: dict[str, Any], run: RunRecord, figures: bool, half: bool) -> Iterator[str]:
    """Yield the limits that follow from its size, its head and its data."""
    encoder = config["encoder"]
    height, width = encoder["image_size"]
    yield "For study and comparison; no judgement about people should rest on it."
    yield f"It sees {height} x {width} pixels: other images are cut to that shape and resized."
    if classes := encoder.get("num_classes"):
        yield f"Every image is taken for one of its {classes} classes, also one that shows none of them."
    else:
        yield "It names nothing: that takes a probe of its features, or fine-tuning."
    if run.sections and config.get("data"):
        known = " beyond the figures above" if figures else ""
        yield f"It was trained on {_text(config['data'])}; how it does on other images is not known{known}."
    if figures:
        yield "The figures above are of one training, with one seed."
        if half:
            yield "The run's own were measured before its weights were rounded to half precision."


def _is_place(init: str) -> bool:
    """Whether what a run began with lies on a disk, or did: not with timm, on a hub, or within the package."""
    return bool(init) and not init.startswith(("timm/", "hf/")) and init not in shipped_models()


def _command(found: dict[str, Any]) -> str:
    """The command of a results.json, with names for the paths of its machine."""
    words = []
    for word in shlex.split(one_line(found["command"])):
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        words.append(option + equals + last_part(value))
    return shlex.join(words)


def _without_large(found: Any) -> Any:
    return {key: value for key, value in found.items() if key not in LARGE} if isinstance(found, dict) else found


def _fenced(content: str, language: str = "") -> str:
    """A block of code; nothing in it can end it."""
    fence = "`" * (1 + max(2, *map(len, re.findall("`+", content)), 0))
    return f"{fence}{language}\n{content}\n{fence}"


def _text(value: Any) -> str:
    """A value from a file within Markdown: on one line, and no markup of its own."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|!" else c for c in one_line(str(value)))


@contextmanager
def damage_named(files: str) -> Iterator[None]:
    """Turn what values of a wrong kind raise into one line about the files that hold them."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{files} is damaged: {type(error).__name__}: {error}") from error
