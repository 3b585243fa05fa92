"""Data as nobody wants them: used rightly, or refused in one line; and a long run that takes no more than a short one."""

import json
import math
import os
import random
from pathlib import Path

import pytest
from battery.test_damage import command, damaged
from PIL import Image
from tiny import RECONSTRUCT, dataset, encoded, noise

from vit.config import DataConfig, changed
from vit.data.folder import load_folder
from vit.errors import DataError
from vit.inputs import OWN
from vit.training.loop import train_steps
from vit.training.run import setup

pytestmark = pytest.mark.slow
NAMES = ["<script>x</script>", "a\nb", "-rf", "é\u202e", "x" * 200, "'\"`$(x)", "%s {0} \\", " "]
FORMATS = {"JPEG": "jpg", "PNG": "png", "BMP": "bmp", "TIFF": "tif", "WEBP": "webp", "GIF": "gif"}


def drawn(kind: str, draw: random.Random) -> bytes:
    size = (draw.randint(8, 40), draw.randint(8, 40))
    pixels = noise(1, draw.randrange(1000), size)[0].permute(1, 2, 0)
    return encoded(Image.fromarray(pixels.numpy()), kind)


def write(place: Path, files: dict[str, bytes]) -> list[str]:
    """Write images and settings; return the command's words that train on them."""
    for name, content in files.items():
        path = place / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    data = DataConfig(source="folder", root=f"{place}/images", cache=f"{place}/cache")
    config = changed(RECONSTRUCT, {"data": data, "run.threads": 1})
    (place / "config.yaml").write_text(config.to_yaml())
    return ["train", "--config", f"{place}/config.yaml", "--out", f"{place}/run"]


@pytest.mark.tries(12)
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_image_is_an_image_or_is_named(draw, tmp_path):
    form = draw.choice(list(FORMATS))
    bad = tmp_path / "images" / f"damaged.{FORMATS[form]}"
    bad.parent.mkdir()
    bad.write_bytes(damaged(drawn(form, draw), draw))
    for number in range(2):
        (bad.parent / f"{number}.png").write_bytes(drawn("PNG", draw))
    try:
        load_folder(bad.parent, (16, 16), "stop", tmp_path / "cache", OWN)
    except DataError:
        train, _ = load_folder(bad.parent, (16, 16), "skip", tmp_path / "cache", OWN)
        assert train.skipped == (str(bad),)


@pytest.mark.parametrize("kind", ["one class", "constant", "hostile names"])
def test_odd_images_are_trained_on(tmp_path, kind):
    draw = random.Random(0)
    classes = dict(zip("ab", draw.sample(NAMES, 2), strict=True))
    files = {}
    for split in ("train", "test"):
        for name in "a" if kind == "one class" else "ab":
            for number in range(4):
                content = drawn("PNG", draw)
                file = f"{split}/{name}/{number}.png"
                if kind == "constant":
                    content = encoded(Image.new("RGB", (16, 16), (7, 7, 7)), "PNG")
                if kind == "hostile names":
                    file = f"{split}/{classes[name]}/{draw.choice(NAMES)}{number}.png"
                files[file] = content
    assert command(*write(tmp_path, files)) == 0
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        assert math.isfinite(json.loads(line).get("loss", 0.0))


def test_a_long_run_takes_no_more_memory_nor_files(tmp_path):
    def taken() -> tuple[int, int]:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))

    config = changed(RECONSTRUCT, {"train.epochs": 750, "run.threads": 1})  # of 2 steps each
    run = setup(config, dataset(16))
    before = (0, 0)
    for number, _ in enumerate(train_steps(run), 1):
        if number % 100 == 0:
            run.save(tmp_path)
        if number == 250:
            before = taken()
    after = taken()
    assert number == 1500
    assert after[1] == before[1]
    # bytes: less than 7 kB a step, which is what one more batch kept would be
    assert after[0] < before[0] + 2**23
