"""The process of a run: a signal ends it after the step under way, with its state saved; and it keeps freed memory."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit.training.distributed import Distributed

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """The user or the system asked the process to end. Not an Exception, so that no handler of errors catches it.

    Attributes:
        number: of the signal.
        exit_code: 128 + the signal's number, as in a shell.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number, self.exit_code = number, 128 + number


def leave_signals_to_the_system() -> None:
    """Let Ctrl-C end a program at once, as SIGTERM does, wherever `StopRequests` does not receive them.

    Before the work and after it, nothing needs to be put away, and Python's own handler would print a traceback of whatever is
    being imported. For programs alone: a library leaves the handlers of its host as they are.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a shell lets it be ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)


class StopRequests:
    """Turns the signals into `Stopped`: at once, or, while they are held, when the loop asks.

    A context manager around a run. Within the training loop the signal is held, and the loop asks `agree` after each step;
    elsewhere it raises where it arrives, which is safe because all files are written whole. A second one always raises.
    Python hands signals to the main thread only: in another, none is asked for. Where it cannot raise, in a destructor or a
    callback of the garbage collector, it would print and drop the `Stopped`: such a signal is sent once more.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self._holding = False

    def __enter__(self) -> StopRequests:
        signals = SIGNALS if threading.current_thread() is threading.main_thread() else ()
        self._before = {number: signal.signal(number, self._receive) for number in signals}
        self._hook_before = sys.unraisablehook
        if self._before:
            sys.unraisablehook = self._not_raised
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            sys.unraisablehook = self._hook_before
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self, holding: bool) -> None:
        """From now on, keep a signal in `requested` (True), or let it raise (False), also one that was kept."""
        self._holding = holding
        if not holding and self.requested is not None:
            raise Stopped(self.requested)

    def agree(self, dist: Distributed) -> int | None:
        """`requested`, once any of the processes has received a signal: all ask after each step, and stop at the same."""
        self.requested = dist.all_reduce_max(self.requested or 0) or None
        return self.requested

    def _receive(self, number: int, _: FrameType | None) -> None:
        again = self.requested is not None
        self.requested = number
        if again or not self._holding:
            raise Stopped(number)

    def _not_raised(self, lost: Any) -> None:
        if isinstance(lost.exc_value, Stopped):  # from another thread: in here it would be lost again
            threading.Timer(0.01, os.kill, (os.getpid(), lost.exc_value.number)).start()
        else:
            self._hook_before(lost)


def keep_freed_memory() -> bool:
    """Tell glibc not to give freed memory back to the system.

    A training step frees and asks for the same large blocks again and again. glibc returns each to the kernel and gets it
    back page by page, zeroed: some 50,000 page faults a step of ViT-Tiny with 128 images. Kept blocks are used again at
    once: at patch 2 a step is 1.27 times as fast (docs/speed.md). The price is that the process stays as
    large as its largest step, until it ends.

    Returns:
        Whether it was set: False where the C library is not glibc (macOS, Windows, musl), which is left as it is.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # of <malloc.h>
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((mmap_max, 0), (trim_threshold, 2**31 - 1), (top_pad, 64 * 2**20))
    return all([mallopt(option, value) == 1 for option, value in settings])
