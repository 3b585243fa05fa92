"""What a run writes down while it trains: JSON lines, and TensorBoard on request."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vit.atomic import write_text
from vit.config import ConfigError
from vit.runs import read_metrics


class MetricsLog:
    """One JSON object a line in `path`; every line is on its way to the disk before `write` returns.

    Args:
        path: metrics.jsonl.
        resumed_from: lines of later steps are removed: they are about to be made again.
        tensorboard: folder for TensorBoard's event files, or None.

    Raises:
        ConfigError: TensorBoard is asked for and not installed.
    """

    def __init__(self, path: Path, resumed_from: int = 0, tensorboard: Path | None = None):
        kept = [line for line in read_metrics(path) if line["step"] <= resumed_from]
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")
        self._board = None
        if tensorboard is not None:
            self._board = tensorboard_writer()(str(tensorboard), purge_step=resumed_from + 1)

    def write(self, values: dict[str, Any]) -> None:
        """Append a line; `values` has a "step"."""
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        self._file.flush()
        if self._board is not None:
            for key, value in values.items():
                if key != "step":
                    self._board.add_scalar(key, value, values["step"])

    def sync(self) -> None:
        """Have the lines on the disk, before a state is saved that they belong to."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush and close."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def tensorboard_writer() -> type:
    """torch's SummaryWriter.

    Raises:
        ConfigError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        ways = "install it (pip install tensorboard), or leave run.tensorboard out"
        raise ConfigError(f"run.tensorboard: TensorBoard cannot be imported ({error}); {ways}") from error
    return SummaryWriter
