"""One score, with numbers: the lesson before the nine questions, computed from the shipped model.

    python -m studies.one_score docs/questions

writes one-score.md, whose sentences are in studies/one_score.md, and its figure. The example is a
wheel of a drawn car, and the head of the encoder in which it attends most to the road below it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from studies.figures import bare, panel_axes
from vit.atomic import make_folder, write_text
from vit.checkpoints import load_model
from vit.commandline import start
from vit.encoder import Block, VisionTransformer
from vit.figures.style import PALETTE, save_figure, styled, titled_figure
from vit.inputs import to_float
from vit.scenes import draw_scenes

MODEL = "vit-tiny-p4-cifar10"
PICTURE = 5
"""A drawn car."""
WHEEL = (4, 4)
KEYS = {
    "the wheel itself": WHEEL,
    "the road below it": (5, 4),
    "the sky above": (0, 4),
}
"""Patches, (row, column)."""
MEASURED = 64
"""Pictures of Scenes, over which scores are measured."""
QUERY_COLOUR = PALETTE["q"]
KEY_COLOUR = PALETTE["k"]


@torch.no_grad()
def lesson_numbers(encoder: VisionTransformer) -> dict[str, Any]:
    """Compute what the page says.

    Returns:
        "shape": sizes of the model; "layer" and "head" of the example; "q", "k": the first
        number of the wheel's query and of the road's key; "keys": for each of `KEYS` what its
        score is made of; "rest": of all other tokens; "added": lengths of the
        wheel's vector and of what is added to it; "scores": measured over `MEASURED` images;
        "maps": for the image, (65,) each.
    """
    pictures, _, _ = draw_scenes(torch.arange(MEASURED), seed=0)
    images = encoder.origin.normalize(to_float(pictures, encoder.config.image_size))
    blocks = list(encoder.blocks)
    grid = encoder.patch_embed.grid_size

    def token(patch: tuple[int, int]) -> int:
        return 1 + grid[1] * patch[0] + patch[1]  # 0 is the class token

    # Every block: what goes in, and its queries, keys, values and products
    stream = encoder.embed(encoder.patchify(images))
    wheel, road = token(WHEEL), token(KEYS["the road below it"])
    states = []
    for block in blocks:
        assert isinstance(block, Block)
        x = block.norm1(stream)
        q, k, v = block.attn.project(x)  # (B, h, N, d)
        states.append({"stream": stream, "x": x, "q": q, "k": k, "v": v, "products": q @ k.mT})
        stream = block(stream)
    d = states[0]["q"].shape[-1]

    # The head in which the wheel attends most to the road
    products = torch.stack([state["products"] for state in states])  # (layers, B, h, N, N)
    shares = (products * d**-0.5).softmax(-1)
    to_road = shares[:, PICTURE, :, wheel, road]  # (layers, h)
    layer, head = divmod(int(to_road.argmax()), to_road.shape[1])
    state = states[layer]
    q, k, v = (state[name][PICTURE, head] for name in "qkv")  # (N, d)
    row = products[layer, PICTURE, head, wheel]  # (N,)
    share = shares[layer, PICTURE, head, wheel]
    unscaled = row.softmax(-1)
    output = share @ v

    # One score after another
    keys = {}
    for name, patch in KEYS.items():
        j = token(patch)
        terms = q[wheel] * k[j]
        keys[name] = {
            "first_term": float(terms[0]),
            "other_terms": float(terms[1:].sum()),
            "product": float(row[j]),
            "score": float(row[j]) * d**-0.5,
            "share": float(share[j]),
            "unscaled": float(unscaled[j]),
            "value": float(v[j, 0]),
            "taken": float(share[j] * v[j, 0]),
        }
    rest = {
        "count": len(share) - len(keys),
        "share": 1 - sum(key["share"] for key in keys.values()),
        "unscaled": 1 - sum(key["unscaled"] for key in keys.values()),
        "taken": float(output[0]) - sum(key["taken"] for key in keys.values()),
    }

    # What is added
    before = state["stream"][PICTURE, wheel]
    added = blocks[layer].attn(state["x"][[PICTURE]])[0, wheel]
    pixels, width = encoder.patch_embed.W_E.shape

    # All heads and images: how far the scores of a query's keys spread
    spread = products.std(-1)
    return {
        "shape": {
            "patches": grid[0] * grid[1],
            "tokens": len(share),
            "pixels": pixels,
            "width": width,
            "heads": to_road.shape[1],
            "layers": len(blocks),
            "all_heads": to_road.numel(),
            "d": d,
            "root": d**0.5,
        },
        "layer": layer,
        "head": head,
        "q": float(q[wheel, 0]),
        "k": float(k[road, 0]),
        "keys": keys,
        "rest": rest,
        "output": float(output[0]),
        "added": {
            "before": float(before.norm()),
            "length": float(added.norm()),
        },
        "scores": {
            "unscaled": float(spread.mean()),
            "scaled": float(spread.mean()) * d**-0.5,
            "largest": float(shares.amax(-1).mean()),
            "largest_unscaled": float(products.softmax(-1).amax(-1).mean()),
        },
        "maps": {"scores": row * d**-0.5, "shares": share, "unscaled": unscaled},
    }


@styled
def one_score_figure(numbers: dict[str, Any]) -> Figure:
    """Draw the image, and the scores and attention weights of the wheel, with and without
    sqrt(d)."""
    picture = draw_scenes(torch.tensor([PICTURE]), seed=0)[0][0].permute(1, 2, 0).numpy()
    rows = picture.shape[0] // 4
    maps: dict[str, Tensor] = numbers["maps"]
    where = f"layer {numbers['layer']}, head {numbers['head']}"
    figure = titled_figure(
        5.6,
        5.2,
        "One query, all its scores, and their softmax",
        f"{where}; orange: the wheel (query), green: the road below it (a key)",
    )
    panels = panel_axes(figure, 4, 2)
    largest = float(maps["unscaled"][1:].max())
    drawn = {
        "scores q · k / √d": (maps["scores"], None),
        "attention weights": (maps["shares"], largest),
        "attention weights without √d": (maps["unscaled"], largest),
    }
    panels[0].imshow(picture, extent=(-0.5, rows - 0.5, rows - 0.5, -0.5))
    panels[0].set_title("the image, 8 × 8 patches")
    for axes, (title, (values, top)) in zip(panels[1:], drawn.items(), strict=True):
        grid = values[1:].view(rows, rows).numpy()
        if top is None:
            # The scores of this query are all positive
            image = axes.imshow(grid, cmap="Purples", vmin=0, vmax=float(grid.max()))
        else:
            image = axes.imshow(grid, cmap="Blues", vmin=0, vmax=top)
        axes.set_title(title)
        figure.colorbar(image, ax=axes, shrink=0.8)
    for axes in panels:
        bare(axes)
        for patch, colour in ((KEYS["the road below it"], KEY_COLOUR), (WHEEL, QUERY_COLOUR)):
            corner = (patch[1] - 0.5, patch[0] - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=colour, linewidth=2.2))
    return figure


def lesson_text(numbers: dict[str, Any]) -> str:
    """Return the page: the sentences of one_score.md with the numbers in their places."""
    template = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["two"] = lambda number: f"{round(number, 2) + 0.0:.2f}"
    environment.filters["one"] = lambda number: f"{round(number, 1) + 0.0:.1f}"
    environment.filters["three"] = lambda number: f"{round(number, 3) + 0.0:.3f}"
    environment.filters["tenths"] = lambda share: f"{100 * share:.1f}%"
    environment.filters["percent"] = lambda share: f"{100 * share:.0f}%"
    return environment.from_string(template).render(numbers)


def run(argv: Sequence[str]) -> int:
    """Write the page and its figure into the folder that is given."""
    parser = argparse.ArgumentParser(prog="python -m studies.one_score", description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write one-score.md and one-score.png")
    folder = parser.parse_args(argv).folder
    encoder = load_model(MODEL, part="encoder").eval()
    assert isinstance(encoder, VisionTransformer)
    numbers = lesson_numbers(encoder)
    make_folder(folder)
    write_text(folder / "one-score.md", lesson_text(numbers))
    save_figure(one_score_figure(numbers), folder / "one-score.png")
    print(f"{folder / 'one-score.md'}, {folder / 'one-score.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(start("python -m studies.one_score", run, sys.argv[1:]))
