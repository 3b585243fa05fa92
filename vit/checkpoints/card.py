"""Model cards (Mitchell et al. 2019): what is known of a model from its run's own files, and nothing else."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import yaml

from vit.checkpoints.reading import CheckpointError
from vit.errors import one_line
from vit.pretrained import shipped_models

# Within `data`: what says where things lie on the machine, which is nobody else's business.
PLACES = ("root", "cache", "warning")
# Of summary.json, what is shown of a model that comes with the package.
FIGURES = (
    "task", "init", "test_loss", "test_loss_of_baselines", "test_mask", "neighbours", "test_accuracy",
    "test_accuracy_with_flip", "test_calibration_error", "epochs", "steps", "weights", "seed", "seconds", "device",
    "precision", "versions", "fingerprint",
)  # fmt: skip
METHODS = ("knn", "linear", "head", "reconstruction")


@dataclass(frozen=True)
class Run:
    """What a run says of itself, without where things lay on its machine; all of it is empty of a model that is no run of ours.

    Attributes:
        settings: of config.yaml.
        summary: of summary.json.
        results: of each results.json that `vit evaluate` wrote about its model.
        note: a sentence on the data.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    results: tuple[dict[str, Any], ...] = ()
    note: str = ""


def read_run(folder: str | Path, results: Sequence[str | Path] = (), note: str = "") -> Run:
    """What there is to say of a finished run.

    Args:
        folder: of the run, with config.yaml and summary.json.
        results: folders that `vit evaluate --out` wrote about its model, with results.json.
        note: a sentence on the data, for the card.

    Raises:
        CheckpointError: the run has not ended, a file is not there or damaged, or results are about other weights.
    """
    folder = Path(folder)
    settings, summary = mapping(folder / "config.yaml", yaml.safe_load), mapping(folder / "summary.json", read_json)
    if not settings or not summary:
        raise CheckpointError(f"{folder} is no finished run with config.yaml and summary.json: nothing says what it is")
    found = []
    for place in results:
        if not (outcome := mapping(Path(place) / "results.json", read_json)):
            raise CheckpointError(f"no results.json in {place}; `vit evaluate ... --out {place}` writes one")
        if not is_about(summary, outcome):
            raise CheckpointError(
                f"what is in {place} was measured on other weights than those of {folder}; measure these"
            )
        found.append(outcome)
    return Run(without_places(settings), without_places(summary), tuple(found), note)


def model_card(folder: str | Path, name: str) -> str:
    """The card of a run, or of a folder that `convert --to safetensors` wrote.

    Args:
        folder: with config.json and, where it is a run, config.yaml and summary.json.
        name: see `card_of`.

    Raises:
        CheckpointError: one of these files is damaged, or there is no config.json.
    """
    folder = Path(folder)
    config = mapping(folder / "config.json", read_json)
    settings, summary = mapping(folder / "config.yaml", yaml.safe_load), mapping(folder / "summary.json", read_json)
    if not config:
        raise CheckpointError(f"no config.json in {folder}: there is nothing to describe")
    with damage_named(f"{folder}: config.json, config.yaml or summary.json"):
        return card_of(config, Run(without_places(settings), without_places(summary)), name)


def card_of(config: dict[str, Any], run: Run, name: str, half: bool = False) -> str:
    """The card of a model, in the hub's form.

    Args:
        config: of config.json.
        run: that trained it.
        name: ORGANISATION/NAME on the hub, or what a model of the package is called.
        half: whether its weights are stored in half precision.
    """
    encoder, decoder = config["encoder"], config.get("decoder")
    classes = encoder.get("num_classes")
    front = {
        **({"license": "apache-2.0"} if run.settings else {}),  # a converted model is under the terms of those who trained it
        "library_name": "vit-patch-trainer",
        "pipeline_tag": "image-classification" if classes else "image-feature-extraction",
        "tags": ["vision-transformer", *(["masked-autoencoder", "self-supervised"] if decoder else [])],
    }  # fmt: skip
    figures = list(_figures(run.summary))
    measured = list(_results(run, encoder["depth"]))
    sections = [
        _what(config, run, half),
        _use(f"hf/{name}" if "/" in name else name),
        "## Data\n\n" + " ".join(_data(config, run)),
    ]
    if run.settings:
        sections.append("\n\n".join(["## Recipe", *_recipe(run)]))
    if figures or measured:
        table = ["\n".join(["| figure | value |", "|---|---|", *figures])] if figures else []
        sections.append("\n\n".join(["## Figures", *table, *measured]))
    sections.append("## Limits\n\n" + " ".join(_limits(config, run, bool(figures or measured), half)))
    if run.settings:
        sections.append(
            "## Licence\n\nThe weights are under Apache-2.0; the images they were trained on have terms of their own."
        )
    title = name.rpartition("/")[2]
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n# {_text(title)}\n\n" + "\n\n".join(sections) + "\n"


