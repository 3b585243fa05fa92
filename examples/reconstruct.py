"""Draw images, their visible patches, and a masked model's reconstruction of the rest.

    python examples/reconstruct.py vit-tiny-p4-cifar10 64,96 out.png flower.jpg china.jpg

The second argument is the size at which the model reads the images: height, width. The masks are
random, 60% of the patches, and the same at every call.
"""

import sys

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from PIL import Image

from vit import MaskedAutoencoder, load_model
from vit.evaluation.reconstruction import fixed_mask, reconstruct

checkpoint, size, out, *files = sys.argv[1:]
height, width = map(int, size.split(","))
model = load_model(checkpoint, image_size=(height, width))
if not isinstance(model, MaskedAutoencoder):
    sys.exit(f"{checkpoint} has no decoder, so it cannot reconstruct")
inputs = torch.stack([model.origin.transform(Image.open(file)) for file in files])
images = (255 * model.origin.normalize.invert(inputs)).round().byte()
grid = model.encoder.patch_embed.grid_size
mask = fixed_mask("random", 0, len(files), grid, 0.6)
filled = reconstruct(model, images, mask)
hidden = F.interpolate(mask.mask.view(-1, 1, *grid), (height, width)) > 0  # (B, 1, H, W)

# a row per image; the figure is as high as its rows
originals = images / 255
visible = originals.masked_fill(hidden, 0.8)
rows = 8 / 3 * height / width * len(files)
figure, panels = plt.subplots(len(files), 3, figsize=(8, rows + 0.5), squeeze=False)
columns = {"image": originals, "60% masked": visible, "reconstruction": filled}
for column, (name, pictures) in enumerate(columns.items()):
    panels[0, column].set_title(name, fontsize=20)
    for axes, picture in zip(panels[:, column], pictures, strict=True):
        axes.imshow(picture.movedim(0, -1), interpolation="nearest")
        axes.axis("off")
figure.tight_layout(pad=0.3)
figure.savefig(out)
