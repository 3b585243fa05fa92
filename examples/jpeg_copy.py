"""Write a built-in data set as JPEG files in class folders, which `--data FOLDER` reads.

    python examples/jpeg_copy.py cifar10 cifar10-jpeg

The first argument is cifar10, cifar100 or scenes, whose images are all 32 x 32. The files are
numbered within each class, in the data's order. The folder appears whole or not at all.
"""

import sys
from collections import Counter
from pathlib import Path

from PIL import Image

from vit.atomic import replacing
from vit.config import BUILT_IN, DataConfig
from vit.data.sources import load_data

source = sys.argv[1]
if source not in BUILT_IN:
    sys.exit(f"{source!r} is none of {', '.join(BUILT_IN)}; photos would be shrunk to 32 x 32")
target = Path(sys.argv[2]).absolute()
if target.exists():
    sys.exit(f"{target} already exists; name another folder, or remove it first")
data = load_data(DataConfig(source=source), (32, 32))

# write to a hidden folder beside the target, so that an interrupted copy is not taken for a whole
# one, nor for a class of images
with replacing(target, folder=True) as unfinished:
    for split_name, split in (("train", data.train), ("test", data.test)):
        numbers: Counter[str] = Counter()
        for row, class_name in enumerate(split.label_names):
            folder = unfinished / split_name / class_name
            folder.mkdir(parents=True, exist_ok=True)
            pixels = split.images[row].permute(1, 2, 0)  # (3, H, W) -> (H, W, 3)
            path = folder / f"{numbers[class_name]:04}.jpg"
            # colours at half the resolution, as in most JPEG files
            Image.fromarray(pixels.numpy()).save(path, quality=75, subsampling="4:2:0")
            numbers[class_name] += 1