def figures_of(run: Run) -> dict[str, Any]:
    """What a run came to, in plain values for config.json: names and units are those of summary.json and results.json.

    Returns:
        Those of FIGURES that are known; train_images, test_images, tested_on and stamp of the data; measured, of each of
        `run.results` the name of its data, what was tested on, the command, and METHODS without their confusions.
    """
    data = run.summary.get("data") or {}
    known = {key: run.summary[key] for key in FIGURES if run.summary.get(key) not in (None, "")}
    known |= {key: data[key] for key in ("train_images", "test_images", "tested_on", "stamp") if key in data}
    measured = [
        {
            "command": _command(found),
            "data": found["data"]["name"],
            **{key: found["data"][key] for key in ("test_images", "tested_on", "stamp")},
            **{method: _without_confusion(found[method]) for method in METHODS if method in found},
        }
        for found in run.results
    ]
    return known | ({"measured": measured} if measured else {})


def _what(config: dict[str, Any], run: Run, half: bool) -> str:
    encoder, decoder = config["encoder"], config.get("decoder")
    p, q = encoder["patch_size"]
    height, width = encoder["image_size"]
    kind = "masked autoencoder (He et al. 2022)" if decoder else "vision transformer (Dosovitskiy et al. 2021)"
    said = [
        f"A {kind}: width {encoder['embed_dim']}, {encoder['depth']} blocks, {encoder['num_heads']} heads, "
        f"patches of {p} x {q} pixels on images of {height} x {width}."
    ]
    if decoder:
        target = "normalised pixels" if config.get("norm_pix_loss") else "pixels"
        size = f"width {decoder['dim']}, {decoder['depth']} blocks, {decoder['num_heads']} heads"
        said.append(f"Its decoder ({size}) predicts the {target} of hidden patches.")
    elif run.summary and run.summary.get("task", "reconstruct") == "reconstruct":
        said.append("It was trained with a decoder, which is left out here.")
    if encoder.get("num_classes"):
        said.append(f"Its head tells {encoder['num_classes']} classes apart.")
    if run.summary.get("weights"):
        said.append(f"The weights are {_text(run.summary['weights'])}.")
    if half:
        said.append("They are stored in half precision, and loaded as float32.")
    return " ".join(said)


def _use(name: str) -> str:
    code = f"from vit.checkpoints import load_model\n\nmodel = load_model({json.dumps(name)})"
    code += "\ninputs = model.origin.normalize(images)  # images from 0 to 1"
    shell = f"vit attention {shlex.quote(one_line(name))} photo.jpg --out look"
    return f"## Use\n\n{_fenced(code, 'python')}\n\n{_fenced(shell)}"


def _data(config: dict[str, Any], run: Run) -> Iterator[str]:
    if config.get("data"):
        yield f"Trained on {_text(config['data'])}."
    if run.note:
        yield _text(run.note.rstrip().rstrip(".")) + "."
    mean, std = (", ".join(f"{v:.4f}" for v in config[key]) for key in ("mean", "std"))
    yield f"Input is normalised by mean ({mean}) and standard deviation ({std}), channel by channel."
    if data := run.summary.get("data"):
        tested = data.get("tested_on", "test images")
        yield f"{data['train_images']:,} training and {data['test_images']:,} {_text(tested)}."
        if data.get("stamp"):
            yield f"Exactly these images have the stamp {_text(data['stamp'])}."
    if config.get("class_names"):
        yield f"Classes: {_text(', '.join(config['class_names']))}."


