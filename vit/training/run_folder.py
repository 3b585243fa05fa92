"""The folder that a run writes: locked, never overwritten; and the run's states in it.

The last two states are kept, and the one from which a run can become longer.

A state is an ordinary torch file of tensors and plain values (read with `weights_only=True`).
torch.load checks nothing: a flipped bit becomes a wrong weight. So the zip comment, which torch and
zip readers skip, holds the file's SHA-256, and it is compared before anything is read. (Zip's own
checksums leave out its directory, where a flipped bit moves a tensor.)
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import torch

from vit.atomic import PARTIAL, lock_folder, make_folder, replacing, write_text
from vit.errors import OUT_OF_MEMORY, RunError, UserError
from vit.runs import RunFiles

KEPT = 2
"""Number of states that a run keeps."""


def state_path(folder: Path, step: int) -> Path:
    """Return the file of a step's state, e.g. checkpoints/step-00001234.pt."""
    return folder / f"step-{step:08d}.pt"


def saved_states(folder: Path) -> list[Path]:
    """List the states in `folder`, oldest first."""
    states = []
    for path in folder.glob("step-*.pt"):
        if re.fullmatch(r"step-\d{8,}\.pt", path.name):
            states.append(path)
    return sorted(states, key=step_of)


def step_of(path: Path) -> int:
    """Return the step of a state, or of a snapshot, by its name."""
    return int(path.stem.removeprefix("step-"))


def save_state(folder: Path, step: int, state: dict[str, Any], kept: int = 0) -> Path:
    """Save the `state` of step `step`, then remove all earlier ones but the last.

    A kill at any point leaves the earlier states and either a whole new one or none.

    Args:
        folder: of the states.
        step: its number.
        state: tensors and plain values.
        kept: an earlier step whose state stays, too.

    Raises:
        RunError: it cannot be written (e.g. the disk is full); the earlier states stay.
    """
    # the zip file ends with the length of its comment, two bytes, which `_tail` writes anew
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()[:-2]

    path = state_path(folder, step)
    try:
        make_folder(folder)
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.write(content)
            file.write(_tail(content))

        # only now, so that a kill never leaves fewer
        earlier = [old for old in saved_states(folder) if step_of(old) < step]
        for old in earlier[: 1 - KEPT]:
            if step_of(old) != kept:
                old.unlink()
    except OSError as error:
        reason = error.strerror or error
        raise RunError(f"cannot save the state of step {step} in {folder}: {reason}") from error
    return path


def _tail(content: bytes | memoryview) -> bytes:
    """Return the end of the zip file: the comment's length, and the comment, a SHA-256."""
    comment = b"sha256:" + hashlib.sha256(content).hexdigest().encode()
    return struct.pack("<H", len(comment)) + comment


def load_state(path: Path) -> dict[str, Any]:
    """Read a state onto the CPU, after checking that no bit has changed.

    Raises:
        RunError: the file is damaged, or not a state.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error

    # compare before reading: torch checks nothing
    end = len(content) - len(_tail(b""))
    if content[end:] != _tail(content[:end]):
        raise RunError(f"{path} is damaged: its content is not what was saved")

    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        # torch and pickle raise anything
        raise RunError(
            f"{path} is not a state: it holds more than tensors and plain values, or less"
        ) from error


@contextmanager
def refusing_other_states() -> Iterator[None]:
    """Refuse a whole state of other content, which whatever error within the block shows.

    Another version may have saved it, or another program.
    """
    try:
        yield
    except (UserError, OSError, MemoryError):
        raise
    except Exception as error:
        # memory that is too small, which torch reports as a RuntimeError, is no fault of the state
        if OUT_OF_MEMORY.search(str(error)):
            raise
        raise RunError(
            "the run's last state is whole, but not as this version saves it "
            f"({type(error).__name__}: {error}); continue it with the version that began it"
        ) from error


def load_latest_state(
    folder: Path, last: int | None = None
) -> tuple[dict[str, Any], list[str]] | None:
    """Return the newest undamaged state in `folder`, and a line about each newer, damaged one.

    Args:
        folder: of the states.
        last: the latest step that may be returned; None for any.

    Returns:
        None if no such state has been saved.

    Raises:
        RunError: all of them are damaged.
    """
    paths = saved_states(folder)
    if last is not None:
        paths = [path for path in paths if step_of(path) <= last]
    if not paths:
        return None

    # newest first
    damaged: list[str] = []
    for path in reversed(paths):
        try:
            return load_state(path), damaged
        except RunError as error:
            damaged.append(str(error))
    raise RunError("; ".join([f"no usable state in {folder}", *damaged]))


class RunFolder(RunFiles):
    """A run folder that this process writes: locked against others, and never overwritten."""

    _lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let others work in the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def begun(self) -> bool:
        """Whether there is a run to continue."""
        return self.config.exists()

    def refuse_if_taken(self) -> None:
        """Refuse to begin a run in a folder that already holds one of its files.

        Raises:
            RunError: the folder is taken.
        """
        names = [path.name for path in self.all if path.exists()]
        if not names:
            return
        problem = f"{self.path} already holds {names[0]}"
        advice = "name another folder (--out DIR)"
        if self.begun:
            problem = f"{self.path} already holds a run ({names[0]})"
            advice = f"continue it with --resume (in Python resume=True), or {advice}"
        raise RunError(f"{problem}; {advice}")

    def refuse_if_trained(self) -> None:
        """Refuse to train a run from its beginning over the model that it has trained.

        Raises:
            RunError: the folder holds a model or a summary.
        """
        for path in (self.summary, self.model):
            if path.exists():
                raise RunError(
                    f"{self.path} holds a trained run ({path.name}) and no saved state to continue "
                    "it from; start another with --out DIR"
                )

    def begin(self, config_yaml: str | None) -> None:
        """Take the folder: lock it against other processes, and write the settings of a new run.

        Args:
            config_yaml: the content of config.yaml; None for a run that is resumed.

        Raises:
            RunError: another process works in the folder, or has begun a run there.
        """
        make_folder(self.path)
        try:
            self._lock = lock_folder(self.path)
        except BlockingIOError as error:
            raise RunError(
                f"another process is working in {self.path}; wait for it or stop it"
            ) from error

        if config_yaml is not None:
            # once more: another process may have come and gone before the lock
            self.refuse_if_taken()
            write_text(self.config, config_yaml)
            return

        # files of a process that was killed while writing
        for folder in ("", f"{self.checkpoints.name}/", f"{self.snapshots.name}/*/"):
            for partial in self.path.glob(f"{folder}{PARTIAL}*"):
                if not partial.is_dir():
                    partial.unlink()

    def forget_later_steps(self, step: int) -> None:
        """Remove what a run that becomes longer leaves behind: what it has of steps after `step`.

        A kill at any point leaves a run that can be resumed. Metrics and dynamics are cut where
        they are continued; model and pictures stay until those of the longer run replace them.
        """
        self.summary.unlink(missing_ok=True)
        # the last first, so that none is missing between others
        for path in reversed(saved_states(self.checkpoints)):
            if step_of(path) > step:
                path.unlink()
        for path in self.saved_snapshots().values():
            if step_of(path) > step:
                shutil.rmtree(path)
