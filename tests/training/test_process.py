"""Signals: at once where nothing is lost, after the step where something would be."""

from __future__ import annotations

import signal

import pytest

from vit.training.process import SIGNALS, Stopped, StopRequests

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(autouse=True)
def handlers_stay():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_both_signals_are_meant():
    assert set(SIGNALS) == set(CODES)


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_that_is_not_held_ends_the_work_where_it_arrives(number):
    after = []
    with pytest.raises(Stopped) as caught, StopRequests():  # noqa: PT012
        signal.raise_signal(number)
        after.append("reached")
    assert after == []
    assert caught.value.exit_code == CODES[number]
    assert str(caught.value) == signal.Signals(number).name


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_that_is_held_waits_to_be_let_go(number):
    with StopRequests() as stop:
        stop.hold(True)
        assert stop.requested is None
        signal.raise_signal(number)
        assert stop.requested == number
        with pytest.raises(Stopped) as caught:
            stop.hold(False)
    assert caught.value.exit_code == CODES[number]


@pytest.mark.parametrize("second", SIGNALS)
@pytest.mark.parametrize("first", SIGNALS)
def test_second_signal_does_not_wait(first, second):
    with StopRequests() as stop:
        stop.hold(True)
        signal.raise_signal(first)
        with pytest.raises(Stopped) as caught:
            signal.raise_signal(second)
    assert caught.value.exit_code == CODES[second]


def test_without_a_signal_letting_go_does_nothing():
    with StopRequests() as stop:
        stop.hold(True)
        stop.hold(False)
        assert stop.requested is None


def test_signal_after_letting_go_ends_the_work_again():
    with StopRequests() as stop:
        stop.hold(True)
        stop.hold(False)
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)


def test_work_in_a_loop_ends_after_the_step_under_way():
    done = []
    with StopRequests() as stop:
        stop.hold(True)
        for step in range(10):
            if step == 3:
                signal.raise_signal(signal.SIGTERM)
            done.append(step)
            if stop.requested:
                break
        with pytest.raises(Stopped):
            stop.hold(False)
    assert done == [0, 1, 2, 3]


def test_stop_is_caught_by_nothing_that_means_errors():
    assert issubclass(Stopped, BaseException)
    assert not issubclass(Stopped, Exception)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_handlers_come_back_when_the_work_fails(error):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(error), StopRequests():  # noqa: PT012
        assert signal.getsignal(signal.SIGINT) != before
        raise error
    assert signal.getsignal(signal.SIGINT) == before
