"""The law of atomic writes: a file is whole or not there, whatever happens during the write."""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest
from tiny import full_disk, names

from vit.atomic import lock_folder, make_folder, replacing, write_json, write_text


@pytest.mark.parametrize("old", ["old", None])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_raises_leaves_all_as_it_was(tmp_path, old, error):
    path = tmp_path / "file.txt"
    if old is not None:
        path.write_text(old)
    before = path.stat() if old else None
    with pytest.raises(error), replacing(path) as temporary:  # noqa: PT012 - the block is what is tested
        temporary.write_text("a part of the new")
        raise error
    assert names(tmp_path) == (set() if old is None else {"file.txt"})
    if old is not None:
        assert path.read_text() == old
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_old_content_stands_until_the_block_ends(tmp_path):
    path = tmp_path / "deep" / "er" / ("x" * 251 + ".txt")  # as long as a name may be
    with pytest.raises(FileNotFoundError):
        write_text(path, "no folder comes back")
    make_folder(path.parent)
    write_text(path, "Äpfel\n林檎\n")
    assert path.read_bytes() == "Äpfel\n林檎\n".encode()
    write_text(path, "old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent  # a rename between file systems would not be atomic
        assert temporary.suffix == path.suffix  # some writers choose the format by it
    assert path.read_text() == "new"
    assert names(path.parent) == {path.name}


def test_mode_is_that_of_any_new_file(tmp_path, monkeypatch):
    before = os.umask(0o027)
    try:
        # set for a moment, the umask would be that of all threads
        monkeypatch.delattr(os, "umask")
        write_text(tmp_path / "replaced", "new")
        (tmp_path / "plain").write_text("new")
    finally:
        monkeypatch.undo()
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("replaced", "plain")]
    assert modes[0] == modes[1]


def test_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    """What a power cut would show: the order in which the system is told."""
    path = tmp_path / "file"
    calls = []
    fsync, replace = os.fsync, os.replace

    def recording_fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        calls.append("folder" if is_folder else os.fstat(descriptor).st_size)
        fsync(descriptor)

    def recording_replace(source: Path, target: Path) -> None:
        calls.append("name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    write_text(path, "12345")
    assert calls == [5, "name", "folder"]


@pytest.mark.parametrize("name", ["EINVAL", "ENOSYS", "ENOLCK", "ENOTSUP", "EIO"])
def test_what_a_file_system_cannot_do_is_left_out(tmp_path, monkeypatch, name):
    """Some of networks have no locks and sync no folders; a disk that fails is another matter."""
    fcntl, fsync = pytest.importorskip("fcntl"), os.fsync
    fault = OSError(getattr(errno, name), "cannot")

    def refuse(*_: object) -> None:
        raise fault

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(
        os, "fsync", lambda file: (refuse if stat.S_ISDIR(os.fstat(file).st_mode) else fsync)(file)
    )
    for work in (
        lambda: write_text(tmp_path / "file", "new"),
        lambda: lock_folder(tmp_path).close(),
    ):
        with pytest.raises(OSError, match="cannot") if name == "EIO" else nullcontext():
            work()
    assert (tmp_path / "file").read_text() == "new"


def test_json_comes_back_and_what_is_no_json_is_refused(tmp_path):
    path = tmp_path / "file.json"
    value = {
        "name": "Äpfel",
        "losses": [0.1, 1e-300, 1 / 3],
        "none": None,
        "flag": True,
        "count": 2**60,
    }
    write_json(path, value)
    for bad in (float("nan"), float("-inf"), {"a": [1.0, float("nan")]}):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write_json(path, bad)
    assert json.loads(path.read_text(encoding="utf-8")) == value
    assert names(tmp_path) == {"file.json"}


def test_a_full_disk_is_about_the_file_that_was_asked_for(tmp_path):
    with full_disk(10), pytest.raises(OSError, match="File too large") as error:
        write_text(tmp_path / "long.txt", "x" * 100)
    assert error.value.filename == str(tmp_path / "long.txt")
    assert names(tmp_path) == set()


def test_a_text_may_name_files_of_any_bytes(tmp_path):
    write_text(tmp_path / "page", "caf\udce9")
    assert (tmp_path / "page").read_text() == "caf\\udce9"
