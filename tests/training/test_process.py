"""Signals: at once where nothing is lost, after the step where something would be."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vit.training.distributed import SINGLE, Distributed
from vit.training.process import SIGNALS, Stopped, StopRequests, leave_signals_to_the_system

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(autouse=True)
def handlers_stay():
    before, hook = {number: signal.getsignal(number) for number in SIGNALS}, sys.unraisablehook
    yield
    assert sys.unraisablehook == hook
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_that_is_not_held_ends_the_work_where_it_arrives(number):
    after = []
    with pytest.raises(Stopped) as caught, StopRequests() as stop:  # noqa: PT012
        stop.hold(True)
        stop.hold(False)  # nothing came meanwhile
        signal.raise_signal(number)
        after.append("reached")
    assert after == []
    assert caught.value.exit_code == CODES[number]
    assert str(caught.value) == signal.Signals(number).name


@pytest.mark.parametrize("number", SIGNALS)
def test_work_in_a_loop_ends_after_the_step_under_way(number):
    done = []
    with StopRequests() as stop:
        stop.hold(True)
        for step in range(10):
            if step == 3:
                signal.raise_signal(number)
            done.append(step)
            if stop.requested:
                break
        with pytest.raises(Stopped) as caught:
            stop.hold(False)
    assert done == [0, 1, 2, 3]
    assert caught.value.exit_code == CODES[number]


@pytest.mark.parametrize("early", [True, False])
def test_what_may_be_ended_in_a_loop_ends_at_once_and_the_loop_after_its_step(early):
    with StopRequests() as stop:
        stop.hold(True)
        if early:
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped), stop.raising():  # noqa: PT012
            assert not early
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("reached")
        assert stop.agree(SINGLE) == signal.SIGTERM
    with StopRequests() as stop:
        stop.hold(True)
        with stop.raising():
            pass
        signal.raise_signal(signal.SIGTERM)  # held again
        assert stop.agree(SINGLE) == signal.SIGTERM


def test_signal_that_comes_while_processes_agree_is_not_lost():
    class Slow(Distributed):
        def all_reduce_max(self, here):
            signal.raise_signal(signal.SIGTERM)
            return here

    with StopRequests() as stop:
        stop.hold(True)
        assert [stop.agree(Slow()), stop.agree(SINGLE)] == [None, signal.SIGTERM]
        with pytest.raises(Stopped):
            stop.hold(False)


@pytest.mark.parametrize(("first", "second"), [*itertools.product(CODES, CODES)])
def test_second_signal_does_not_wait(first, second):
    with StopRequests() as stop:
        stop.hold(True)
        signal.raise_signal(first)
        with pytest.raises(Stopped) as caught:
            signal.raise_signal(second)
    assert caught.value.exit_code == CODES[second]


class SignalledAsItGoes:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


TORCH = """
import os, signal, sys
try:
    os.kill(os.getpid(), int(sys.argv[1]))
finally:
    print("C++ would have aborted here")
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_while_torch_is_imported_ends_the_process_and_raises_nothing(tmp_path, number):
    (tmp_path / "torch.py").write_text(TORCH)
    work = "from vit.training.process import StopRequests\nwith StopRequests(): import torch"
    places = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    command = [sys.executable, "-c", work, str(int(number))]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-number, "")
    assert done.stderr == f"stopped by {number.name}\n"


@pytest.mark.parametrize("repeats", [1, 3])
def test_signal_where_nothing_can_be_raised_comes_again(capfd, repeats):
    for _ in range(repeats):
        began = time.monotonic()
        with pytest.raises(Stopped), StopRequests():  # noqa: PT012
            SignalledAsItGoes()
            time.sleep(60)
        assert time.monotonic() - began < 30
    assert capfd.readouterr().err == ""


def test_what_else_cannot_be_raised_is_said_as_ever(capfd, monkeypatch):
    class Falls:
        def __del__(self):
            raise ValueError("in a destructor")

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    with StopRequests():
        Falls()
    assert "in a destructor" in capfd.readouterr().err


@pytest.mark.parametrize(
    "handler", [signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler, print]
)
def test_a_program_leaves_ctrl_c_to_the_system_unless_somebody_has_taken_it(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        leave_signals_to_the_system()
        assert signal.getsignal(signal.SIGINT) == (
            signal.SIG_DFL if handler is signal.default_int_handler else handler
        )
    finally:
        signal.signal(signal.SIGINT, before)
