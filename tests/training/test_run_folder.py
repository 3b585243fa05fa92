"""A run's folder belongs to one run and one process, and nothing in it is ever written over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vit.atomic import make_folder, write_text
from vit.errors import RunError
from vit.training.run_folder import RunFolder

PATHS = [path for path in vars(RunFolder(Path("runs") / "mine")).values() if isinstance(path, Path)]
OURS = sorted(path.name for path in PATHS if path.name != "mine")


def refusal(work, *arguments: object) -> str:
    with pytest.raises(RunError) as caught:
        work(*arguments)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("name", OURS)
def test_folder_that_holds_anything_of_a_run_is_refused(tmp_path, name):
    (tmp_path / name).write_text("of the run before")
    RunFolder(tmp_path).begin(None)  # continued, it keeps what it has
    for work in (
        RunFolder(tmp_path).refuse_if_taken,
        lambda: RunFolder(tmp_path).begin("train: {}\n"),
    ):
        message = refusal(work)
        for part in (str(tmp_path), name, "--out", "--resume"):
            assert part in message
    assert (tmp_path / name).read_text() == "of the run before"
    assert {path.name for path in tmp_path.iterdir()} == {name, ".lock"}


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    folders = [tmp_path, tmp_path / "checkpoints", tmp_path / "snapshots" / "step-00000001"]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".partial-x1.safetensors").write_bytes(b"half")
        (folder / "whole").touch()
    (tmp_path / ".partial-folder").mkdir()  # somebody else's: no run writes such a folder
    RunFolder(tmp_path).begin(None)
    assert [len([*folder.glob("*")]) for folder in folders] == [5, 1, 1]


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="a system without it")
@pytest.mark.parametrize("name", [".lock", *OURS])
def test_no_file_that_a_link_in_the_folder_leads_to_is_changed(tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("mine\n")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    (folder.path / name).symlink_to(precious)
    if name == ".lock":
        with pytest.raises(OSError, match="symbolic link"):
            folder.begin(None)
    else:
        refusal(folder.begin, "train: {}\n")
    assert precious.read_text() == "mine\n"


@pytest.mark.parametrize("loss", ["removed", "renamed", "another's", "unlocked", "a file"])
def test_a_folder_that_is_lost_gets_nothing_more_under_its_old_name(tmp_path, loss):
    folder = RunFolder(tmp_path / "run")
    with folder:
        folder.begin("train: {}\n")
        write_text(folder.metrics, "1")
        if loss == "unlocked":
            (folder.path / ".lock").unlink()
        else:
            folder.path.rename(tmp_path / "away")
        if loss == "another's":
            folder.path.mkdir()
            (folder.path / ".lock").touch()
            (folder.path / "metrics.jsonl").write_text("another's")
        if loss == "a file":
            folder.path.write_text("mine")
        before = sorted(tmp_path.rglob("*"))
        for work in (write_text, lambda path, _: make_folder(path)):
            for path in (folder.metrics, folder.path / "new" / "file", folder.path / "new"):
                assert "removed, renamed or replaced" in refusal(work, path, "2")
        assert sorted(tmp_path.rglob("*")) == before
        if loss == "another's":
            assert folder.metrics.read_text() == "another's"
    # it is nobody's afterwards
    make_folder(tmp_path / "elsewhere" / "new")
    write_text(tmp_path / "elsewhere" / "new" / "file", "mine")


HOLDER = """
import sys, time
from pathlib import Path
from vit.training.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.begin("the first\\n")
print("begun", flush=True)
time.sleep(600)
"""


def test_second_process_is_refused_until_the_first_has_ended(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "begun\n"
        for config in ("the second\n", None):
            assert "another process" in refusal(RunFolder(tmp_path).begin, config)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    RunFolder(tmp_path).begin(None)
    assert "already holds a run" in refusal(RunFolder(tmp_path).begin, "the second\n")
    assert (tmp_path / "config.yaml").read_text() == "the first\n"
