"""A signal stops a command at once, and a training loop where nothing is half done."""

import os
import signal

import pytest

from lengnuan.training.errors import Interrupted
from lengnuan.training.stopping import stop_on_signals, stop_point, stopping_waits

every_signal = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@every_signal
def test_a_signal_stops_at_once(number: int) -> None:
    reached = []

    def work() -> None:
        with stop_on_signals():
            send(number)
            reached.append("more")

    with pytest.raises(Interrupted, match="the same command goes on"):
        work()
    assert reached == []


@every_signal
def test_inside_a_loop_it_waits_for_the_next_safe_place(number: int) -> None:
    reached = []

    def work() -> None:
        with stop_on_signals(), stopping_waits():
            stop_point()
            send(number)
            reached.append("the end of the step")
            stop_point()
            reached.append("the next step")

    with pytest.raises(Interrupted):
        work()
    assert reached == ["the end of the step"]


def test_a_signal_after_the_last_safe_place_is_not_forgotten() -> None:
    with pytest.raises(Interrupted), stop_on_signals(), stopping_waits():
        send(signal.SIGTERM)


def test_another_error_is_not_hidden_by_a_signal() -> None:
    def work() -> None:
        with stop_on_signals(), stopping_waits():
            send(signal.SIGTERM)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def test_after_a_loop_it_stops_at_once_again() -> None:
    reached = []

    def work() -> None:
        with stop_on_signals():
            with stopping_waits():
                reached.append("loop")
            send(signal.SIGTERM)
            reached.append("more")

    with pytest.raises(Interrupted):
        work()
    assert reached == ["loop"]


def test_afterwards_signals_do_what_they_did_and_nothing_is_remembered() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted), stop_on_signals():
        send(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    stop_point()


def test_the_exit_code_says_that_it_can_go_on() -> None:
    assert Interrupted.exit_code == 75
