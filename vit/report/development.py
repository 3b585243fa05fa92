"""How a model came to fill in and to look at some images: the same ones, by the weights of several moments of its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints import CheckpointError, load_trained
from vit.data.augment import to_float
from vit.device import Compute
from vit.encoder import VisionTransformer, eval_mode
from vit.evaluate.reconstruction import Reconstruction, fixed_mask, reconstruct
from vit.interpret import AttentionMaps, geometry_of
from vit.mae import Model
from vit.runs import RunFiles
from vit.training.state import saved_states

MOST_MOMENTS = 8
"""Moments that are shown; of more snapshots, so many spread evenly."""


@dataclass(frozen=True)
class Asking:
    """Whose attention is shown.

    Attributes:
        query: for `AttentionMaps.to_grid`.
        who, looks: in words: "the class token", "looks".
        patch: (row, column), where it is a patch that asks.
    """

    query: str | tuple[int, int]
    who: str
    looks: str = "looks"
    patch: tuple[int, int] | None = None


def who_asks(encoder: VisionTransformer) -> Asking:
    """What tells most of an encoder: the patches whose mean a head reads, the class token, or else the patch in the middle."""
    if encoder.config.num_classes and encoder.config.global_pool == "avg":
        return Asking("mean", "the patches", "look, on average")
    if encoder.config.class_token:
        return Asking("cls", "the class token")
    row, column = centre = geometry_of(encoder).middle
    return Asking(centre, f"the patch in row {row}, column {column}", patch=centre)


@dataclass(frozen=True)
class Moment:
    """What the weights of a moment make of B images.

    Attributes:
        name: "step 1,250".
        images: float32 (B, C, H, W) from 0 to 1, as the model takes them.
        asking: whose attention it is.
        maps: the last layer's attention to patches, (B, h, rows, columns).
        on_patches: the share of it that these are, the mean over the images: (h,).
        reconstruction: with a share of the patches hidden; None of a model that fills nothing in.
    """

    name: str
    images: Tensor
    asking: Asking
    maps: Tensor
    on_patches: Tensor
    reconstruction: Reconstruction | None


@dataclass(frozen=True)
class Development:
    """The moments of a run, the last one last, and what could not be shown, and why."""

    moments: list[Moment]
    notes: list[str]


def development_of(folder: RunFiles, images: Tensor, settings: dict[str, Any]) -> Development:
    """What the weights that a run kept make of some images: its snapshots, else its model, else its last saved state.

    Args:
        folder: of the run.
        images: uint8 (B, C, h, w).
        settings: of the run, by "section.key".
    """
    moments, notes = [], []
    for name, place in _weights(folder):
        try:
            moments.append(_moment(name, load_trained(place), images, settings))
        except CheckpointError as error:
            notes.append(f"the weights of {name} cannot be shown: {error}")
    return Development(moments, notes)


def _weights(folder: RunFiles) -> list[tuple[str, Path]]:
    """The weights to show: what to call each, and where it is."""
    if kept := list(folder.saved_snapshots().items()):
        return [kept[place] for place in spread(len(kept), MOST_MOMENTS)]
    if (folder.path / "model.safetensors").exists():
        return [("the end", folder.path)]
    return [(f"step {int(path.stem[5:]):,}", path) for path in saved_states(folder.checkpoints)[-1:]]


def spread(count: int, most: int) -> Sequence[int]:
    """Up to `most` of the numbers from 0 to below `count`, spread evenly, the first and the last among them."""
    return range(count) if count <= most else [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _moment(name: str, model: Model, images: Tensor, settings: dict[str, Any]) -> Moment:
    encoder, normalize = model.encoder, model.origin.normalize
    grid = encoder.patch_embed.grid_size
    shown, asking = to_float(images, encoder.patch_embed.image_size), who_asks(encoder)
    with eval_mode(encoder), torch.no_grad(), AttentionMaps(encoder, layers=[-1]) as attention:
        encoder(normalize(shown))
    maps, prefix_mass = attention.to_grid(query=asking.query)
    result = None
    if model.decoder is not None:
        mask = fixed_mask(settings["mask.kind"], 0, len(images), grid, settings["mask.ratio"])
        result = reconstruct(model, images, normalize, mask, Compute(torch.device("cpu")))
    return Moment(name, shown, asking, maps, 1 - prefix_mass.mean(0), result)
