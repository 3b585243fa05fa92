"""How a run shows that it is moving: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from typing import TextIO

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 15.0


class Progress:
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

    def update(self, step: int, epoch: float, loss: float, images: int) -> None:
        """Show that `step` steps are done (a share `epoch` of `self.epochs`), the last with `images` images."""
        now = time.perf_counter()
        self._images += images
        seconds = now - self._began
        rate = self._images / seconds
        current = min(math.ceil(epoch), self.epochs)
        text = f"epoch {current}/{self.epochs}  loss {loss:.4f}  {rate:,.0f} images/s"
        if self._bar is not None:
            self._bar.set_description_str(text, refresh=False)
            self._bar.update(step - self.start - (self._bar.n - self._bar.initial))
        elif now - self._last_line > SECONDS_BETWEEN_LINES or step in (self.start + 1, self.total_steps):
            left = seconds / (step - self.start) * (self.total_steps - step)
            line = f"{text}  step {step}/{self.total_steps}  {tqdm.format_interval(left)} left"
            print(line, file=self.stream, flush=True)
            self._last_line = now

    def close(self) -> None:
        """End the bar, so that what is printed next stands on a line of its own."""
        if self._bar is not None:
            self._bar.close()
