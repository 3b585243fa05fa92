"""One score learns: a page that computes the shipped model in the browser, forward and backward.

    python -m studies.lesson docs/lesson.html

The page holds the model's weights in 8 bits and the code of its forward and backward pass, in plain
JavaScript (lesson.js). It needs no network and no installation, so that somebody who asks how W_Q
learns can change an image, follow one score, and take a training step.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from vit.atomic import write_text
from vit.checkpoints import load_model
from vit.commandline import start
from vit.errors import UserError
from vit.figures.document import render_page
from vit.mae import MaskedAutoencoder
from vit.masking import make_mask
from vit.scenes import CLASS_NAMES, draw_scenes

MODEL = "vit-tiny-p4-cifar10"
SCENES = (5, 17, 7, 14)
"""Pictures of Scenes to choose from; the first opens the page, as in notebook 04."""
MASKED = 0.6
"""Share of the patches that are masked when the page opens, as in the model's training."""
QUERY = 34
"""The masked patch that is reconstructed when the page opens, as in notebook 04."""
HEAD = 2
"""The head of the decoder that the page opens on, as in notebook 04."""
STEP = 0.01
"""A step of training, as a share of the length of W_Q and W_K together."""
LEVELS = 127
"""The largest code of a weight; codes are int8."""


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Store a matrix in 8 bits: codes, and the scale of each row.

    Args:
        weight: (M, ...).

    Returns:
        int8 of the same shape, and float32 (M,); code x scale is off by half a scale at the most.
    """
    rows = weight.detach().float().flatten(1)
    scale = rows.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / LEVELS
    codes = (rows / scale[:, None]).round().to(torch.int8)
    return codes.view(weight.shape), scale


def model_tensors(model: MaskedAutoencoder) -> dict[str, Tensor]:
    """Return all parameters by name."""
    return {name: tensor.detach().float() for name, tensor in model.state_dict().items()}


def is_matrix(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor is a linear map; tokens, positions, norms and biases stay exact."""
    return name.endswith("weight") and tensor.ndim > 1


def lesson_page(model: MaskedAutoencoder) -> str:
    """Return the page, HTML to be written as UTF-8. Equal weights give equal text.

    Args:
        model: with one class token, GELU, and a decoder that fills in normalised patches, as the
            shipped ones have.

    Raises:
        UserError: the model is of another kind.
    """
    encoder = model.encoder.config
    supported = (
        encoder.class_token
        and not encoder.registers
        and encoder.mlp == "gelu"
        and encoder.qkv == "linear"
        and not encoder.qk_norm
        and encoder.layer_scale is None
        and encoder.channels == 3
        and model.norm_pix_loss
    )
    if not supported:
        raise UserError(
            f"the lesson computes models like {MODEL} only; this one is of another kind"
        )

    # The images, and for each a mask to begin with
    pictures, labels, _ = draw_scenes(torch.tensor(SCENES), seed=0)
    grid = model.encoder.patch_embed.grid_size
    count = max(SCENES) + 1
    generator = torch.Generator().manual_seed(0)
    # the masks of 64 images, of which notebook 04 takes the sixth
    masks = make_mask("random", max(count, 64), grid, MASKED, generator).mask[list(SCENES)]
    described_pictures = []
    for label, mask in zip(labels.tolist(), masks, strict=True):
        hidden = "".join(str(int(cell)) for cell in mask)
        described_pictures.append({"name": CLASS_NAMES[label], "hidden": hidden})

    # One stream: numbers in float32 first, then codes and pixels
    numbers: list[bytes] = []
    codes: list[bytes] = []
    described = describe_tensors(model_tensors(model), numbers, codes)
    codes.append(pictures.permute(0, 2, 3, 1).contiguous().numpy().tobytes())
    stream = b"".join([*numbers, *codes])

    decoder = model.decoder.config
    origin = model.origin
    description = {
        "tensors": described,
        "codes": sum(map(len, numbers)),
        "pictures": described_pictures,
        "grid": list(grid),
        "patch": list(encoder.patch_size),
        "encoder": {
            "width": encoder.embed_dim,
            "heads": encoder.num_heads,
            "blocks": encoder.depth,
            "eps": encoder.norm_eps,
        },
        "decoder": {
            "width": decoder.dim,
            "heads": decoder.num_heads,
            "blocks": decoder.depth,
            "eps": decoder.norm_eps,
        },
        "mean": list(origin.normalize.mean),
        "std": list(origin.normalize.std),
        "query": QUERY,
        "head": HEAD,
        "step": STEP,
    }
    data = base64.b64encode(gzip.compress(stream, 9, mtime=0)).decode()
    template = Path(__file__).with_name("lesson.html")
    return render_page(template, description=Markup(json.dumps(description)), data=data)


def describe_tensors(
    tensors: Mapping[str, Tensor], numbers: list[bytes], codes: list[bytes]
) -> dict[str, Any]:
    """Add tensors to a stream, and return where they are.

    Args:
        tensors: by name.
        numbers: gets float32 values, little-endian.
        codes: gets int8 codes.

    Returns:
        By name: "rows" and "columns"; "at", the offset in bytes of its values among `numbers`, or
        of its rows' scales if it has "codes", the offset of its codes among `codes`.
    """
    described: dict[str, Any] = {}
    for name, tensor in tensors.items():
        values = tensor
        if is_matrix(name, tensor):
            quantised, values = quantise(tensor)
            rows = len(tensor)
            place = {"codes": sum(map(len, codes))}
            codes.append(quantised.contiguous().numpy().tobytes())
        else:
            rows = tensor.numel() // tensor.shape[-1]
            place = {}
        place |= {"rows": rows, "columns": tensor.numel() // rows, "at": sum(map(len, numbers))}
        numbers.append(values.contiguous().numpy().astype(np.dtype("<f4")).tobytes())
        described[name] = place
    return described


def run(argv: Sequence[str]) -> int:
    """Write the page to the path that is given."""
    parser = argparse.ArgumentParser(prog="python -m studies.lesson", description=__doc__)
    parser.add_argument("out", type=Path, help="the page to write, .html")
    options = parser.parse_args(argv)
    model = load_model(MODEL)
    assert isinstance(model, MaskedAutoencoder)
    page = lesson_page(model)
    write_text(options.out, page)
    print(f"{options.out}: {len(page.encode()) / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(start("python -m studies.lesson", run, sys.argv[1:]))
