"""The allowance of a key, on a clock that stands still."""

import pytest

from lengnuan.service.rates import Bucket


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_minute_s_worth_at_once_and_then_one_at_a_time(clock: Clock) -> None:
    bucket = Bucket(60, clock)
    assert [bucket.take(1) for _ in range(60)] == [0.0] * 60
    assert bucket.take(1) == pytest.approx(1.0)
    clock.now += 1.0
    assert bucket.take(1) == 0.0
    assert bucket.take(1) > 0.0


def test_what_is_refused_costs_nothing(clock: Clock) -> None:
    bucket = Bucket(60, clock)
    assert bucket.take(50) == 0.0
    assert bucket.take(20) == pytest.approx(10.0)
    assert bucket.take(10) == 0.0


def test_waiting_as_long_as_it_says_is_enough(clock: Clock) -> None:
    bucket = Bucket(7, clock)
    bucket.take(7)
    clock.now += bucket.take(3)
    assert bucket.take(3) == pytest.approx(0.0, abs=1e-9)


def test_a_quiet_hour_saves_up_no_more_than_a_minute_s_worth(clock: Clock) -> None:
    bucket = Bucket(60, clock)
    clock.now += 3600.0
    assert bucket.take(60) == 0.0
    assert bucket.take(1) > 0.0


def test_more_than_a_minute_s_worth_passes_when_nothing_is_owed_and_is_paid_for_later(clock: Clock) -> None:
    bucket = Bucket(60, clock)
    assert bucket.take(180) == 0.0
    assert bucket.take(1) == pytest.approx(121.0)


def test_a_rate_below_one_still_lets_one_through(clock: Clock) -> None:
    bucket = Bucket(0.5, clock)
    assert bucket.take(1) == 0.0
    assert bucket.take(1) == pytest.approx(120.0)


def test_a_debt_is_told_in_seconds(clock: Clock) -> None:
    bucket = Bucket(60, clock)
    assert bucket.owe(60) == 0.0
    assert bucket.owe(30) == pytest.approx(30.0)
    clock.now += 30.0
    assert bucket.owe(0) == 0.0
