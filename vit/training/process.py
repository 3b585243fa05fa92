"""The process of a run: signals stop it with a checkpoint, and it keeps freed memory."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from vit.errors import Stopped, UserError, received_by, stop

if TYPE_CHECKING:
    from vit.training.distributed import Distributed


class StopRequests(ExitStack):
    """A context manager: signals set a flag in a `deferred` block, and raise `Stopped` elsewhere.

    Once the flag is set, SIGINT has Python's own handler. Only the main thread gets signals:
    elsewhere this does nothing.

    Attributes:
        requested: number of the last signal within the block; 0 if none came.
    """

    requested = 0
    _deferring = False

    def __enter__(self) -> StopRequests:
        self.enter_context(received_by(self._receive))
        return self

    def _receive(self, number: int, _: FrameType | None) -> None:
        if not self._deferring:
            stop(number)
        self.requested = number
        # who presses Ctrl-C again does not want to wait for the step
        if signal.getsignal(signal.SIGINT) == self._receive:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # os.write, because the signal may have interrupted a print; the terminal may be closed,
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
        except Exception as error:
            # a terminal's Ctrl-C also ends the compiler that a step waits for: no error of its own;
            # what could not be saved is one
            if self.requested and not isinstance(error, (OSError, UserError)):
                raise Stopped(self.requested) from error
            raise
        finally:
            self._deferring = False
        if self.requested:
            raise Stopped(self.requested)

    def agree(self, dist: Distributed) -> int:
        """Return a signal that any process has received, 0 if none has.

        All check after the same steps, and so stop at the same one.
        """
        agreed = dist.all_reduce_max(self.requested)
        # a later signal waits for the next step, when all learn of it
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
    # macOS, Windows and musl do not have it
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt

    # the options' numbers are from <malloc.h>: M_MMAP_MAX, no mapping of its own for a large block;
    # M_TRIM_THRESHOLD, return nothing; M_TOP_PAD, grow by 64 MiB at once
    mallopt(-4, 0)
    mallopt(-1, 2**31 - 1)
    mallopt(-2, 64 * 2**20)
