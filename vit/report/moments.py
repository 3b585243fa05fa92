"""What a model does with some images at several moments of its run: where it looks, and how it fills them in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vit.checkpoints import CheckpointError, load_trained
from vit.device import Compute
from vit.encoder import VisionTransformer, eval_mode
from vit.evaluate.reconstruction import Reconstruction, fixed_mask, reconstruct
from vit.inputs import to_float
from vit.interpret import AttentionMaps, geometry_of
from vit.runs import RunFiles, RunRecord
from vit.training.state import saved_states

MOST_MOMENTS = 8
"""Most moments to show; of more snapshots, this many, evenly spaced."""


class LastAttention(NamedTuple):
    """Where the last layer of a model looks in B images.

    Attributes:
        query: the query token, for `AttentionMaps.to_grid`.
        title: the same in words: "the class token looks".
        maps: attention to patches, (B, h, rows, columns).
        prefix_mass: attention to class token and registers, (B, h).
    """

    query: str | tuple[int, int]
    title: str
    maps: Tensor
    prefix_mass: Tensor


@dataclass(frozen=True)
class Moment:
    """What the weights of one moment do with B images.

    Attributes:
        name: "step 1,250".
        images: float32 (B, C, H, W) from 0 to 1, as the model takes them.
        attention: of the last layer, on whole images.
        reconstruction: with a share of the patches hidden; None without a decoder.
    """

    name: str
    images: Tensor
    attention: LastAttention
    reconstruction: Reconstruction | None


def last_attention(encoder: VisionTransformer, inputs: Tensor) -> LastAttention:
    """Return the attention of the most telling query: the patches that a head averages, the class token, or the middle patch.

    Args:
        inputs: normalised (B, C, H, W), on the encoder's device. The result is on the CPU.
    """
    row, column = geometry_of(encoder).middle
    query: str | tuple[int, int] = (row, column)
    title = f"the patch in row {row}, column {column} looks"
    if encoder.config.num_classes and encoder.config.global_pool == "avg":
        query, title = "mean", "the patches look, on average"
    elif encoder.config.class_token:
        query, title = "cls", "the class token looks"
    with eval_mode(encoder), torch.no_grad(), AttentionMaps(encoder, layers=[-1]) as attention:
        encoder(inputs)
    maps, prefix_mass = attention.to_grid(query=query)
    return LastAttention(query, title, maps.float().cpu(), prefix_mass.float().cpu())


def moments_of_run(record: RunRecord) -> tuple[list[Moment], list[str]]:
    """Show the images that a run keeps to its kept weights: its snapshots, else its model, else its last state.

    Returns:
        The moments in order, and notes on weights that cannot be loaded; none of either if the run keeps no images.
    """
    moments: list[Moment] = []
    notes: list[str] = []
    if record.samples is None:
        return moments, notes
    kept, settings = record.samples.images, record.settings
    for name, place in _weights(record.files):
        try:
            model = load_trained(place)
        except CheckpointError as error:
            notes.append(f"the weights of {name} cannot be shown: {error}")
            continue
        embed, normalize = model.encoder.patch_embed, model.origin.normalize
        images, reconstruction = to_float(kept, embed.image_size), None
        if model.decoder is not None:
            mask = fixed_mask(settings["mask.kind"], 0, len(kept), embed.grid_size, settings["mask.ratio"])
            reconstruction = reconstruct(model, kept, normalize, mask, Compute(torch.device("cpu")))
        moments.append(Moment(name, images, last_attention(model.encoder, normalize(images)), reconstruction))
    return moments, notes


def _weights(files: RunFiles) -> list[tuple[str, Path]]:
    """Return the weights to show: a name for each, and its path."""
    if kept := list(files.saved_snapshots().items()):
        last, most = len(kept) - 1, min(len(kept), MOST_MOMENTS) - 1
        return [kept[round(i * last / max(most, 1))] for i in range(most + 1)]
    if files.model.exists():
        return [("the end", files.path)]
    return [(f"step {int(path.stem[5:]):,}", path) for path in saved_states(files.checkpoints)[-1:]]