def _recipe(run: Run) -> Iterator[str]:
    """The command that trains it again, all settings, and what the run was like."""
    if not all(isinstance(section, dict) for section in run.settings.values()):
        raise TypeError("settings stand in sections")
    given = []
    if run.settings.get("data", {}).get("source") == "folder":
        given.append("--data.root IMAGES")
    if _is_place(init := str(run.settings.get("model", {}).get("init") or "")):
        given.append("--model.init CHECKPOINT")
    command = " ".join(["python train.py --config config.yaml", *given])
    where = ["`config.yaml` is what follows, all settings"]
    where += ["IMAGES is the folder of the images"] if "--data.root IMAGES" in given else []
    where += [f"CHECKPOINT is what it began with, {_text(init)}"] if "--model.init CHECKPOINT" in given else []
    yield f"{_fenced(command)}\n\n{'; '.join(where)}:"
    yield _fenced(yaml.safe_dump(run.settings, sort_keys=False, default_flow_style=None, width=120).rstrip(), "yaml")
    rows = [
        f"| {name} | {_text(form.format(run.summary[key]))} |"
        for name, key, form in (
            ("epochs", "epochs", "{}"), ("steps", "steps", "{:,}"), ("seconds of training", "seconds", "{:,.0f}"),
            ("images a second", "images_per_second", "{:,.0f}"), ("device", "device", "{}"),
            ("precision", "precision", "{}"), ("threads", "threads", "{}"), ("processes", "processes", "{}"),
            ("seed", "seed", "{}"),
        )
        if run.summary.get(key) is not None
    ]  # fmt: skip
    rows += [f"| {_text(name)} | {_text(version)} |" for name, version in (run.summary.get("versions") or {}).items()]
    if rows:
        yield "\n".join(["| of the run | |", "|---|---|", *rows])


def _figures(summary: dict[str, Any]) -> Iterator[str]:
    """Lines of the table of what a run came to."""
    baselines, neighbours = summary.get("test_loss_of_baselines") or {}, summary.get("neighbours") or {}
    tested = (summary.get("data") or {}).get("tested_on", "test images")
    known: list[tuple[str, Any, str]]
    if summary.get("task") == "classify":
        known = [
            (f"accuracy on {tested}", summary.get("test_accuracy"), "{:.2%}"),
            ("the same, of each image and its mirror image together", summary.get("test_accuracy_with_flip"), "{:.2%}"),
            ("expected calibration error", summary.get("test_calibration_error"), "{:.2%}"),
            ("cross-entropy", summary.get("test_loss"), "{:.4f}"),
        ]
    else:
        mask = summary.get("test_mask")
        how = f" ({mask['ratio']:.0%} hidden, {mask['kind']})" if mask else ""
        known = [
            (f"loss on hidden patches of {tested}{how}", summary.get("test_loss"), "{:.4f}"),
            ("the same by the mean of what is visible", baselines.get("mean_of_visible_patches"), "{:.4f}"),
            ("the same by the nearest visible patch", baselines.get("nearest_visible_patch"), "{:.4f}"),
            ("nearest-neighbour accuracy of the encoder's features", neighbours.get("encoder_accuracy"), "{:.1%}"),
            ("nearest-neighbour accuracy of raw pixels", neighbours.get("raw_pixel_accuracy"), "{:.1%}"),
        ]
    for name, value, form in known:
        if value is not None:
            yield f"| {_text(name)} | {_text(form.format(value))} |"


def _results(run: Run, depth: int) -> Iterator[str]:
    """What each `vit evaluate` found, with its command."""
    for found in run.results:
        data, rows = found["data"], []
        if knn := found.get("knn"):
            how = f"nearest neighbours (k {knn['k']}, {knn['bank']:,} training images)"
            rows += [(how, _share(knn)), ("the same by raw pixels", f"{knn['raw_pixel_accuracy']:.2%}")]
        if linear := found.get("linear"):
            layer = f"layer {by_seed(linear['layer'])} of 0 to {depth - 1}"
            rows.append((f"linear probe of frozen features ({layer}, {linear['labels']:,} labels)", _share(linear)))
        if head := found.get("head"):
            rows += [("its own head", _share(head)),
                     ("its calibration error", f"{head['expected_calibration_error']:.2%}")]  # fmt: skip
            if "accuracy_with_flip" in head:
                rows.append(("its own head, with mirror images", f"{head['accuracy_with_flip']:.2%}"))
        for row in found.get("reconstruction") or []:
            how = f"loss on hidden patches ({row['ratio']:.0%} hidden, {row['mask']})"
            baselines = (
                f"mean of the visible {row['mean_of_visible_patches']:.4f}, nearest {row['nearest_visible_patch']:.4f}"
            )
            rows.append((how, f"{row['loss']:.4f} ({baselines})"))
        about = f"On {_text(data['name'])}, {data['test_images']:,} {_text(data['tested_on'])}, by"
        if found.get("note"):
            about = f"Note: {_text(found['note'])}.\n\n{about}"
        table = "\n".join(
            ["| figure | value |", "|---|---|", *(f"| {_text(name)} | {_text(value)} |" for name, value in rows)]
        )
        yield f"{about}\n\n{_fenced(_command(found))}\n\n{table}"


