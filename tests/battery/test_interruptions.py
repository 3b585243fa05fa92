"""Ctrl-C and SIGTERM at any moment of any command: it ends at once, and leaves nothing that is half there."""

import contextlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from battery.test_damage import finished  # noqa: F401  # a fixture
from forks import ROOT, environment
from PIL import Image
from safetensors.torch import load_file

from vit.cli import COMMANDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux",
        reason="/proc tells how far a process has come, and who is its child",
    ),
]
LINES = {
    "train": "--config {place}/config.yaml --data.cache cache --out run",
    "data": "{place}/images --data.cache cache --model.image_size 16 --out sheet.png",
    "checkpoint": "convert {place}/run --to timm --out model",
    "models": "",
    "predict": "vit-tiny-p4-cifar10-finetuned {place}/images/test --csv classes.csv",
    "embed": "{place}/run {place}/images --out features.npz",
    "similar": "{place}/run '{place}/images/test/class 0/0.png' {place}/images --out page.html",
    "attention": "{place}/run {place}/images/test --count 2 --out look",
    "explore": "{place}/run {place}/images/test --count 2 --out page.html",
    "evaluate": "{place}/run {place}/images --out evaluation",
    "report": "{place}/run --out page.html",
    "compare": "{place}/run",
}
"""A line of each command, which takes a few seconds. What it writes lies in its working folder."""
CODES = {signal.SIGINT: {130, -signal.SIGINT}, signal.SIGTERM: {143, -signal.SIGTERM}}
"""Ended by the signal itself, a shell says 130 and 143 too."""
STARTED = 0.1  # seconds of work until Python itself, which has handlers of its own, has begun with the program
TICKS = os.sysconf("SC_CLK_TCK")


def start(argv: list[str], folder: Path) -> subprocess.Popen:
    folder.mkdir()
    streams = dict(
        stdout=subprocess.DEVNULL, stderr=(folder.parent / f"{folder.name}.err").open("w")
    )
    where = environment() | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "vit", *argv],
        cwd=folder,
        env=where,
        start_new_session=True,
        **streams,
    )


def worked(session: int) -> tuple[list[int], float]:
    """Return the living processes of a session, and the seconds of work that they have done, those of ended ones included."""
    found, ticks = [], 0
    for process in [
        int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) >= session
    ]:
        with contextlib.suppress(OSError):  # it has ended
            state, _, _, of_session, *rest = (
                Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            )
            if int(of_session) == session and state != "Z":
                found.append(process)
                # its own time and its children's, in the program and in the system
                ticks += sum(map(int, rest[7:11]))
    return found, ticks / TICKS


def read_table(path: Path) -> None:
    """Lines end where the file ends."""
    assert path.read_bytes().endswith(b"\n")


def read_page(path: Path) -> None:
    assert path.read_bytes().rstrip().endswith(b"</html>")


READERS = {
    ".json": lambda path: json.loads(path.read_bytes()),
    ".jsonl": lambda path: [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]],
    ".png": lambda path: Image.open(path).load(),
    ".npy": np.load,
    ".npz": lambda path: dict(np.load(path)),
    ".safetensors": load_file,
    ".pt": lambda path: torch.load(path, weights_only=True),
    ".yaml": lambda path: yaml.safe_load(path.read_bytes()),
    ".html": read_page,
    ".csv": read_table,
}
"""What fails where a file of a kind is not whole; other kinds are nobody's."""


def read_all(folder: Path) -> None:
    """Fail if a file under its final name is half there."""
    for path in folder.rglob("*"):
        if path.is_file() and path.name != ".lock" and not path.name.startswith(".partial-"):
            READERS[path.suffix](path)


@pytest.mark.parametrize("command", LINES)
@pytest.mark.tries(1)
def test_a_command_that_is_interrupted_anywhere_leaves_nothing_half_there(
    draw,
    finished,  # noqa: F811
    tmp_path,
    command,
):
    assert LINES.keys() == {name.split()[0] for name in COMMANDS}
    argv = [command, *shlex.split(LINES[command].format(place=finished.parent))]

    # To its end: how much work it is
    process, most = start(argv, tmp_path / "whole"), STARTED
    while process.poll() is None:
        most = max(most, worked(process.pid)[1])
        time.sleep(0.1)
    assert process.returncode == 0, (tmp_path / "whole.err").read_text()
    read_all(tmp_path / "whole")

    # Interrupted; commands are not all at the same share
    draw = random.Random(f"{draw.random()} {command}")
    number, again = draw.choice(
        [(signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGINT, True)]
    )
    folder = tmp_path / "cut"
    process, moment = start(argv, folder), draw.uniform(STARTED, most)
    while process.poll() is None and worked(process.pid)[1] < moment:
        time.sleep(0.03)
    with contextlib.suppress(ProcessLookupError):  # it was quicker this time
        # a terminal sends Ctrl-C to all processes of a command, a service manager SIGTERM to the first
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        time.sleep(draw.uniform(0, 0.1))
        if again:
            os.killpg(process.pid, number)
    try:
        code = process.wait(timeout=600)
        until = time.monotonic() + 120
        while worked(process.pid)[0] and time.monotonic() < until:
            time.sleep(0.02)
        assert not worked(process.pid)[0], "processes go on"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    # It says so once, and leaves what is whole; the second Ctrl-C waits for nothing
    said = (tmp_path / "cut.err").read_text()
    assert code in CODES[number] | {0}, said
    assert "Traceback" not in said
    assert "Exception" not in said
    assert said.count("stopped by") <= 1
    assert again or not list(folder.rglob(".partial-*"))
    read_all(folder)
    for path in folder.rglob("*.npy"):
        whole = tmp_path / "whole" / path.relative_to(folder)
        assert path.read_bytes() == whole.read_bytes()
