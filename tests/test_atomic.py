"""The law of atomic writes: a file is whole or not there, whatever happens during the write."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import full_disk, names

from vit.atomic import make_folder, replacing, write_text


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_raises_leaves_all_as_it_was(tmp_path, error):
    path = tmp_path / "file.txt"
    path.write_text("old")
    before = path.stat()
    for target in (path, tmp_path / "new.txt"):
        with pytest.raises(error), replacing(target) as temporary:  # noqa: PT012 - the block is what is tested
            temporary.write_text("a part of the new")
            raise error
    assert names(tmp_path) == {"file.txt"}
    assert path.read_text() == "old"
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder.d"
    with pytest.raises(OSError, match="disk") as caught, replacing(path, folder=True) as temporary:  # noqa: PT012
        write_text(temporary / "file", "a part of it")
        raise OSError(28, "no disk", str(temporary / "more"))
    assert caught.value.filename == str(path)
    assert names(tmp_path) == set()
    with replacing(path, folder=True) as temporary:
        write_text(temporary / "file", "all")
        assert names(tmp_path) == {temporary.name}
    assert names(tmp_path) == {path.name}
    assert names(path) == {"file"}


WRITING = """
import sys, time
from pathlib import Path
from vit.atomic import replacing

with replacing(Path(sys.argv[1]), folder=sys.argv[2] == "folder") as temporary:
    print(temporary, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_process_was_writing_is_removed_and_what_a_living_one_writes_is_not(
    tmp_path, kind
):
    (tmp_path / ".partial-of-a-stranger").touch()
    command = [sys.executable, "-c", WRITING, str(tmp_path / "new"), kind]
    killed, living = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    left, kept = [Path(process.stdout.readline().strip()) for process in (killed, living)]
    try:
        write_text(tmp_path / "other", "")
        assert left.exists()
        killed.kill()
        killed.communicate()
        write_text(tmp_path / "other", "")
        assert names(tmp_path) == {".partial-of-a-stranger", "other", kept.name}
    finally:
        living.kill()
        living.communicate()


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


def test_mode_is_that_of_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "replaced", "new")
        (tmp_path / "plain").write_text("new")
    finally:
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


def test_a_full_disk_is_about_the_file_that_was_asked_for(tmp_path):
    with full_disk(10), pytest.raises(OSError, match="File too large") as error:
        write_text(tmp_path / "long.txt", "x" * 100)
    assert error.value.filename == str(tmp_path / "long.txt")
    assert names(tmp_path) == set()
