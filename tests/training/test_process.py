"""Signals: within the loop a flag that it reads after the step, at once everywhere else."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vit.training.distributed import SINGLE, Distributed
from vit.training.process import SIGNALS, Stopped, StopRequests

CODES = {
    "SIGTERM": 143,
    "SIGINT": 130,
    "SIGUSR1": 138,
    "SIGUSR2": 140,
    "SIGHUP": 129,
    "SIGXCPU": 152,
}


@pytest.fixture(autouse=True)
def _handlers_are_restored():
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("name", CODES)
def test_signal_outside_the_loop_ends_the_work_where_it_arrives(name):
    reached = []
    with pytest.raises(Stopped) as caught, StopRequests() as stop:  # noqa: PT012
        with stop.deferred():
            pass
        signal.raise_signal(signal.Signals[name])
        reached.append("the next line")
    assert reached == []
    assert (str(caught.value), caught.value.exit_code) == (name, CODES[name])
    assert isinstance(caught.value, KeyboardInterrupt)  # no handler of errors catches it


@pytest.mark.parametrize("name", CODES)
def test_signal_within_the_loop_is_acknowledged_and_ends_it_after_the_step(name, capfd):
    steps = []
    with StopRequests() as stop, pytest.raises(Stopped) as caught, stop.deferred():  # noqa: PT012
        for step in range(10):
            if step == 3:
                signal.raise_signal(signal.Signals[name])
                assert capfd.readouterr().err == f"{name}: stopping after this step ...\n"
            steps.append(step)
            if stop.agree(SINGLE):
                break
    assert steps == [0, 1, 2, 3]
    assert caught.value.exit_code == CODES[name]


@pytest.mark.parametrize("first", CODES)
def test_second_ctrl_c_within_the_loop_is_pythons_own(first):
    stop = StopRequests()
    with stop, pytest.raises(KeyboardInterrupt) as caught, stop.deferred():  # noqa: PT012
        signal.raise_signal(signal.Signals[first])
        signal.raise_signal(signal.SIGINT)
    assert not isinstance(caught.value, Stopped)


def test_signal_that_comes_while_processes_agree_is_not_lost():
    class Slow(Distributed):
        def all_reduce_max(self, here):
            signal.raise_signal(signal.SIGTERM)
            return here

    with StopRequests() as stop, pytest.raises(Stopped), stop.deferred():
        assert [stop.agree(Slow()), stop.agree(SINGLE)] == [0, signal.SIGTERM]


LOOP = """
import sys
from vit.progress import OptionalStream
from vit.training.process import Stopped, StopRequests
try:
    with StopRequests() as stop, stop.deferred():
        print("ready", flush=True)
        while not stop.requested:
            pass
        print("the state is saved", file=OptionalStream(sys.stderr), flush=True)
except Stopped as stopped:
    sys.exit(stopped.exit_code)
"""


def test_closed_terminal_lets_the_step_end():
    terminal, its_end = pty.openpty()
    command = [sys.executable, "-c", LOOP]
    process = subprocess.Popen(
        command, stdout=its_end, stderr=its_end, cwd=Path(__file__).parents[2]
    )
    os.close(its_end)
    assert os.read(terminal, 5) + os.read(terminal, 2) == b"ready\r\n"
    os.close(terminal)  # as when its window is closed: what is written now fails
    process.send_signal(signal.SIGHUP)
    assert process.wait(600) == CODES["SIGHUP"]


@pytest.mark.parametrize("name", CODES)
def test_a_signal_that_is_ignored_from_the_start_stays_so(name):
    """Under nohup that is SIGHUP, in the background of a script SIGINT."""
    number = signal.Signals[name]
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with StopRequests() as stop, stop.deferred():
            signal.raise_signal(number)
        assert stop.requested == 0
        # nor does another signal wake it
        other = signal.SIGTERM if number != signal.SIGTERM else signal.SIGUSR1
        with pytest.raises(Stopped), StopRequests() as stop, stop.deferred():
            signal.raise_signal(other)
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
