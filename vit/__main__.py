"""`python -m vit`: the command `vit`, also where its script is not on the path."""

import sys

from vit.cli import main

if __name__ == "__main__":
    sys.exit(main())
