"""`train.py` and `vit train`: the options and the exit code. The run itself is `vit/train.py`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from vit.cli.startup import start
from vit.pretrained import located
from vit.settings import parse_train_command, train_parser
from vit.training.run_folder import RunFolder

command_parser = train_parser


def main() -> int:
    """The program train.py."""
    return start("train.py", lambda: run(sys.argv[1:], "python train.py"))


def run(argv: Sequence[str], program: str = "vit train") -> int:
    """Read the settings, and train."""
    command = parse_train_command(argv, program=program)
    if not command.resume and "TORCHELASTIC_RUN_ID" not in os.environ:  # torchrun's processes start one after another
        RunFolder(command.out).refuse_if_taken()
    if command.config.model.init and not command.resume:
        located(command.config.model.init)

    from vit.train import run_command  # imports torch; wrong settings are refused before
    from vit.training.process import Stopped, ignoring_signals

    try:
        run_command(command)
    except Stopped as stopped:
        with ignoring_signals():
            begun = RunFolder(command.out).begun
            out = shlex.quote(str(command.out))
            ways = f"continue with: {command.program} --out {out} --resume" if begun else "nothing had started"
            if os.environ.get("RANK", "0") == "0":
                print(f"stopped by {stopped}; {ways}", file=sys.stderr)
            return stopped.exit_code
    return 0
