"""Model cards (Mitchell et al. 2019), made with the template card.md.j2 from a run's files alone."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError
from markupsafe import Markup

from vit.errors import one_line
from vit.load_options import CheckpointError
from vit.metrics import Line, results_lines, summary_lines
from vit.pretrained import shipped_models
from vit.report.record import RunRecord, read_folder
from vit.runs import RunFiles, read_mapping

# the facts that a card lists about a run, each with a format and its key in summary.json
FACTS = {
    "epochs": ("{}", "epochs"),
    "steps": ("{:,}", "steps"),
    "seconds of training": ("{:,.0f}", "seconds"),
    "images per second": ("{:,.0f}", "images_per_second"),
    "device": ("{}", "device"),
    "precision": ("{}", "precision"),
    "threads": ("{}", "threads"),
    "processes": ("{}", "processes"),
    "seed": ("{}", "seed"),
}


def model_card(folder: str | Path, name: str) -> str:
    """Return the card of a run, or of a folder from `convert --to safetensors`.

    Args:
        folder: with config.json and, if it is a run, config.yaml and summary.json.
        name: see `card_of`.

    Raises:
        CheckpointError: there is no config.json, or a value in these files has the wrong type.
        RunError: one of these files is damaged.
    """
    config = read_mapping(RunFiles(Path(folder)).model_config)
    if not config:
        raise CheckpointError(f"no config.json in {folder}: there is nothing to describe")
    return card_of(config, read_folder(Path(folder)).public(), name)


def card_of(config: dict[str, Any], run: RunRecord, name: str, half: bool = False, note: str = "") -> str:
    """Return the card of a model, in the hub's form.

    Args:
        config: the content of config.json.
        run: the run that trained it, without its machine's paths; empty if unknown.
        name: ORGANISATION/NAME on the hub, or the name of a model of the package.
        half: whether its weights are stored in half precision.
        note: a sentence on the data.

    Raises:
        CheckpointError: a value in `config` or `run` has the wrong type.
    """
    try:
        return _template().render(_values(config, run, name), half=half, note=note.rstrip().rstrip("."))
    except (TemplateError, LookupError, TypeError, ValueError, AttributeError) as error:
        files = f"{run.files.path}: config.json, config.yaml, summary.json or results.json"
        raise CheckpointError(f"{files} is damaged: {type(error).__name__}: {error}") from error


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        finalize=_escape,  # applied to every inserted value
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("card.md.j2")


def _values(config: dict[str, Any], run: RunRecord, name: str) -> dict[str, Any]:
    """Return the template's values."""
    encoder, decoder, summary = config["encoder"], config.get("decoder"), run.summary
    data = summary.get("data") or {}
    init = str(run.sections.get("model", {}).get("init") or "")
    ours = bool(run.sections) and (not init or init in shipped_models())  # others' weights stay under their terms
    front = {
        **({"license": "apache-2.0"} if ours else {}),
        "library_name": "vit-patch-trainer",
        "pipeline_tag": "image-classification" if encoder.get("num_classes") else "image-feature-extraction",
        "tags": ["vision-transformer", *(["masked-autoencoder", "self-supervised"] if decoder else [])],
    }

    # how to load it
    hub_name = f"hf/{name}" if "/" in name else name
    use = f"from PIL import Image\nfrom vit import load_model\n\nmodel = load_model({json.dumps(hub_name)})"
    use += '\ninputs = model.origin.transform(Image.open("photo.jpg"))[None]  # (1, C, H, W)'
    use += "\ntokens = model(inputs)  # (1, N, D): class token, then patches"

    quoted = shlex.quote(one_line(hub_name))
    shell = [f"vit predict {quoted} photo.jpg"] if encoder.get("num_classes") else []
    shell.append(f"vit attention {quoted} photo.jpg --out look")

    # how to train it again
    command = "vit train --config config.yaml"
    source = run.sections.get("data", {}).get("source")
    if source == "dataset":
        command = "vit.fit('config.yaml', dataset=IMAGES)"
    if source == "folder":
        command += " --data.root IMAGES"
    if init and not init.startswith(("timm/", "hf/")) and init not in shipped_models():
        command += " --model.init CHECKPOINT"
    known = {title: form.format(summary[key]) for title, (form, key) in FACTS.items() if summary.get(key) is not None}
    facts = [*known.items(), *(summary.get("versions") or {}).items()]
    return {
        "front": Markup(yaml.safe_dump(front, sort_keys=False)),
        "title": name.rpartition("/")[2],
        "config": config,
        "encoder": encoder,
        "decoder": decoder,
        "height": encoder["image_size"][0],
        "width": encoder["image_size"][1],
        "classes": encoder.get("num_classes"),
        "mean": ", ".join(f"{value:.4f}" for value in config["mean"]),
        "std": ", ".join(f"{value:.4f}" for value in config["std"]),
        "trained_on": config.get("data"),
        "use": use,
        "shell": "\n".join(shell),
        "run": run,
        "summary": summary,
        "data": data,
        "tested_on": data.get("tested_on", "test images"),
        "command": command,
        "init": init,
        "ours": ours,
        "settings": yaml.safe_dump(run.sections, sort_keys=False, default_flow_style=None, width=120).rstrip(),
        "facts": facts,
        "figures": summary_lines(summary),
        "results_lines": results_lines,
        "fenced": _fenced,
        "table": _table,
    }


def _table(lines: Sequence[Line]) -> Markup:
    rows = [
        f"| {_escape(line.metric.label)}{f' ({_escape(line.how)})' if line.how else ''} | {_escape(line.value)} |"
        for line in lines
    ]
    return Markup("\n".join(["| figure | value |", "|---|---|", *rows]))


def _fenced(content: str, language: str = "") -> Markup:
    """Return a block of code, with a fence that its content cannot close."""
    fence = "`" * (1 + max(2, *map(len, re.findall("`+", content)), 0))
    return Markup(f"{fence}{language}\n{content}\n{fence}")


def _escape(value: Any) -> str:
    """Escape a value for Markdown: on one line, without markup of its own."""
    if isinstance(value, Markup):
        return value
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|!" else c for c in one_line(str(value)))
