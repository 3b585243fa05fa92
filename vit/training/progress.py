"""How a run shows that it is moving: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, TextIO

from tqdm import tqdm

from vit.training.callbacks import Callback
from vit.training.loop import Step

if TYPE_CHECKING:
    from vit.training.run import Run

SECONDS_BETWEEN_LINES = 15.0
SECONDS_BETWEEN_LOSSES = 0.5


class Progress(Callback):
    """Epoch, loss, images a second and time left.

    Args:
        total_steps: steps of the whole run.
        epochs: epochs of the whole run.
        start: steps that a resumed run has behind it.
        stream: where to show it, stderr if None; a bar where that is a terminal, a line now and then where it is not.
    """

    def __init__(self, total_steps: int, epochs: int, start: int = 0, stream: TextIO | None = None):
        self.total_steps, self.epochs, self.start = total_steps, epochs, start
        self.stream = stream = stream or sys.stderr
        self._began = self._last_line = time.perf_counter()
        self._images = 0
        self._bar = None
        if stream.isatty():
            layout = "{desc} {bar} {n_fmt}/{total_fmt} steps, {elapsed} gone, {remaining} left"
            self._bar = tqdm(total=total_steps, initial=start, bar_format=layout, file=stream, dynamic_ncols=True)

    def on_step(self, run: Run, done: Step) -> None:
        """Show what is done. Its loss, for which a GPU must be waited for, is read now and then only."""
        now = time.perf_counter()
        self._images += done.images
        ends = done.step in (self.start + 1, self.total_steps)
        if now - self._last_line > (SECONDS_BETWEEN_LINES if self._bar is None else SECONDS_BETWEEN_LOSSES) or ends:
            loss = done.loss
            now = self._last_line = time.perf_counter()
            seconds = now - self._began
            current = min(math.ceil(done.epoch), self.epochs)
            text = f"epoch {current}/{self.epochs}  loss {loss:.4f}  {self._images / seconds:,.0f} images/s"
            if self._bar is not None:
                self._bar.set_description_str(text, refresh=False)
            else:
                left = seconds / (done.step - self.start) * (self.total_steps - done.step)
                line = f"{text}  step {done.step}/{self.total_steps}  {tqdm.format_interval(left)} left"
                print(line, file=self.stream, flush=True)
        if self._bar is not None:
            self._bar.update(done.step - self._bar.n)

    def close(self) -> None:
        """End the bar, so that what is printed next stands on a line of its own."""
        if self._bar is not None:
            self._bar.close()
