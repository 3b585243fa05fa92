"""The folder that a run writes: locked, never overwritten; and the run's checkpoints in it.

The last two checkpoints are kept, and the one from which a run can become longer.

A checkpoint is an ordinary torch file of tensors and plain values (read with `weights_only=True`).
torch.load checks nothing: a flipped bit becomes a wrong weight. So the zip comment, which torch and
zip readers skip, holds the file's SHA-256, and it is compared before anything is read. (Zip's own
checksums leave out its directory, where a flipped bit moves a tensor.)
"""

from __future__ import annotations

import hashlib
import io
import math
import shutil
import struct
from pathlib import Path
from typing import IO, Any, Self

import torch

from vit.atomic import lock_folder, make_folder, replacing, write_text
from vit.config import Config, changed, flat_settings
from vit.data import Dataset
from vit.errors import ConfigError, RunError
from vit.runs import RunFiles
from vit.training.distributed import SINGLE, Distributed

KEPT = 2
"""Number of checkpoints that a run keeps."""
OTHER_RUN = (
    "leave it out (and --config: the run has its own), or start another run with --out, which may "
    "begin with this one's model (--model.init)"
)


def state_path(folder: Path, step: int) -> Path:
    """Return the file of a step's checkpoint, e.g. checkpoints/step-00001234.pt."""
    return folder / f"step-{step:08d}.pt"


def saved_states(folder: Path) -> list[Path]:
    """List the checkpoints in `folder`, oldest first."""
    eight = "[0-9]" * 8
    states = [path for path in folder.glob(f"step-{eight}*.pt") if path.stem[5:].isdecimal()]
    return sorted(states, key=step_of)


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, or of a snapshot, by its name."""
    return int(path.stem.removeprefix("step-"))


def save_state(folder: Path, step: int, state: dict[str, Any], kept: int = 0) -> Path:
    """Save the `state` of a step as a checkpoint; keep the one before it and that of step `kept`.

    A kill at any point, or a full disk, leaves the earlier checkpoints and either a whole new one
    or none.
    """
    # the zip file ends with the length of its comment, two bytes, which `_tail` writes anew
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()[:-2]

    make_folder(folder)
    path = state_path(folder, step)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(content)
        file.write(_tail(content))

    # only now, so that a kill never leaves fewer
    earlier = [old for old in saved_states(folder) if step_of(old) < step]
    for old in earlier[: 1 - KEPT]:
        if step_of(old) != kept:
            old.unlink()
    return path


def _tail(content: bytes | memoryview) -> bytes:
    """Return the end of the zip file: the comment's length, and the comment, a SHA-256."""
    comment = b"sha256:" + hashlib.sha256(content).hexdigest().encode()
    return struct.pack("<H", len(comment)) + comment


