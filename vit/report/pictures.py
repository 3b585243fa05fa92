"""The pictures of a run: those in its folder at its end, and those on its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vit import figures as draw
from vit.figures import Curve, Scale, save_figure
from vit.figures.document import data_uri
from vit.figures.dynamics import QUANTITIES
from vit.figures.style import Figure
from vit.inputs import to_float
from vit.interpret.dynamics import Dynamics, read_dynamics
from vit.report.moments import Moment, last_attention
from vit.runs import RunFiles, RunRecord, flat_settings, read_metrics
from vit.training.objectives import objective_class
from vit.training.run import Run

SHOWN = 6  # test images in attention.png
MATRICES: dict[str, tuple[str, ...]] = {name: (name,) for name in ("W_Q", "W_K", "W_V", "W_O")}
MATRICES.update({"MLP": ("fc1", "fc2"), "W_E": ("W_E",), "positions": ("pos_embed",), "head": ("head",)})
"""The lines of dynamics.png, and the matrices that each is the mean of."""
DPI, WIDE_DPI = 200, 130  # of a figure on the page; of one as wide as the page


# ---- In the run's folder ---------------------------------------------------------------------------------------------


def draw_pictures(run: Run, files: RunFiles, measured: dict[str, Any]) -> None:
    """Draw the objective's figures, attention, curves, and dynamics if recorded, into a run's folder."""
    for stem, figure in run.objective.figures(run, measured).items():
        save_figure(figure, files.path / f"{stem}.png")
    draw_attention(run, files)
    metrics = read_metrics(files.metrics)
    curves = curves_of(flat_settings(run.config.to_dict()), run.data.tested_on, measured, metrics)
    about = f"{run.caption} · seed {run.config.train.seed}"
    save_figure(draw.curves_figure(metrics, curves, "Training curves", about), files.curves)
    if files.dynamics.exists():
        epochs = f"{run.config.train.epochs} epochs on {len(run.data.train):,} images"
        about = f"{run.data.name} · {epochs} · seed {run.config.train.seed} · "
        save_figure(figure_of_dynamics(read_dynamics(files.dynamics), about), files.dynamics_picture)


def draw_attention(run: Run, files: RunFiles) -> None:
    """Draw attention.png: where the last layer looks in some test images, head by head."""
    test, encoder = run.data.test, run.result.encoder
    some = test.subset(test.showcase(SHOWN))
    images = to_float(some.images[:], run.config.model.image_size_2d)
    query, looking, *found = last_attention(encoder, run.normalize(images).to(run.compute.device))
    names = ["mean of heads", *(f"head {head}" for head in range(found[0].shape[1]))]
    # The mean comes first: it sums up the heads
    maps, prefix_mass = (torch.cat([part.mean(dim=1, keepdim=True), part], dim=1) for part in found)
    patch = query if isinstance(query, tuple) else None
    title = f"Where {looking}" if patch is None else f"Where {looking.removesuffix(' looks')} (outlined) looks"
    last = len(encoder.blocks) - 1
    about = f"{run.caption} · layer {last} of 0 to {last}, whole images"
    figure = draw.attention_figure(images, maps, names, some.label_names, title, about, masses=prefix_mass, query=patch)
    save_figure(figure, files.attention)


def curves_of(
    settings: dict[str, Any], tested_on: str, measured: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
) -> list[Curve]:
    """Return the curves of a run besides learning rate and gradient norm.

    Curves measured only on held-out images are left out for a run without any.

    Args:
        settings: by "section.key".
        tested_on: the images behind `measured`, `Dataset.tested_on`.
        measured: by the objective, or summary.json; empty if the run is not finished.
        metrics: lines of metrics.jsonl.
    """
    end = f"{tested_on.replace('training ', '')} at the end"
    curves = objective_class(settings["train.objective"]).curves(settings, end, measured)
    return [curve for curve in curves if curve.key or any(curve.val_key in line for line in metrics)]


def figure_of_dynamics(dynamics: Dynamics, about: str = "") -> Figure:
    """Draw how strongly each matrix was trained and how far it moved; `about` names the run in the subtitle."""
    there = dynamics.names("encoder")
    courses: dict[str, dict[str, Tensor]] = {}
    for name, parts in MATRICES.items():
        if found := [part for part in parts if part in there]:
            courses[name] = {
                quantity: torch.cat([dynamics.of(quantity, part, "encoder") for part in found], 1)
                for quantity in QUANTITIES
            }
    return draw.dynamics_figure(
        dynamics.steps,
        courses,
        "How strongly each matrix is trained, and how far it moves",
        f"{about}encoder, mean over layers · layer by layer: dynamics.jsonl",
    )


# ---- On its page -----------------------------------------------------------------------------------------------------


def page_picture(figure: Callable[[], Figure], alt: str, dpi: int = DPI) -> dict[str, str]:
    """Return the figure that `figure` draws, as a picture for the page, and its text."""
    return {"image": data_uri(draw.png_of(figure(), dpi)), "alt": alt}


def curve_pictures(record: RunRecord) -> list[dict[str, str]]:
    """Return the objective's curves, the learning rate and the gradient norm."""
    if not record.metrics:
        return []
    own = curves_of(record.settings, record.tested_on, record.summary, record.metrics)
    pictures = []
    for curve in [*own, *draw.STEERING]:
        key = curve.key or curve.val_key
        values = [line[key] for line in record.metrics if key in line]
        ends = f": from {curve.write(values[0], '.3g')} to {curve.write(values[-1], '.3g')}" if values else ""
        lines = "".join(f"; {name} {curve.write(value)}" for name, value in curve.lines.items())
        # inches; a single curve stands beside two small ones
        height = 2.05 if curve in draw.STEERING else 4.2 if len(own) == 1 else 3.2
        picture = page_picture(
            partial(draw.curve_figure, record.metrics, curve, height),
            f"{curve.title} over {record.epochs:.1f} epochs{ends}{lines}",
        )
        pictures.append(picture | {"kind": "tall" if height > 4 else ""})
    return pictures


