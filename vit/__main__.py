"""The program `vit`; `python -m vit` works even if its script is not on the path."""

import sys

from vit.training.process import leave_signals_to_the_system, open_closed_streams


def main() -> int:
    """Run the console command `vit`."""
    open_closed_streams()
    leave_signals_to_the_system()
    from vit.cli import main  # only now, because this import takes a while

    return main()


if __name__ == "__main__":
    sys.exit(main())
