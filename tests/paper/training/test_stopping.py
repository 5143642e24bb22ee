"""What ends a training before its budget: steps that lead nowhere, patience, signals."""

import os
import signal

import pytest

import natgrad as ng
from natgrad_paper.training.stopping import Patience, Signals, Stopped, Streaks, follow, highest_damping


def test_the_bound_of_an_averaged_optimizer_is_that_of_its_rule():
    inner = ng.kncg(lambda params, inputs: inputs, ng.Gaussian(), average=None)
    assert highest_damping(ng.Averaged(inner, 0.9)) == highest_damping(inner) == inner.damping.bounds[1]
    assert highest_damping(ng.sgd(lambda params, inputs: inputs, ng.Gaussian(), learning_rate=0.1)) is None


def test_a_streak_that_ended_within_a_call_counts_at_its_longest():
    bad, good = ({"outcome": int(outcome)} for outcome in (ng.Outcome.NONFINITE_LOSS, ng.Outcome.ACCEPTED))
    streaks, reason = follow(Streaks(), [bad] * 11 + [good])
    assert streaks == Streaks()
    assert reason == "11 steps in a row refused: nonfinite loss"
    assert follow(Streaks(nonfinite=9), [good, bad])[1] == ""
    assert follow(Streaks(nonfinite=9), [bad, good])[1] == "10 steps in a row refused: nonfinite loss"
    assert follow(Streaks(), [{}] * 99) == (Streaks(), "")  # a method that says nothing


def test_damping_at_its_upper_bound_is_counted_and_elsewhere_it_is_not():
    accepted = int(ng.Outcome.ACCEPTED)
    for damping, counted in ((1e8, 1), (1e8 * (1 - 1e-7), 1), (2e8, 1), (0.9e8, 0), (1e-8, 0), (None, 0)):
        step = {"outcome": accepted} | ({} if damping is None else {"damping": damping})
        assert Streaks().after(step, 1e8).at_bound == counted
        assert Streaks(at_bound=4).after(step, 1e8).at_bound == (5 if counted else 0)
    assert Streaks(at_bound=4).after({"outcome": accepted, "damping": 1e8}).at_bound == 0
    steps = [{"outcome": accepted, "damping": 1e8}] * 50
    assert follow(Streaks(), steps, 1e8)[1] == "50 steps in a row with λ at its upper bound, 1e+08"
    assert follow(Streaks(), steps[1:], 1e8)[1] == ""


def test_patience_counts_evaluations_without_a_lower_error():
    patience = Patience(2)
    for error, waited in ((3.0, 0), (2.0, 0), (2.0, 1), (float("nan"), 2)):
        patience = patience.after({"squared_error": 0.0, "valid_squared_error": error, "valid_other": -error})
        assert (patience.waited, bool(patience.ended)) == (waited, waited == 2)
    assert patience.lowest == 2.0
    assert Patience(None).after({}) == Patience(None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_and_a_second_one_ends_at_once(number):
    outer = signal.signal(number, signal.SIG_DFL)  # The tests themselves may run under nohup.
    before = signal.getsignal(number)
    with Signals() as signals:
        assert signals.asked is None
        os.kill(os.getpid(), number)
        assert signals.asked is number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
    signal.signal(number, outer)
    assert Stopped(number, None).exit_code == 128 + number


def test_a_closed_terminal_is_nothing_to_a_run_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.asked is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
