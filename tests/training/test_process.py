"""Signals: at once where nothing is lost, after the step where something would be."""

from __future__ import annotations

import itertools
import signal

import pytest

from vit.training.process import SIGNALS, Stopped, StopRequests

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(autouse=True)
def handlers_stay():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
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


@pytest.mark.parametrize(("first", "second"), [*itertools.product(CODES, CODES)])
def test_second_signal_does_not_wait(first, second):
    with StopRequests() as stop:
        stop.hold(True)
        signal.raise_signal(first)
        with pytest.raises(Stopped) as caught:
            signal.raise_signal(second)
    assert caught.value.exit_code == CODES[second]
