"""The process of a run: how signals stop it with its state saved, and how it keeps freed memory."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit.training.distributed import Distributed

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """The user or the system asked the process to end. It is no Exception, so that no error handler catches it.

    Attributes:
        number: the signal's number.
        exit_code: 128 + that number, as in a shell.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number, self.exit_code = number, 128 + number


def leave_signals_to_the_system() -> None:
    """Let Ctrl-C end a program at once, as SIGTERM does, wherever `StopRequests` does not receive it.

    Before and after the work there is nothing to clean up, and Python's own handler would print a traceback of whatever is
    being imported. Only programs call this: a library leaves its host's handlers alone.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def ignoring_signals() -> Iterator[None]:
    """Ignore signals in a block that says why the process ends: a second one would say it again."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopRequests:
    """Turns signals into `Stopped`: at once or, while they are held, when the loop asks.

    This is a context manager around a run. During the training loop a signal is held, and the loop calls `agree` after each
    step; elsewhere, and while the loop measures the model, it raises at once, which is safe because all files are written
    atomically. A second signal always raises. While torch is being imported, a signal ends the process: nothing has been
    begun, and some of torch's C++ aborts where Python raises. Only the main thread gets signals; other threads install no
    handlers. In a destructor or a garbage collector's callback, Python would print `Stopped` and drop it: such a signal is
    sent again.
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
        """From now on, keep a signal in `requested` (True), or let it raise, including one already kept (False)."""
        self._holding = holding
        if not holding and self.requested is not None:
            raise Stopped(self.requested)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Let a signal raise within this block, even while signals are held."""
        holding = self._holding
        try:
            self.hold(False)
            yield
        finally:
            self._holding = holding

    def agree(self, dist: Distributed) -> int | None:
        """Return a signal that any process has received: all ask after each step, and so stop at the same one."""
        agreed = dist.all_reduce_max(self.requested or 0)
        if agreed:  # a signal may have come meanwhile
            self.requested = agreed
        return agreed or None

    def _receive(self, number: int, _: FrameType | None) -> None:
        loading = getattr(sys.modules.get("torch"), "__spec__", None)
        if getattr(loading, "_initializing", False):
            os.write(2, f"stopped by {signal.Signals(number).name}\n".encode())
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        again = self.requested is not None
        self.requested = number
        if again or not self._holding:
            raise Stopped(number)

    def _not_raised(self, lost: Any) -> None:
        if isinstance(
            lost.exc_value, Stopped
        ):  # from another thread, because here it would be lost again
            threading.Timer(0.01, os.kill, (os.getpid(), lost.exc_value.number)).start()
        else:
            self._hook_before(lost)


def keep_freed_memory() -> None:
    """Tell glibc not to return freed memory to the system; do nothing with another C library (macOS, Windows, musl).

    Every training step frees and allocates the same large blocks. glibc returns each to the kernel and gets it back page by
    page, zeroed: some 50,000 page faults per step of ViT-Tiny with 128 images. Kept blocks are reused at once: at patch 2
    a step is 1.27 times as fast (docs/speed.md). The price: until it ends, the process stays as large as its largest step.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # from <malloc.h>
    mallopt = ctypes.CDLL(None).mallopt
    for option, value in ((mmap_max, 0), (trim_threshold, 2**31 - 1), (top_pad, 64 * 2**20)):
        mallopt(option, value)
