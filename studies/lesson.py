"""One score learns: a page that computes the shipped model in the browser, forward and backward.

    python -m studies.lesson docs/lesson.html

The page holds the model's weights, in the 16 bits of its file, and the code of its forward and
backward pass, in plain JavaScript (lesson.js). It needs no network and no installation, so that
somebody who asks how W_Q learns can change an image, follow one score, and take a training step.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from markupsafe import Markup

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
"""Images of Scenes to choose from; the first opens the page, as in notebook 04."""
MASKED = 0.6
"""Share of the patches that are masked when the page opens, as in the model's training."""
QUERY = 34
"""The masked patch that is reconstructed when the page opens, as in notebook 04."""
HEAD = 2
"""The head of the decoder that the page opens on, as in notebook 04."""
RATE = 0.005
"""The learning rate that the page opens with: a step subtracts so much of the gradient, as in
notebook 04."""
RATES = (RATE, 0.05, 0.5)
"""To choose from: layers far from the error need a higher one, and one can see it overshoot."""


def lesson_page(model: MaskedAutoencoder) -> str:
    """Return the page, HTML to be written as UTF-8. Equal weights give equal text.

    Args:
        model: with one class token, GELU, and a decoder that reconstructs normalised patches, as
            the shipped ones have.

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

    # One stream: weights in float16, as the file has them, then pixels
    described: dict[str, dict[str, int]] = {}
    weights: list[bytes] = []
    size = 0
    for name, tensor in model.state_dict().items():
        matrix = tensor.flatten(1) if tensor.ndim > 1 else tensor[None]
        described[name] = {"rows": len(matrix), "columns": matrix.shape[1], "at": size}
        weights.append(matrix.numpy().astype("<f2").tobytes())
        size += len(weights[-1])
    pixels = pictures.permute(0, 2, 3, 1).contiguous().numpy().tobytes()

    decoder = model.decoder.config
    origin = model.origin
    description = {
        "tensors": described,
        "pixels": size,
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
        "rates": RATES,
    }
    data = base64.b64encode(gzip.compress(b"".join([*weights, pixels]), 9, mtime=0)).decode()
    template = Path(__file__).with_name("lesson.html")
    return render_page(template, description=Markup(json.dumps(description)), data=data)


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
