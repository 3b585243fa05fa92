"""Folders that may not be written to or read: one line, and nothing is lost."""

from __future__ import annotations

import contextlib
import ctypes
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from battery.test_damage import command
from tiny import RECONSTRUCT, noise, save_images, without_pictures

from vit.config import changed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's"),
    pytest.mark.filterwarnings("ignore"),
]


@contextlib.contextmanager
def as_anybody() -> Iterator[None]:
    """In the block, permission bits bind root too: without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    libc, header = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(0x20080522, 0)
    kept = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    assert libc.capget(header, kept) == 0
    fewer = (ctypes.c_uint32 * 6)(kept[0] & ~0b110, *kept[1:])
    assert libc.capset(header, fewer) == 0
    try:
        yield
    finally:
        libc.capset(header, kept)


def test_closed_folders_are_one_line_and_cost_nothing(battery, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = Path("images")
    for split, count in (("test", 4), ("train", 8)):
        save_images(images / split, noise(count, count).permute(0, 2, 3, 1).numpy())
    shutil.copytree(images, "unreadable")

    def settings(name: str, root: str, cache: str) -> list[str]:
        config = changed(
            RECONSTRUCT,
            {
                "data.source": "folder",
                "data.root": root,
                "data.cache": cache,
                "run.snapshots": 2,
                "run.threads": 1,
            },
        )
        Path(name).write_text(yaml.safe_dump(config.to_dict()))
        return ["train", "--config", name]

    train = settings("good.yaml", "images", "cache")
    with without_pictures():
        assert command(*train, "--out", "run") == (0, "")
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    shutil.copytree("run", "unfinished")
    Path("unfinished/summary.json").unlink()
    Path("closed").mkdir()
    shut = [
        Path("closed"),
        *(path for path in Path("unfinished").rglob("*") if path.is_dir()),
        Path("unfinished"),
    ]
    for path in shut:
        path.chmod(0o555)
    Path("unreadable/train").chmod(0)
    Path("unreadable.png").write_bytes((images / "train" / "7.png").read_bytes())
    Path("unreadable.png").chmod(0)
    tries = [
        [*train, "--out", "closed/run"],
        [*train, "--out", "unfinished", "--resume"],
        [*settings("cache.yaml", "images", "closed/cache"), "--out", "second"],
        [*settings("images.yaml", "unreadable", "cache"), "--out", "third"],
        ["report", "run", "--out", "closed/page.html"],
        ["embed", "run", "images/test", "--out", "closed/features.npz"],
        ["embed", "run", "unreadable.png", "--out", "features.npz"],
        ["embed", "run", "unreadable", "--out", "features.npz"],
        ["attention", "run", "images/test/0.png", "--out", "closed/attention"],
        ["checkpoint", "convert", "run", "--to", "timm", "--out", "closed/model"],
        ["checkpoint", "convert", "run", "--to", "huggingface", "--out", "closed/model"],
        ["checkpoint", "inspect", "unreadable.png"],
    ]

    def attempt(draw: random.Random) -> str:
        argv = tries.pop(0)
        with as_anybody():
            code, problem = command(*argv, most=60)  # a page is drawn before it is written
        return problem or ("" if code else f"{argv}: exit code 0")

    battery.tries = len(tries)
    battery.run(attempt)
    assert {path: path.read_bytes() for path in before} == before
    assert list(Path("closed").iterdir()) == []
    for path in (*shut, Path("unreadable/train")):
        path.chmod(0o755)
