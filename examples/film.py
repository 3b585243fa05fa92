"""Draw how a model's attention changes in training: a GIF over the snapshots of a run.

    python examples/film.py runs/quickstart photo.jpg film.gif

Each frame is the last layer's attention, the mean over query patches and heads.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.animation import ArtistAnimation
from PIL import Image

from vit import AttentionMaps, load_model
from vit.runs import RunFiles

run, photo, out = sys.argv[1:]
maps = {}
for moment, folder in RunFiles(Path(run)).saved_snapshots().items():
    encoder = load_model(folder, part="encoder")
    image = encoder.origin.transform(Image.open(photo))[None]
    with torch.no_grad(), AttentionMaps(encoder) as attention:
        encoder(image)
    maps[moment] = attention.to_grid(query="mean").maps[0].mean(0)  # (rows, columns)

# one scale for all frames, so that only the attention moves
figure, axes = plt.subplots(figsize=(4, 4))
axes.axis("off")
highest = max(float(grid.max()) for grid in maps.values())
frames = []
for moment, grid in maps.items():
    title = axes.text(0, -1, f"{Path(photo).name}, {moment}")
    frames.append([axes.imshow(grid, cmap="magma", vmin=0, vmax=highest), title])
ArtistAnimation(figure, frames, interval=600).save(out, writer="pillow")
