"""Python in processes of their own without the seconds that imports take: a ready one forks itself for each program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SERVER = f"""
import gc, json, os, sys, traceback
sys.path.insert(0, {str(ROOT)!r})
exec(sys.argv[1])
gc.collect()
gc.freeze()
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if not pid:
        os.chdir(job["cwd"])
        for name, descriptor in (("out", 1), ("err", 2)):
            os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        code = 0
        try:
            exec(job["program"], {{"__name__": "__main__"}})
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)  # not through Python's own end, which copies the pages of all that was imported
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
os._exit(0)
"""


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}


class Forks:
    """`forks(cwd, program)`: a program that has ended, a real process with real signals and exit codes.

    What it prints goes through files in `folder`.
    """

    def __init__(self, folder: Path, imports: str):
        self.files = {"out": str(folder / "out"), "err": str(folder / "err")}
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, imports], env=environment(), **pipes
        )

    def __call__(self, cwd: Path, program: str) -> subprocess.CompletedProcess:
        self.process.stdin.write(
            json.dumps({"cwd": str(cwd), "program": program, **self.files}) + "\n"
        )
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        return subprocess.CompletedProcess(
            program, code, *(Path(file).read_text() for file in self.files.values())
        )

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        assert self.process.wait(600) == 0
        self.process.stdout.close()


def calls(script: Path, argv: object) -> str:
    """The program `python script argv`."""
    argv = [script.name, *map(str, argv)]
    return f"import runpy, sys\nsys.argv = {argv!r}\nrunpy.run_path({str(script)!r}, run_name='__main__')\n"
