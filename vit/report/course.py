"""How a run went: its curves, what it filled in and where it looked at several moments, how its weights moved."""

from __future__ import annotations

import torch

from vit.figures import (
    STEERING,
    Curve,
    Scale,
    bar_strip,
    curve_figure,
    image_strip,
    in_multiples_of_even,
    map_strip,
    png_of,
)
from vit.figures.document import Markup, data_uri, element
from vit.interpret import read_dynamics
from vit.report.development import Development
from vit.report.pictures import curves_of, figure_of_dynamics
from vit.report.pieces import DOTS, Row, Section, figure, paragraph, picture, section, strips
from vit.runs import RunRecord

DOTS_BROAD = 130
"""Dots an inch of a figure that is as wide as the page and scrolls on a phone."""
PIXELATED = 64
"""Pixels a side up to which an image is enlarged with its pixels as squares."""


def course(record: RunRecord) -> Section | None:
    """How training went."""
    if not record.metrics:
        return None
    curves = curves_of(record.settings, record.tested_on, record.summary)
    tall, low = (4.2 if len(curves) == 1 else 3.2), 2.05
    drawn = [_curve(record, curve, tall, "tall" if len(curves) == 1 else None) for curve in curves]
    drawn += [_curve(record, curve, low, None) for curve in STEERING]
    lede = "Loss, learning rate and gradient norm over the epochs. The loss in training is taken on varied images (cropped,"
    return section("course", "How it went", f"{lede} flipped), so it need not meet that of the {record.tested_on}.",
                   element("div", *drawn, class_="figures"))  # fmt: skip


def _curve(record: RunRecord, curve: Curve, height: float, kind: str | None) -> Markup:
    values = [line[curve.key] for line in record.metrics if curve.key in line]
    ends = f": from {values[0]:.3g} to {values[-1]:.3g}" if values else ""
    lines = "".join(f"; {name} {value:.3f}" for name, value in curve.lines.items())
    return figure(
        lambda dark: png_of(curve_figure(record.metrics, curve, height, dark), DOTS),
        f"{curve.title} over {record.epochs:.1f} epochs{ends}{lines}", kind=kind,
    )  # fmt: skip


def filling(record: RunRecord, development: Development) -> Section | None:
    """Reconstructions over time."""
    found = [(moment, moment.reconstruction) for moment in development.moments if moment.reconstruction]
    if not found or record.samples is None:
        return None
    _, last = found[-1]
    names = _named(record.samples.labels)
    seen = f"{1 - float(last.hidden.float().mean()):.0%}"
    rows: list[Row] = [
        ("original", "", image_strip(last.original), f"{len(names)} images: {', '.join(names)}"),
        ("visible", f"{seen} of it", image_strip(last.original, last.hidden), "the same, as the model sees them"),
    ]
    for moment, result in found:
        rows.append((moment.name, "", image_strip(result.filled), f"filled in by the weights of {moment.name}"))
    lede = f"Some {record.tested_on}, the {seen} of them that the model sees, and how it fills in the rest"
    lede += ": the same images and the same mask at each moment." if len(found) > 1 else "."
    note = (
        "The model predicts normalised patches: their brightness and contrast are estimated here from the visible patches"
        " around, not taken from the original."
    )
    smooth = max(last.original.shape[-2:]) > PIXELATED
    drawn = strips(rows, record.samples.labels, "images filled in", smooth)
    return section(
        "filling", "How it fills in", lede, drawn, paragraph(note, "quiet") if last.from_normalized else None
    )


def _named(labels: list[str]) -> list[str]:
    return [label or "without a label" for label in labels]


def attention(record: RunRecord, development: Development) -> Section | None:
    """Where the last layer looks: now, head by head, and over time."""
    if not development.moments or record.samples is None:
        return None
    last, labels = development.moments[-1], record.samples.labels
    size, smooth = (last.images.shape[-2], last.images.shape[-1]), max(last.images.shape[-2:]) > PIXELATED
    means = [moment.maps.mean(1) for moment in development.moments]
    scale = Scale.of(in_multiples_of_even(torch.cat([last.maps, torch.stack(means, 1)], dim=1).double().numpy()))

    def row(name: str, maps: torch.Tensor, on_patches: torch.Tensor) -> Row:
        content = map_strip(maps * maps[0].numel(), size, scale)  # in multiples of even
        what = f"where {last.asking.who} {last.asking.looks}: {name}"
        return name, f"{float(on_patches):.0%} on patches", content, what

    original = ("original", "", image_strip(last.images), f"{len(labels)} images: {', '.join(_named(labels))}")
    rows = [original, row("mean of heads", means[-1], last.on_patches.mean())]
    rows += [row(f"head {head}", last.maps[:, head], share) for head, share in enumerate(last.on_patches)]
    parts = [strips(rows, labels, "attention, head by head", smooth), *_bar(scale)]
    if len(means) > 1:
        moments = zip(development.moments, means, strict=True)
        before = [original, *(row(moment.name, mean, moment.on_patches.mean()) for moment, mean in moments)]
        parts += [
            element("h3", "Over time, the mean of the heads"),
            strips(before, labels, "attention over time", smooth),
        ]
    lede = f"Where {last.asking.who} {last.asking.looks}: in the last layer, on whole images. Bright patches get most."
    return section("attention", "Where it looks", lede, *parts)


def _bar(scale: Scale) -> list[Markup | None]:
    """The colours of the maps, and what they mean."""
    more = " or more" if scale.over else ""
    bar = element("img", src=data_uri(bar_strip()), alt="from dark to bright")
    meaning = (
        "1 is what each patch would get of attention spread evenly. What is not on patches is on the class token and"
        " registers, which have no place in the image."
    )
    ends = (element("span", "0"), bar, element("span", f"{scale.top:.1f}{more}"))
    return [element("div", *ends, class_="scale"), paragraph(meaning)]


def dynamics(record: RunRecord) -> Section | None:
    """How the weights moved, where the run recorded it.

    Raises:
        DynamicsError: what it recorded is damaged.
    """
    path = record.files.dynamics
    if not path.is_file():
        return None
    recorded = read_dynamics(path)
    what = (
        "Gradient, update, drift, cosine to the start and stable rank of every weight matrix over the steps, a line a layer;"
        " the products of W_Q and W_K, and the biases"
    )
    shown = figure(lambda dark: png_of(figure_of_dynamics(recorded, dark=dark), DOTS_BROAD), what, kind="broad")
    lede = "How strongly each matrix is pulled at, what a step changes, and how far it has moved: a line a layer."
    return section("dynamics", "How the weights moved", lede, shown)


def pictures_left(record: RunRecord) -> Section | None:
    """The run's own pictures, of a run that kept no images to draw them anew from."""
    about = {
        record.files.reconstructions: f"{record.tested_on}, what the model sees of them, and how it fills in the rest",
        record.files.attention: "where the last layer's attention looks, head by head",
    }
    shown = [picture(path.read_bytes(), None, alt, alt, "wide") for path, alt in about.items() if path.is_file()]
    return section("pictures", "Pictures", "As the run drew them at its end.", *shown) if shown else None
