"""The folder that a run writes: locked, and never overwritten."""

from __future__ import annotations

import shutil
from typing import IO, Self

from vit.atomic import PARTIAL, lock_folder, make_folder, write_text
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
