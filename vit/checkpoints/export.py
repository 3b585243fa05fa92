"""Export an encoder as a program that runs without this package: ONNX, or torch.export's."""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.atomic import replacing
from vit.attention import set_kernel
from vit.checkpoints.reading import shorten
from vit.encoder import VisionTransformer
from vit.load_options import CheckpointError
from vit.mae import Model

PROGRAMS = {"onnx": ".onnx", "torch-export": ".pt2"}
MOST_DIFFERENCE = 1e-4
EXAMPLE, COMPARED = 2, (1, 3)  # batch sizes for tracing (1 would be taken as fixed) and for the comparison

Program = Callable[[Tensor], tuple[Tensor, ...]]


class _EncoderWithHead(nn.Module):
    """Map normalised images (B, C, H, W) to tokens (B, N, D), and to logits (B, classes) or pooled features (B, D)."""

    def __init__(self, encoder: VisionTransformer):
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.encoder(images)
        return tokens, self.encoder.forward_head(tokens)


def export_program(model: Model, path: Path, to: str, metadata: dict[str, str] | None = None) -> float:
    """Write the encoder as a program, run it, and compare.

    The input is `images`, float32 (B, C, H, W), normalised, of any batch size; the outputs are `tokens` (B, N, D) and
    `logits` (B, classes) or, without a head, `features` (B, D). The model does not change.

    Args:
        model: an encoder, or an autoencoder, whose decoder is left out.
        path: the file to write; an existing one is only replaced by a program that passed the comparison.
        to: "onnx" or "torch-export".
        metadata: texts to store in the file, e.g. the input's normalisation.

    Returns:
        The largest difference between the outputs of program and model.

    Raises:
        CheckpointError: packages are missing, the model cannot be exported, or the program computes something else.
    """
    # check first what needs no computation
    if to not in PROGRAMS:
        raise CheckpointError(f"programs are {', '.join(PROGRAMS)}, got {to!r}")
    if path.suffix != PROGRAMS[to]:
        raise CheckpointError(f"{path}: name a file that ends in {PROGRAMS[to]}")
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise CheckpointError(f"{path} is not a file that can be replaced; name another")
    if to == "onnx":
        try:
            for package in ("onnx", "onnxscript", "onnxruntime"):
                importlib.import_module(package)
        except ImportError as error:
            raise CheckpointError("ONNX needs more packages: pip install onnx onnxscript onnxruntime") from error

    # trace a copy whose attention exports as one operation, then write it, run it and compare
    encoder = copy.deepcopy(model.encoder).cpu().eval()
    set_kernel(encoder, "flash")
    try:
        with _silence(), torch.no_grad():
            example = (_images(EXAMPLE, encoder),)
            shapes = ({0: torch.export.Dim("batch")},)
            traced = torch.export.export(_EncoderWithHead(encoder), example, dynamic_shapes=shapes)
            for node in traced.graph.nodes:  # remove the paths of this machine's sources
                node.meta.pop("stack_trace", None)
            with replacing(path) as temporary:
                program = (_onnx if to == "onnx" else _torch_export)(traced, temporary, encoder, metadata or {})
                return _compare(program, encoder)
    except (CheckpointError, OSError):
        raise
    except Exception as error:  # the exporters raise nearly anything
        raise CheckpointError(f"{path}: cannot be exported to {to}: {shorten(str(error), 300)}") from error


def _onnx(traced: Any, path: Path, encoder: VisionTransformer, metadata: dict[str, str]) -> Program:
    import onnx
    import onnxruntime

    head = "features" if isinstance(encoder.head, nn.Identity) else "logits"
    names: dict[str, Any] = dict(input_names=["images"], output_names=["tokens", head], dynamic_shapes=({0: "batch"},))
    program = torch.onnx.export(traced, (), dynamo=True, verbose=False, optimize=True, **names)
    assert program is not None
    program.model.metadata_props.update(metadata)
    program.save(str(path), external_data=False)
    onnx.checker.check_model(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: tuple(torch.from_numpy(value) for value in session.run(None, {"images": images.numpy()}))


def _torch_export(traced: Any, path: Path, encoder: VisionTransformer, metadata: dict[str, str]) -> Program:
    whole = io.BytesIO()  # torch's own writer ends the process where a disk is full
    torch.export.save(traced, whole, extra_files={"metadata.json": json.dumps(metadata)})
    path.write_bytes(whole.getbuffer())
    return torch.export.load(path).module()


def _images(count: int, encoder: VisionTransformer) -> Tensor:
    """Return fixed normalised noise (count, C, H, W), without touching the process's generator."""
    shape = (count, encoder.config.channels, *encoder.config.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(count))


def _compare(program: Program, encoder: VisionTransformer) -> float:
    """Return the largest difference, on batch sizes other than the traced one.

    Raises:
        CheckpointError: it is larger than rounding explains.
    """
    worst = 0.0
    for count in COMPARED:
        images = _images(count, encoder)
        for theirs, ours in zip(program(images), _EncoderWithHead(encoder)(images), strict=True):
            if theirs.shape != ours.shape:
                shapes = f"the program gives {tuple(theirs.shape)}, the model {tuple(ours.shape)}"
                raise CheckpointError(f"{shapes}: not written")
            worst = max(worst, float((theirs - ours).abs().max()))
    if not worst <= MOST_DIFFERENCE:
        most = f"{worst:.1e}, more than {MOST_DIFFERENCE:.0e}"
        raise CheckpointError(f"the program differs from the model by {most}: not written")
    return worst


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silence the exporters' output."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            yield
    finally:
        logging.disable(before)
