"""The folder that a run writes: locked, and never overwritten."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO, Self

from vit.atomic import PARTIAL, lock, write_text
from vit.errors import RunError
from vit.runs import RunFiles
from vit.training.state import saved_states, step_of


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
    def _lock_path(self) -> Path:
        return self.path / ".lock"

    @property
    def begun(self) -> bool:
        """Whether there is a run to continue."""
        return self.config.exists()

    def refuse_if_taken(self) -> None:
        """Refuse to begin a run in a folder that already holds one of its files.

        Raises:
            RunError: the folder is taken, or cannot be used.
        """
        try:
            names = [path.name for path in self.all if path.exists()]
        except OSError as error:
            # e.g. a name that is too long, or a folder without permission
            raise RunError(
                f"cannot use the run folder {self.path}: {error.strerror}; choose --out DIR"
            ) from error
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
            RunError: another process works in the folder or has begun a run there, or it cannot be
                written.
        """
        try:
            # the system lets go of the lock when the process ends, however it does; a link in its
            # place, which could lead to any file, is not followed
            self.path.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            descriptor = os.open(self._lock_path, flags, 0o666)
            self._lock = os.fdopen(descriptor, "rb+")
            lock(self._lock)
            # whoever held it may have removed the folder
            self.refuse_if_lost()

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
        except BlockingIOError as error:
            # from the lock
            raise RunError(
                f"another process is working in {self.path}; wait for it or stop it"
            ) from error
        except OSError as error:
            reason = error.strerror or error
            raise RunError(
                f"cannot write to the run folder {self.path}: {reason}; choose --out DIR"
            ) from error

    def refuse_if_lost(self) -> None:
        """Refuse to write into a folder that is not the one that `begin` took.

        Whoever writes calls this first: a name that is gone would be made anew, and one that
        leads to another run's folder would overwrite its files. Before `begin`, do nothing.

        Raises:
            RunError: the folder was removed, renamed or replaced.
        """
        if self._lock is None:
            return
        try:
            here = os.lstat(self._lock_path)
        except (FileNotFoundError, NotADirectoryError):
            is_ours = False
        except OSError:
            # a network that fails for a moment; if it goes on, writing fails and says so
            is_ours = True
        else:
            is_ours = os.path.samestat(here, os.fstat(self._lock.fileno()))
        if not is_ours:
            raise RunError(
                f"{self.path} was removed, renamed or replaced while this run was writing there "
                "(or the file .lock in it was); the run ends and leaves it as it is; a renamed "
                "folder continues with --resume --out NEW_NAME"
            )

    def forget_later_steps(self, step: int) -> None:
        """Remove what a run that becomes longer leaves behind: what it has of steps after `step`.

        A kill at any point leaves a run that can be resumed. Metrics and dynamics are cut where
        they are continued; model and pictures stay until those of the longer run replace them.

        Raises:
            RunError: the folder cannot be written.
        """
        try:
            self.summary.unlink(missing_ok=True)
            # the last first, so that none is missing between others
            for path in reversed(saved_states(self.checkpoints)):
                if step_of(path) > step:
                    path.unlink()
            for path in self.saved_snapshots().values():
                if step_of(path) > step:
                    shutil.rmtree(path)
        except OSError as error:
            reason = error.strerror or error
            raise RunError(f"cannot write to the run folder {self.path}: {reason}") from error
