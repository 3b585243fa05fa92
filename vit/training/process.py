"""The process of a run: how signals stop it with its state saved, and how it keeps freed memory."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit.training.distributed import Distributed

# Schedulers send SIGTERM, SIGUSR1 or SIGUSR2, a keyboard SIGINT, a closed terminal SIGHUP, and the
# system SIGXCPU when the time of `ulimit -t` is over; Windows has two of them.
NAMES = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGXCPU")
SIGNALS = [signal.Signals[name] for name in NAMES if hasattr(signal, name)]


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end. It is no Exception, so that no error handler catches it.

    Attributes:
        exit_code: 128 + the signal's number, as in a shell.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class StopRequests:
    """A context manager for signals: in a `deferred` block a flag, anywhere else `Stopped`.

    Raised at once, `Stopped` loses nothing, because every file is written whole or not at all. Once
    the flag is set, SIGINT is Python's own. Only the main thread gets signals: elsewhere this does
    nothing.

    Attributes:
        requested: number of the last signal within the block; 0 if none came.
    """

    def __init__(self) -> None:
        self.requested = 0
        self._deferring = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # nohup ignores SIGHUP, and a shell SIGINT in the background of a script
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if not self._deferring:
            raise Stopped(number)
        self.requested = number
        # whoever presses Ctrl-C now does not want to wait for the step
        if signal.SIGINT in self._handlers:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # os.write, because a print may be what the signal interrupted; the terminal may be closed,
        # and a program may have no stderr
        with suppress(OSError, AttributeError):
            os.write(
                sys.stderr.fileno(),
                f"{signal.Signals(number).name}: stopping after this step ...\n".encode(),
            )

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let signals only set the flag within the block, and raise `Stopped` at its end."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        if self.requested:
            raise Stopped(self.requested)

    def agree(self, dist: Distributed) -> int:
        """Return a signal that any process has received, 0 if none has.

        All ask after the same steps, and so stop at the same one.
        """
        agreed = dist.all_reduce_max(self.requested)
        # one that came meanwhile waits for the next step, when all hear of it
        if agreed:
            self.requested = agreed
        return agreed


def keep_freed_memory() -> None:
    """Tell glibc not to return freed memory to the system; do nothing with another C library.

    It lasts as long as the process, so only programs call this: a library leaves its host's memory
    alone.

    Every training step frees and allocates the same large blocks. glibc returns each to the kernel
    and gets it back page by page, zeroed: some 50,000 page faults per step of ViT-Tiny with 128
    images. Kept blocks are reused at once: at patch 2 a step is 1.27 times as fast (docs/speed.md).
    The price: until it ends, the process stays as large as its largest step.
    """
    # macOS, Windows and musl have others
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt

    # the options' numbers stand in <malloc.h>: M_MMAP_MAX, no mapping of its own for a large block;
    # M_TRIM_THRESHOLD, return nothing; M_TOP_PAD, grow by 64 MiB at once
    mallopt(-4, 0)
    mallopt(-1, 2**31 - 1)
    mallopt(-2, 64 * 2**20)
