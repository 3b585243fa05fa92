"""The program `vit`, also as `python -m vit`, where its script is not on the path."""

import sys

from vit.training.process import leave_signals_to_the_system


def main() -> int:
    """The console command `vit`."""
    leave_signals_to_the_system()
    from vit.cli import main  # after that: to import it takes a while

    return main()


if __name__ == "__main__":
    sys.exit(main())
