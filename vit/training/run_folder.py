"""The folder that a run writes: locked, and never overwritten."""

from __future__ import annotations

from typing import IO, Self

from vit.atomic import PARTIAL, lock, write_text
from vit.errors import UserError
from vit.runs import RunFiles


class RunFolderError(UserError):
    """A run folder that cannot be used; the message is one line."""


class RunFolder(RunFiles):
    """A run folder that this process writes: locked against others, and never overwritten."""

    _lock: IO[str] | None = None  # held while it is open

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let others work in the folder."""
        if self._lock is not None:
            self._lock.close()

    @property
    def begun(self) -> bool:
        """Whether there is a run to continue."""
        return self.config.exists()

    def refuse_if_taken(self) -> None:
        """Refuse to begin a run in a folder that already holds one of its files.

        Raises:
            RunFolderError: the folder is taken, or cannot be used; it names the ways out.
        """
        try:
            taken = [path.name for path in self.all if path.exists()]
        except OSError as error:  # e.g. a name that is too long, or a folder without permission
            reason = f"cannot use the run folder {self.path}: {error.strerror}"
            raise RunFolderError(f"{reason}; choose --out DIR") from error
        if taken:
            holds, ways = taken[0], "name another folder (--out DIR)"
            if self.begun:
                holds, ways = (
                    f"a run ({holds})",
                    f"continue it with --resume (in Python resume=True), or {ways}",
                )
            raise RunFolderError(f"{self.path} already holds {holds}; {ways}")

    def refuse_if_trained(self) -> None:
        """Refuse to train a run from its beginning over the model that it has trained.

        Raises:
            RunFolderError: the folder holds a model or a summary.
        """
        if trained := [path.name for path in (self.summary, self.model) if path.exists()]:
            found = f"{self.path} holds a trained run ({trained[0]}) and no saved state to continue it from"
            raise RunFolderError(f"{found}; start another with --out DIR")

    def begin(self, config_yaml: str | None) -> None:
        """Take the folder: lock it against other processes, and write the configuration of a new run.

        Raises:
            RunFolderError: another process works in it or has begun a run there, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("w")
            lock(self._lock)
            for pattern in ("", f"{self.checkpoints.name}/", f"{self.snapshots.name}/*/"):
                for left in self.path.glob(f"{pattern}{PARTIAL}*"):
                    left.unlink()  # left by a process killed while writing
            if config_yaml is not None:
                self.refuse_if_taken()  # again: another process may have come and gone in between
                write_text(self.config, config_yaml)
        except BlockingIOError as error:  # from the lock
            raise RunFolderError(
                f"another process is working in {self.path}; wait for it or stop it"
            ) from error
        except OSError as error:
            reason = error.strerror or error
            raise RunFolderError(
                f"cannot write to the run folder {self.path}: {reason}; choose --out DIR"
            ) from error
