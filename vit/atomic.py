"""Atomic writes, for every file that anybody may need again."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from weakref import WeakKeyDictionary

from vit.errors import RunError

if sys.platform != "win32":
    import fcntl

PARTIAL = ".partial-"
"""Prefix of what is being written; a process has it locked as long as it lives."""
UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
"""Errors of file systems, e.g. of a network, that lock no files or sync no folders."""
LOCK = ".lock"
"""The file by which a process locks a folder."""
_locked: WeakKeyDictionary[IO[bytes], Path] = WeakKeyDictionary()
"""The lock files that this process has opened, and their folders."""


@contextmanager
def replacing(path: Path, folder: bool = False) -> Iterator[Path]:
    """Yield a temporary file next to `path`, which replaces `path` when the block succeeds.

    With `folder` it is a folder, and `path` must not exist.

    A process killed at any point leaves either the old file or the new one, never a part of one:
    the content is on disk before the name points to it (fsync, os.replace, fsync of the folder). If
    the block raises, the temporary file is removed and `path` stays as it was. What processes were
    writing in the folder when they were killed is removed, too.

    The folder exists already: one that is gone does not come back (see `make_folder`).
    """
    for left_behind in path.parent.glob(f"{PARTIAL}{'[0-9a-f]' * 16}*"):
        # its writer holds its lock
        with suppress(OSError), _lock_of(left_behind, wait=False):
            _remove(left_behind)

    temporary = path.parent / f"{PARTIAL}{secrets.token_hex(8)}{path.suffix}"
    try:
        with ExitStack() as locks:
            # again if another process has taken it for left behind, before it was locked
            while not temporary.exists():
                # with the mode of any new file; tempfile's are private, and the umask can be read
                # only by setting it, for all threads
                temporary.mkdir() if folder else temporary.touch()
                with suppress(OSError):
                    locks.enter_context(_lock_of(temporary, wait=True))
            yield temporary
            # only now: whatever happens to the folder later, the file is renamed within it
            refuse_lost_folder(path)
            # first the content, then the name
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    except OSError as error:
        # a missing folder explains every error
        refuse_lost_folder(path)
        # an error about another file, raised by the block, needs no addition
        name = str(error.filename or PARTIAL)
        if error.errno is None or PARTIAL not in name:
            raise
        # otherwise name the requested file: a full disk names none, other errors name the temporary
        # one
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        # it has its name, or its folder is gone
        with suppress(OSError):
            _remove(temporary)


@contextmanager
def _lock_of(path: Path, wait: bool) -> Iterator[None]:
    """Hold the lock of a file or folder; OSError if it is taken, or there are no locks."""
    if sys.platform == "win32":
        raise OSError
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; within a locked one, only itself."""
    is_locked = refuse_lost_folder(folder)
    folder.mkdir(parents=not is_locked, exist_ok=True)


def lock_folder(folder: Path) -> IO[bytes]:
    """Lock a folder against other processes, until the returned file is closed.

    Raises BlockingIOError if another process has locked it. Windows and some network file systems
    have no such locks.
    """
    # a link in the file's place, which could lead to any file, is not followed
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    file = os.fdopen(os.open(folder / LOCK, flags, 0o666), "rb+")
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
    _locked[file] = folder.absolute()
    return file


def refuse_lost_folder(path: Path) -> bool:
    """Refuse to write into a locked folder that was removed, renamed or replaced since.

    One that is gone would come back under its old name; in another's place, another run's files
    would be overwritten.

    Returns:
        Whether `path` is a folder that this process has locked, or within one.
    """
    path = path.absolute()
    is_locked = False
    # a list, because another thread may train too
    for file, folder in list(_locked.items()):
        if file.closed or not path.is_relative_to(folder):
            continue
        is_locked = True
        try:
            is_same = os.path.samestat(os.lstat(folder / LOCK), os.fstat(file.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            is_same = False
        if not is_same:
            raise RunError(
                f"{folder} was removed, renamed or replaced while this run was writing there (or "
                "the file .lock in it was); the run ends and leaves it as it is; a renamed folder "
                "continues with --resume --out NEW_NAME"
            )
    return is_locked


def sync(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a power cut, if possible."""
    # Windows opens no folder, and syncs no file that is only read
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write `text` (UTF-8) to `path`, whole or not at all."""
    with replacing(path) as temporary:
        # file names may hold any bytes, also those that UTF-8 cannot encode
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented ASCII JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write tensors, numbers and lists by name for `numpy.load`, whole or not at all.

    Equal values give equal files.
    """
    # only commands that write arrays need it
    import numpy as np

    with replacing(path) as temporary:
        np.savez_compressed(temporary, **arrays)
