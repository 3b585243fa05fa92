"""`python -m vit.cli`: the command `vit`, also where it is not installed."""

import sys

from vit.cli import main

if __name__ == "__main__":
    sys.exit(main())