def load_state(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; a `RunError` if any bit has changed."""
    content = path.read_bytes()
    end = len(content) - len(_tail(b""))
    # compare before reading: torch checks nothing
    if content[end:] != _tail(content[:end]):
        raise RunError(f"{path} is damaged: its content has changed since it was saved")
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def load_latest_state(folder: Path, last: float = math.inf) -> dict[str, Any] | None:
    """Return the newest undamaged checkpoint in `folder`, none later than step `last`.

    Returns: The state in it; its key "notes" holds a line about each newer, damaged one. None if no
        such checkpoint has been saved; if all are damaged, a `RunError` is raised.
    """
    paths = [path for path in saved_states(folder) if step_of(path) <= last]
    if not paths:
        return None

    # newest first
    damaged: list[str] = []
    for path in reversed(paths):
        try:
            return {**load_state(path), "notes": damaged}
        except (RunError, OSError) as error:
            damaged.append(str(error))
    raise RunError("; ".join([f"no usable checkpoint in {folder}", *damaged]))


def find_state(
    folder: Path, config: Config, data: Dataset, dist: Distributed = SINGLE
) -> dict[str, Any] | None:
    """Return the newest undamaged checkpoint in `folder`; None if nothing has been saved yet.

    With another `train.epochs`, it is the newest that a run of that length would have had. The main
    process reads it for all. A checkpoint of other data or settings is refused.
    """
    state = dist.broadcast_from_main(lambda: load_latest_state(folder))
    if state is None:
        return None
    if state["data_content_hash"] != data.content_hash:
        raise RunError(
            "the training data has changed since this run began: its image hash was "
            f"{state['data_content_hash']} and is now {data.content_hash}; "
            "start another run with --out"
        )
    refuse_conflicts(config, state["config"], folder.parent, config.train.epochs)

    # steps that a run of this length would not have made are not used
    epochs = state["config"]["train"]["epochs"]
    before = changed(config, {"train.epochs": epochs})
    held = min(one.held_steps(len(data.train)) for one in (config, before))
    if epochs == config.train.epochs or state["step"] <= held:
        return state
    earlier = dist.broadcast_from_main(lambda: load_latest_state(folder, held))
    if earlier is None:
        raise ConfigError(
            "train.epochs",
            f"the run is at step {state['step']:,} of {epochs} epochs, and the first {held:,} "
            f"steps, those of {config.train.epochs} epochs too, are not kept; {OTHER_RUN}",
        )
    earlier["notes"].append(
        f"train.epochs {config.train.epochs}: it continues from step {earlier['step']:,}, before "
        f"the learning-rate decay of its {epochs} epochs, whose model is replaced at the end"
    )
    return earlier


def refuse_conflicts(requested: Config, before: dict[str, Any], folder: Path, epochs: int) -> None:
    """Refuse settings that would make another run of the one in `folder`.

    It began with `before`, and is to be resumed for `epochs`, which may differ while the learning
    rate is constant.
    """
    saved = flat_settings(before)
    for key, new in requested.deciding().items():
        old = saved.get(key, new)
        # the checkpoint decides whether it is too late for other epochs (`find_state`)
        falls_from_start = before["optim"]["cooldown"] == 1
        becomes_longer = key == "train.epochs" and new == epochs and not falls_from_start
        if old != new and not becomes_longer:
            raise ConfigError(key, f"the run in {folder} has {old!r}, not {new!r}; {OTHER_RUN}")


class RunFolder(RunFiles):
    """A run folder that this process writes: locked against others, and never overwritten."""

    _lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let others work in the folder."""
        if self._lock is not None:
            self._lock.close()

    def refuse_if_taken(self) -> None:
        """Refuse to begin a run in a folder that already holds one of its files."""
        for path in self.all:
            if path.exists():
                raise RunError(
                    f"{self.path} already holds a run, or a part of one ({path.name}); continue it "
                    "with --resume (in Python resume=True), or name another folder (--out DIR)"
                )

    def refuse_if_trained(self) -> None:
        """Refuse to train a run from its beginning over its trained model."""
        for path in (self.summary, self.model):
            if path.exists():
                raise RunError(
                    f"{self.path} holds a trained run ({path.name}) and no checkpoint to continue "
                    "it from; start another with --out DIR"
                )

    def begin(self, config_yaml: str | None) -> None:
        """Take the folder: lock it against other processes, and write the settings of a new run.

        Args:
            config_yaml: the content of config.yaml; None for a run that is resumed.
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

    def forget_later_steps(self, step: int) -> None:
        """Remove the files of a run that becomes longer: those of steps after `step`.

        A kill at any point leaves a run that can be resumed. Metrics and dynamics are cut where
        they are continued; the model stays until that of the longer run replaces it.
        """
        self.summary.unlink(missing_ok=True)
        for path in self.pictures:
            path.unlink(missing_ok=True)
        # the last first, so that none is missing between others
        for path in reversed(saved_states(self.checkpoints)):
            if step_of(path) > step:
                path.unlink()
        for path in self.saved_snapshots().values():
            if step_of(path) > step:
                shutil.rmtree(path)
