"""Signals: within the loop a flag that it reads after the step, at once everywhere else."""

import signal

import pytest

from vit.errors import SIGNALS, RunError, Stopped
from vit.training.distributed import SINGLE, Distributed
from vit.training.process import StopRequests

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
    with pytest.raises(Stopped) as caught, StopRequests() as stop:  # noqa: PT012
        with stop.deferred():
            pass
        signal.raise_signal(signal.Signals[name])
        pytest.fail("the next line is reached")
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


def test_second_ctrl_c_within_the_loop_is_pythons_own():
    stop = StopRequests()
    with stop, pytest.raises(KeyboardInterrupt) as caught, stop.deferred():  # noqa: PT012
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert not isinstance(caught.value, Stopped)


@pytest.mark.parametrize(
    ("error", "ends_with"),
    [
        (RuntimeError("the compiler was killed"), Stopped),
        (OSError(28, "No space left on device"), OSError),
        (RunError("the folder was removed"), RunError),
    ],
)
def test_what_a_signal_ends_with_the_run_is_no_error_and_what_is_not_saved_is(error, ends_with):
    """Ctrl-C reaches every process of a terminal, the compiler of the first step among them."""
    with StopRequests() as stop, pytest.raises(ends_with), stop.deferred():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        raise error


def test_signal_that_comes_while_processes_agree_is_not_lost():
    class Slow(Distributed):
        def all_reduce_max(self, here):
            signal.raise_signal(signal.SIGTERM)
            return here

    with StopRequests() as stop, pytest.raises(Stopped), stop.deferred():
        assert [stop.agree(Slow()), stop.agree(SINGLE)] == [0, signal.SIGTERM]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_is_ignored_from_the_start_stays_so(number):
    """Under nohup that is SIGHUP, in the background of a script SIGINT."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with StopRequests() as stop, stop.deferred():
            signal.raise_signal(number)
        assert stop.requested == 0
        # nor does another signal wake it
        with pytest.raises(Stopped), StopRequests() as stop, stop.deferred():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
