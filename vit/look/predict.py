"""Apply a loaded model to new images: class probabilities and features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch
from PIL import Image
from torch import Tensor

from vit.checkpoints.origin import Origin
from vit.encoder import eval_mode
from vit.errors import CheckpointError, DataError
from vit.mae import Model

Picture: TypeAlias = str | Path | Image.Image
"""An image file, or a PIL image."""


class Embeddings(NamedTuple):
    """The features of B images from a model's last layer, after its norms.

    Attributes:
        pooled: float32 (B, D), the head's input: the class token or the mean over the patches (`encoder.config.global_pool`).
        patches: float32 (B, L, D), the token of each patch, row by row.
    """

    pooled: Tensor
    patches: Tensor


def require_head(model: Model) -> None:
    """Refuse a model that is no classifier.

    Raises:
        CheckpointError: it has no head, or one that does not choose between classes.
    """
    source, kind = (
        (model.origin.source, model.origin.problem_type) if model.origin else ("this model", "")
    )
    classes = model.encoder.config.num_classes
    if classes == 1 or kind:
        way = "in Python, model.encoder.forward_head returns its logits"
        raise CheckpointError(
            f"{source}: its head is for {kind or 'one output'}, no choice between classes; {way}"
        )
    if not classes:
        way = "use a classifier such as vit-tiny-p4-cifar10-finetuned, or fine-tune this model (docs/fine-tuning.md)"
        raise CheckpointError(f"{source} has no classification head; {way}")


@torch.no_grad()
def predict(
    model: Model, images: Tensor | Picture | Sequence[Picture], batch_size: int = 64
) -> Tensor:
    """Return a classifier's class probabilities.

    Args:
        model: from `load_model`, on any device; `model.origin.class_names` names the columns of the result.
        images: files, PIL images, or uint8 (B, 3, h, w) of any size; they are prepared as in the model's training.
        batch_size: images at a time.

    Returns:
        float32 (B, classes) on the CPU; every row sums to 1.

    Raises:
        CheckpointError: the model has no head, was not loaded, or computes nan or infinity.
        DataError: an image cannot be read, or there is none.
    """
    require_head(model)
    with eval_mode(model):
        logits = torch.cat(
            [model.encoder.forward_head(tokens) for tokens in _tokens(model, images, batch_size)]
        )
    _require_finite(model.origin.source, "logits", logits)
    return logits.float().softmax(1).cpu()


@torch.no_grad()
def embed(
    model: Model, images: Tensor | Picture | Sequence[Picture], batch_size: int = 64
) -> Embeddings:
    """Return the features of whole images, pooled and per patch.

    Args:
        model: from `load_model`, on any device; it needs no head.
        images: as for `predict`.
        batch_size: images at a time.

    Raises:
        CheckpointError: the model was not loaded, or computes nan or infinity.
        DataError: an image cannot be read, or there is none.
    """
    encoder, found = model.encoder, []
    with eval_mode(model):
        for tokens in _tokens(model, images, batch_size):
            pooled, patches = (
                encoder.fc_norm(encoder.pool(tokens)),
                tokens[:, encoder.num_prefix_tokens :],
            )
            found.append((pooled.float().cpu(), patches.float().cpu()))
    return Embeddings(*map(torch.cat, zip(*found, strict=True)))


def _tokens(
    model: Model, images: Tensor | Picture | Sequence[Picture], batch_size: int
) -> Iterator[Tensor]:
    """Yield the tokens (B, N, D) of images, batch by batch; each batch's files are read in turn."""
    origin, encoder = model.origin, model.encoder
    if origin is None:
        raise CheckpointError(
            "nothing says how this model's images are prepared; load it with vit.load_model"
        )
    if isinstance(images, Picture):
        images = [images]
    if len(images) == 0:
        raise DataError("there are no images")
    device, dtype = next(encoder.parameters()).device, next(encoder.parameters()).dtype
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        if isinstance(batch, Tensor):
            inputs = origin.inputs(batch.to(device))
        else:
            inputs = torch.stack([_input(origin, image) for image in batch]).to(device)
        tokens = encoder(inputs.to(dtype))
        _require_finite(origin.source, "tokens", tokens)
        yield tokens


def _require_finite(source: str, what: str, values: Tensor) -> None:
    if not bool(values.isfinite().all()):
        raise CheckpointError(
            f"{source}: its {what} of some images are nan or infinite; the weights are damaged"
        )


def _input(origin: Origin, image: Picture) -> Tensor:
    """Return an image as the model's input (C, H, W)."""
    if isinstance(image, Image.Image):
        return origin.transform(image)
    if not isinstance(image, str | Path):
        ways = "images are files, PIL images (Image.fromarray makes one), or a uint8 tensor (B, 3, h, w)"
        raise DataError(f"an image cannot be a {type(image).__name__}: {ways}")
    return origin.normalize(origin.read_images([image]))[0]
