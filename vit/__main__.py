"""The programs: `vit`, which is `python -m vit` too, and train.py."""

import os
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the console command `vit`."""
    run_program("main")


def run_program(name: str) -> NoReturn:
    """Run a function of `vit.cli`, and end with the exit code that it returns."""
    # While modules are imported, Ctrl-C ends a program at once, as SIGTERM does: Python's own
    # handler would print a traceback. A shell may have it ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from vit import cli

    code = getattr(cli, name)()

    # A stopped program's files are whole and its output is written. Python's own end takes apart
    # what a module that was interrupted while it was imported has half set up, and may crash.
    if code > 128:
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
