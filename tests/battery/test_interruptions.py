"""Ctrl-C and SIGTERM at any moment of any command: it ends at once, and leaves nothing that is half there."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
import zipfile
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


def half_there(path: Path) -> str:
    """Return what is wrong with a file under its final name, "" if it is whole."""
    try:
        content = path.read_bytes()
        if path.suffix in (".json", ".jsonl"):
            lines = content.split(b"\n")[:-1] if path.suffix == ".jsonl" else [content]
            [json.loads(line) for line in lines]
        elif path.suffix in (".png", ".gif", ".jpg"):
            with Image.open(path) as picture:
                picture.load()
        elif path.suffix == ".npy":
            np.load(path)
        elif path.suffix in (".npz", ".pt2"):
            with zipfile.ZipFile(path) as archive:
                return archive.testzip() or ""
        elif path.suffix == ".safetensors":
            load_file(path)
        elif path.suffix == ".pt":
            torch.load(path, weights_only=True)
        elif path.suffix == ".yaml":
            yaml.safe_load(content)
        elif path.suffix == ".html":
            return "" if content.rstrip().endswith(b"</html>") else "no end"
        elif path.suffix in (".md", ".csv", ".svg"):
            return "" if content.endswith(b"\n") else "no end"
        elif path.name != ".lock":
            return "nobody knows this file"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("command", LINES)
@pytest.mark.tries(1)
def test_a_command_that_is_interrupted_anywhere_leaves_nothing_half_there(
    battery,
    finished,  # noqa: F811
    tmp_path,
    command,
):
    argv = [command, *shlex.split(LINES[command].format(place=finished.parent))]
    assert LINES.keys() == {name.split()[0] for name in COMMANDS}

    # To its end: how much work it is, and what it writes
    process, most = start(argv, tmp_path / "whole"), STARTED
    while process.poll() is None:
        most = max(most, worked(process.pid)[1])
        time.sleep(0.1)
    assert process.returncode == 0, (tmp_path / "whole.err").read_text()
    written = {
        path.relative_to(tmp_path / "whole"): path
        for path in (tmp_path / "whole").rglob("*")
        if path.is_file()
    }
    assert {path.name: half_there(path) for path in written.values() if half_there(path)} == {}

    def attempt(draw: random.Random) -> str:
        # commands are not all interrupted at the same share
        draw = random.Random(f"{draw.random()} {command}")
        number, again = draw.choice(
            [(signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGINT, True)]
        )
        folder = tmp_path / f"{number.name}-{draw.getrandbits(32)}"
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
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"{folder.name} after {moment:.2f} s: does not end"
        what = f"{folder.name}{' twice' * again} after {moment:.2f} of {most:.2f} s, {code}"
        said = Path(f"{folder}.err").read_text()
        if code not in CODES[number] | {0}:
            return f"{what}: {said[-1000:]}"
        if "Traceback" in said or "Exception" in said or said.count("stopped by") > 1:
            return f"{what}: {said[-1000:]}"
        until = time.monotonic() + 120
        while (orphans := worked(process.pid)[0]) and time.monotonic() < until:
            time.sleep(0.02)
        if orphans:
            os.killpg(process.pid, signal.SIGKILL)
            return f"{what}: {len(orphans)} processes go on"
        for path in folder.rglob("*"):
            name = path.relative_to(folder)
            if path.name.startswith(".partial-"):
                if not again:  # the second one waits for nothing
                    return f"{what}: {name} is left"
            elif path.is_file() and (
                name not in written or path.read_bytes() != written[name].read_bytes()
            ):
                if problem := half_there(path):
                    return f"{what}: {name}: {problem}"
                if path.suffix == ".npy":
                    return f"{what}: another cache"
        return ""

    battery.run(attempt)
