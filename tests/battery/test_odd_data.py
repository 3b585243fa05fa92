"""Data as nobody wants them: used rightly, or refused in one line; and a long run that takes no more than a short one."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from battery.test_damage import command, damaged
from PIL import Image
from tiny import CLASSIFY, RECONSTRUCT, dataset, encoded, noise, without_pictures

from vit.config import changed, flat_settings
from vit.data.folder import load_folder
from vit.errors import DataError
from vit.training.loop import train_steps
from vit.training.run import setup

pytestmark = pytest.mark.slow
NAMES = ["<script>x</script>", "a\nb", "-rf", "é\u202e", "x" * 200, "'\"`$(x)", "%s {0} \\", " "]
TEMPLATE = {
    "JPEG": ".jpg",
    "PNG": ".png",
    "BMP": ".bmp",
    "TIFF": ".tif",
    "WEBP": ".webp",
    "GIF": ".gif",
    "PPM": ".ppm",
}


def drawn(kind: str, draw: random.Random, **settings: object) -> bytes:
    pixels = (
        noise(1, draw.randrange(1000), (draw.randint(8, 40), draw.randint(8, 40)))[0]
        .permute(1, 2, 0)
        .numpy()
    )
    return encoded(Image.fromarray(pixels), kind, **settings)


def files(kind: str, draw: random.Random) -> dict[str, bytes]:
    """The content of a folder of images, by name."""
    plain = {
        f"{split}/{c}/{i}.png": drawn("PNG", draw)
        for split in ("train", "test")
        for c in "ab"
        for i in range(4)
    }
    if kind == "one image":
        return {"0.png": drawn("PNG", draw)}
    if kind == "one class":
        return {name: content for name, content in plain.items() if "/a/" in name}
    if kind == "constant":
        return dict.fromkeys(
            plain, encoded(Image.new("RGB", (16, 16), (draw.randrange(256),) * 3), "PNG")
        )
    if kind == "an empty class":
        return plain | {"train/c/notes.txt": b"none"}
    if kind == "10,000 classes":
        some = [drawn("PNG", draw) for _ in range(8)]
        return {f"train/{c:05}/0.png": some[c % 8] for c in range(10_000)} | {
            "test/00000/0.png": some[0]
        }
    if kind == "hostile names":
        called = dict(zip("ab", draw.sample(NAMES, 2), strict=True))
        parts = ((*name.split("/"), content) for name, content in plain.items())
        return {
            f"{split}/{called[c]}/{draw.choice(NAMES)}{last}": content
            for split, c, last, content in parts
        }
    if kind == "EXIF":
        exif = Image.Exif()
        exif[0x0112] = draw.choice([0, 1, 3, 6, 8, 9, 255])
        raw = exif.tobytes()
        return plain | {
            "train/a/photo.jpg": drawn("JPEG", draw, exif=draw.choice([raw, damaged(raw, draw)]))
        }
    if kind == "20,000 x 20,000":
        return plain | {"train/a/large.png": encoded(Image.new("1", (20_000, 20_000)), "PNG")}
    form = draw.choice(list(TEMPLATE))
    return plain | {f"train/a/damaged{TEMPLATE[form]}": damaged(drawn(form, draw), draw)}


KINDS = ["one image", "one class", "constant", "an empty class", "hostile names", "EXIF",
         "20,000 x 20,000", *["damaged"] * 12]  # fmt: skip
# what could spoil a picture of the run or its page
DRAWN = {"one class", "constant", "hostile names"}


@pytest.mark.tries(len(KINDS))
@pytest.mark.filterwarnings("ignore")
def test_odd_images_are_used_or_refused_in_one_line(battery, monkeypatch):
    kinds = iter(KINDS * 1000)

    def attempt(draw: random.Random) -> str:
        kind = next(kinds)
        with tempfile.TemporaryDirectory() as place:
            for name, content in files(kind, draw).items():
                path = Path(place) / "images" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            bad = draw.choice(["stop", "skip"])
            data = {
                "source": "folder",
                "root": f"{place}/images",
                "cache": f"{place}/cache",
                "on_bad_image": bad,
            }
            # without a run: what is left of the file is an image, or it is named
            if kind == "damaged":
                try:
                    load_folder(Path(place) / "images", (16, 16), bad, Path(place) / "cache")
                except DataError as error:
                    named = str(error).isprintable() and "train/a/damaged" in str(error)
                    return "" if bad == "stop" and named else f"{kind}, {bad}: {error}"
                return ""
            config = changed(
                draw.choice([RECONSTRUCT, CLASSIFY]),
                {**flat_settings({"data": data}), "run.threads": 1},
            )
            (Path(place) / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
            with contextlib.nullcontext() if kind in DRAWN else without_pictures():
                code, problem = command(
                    "train", "--config", f"{place}/config.yaml", "--out", f"{place}/run"
                )
            if problem:
                return f"{kind}, {bad}: {problem}"
            used = {"constant", "an empty class", "hostile names"}
            if code != {"one image": 2, "20,000 x 20,000": 2 if bad == "stop" else 0}.get(
                kind, code * (kind not in used)
            ):
                return f"{kind}, {bad}: exit code {code}"
            if code:
                return (
                    f"{kind}: a run is left"
                    if (Path(place) / "run" / "config.yaml").exists()
                    else ""
                )
            lines = (Path(place) / "run" / "metrics.jsonl").read_text().splitlines()
            losses = [json.loads(line).get("loss", 0.0) for line in lines]
            return "" if all(map(math.isfinite, losses)) else f"{kind}: a loss that is not finite"

    battery.run(attempt)


def test_10_000_classes_take_no_more_memory_than_their_mistakes(tmp_path):
    """Of 100 million cells of the table of mistakes, those with a count are kept: 16 here. All took 10.5 GB."""
    for name, content in files("10,000 classes", random.Random(0)).items():
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(content)
    data = {
        "source": "folder",
        "root": f"{tmp_path}/images",
        "cache": f"{tmp_path}/cache",
        "limit": 16,
    }
    config = changed(CLASSIFY, {**flat_settings({"data": data}), "run.threads": 1})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
    run = [sys.executable, "-m", "vit", "train", "--config", "config.yaml", "--out", "run"]
    process = subprocess.Popen(run, cwd=tmp_path, env=os.environ | {"PYTHONPATH": os.getcwd()})
    _, status, used = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    taken, folder = used.ru_maxrss * 1024, tmp_path / "run"
    sizes = {
        name: (folder / name).stat().st_size
        for name in ("summary.json", "report.html", "showcase.safetensors")
    }
    assert taken < 2**31  # 1.0 GB; torch and matplotlib alone take 0.8
    assert max(sizes.values()) < 2**20
    assert not (folder / "confusion.png").exists()
    print(f"{taken:,} bytes of memory, {sizes}")


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
    print(f"{before} after 250 steps, {after} after 1,500")