def is_about(summary: dict[str, Any], outcome: dict[str, Any]) -> bool:
    """Whether a results.json was measured on the weights of the run with this summary.json; an old run's does not say."""
    return summary.get("fingerprint") in (None, outcome.get("fingerprint"))


def by_seed(value: Any, form: str = "") -> str:
    """A value of results.json that was chosen by `vit evaluate`: the same for all seeds, or a list with each one's."""
    return ", ".join(format(one, form) for one in value) if isinstance(value, list) else format(value, form)


def _share(found: dict[str, Any]) -> str:
    spread = f" +- {found['spread']:.2%} over {len(found['seeds'])} seeds" if "spread" in found else ""
    return f"{found['accuracy']:.2%}{spread}"


def _limits(config: dict[str, Any], run: Run, figures: bool, half: bool) -> Iterator[str]:
    """What holds of any model of ours, given its size, its head and its data."""
    encoder = config["encoder"]
    height, width = encoder["image_size"]
    yield "For study and comparison; no judgement about people should rest on it."
    yield f"It sees {height} x {width} pixels: other images are cut to that shape and resized."
    if classes := encoder.get("num_classes"):
        yield f"Every image is taken for one of its {classes} classes, also one that shows none of them."
    else:
        yield "It names nothing: that takes a probe of its features, or fine-tuning."
    if run.settings and config.get("data"):
        known = " beyond the figures above" if figures else ""
        yield f"It was trained on {_text(config['data'])}; how it does on other images is not known{known}."
    if figures:
        yield "The figures above are of one training, with one seed."
        if half:
            yield "The run's own were measured before its weights were rounded to half precision."


def without_places(values: dict[str, Any]) -> dict[str, Any]:
    """config.yaml or summary.json without what says where things lie on the machine: folders go, of `init` its name stays."""
    values = dict(values)
    if isinstance(data := values.get("data"), dict):
        values["data"] = {key: value for key, value in data.items() if key not in PLACES}
    if isinstance(model := values.get("model"), dict) and "init" in model:
        values["model"] = model | {"init": _name(model["init"])}
    return values | ({"init": _name(values["init"])} if "init" in values else {})


def _name(place: Any) -> Any:
    """The last part of a path that tells of a machine: /home/me/runs/tiny, ~/tiny, ../../tiny; anything else as it is."""
    if not isinstance(place, str):
        return place
    if PureWindowsPath(place).drive:
        return PureWindowsPath(place).name
    path = PurePosixPath(place)
    return path.name if path.is_absolute() or ".." in path.parts or place.startswith("~") else place


def _is_place(init: str) -> bool:
    """Whether what a run began with lies on a disk, or did: not with timm, on a hub, or within the package."""
    return bool(init) and not init.startswith(("timm/", "hf/")) and init not in shipped_models()


def _command(found: dict[str, Any]) -> str:
    """The command of a results.json, with names for the paths of its machine."""
    words = []
    for word in shlex.split(one_line(found["command"])):
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        words.append(option + equals + _name(value))
    return shlex.join(words)


def _without_confusion(found: Any) -> Any:
    return {key: value for key, value in found.items() if key != "confusion"} if isinstance(found, dict) else found


def mapping(path: Path, parse: Any) -> dict[str, Any]:
    """A mapping from a file; empty where there is none.

    Raises:
        CheckpointError: the file is damaged.
    """
    if not path.is_file():
        return {}
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise CheckpointError(f"{path} is damaged: {one_line(str(error))}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is damaged: keys and values are expected")
    return value


def read_json(content: str) -> Any:
    """JSON as it is written here: without nan and infinity, which could not be written again.

    Raises:
        ValueError: it is no JSON, or holds one of these.
    """

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number of JSON")

    return json.loads(content, parse_constant=refuse)


def _fenced(content: str, language: str = "") -> str:
    """A block of code; nothing in it can end it."""
    fence = "`" * (1 + max(2, *map(len, re.findall("`+", content)), 0))
    return f"{fence}{language}\n{content}\n{fence}"


def _text(value: Any) -> str:
    """A value from a file within Markdown: on one line, and no markup of its own."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|!" else c for c in one_line(str(value)))


@contextmanager
def damage_named(files: str) -> Iterator[None]:
    """Whatever values of a wrong kind raise, as one line about the files that hold them."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{files} is damaged: {type(error).__name__}: {error}") from error
