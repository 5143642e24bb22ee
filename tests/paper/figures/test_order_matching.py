"""Rates matched to equal errors, on functions whose answer is known."""

import math

import pytest

from natgrad_paper.figures.order.matching import Tried, slow_down


class Counted:
    def __init__(self, error):
        self.error, self.rates = error, []

    def __call__(self, rate):
        self.rates.append(rate)
        return Tried(rate, self.error(rate))


def falling(rate):
    """An error that falls with the logarithm of the rate, in a curve: 0.98 without any."""
    return 0.98 - 0.08 * math.log1p(30 * rate)


def with_optimum(rate):
    """An error that is least at rate 1."""
    return 0.6 + 0.05 * math.log(rate) ** 2


@pytest.mark.parametrize("answer", [0.8, 0.3, 0.02, 0.001])
def test_finds_the_rate_that_gives_an_error(answer):
    measure = Counted(falling)
    found = slow_down(Tried(1.0, falling(1.0)), falling(answer), measure, 1e-3, 20)
    assert abs(found.error - falling(answer)) <= 1e-3
    assert found.error == falling(found.rate)
    assert len(measure.rates) <= 12
    assert max(measure.rates) < 1


def test_a_start_beyond_the_best_rate():
    """Slowing down helps at first; the answer is on the slow side."""
    measure = Counted(with_optimum)
    start = Tried(3.0, with_optimum(3.0))
    found = slow_down(start, 0.75, measure, 1e-3, 20)
    assert abs(found.error - 0.75) <= 1e-3
    assert found.rate < 1


def test_equal_errors_need_no_training():
    measure = Counted(falling)
    start = Tried(0.5, 0.7)
    assert slow_down(start, 0.701, measure, 2e-3, 20) == start
    assert measure.rates == []


def test_when_trainings_run_out_the_nearest_counts():
    measure = Counted(falling)
    found = slow_down(Tried(1.0, falling(1.0)), falling(0.05), measure, 1e-9, 2)
    assert len(measure.rates) == 2
    tried = [Tried(rate, falling(rate)) for rate in (1.0, *measure.rates)]
    assert found == min(tried, key=lambda trial: abs(trial.error - falling(0.05)))


def test_rates_are_short_numbers():
    measure = Counted(falling)
    slow_down(Tried(1.0, falling(1.0)), falling(0.123), measure, 1e-6, 8)
    assert all(float(f"{rate:.5g}") == rate for rate in measure.rates)


def test_an_error_that_does_not_fall_ends_too():
    measure = Counted(lambda rate: 0.5)
    assert slow_down(Tried(1.0, 0.5), 0.9, measure, 1e-3, 4).error == 0.5
    assert len(measure.rates) == 4