def reconstruction_rows(moments: Sequence[Moment]) -> dict[str, Any] | None:
    """Return the reconstructions of each moment, as rows of images."""
    found = [(moment.name, moment.reconstruction) for moment in moments if moment.reconstruction]
    if not found:
        return None
    _, last = found[-1]
    return {
        "seen": f"{1 - float(last.hidden.float().mean()):.0%}",
        "original": data_uri(draw.image_strip(last.original)),
        "visible": data_uri(draw.image_strip(last.original, last.hidden)),
        "moments": [(name, data_uri(draw.image_strip(result.filled))) for name, result in found],
        "from_normalized": last.from_normalized,
    }


def attention_rows(moments: Sequence[Moment]) -> dict[str, Any] | None:
    """Return where the last layer looks, as rows of maps: now, head by head, and the mean of the heads at each moment."""
    if not moments:
        return None
    last = moments[-1]
    maps, prefix_mass = last.attention.maps, last.attention.prefix_mass
    means = [moment.attention.maps.mean(1) for moment in moments]  # (B, rows, columns) each
    even = draw.in_multiples_of_even(torch.cat([maps, torch.stack(means, 1)], dim=1).double().numpy())
    scale = Scale.of(even)

    def row(name: str, maps: Tensor, prefix_mass: Tensor) -> tuple[str, str, str]:
        """Return its name, the share of attention on patches, and the maps, in multiples of an even share."""
        strip = draw.map_strip(maps * maps[0].numel(), (last.images.shape[-2], last.images.shape[-1]), scale)
        return name, f"{1 - float(prefix_mass.mean()):.0%} on patches", data_uri(strip)

    heads = [row(f"head {head}", maps[:, head], prefix_mass[:, head]) for head in range(maps.shape[1])]
    over_time = [
        row(moment.name, mean, moment.attention.prefix_mass) for moment, mean in zip(moments, means, strict=True)
    ]
    return {
        "title": last.attention.title,
        "original": data_uri(draw.image_strip(last.images)),
        "now": [row("mean of heads", means[-1], prefix_mass), *heads],
        "moments": over_time if len(moments) > 1 else [],
        "some_elsewhere": bool(prefix_mass.any()),
        "bar": data_uri(draw.bar_strip()),
        "most": f"{scale.top:.1f}{' or more' if scale.over else ''}",
    }


def dynamics_picture(record: RunRecord) -> dict[str, str] | None:
    """Return how the weights moved, if the run recorded it.

    Raises:
        DynamicsError: the record is damaged.
    """
    if not record.files.dynamics.is_file():
        return None
    recorded = read_dynamics(record.files.dynamics)
    alt = "The gradient of each kind of weight matrix, and its distance from where it began, over the steps"
    return page_picture(lambda: figure_of_dynamics(recorded), alt, WIDE_DPI)
