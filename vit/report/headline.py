"""A run in two sentences and three figures."""

from __future__ import annotations

from vit.config import PRESETS
from vit.interpret.inputs import short_name
from vit.report.pieces import duration, plural
from vit.runs import FIGURES, RunRecord, baselines, summary_values
from vit.training.objectives import objective_class


def introduction(record: RunRecord) -> str:
    """Return two sentences on the run: the model, and what it learned from what."""
    settings, data = record.settings, record.data
    size = {
        key: value if (value := settings[f"model.{key}"]) is not None else PRESETS[settings["model.preset"]][key]
        for key in ("depth", "num_heads", "embed_dim")
    }
    patch = settings["model.patch_size"]
    rows, columns = patch if isinstance(patch, list) else (patch, patch)
    model = f"A vision transformer of {plural(size['depth'], 'layer')} with {plural(size['num_heads'], 'head')} each"
    model = f"{model}, width {size['embed_dim']}, on patches of {rows}×{columns} pixels."
    images = f"{data['train_images']:,} images of {data['name']}" if data else "its images"
    init = settings["model.init"]
    what = objective_class(settings["train.objective"]).learns(settings, short_name(init) if init else "")
    epochs = plural(settings["train.epochs"], "epoch")
    if not record.summary:
        return f"{model} On {images}, it is learning {what}; {record.epochs:.1f} of {epochs} are done."
    return f"{model} In {epochs} over {images} it learned {what}."


def key_figures(record: RunRecord) -> list[tuple[str, str, str]]:
    """Return the three most telling figures: the number, its name, and what it means."""
    summary, metrics = record.summary, record.metrics
    if not summary:
        last = next((line for line in reversed(metrics) if "loss" in line), None)
        if last is None:
            return []
        epochs = record.settings["train.epochs"]
        return [
            (f"{last['epoch'] / epochs:.0%}", "of the run", f"epoch {last['epoch']:.1f} of {epochs}"),
            (f"{last['loss']:.3f}", "training loss", f"at step {last['step']:,}, on varied images"),
            (f"{last['images_per_second']:,.0f}", "images a second", "as it is training"),
        ]
    time = (duration(summary["seconds"]), "of training", f"{summary['images_per_second']:,.0f} images a second")
    values = summary_values(summary)
    meanings = {
        "accuracy": f"of {record.tested} are named right",
        "calibration_error": "how far its confidence is from how often it is right, on average",
        "masked_loss": f"on hidden patches of {record.tested_on}",
        "knn_accuracy": "without a label in training",
    }
    names = {"accuracy": FIGURES["accuracy"].short, "masked_loss": FIGURES["masked_loss"].short}
    figures = []
    for key, meaning in meanings.items():
        if key not in values:
            continue
        for other in baselines(key)[:1]:  # one is enough here
            if other.key in values:
                meaning += f"; {other.label}: {other.write_brief(values[other.key])}"
        figures.append((FIGURES[key].write_brief(values[key]), names.get(key, FIGURES[key].label), meaning))
    return [*figures, time]
