"""The training loop on a problem small enough to check by hand: clocks, grid of evaluations, early end."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import create_model

import natgrad as ng
from natgrad_paper.errors import FieldError
from natgrad_paper.training import loop
from natgrad_paper.training.batches import Batches, FullBatch, Growing, Minibatch, Others, Unlabelled
from natgrad_paper.training.log import Status
from natgrad_paper.training.loop import Position, Trainer
from natgrad_paper.training.problem import Budget, Method, Problem, Until
from natgrad_paper.training.settings import Section, Size
from natgrad_paper.training.source import Placed
from training.tiny import METHODS, Clock, Settings, bits
from training.tiny import problem as sums

pytestmark = pytest.mark.usefixtures("fast_compile")


class Info(NamedTuple):
    accepted: Any
    outcome: Any


class Countdown:
    """Adds one to its parameter each step, and refuses what is not finite as the library does."""

    def init(self, params):
        return params  # the parameters themselves: the loop must not give one buffer away twice

    def step(self, params, state, batch):
        fine = jnp.all(jnp.isfinite(batch[0]))
        outcome = jnp.where(fine, 0, int(ng.Outcome.NONFINITE_GRADIENT))
        return jnp.where(fine, params + 1, params), state, Info(fine, outcome)


@dataclass(frozen=True)
class Stumbling:
    """Counts its steps in its state, and refuses those with numbers in a range, from 1."""

    first: int
    last: int

    def init(self, params):
        return jnp.zeros((), jnp.int32)

    def step(self, params, state, batch):
        number = state + 1
        fine = (number < self.first) | (number > self.last)
        outcome = jnp.where(fine, 0, int(ng.Outcome.NONFINITE_LOSS))
        return params, number, Info(fine, outcome)


class Full(NamedTuple):
    accepted: Any
    outcome: Any
    damping: Any


@dataclass(frozen=True)
class Scripted:
    """Takes its outcomes and its λ from lists, over and over; from step `first` on, before that all is well."""

    outcomes: tuple[ng.Outcome, ...] = (ng.Outcome.ACCEPTED,)
    first: int = 1
    held: float = 1.0
    """λ."""
    damping: Any = None
    """The rule of λ."""
    last: int = 10_000

    def init(self, params):
        return jnp.zeros((), jnp.int32)

    def step(self, params, state, batch):
        number = state + 1
        listed = jnp.array([int(outcome) for outcome in self.outcomes])[state % len(self.outcomes)]
        within = (number >= self.first) & (number <= self.last)
        outcome = jnp.where(within, listed, int(ng.Outcome.ACCEPTED))
        taken = (outcome == ng.Outcome.ACCEPTED) | (outcome == ng.Outcome.UNMEASURABLE)
        return params, number, Full(taken, outcome, jnp.where(within, jnp.float32(self.held), 1.0))


class Seen(NamedTuple):
    loss: Any
    step_size: Any


class Looking:
    """Changes nothing, and says what it saw: the sum of the cases, and how many."""

    def init(self, params):
        return jax.random.key(3)  # a typed key, as a user's own optimizer may have

    def step(self, params, state, batch):
        return params, state, Seen(jnp.sum(batch[0]), jnp.asarray(batch[0].shape[0]))


class Bare(Section):
    evaluation_chunk: Size = 3


def problem(inputs):
    return Problem(
        model=lambda params, inputs: inputs,
        likelihood=None,
        init=lambda seed: jnp.zeros(()),
        errors=lambda params, inputs, targets: {"squared_error": (params - targets) ** 2},
        train=(inputs, inputs),
        test=None,
        data={},
    )


class Made:
    """A trainer and what it trains on."""

    def __init__(self, inputs=None, steps=1, batches=None, optimizer=None, on_host=False, **changes):
        method = Method(
            "count", "Count", "#000000", lambda problem, settings: optimizer or Countdown(),
            lambda settings: batches or Batches(FullBatch()), steps_per_call=lambda settings: steps, on_host=on_host,
        )  # fmt: skip
        self.problem = replace(problem(np.arange(8.0) if inputs is None else inputs), **changes)
        self.trainer = Trainer(self.problem, method, Bare())
        self.placed = Placed(self.problem)

    def run(self, budget, resume=None, seed=0, **rest):
        trainer = self.trainer
        source = self.placed.source(trainer.method, trainer.settings, seed)
        return trainer.run(seed, source, budget, resume, **rest)


def events(budget, **choices):
    return list(Made(**choices).run(budget))


def looked(found):
    """Return the iterations of evaluations."""
    return [event.position.iteration for event in found if event.errors]


GRID = [0, 1, 2, 3, 4, 5, 7, 9, 12, 16, 22, 30, 42, 58, 81]


def test_evaluates_the_whole_set_in_ragged_chunks_on_the_grid():
    seen = events(Budget(iterations=100, evaluations=3))
    assert looked(seen) == sorted([*GRID, 10, 100])
    for event in seen:
        if event.errors:
            expected = np.mean((event.position.iteration - np.arange(8)) ** 2)
            assert event.errors == {"squared_error": pytest.approx(expected)}
    assert len(seen) == 101
    assert [event.status for event in seen[:-1]] == [None] * 100
    assert (seen[-1].status, seen[-1].reason) == (Status.FINISHED, "used its budget")
    assert seen[-1].fraction == 1


@pytest.mark.parametrize("steps", [1, 7, 20, 50])
def test_many_steps_per_call_are_looked_at_in_the_same_places(steps):
    """No number before it was measured: a call never runs past an evaluation."""
    seen = events(Budget(iterations=90, evaluations=1), steps=steps, batches=Batches(Minibatch(2)))
    assert looked(seen) == [*GRID, 90]
    counts = np.diff([event.position.iteration for event in seen])
    assert all(1 <= count <= steps for count in counts)
    assert [len(event.steps) for event in seen[1:]] == list(counts)
    assert [event.errors["squared_error"] for event in seen if event.errors] == pytest.approx(
        [np.mean((iteration - np.arange(8)) ** 2) for iteration in looked(seen)]
    )


def test_a_limit_in_seconds_has_both_grids():
    clock = Clock()

    class Slow(Countdown):
        def step(self, params, state, batch):
            clock.move(0.25, 0.25)
            return super().step(params, state, batch)

    made = Made(optimizer=Slow(), on_host=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", clock)
        seen = list(made.run(Budget(seconds=10.0, evaluations=6, first=0.3)))
    times = sorted(np.geomspace(0.3, 10, 6))  # after 1.2, 2.4, 4.9, 9.8, 19.9 and 40 quarters of a second
    by_time = {int(np.ceil(moment / 0.25)) for moment in times}
    assert looked(seen) == sorted({*GRID[:12], *by_time})
    assert seen[-1].position.training_seconds == 10.0


def test_the_grid_of_iterations_is_a_function_of_the_iteration_alone():
    budget = Budget(seconds=100.0)
    wanted = GRID[1:]
    for iteration in range(80):
        assert budget.next_iteration(iteration) == next(mark for mark in wanted if mark > iteration)
    assert all(later <= max(1.5 * earlier, earlier + 1) for earlier, later in pairwise(wanted))
    assert Budget(iterations=10).next_iteration(9) == 10


def test_given_looks_are_the_only_ones():
    seen = events(Until(20, looks=(3, 11)), steps=6)
    assert looked(seen) == [3, 11, 20]
    assert seen[-1].status is Status.FINISHED


def test_several_steps_of_growing_batches_in_one_call():
    """A call ends where the batch doubles; what the steps see is what they see one by one."""
    found = {}
    for steps in (1, 4, 7):
        batches = Batches(Growing(first=2, last=11, double=5))
        made = Made(steps=steps, batches=batches, optimizer=Looking(), inputs=np.arange(12.0))
        seen = list(made.run(Budget(iterations=40)))
        loops = [name for name, *_ in made.trainer._programs if name == "loop"]
        assert len(loops) == 4  # one program per size of the batch
        found[steps] = [(step["step_size"], step["loss"]) for event in seen for step in event.steps]
        assert seen[-1].position.iteration == 40
    assert found[1] == found[4] == found[7]
    assert [size for size, _ in found[1]] == [2] * 5 + [4] * 5 + [8] * 5 + [11] * 25


def test_stops_by_training_time():
    seen = events(Budget(seconds=0.05, first=0.01, evaluations=3))
    assert seen[-1].status is Status.FINISHED
    assert seen[-1].position.training_seconds >= 0.05
    assert all(event.position.training_seconds < 0.05 for event in seen[:-1])
    assert seen[0].position.compile_seconds == seen[-1].position.compile_seconds > 0


class Sleeping(Countdown):
    """Takes a second per step, and sleeps at the third."""

    def __init__(self, clock, wall, cpu):
        self.clock, self.asleep = clock, (wall, cpu)

    def step(self, params, state, batch):
        self.clock.move(1.0, 1.5)
        if self.clock.cpu > 1 + 3 * 1.5:  # One step before is that of compiling.
            self.clock.move(*self.asleep)
            self.asleep = 0.0, 0.0
        return super().step(params, state, batch)


def test_a_sleep_is_named_and_taken_off_the_clock(monkeypatch):
    clock = Clock()
    made = Made(optimizer=Sleeping(clock, 100.0, 0.0), on_host=True)
    monkeypatch.setattr(loop, "time", clock)
    seen = list(made.run(Budget(seconds=8.0, evaluations=1)))
    (slept,) = [event for event in seen if event.gap]
    assert slept.position.iteration == 3
    assert slept.gap == pytest.approx(100, abs=1)
    gaps = [record for event in seen for record in event.records() if record["record"] == "gap"]
    assert gaps == [{"record": "gap", "iteration": 3, "seconds": slept.gap}]
    last = seen[-1].position
    assert (last.iteration, last.training_seconds) == (8, pytest.approx(8, abs=1))
    assert last.cpu_seconds == 8 * 1.5


def test_a_sleep_while_cases_are_drawn_is_one_too(monkeypatch):
    clock = Clock()
    made = Made(optimizer=Sleeping(clock, 0.0, 0.0), on_host=True)
    block = made.trainer._block

    def drowsy(source, first):
        clock.move(50.0 * (first == 4), 0.0)
        return block(source, first)

    monkeypatch.setattr(made.trainer, "_block", drowsy)
    monkeypatch.setattr(loop, "time", clock)
    seen = list(made.run(Budget(seconds=8.0, evaluations=1)))
    assert [(event.position.iteration, event.gap) for event in seen if event.gap] == [(5, 50.0)]
    assert (seen[-1].position.iteration, seen[-1].position.training_seconds) == (8, 8.0)


def test_a_slow_machine_is_no_sleep(monkeypatch):
    """Others have the processor most of the time: that is what the clock is for."""
    clock = Clock()
    made = Made(optimizer=Sleeping(clock, 30.0, 4.0), on_host=True)
    monkeypatch.setattr(loop, "time", clock)
    seen = list(made.run(Budget(iterations=8)))
    assert not any(event.gap for event in seen)
    assert seen[-1].position.training_seconds == 38.0


def test_what_is_compiled_again_after_a_stop_is_not_added():
    clocks = loop.Clocks.at(Position(compile_seconds=5.0))
    assert clocks.readings()[3] == 5.0
    clocks.compiling.seconds = 4.0
    assert clocks.readings()[3] == 5.0
    clocks.compiling.seconds = 6.0
    assert clocks.readings()[3] == 6.0


@pytest.mark.parametrize(
    ("pause", "work", "slept"),
    [
        (5.0, 0.0, 5.0),
        (4.9, 0.0, 0.0),
        (5.0, 0.4, 5.0),
        (10.4, 1.0, 10.4),
        (9.9, 1.0, 0.0),
        (10.6, 1.07, 0.0),
    ],
)
def test_what_is_a_sleep(monkeypatch, pause, work, slept):
    """Five seconds without the processor, and ten times what it was used."""
    clock, watch = Clock(), loop.Stopwatch(1.0, 2.0)
    monkeypatch.setattr(loop, "time", clock)
    with watch:
        clock.move(pause + work, work)
    assert (watch.seconds, watch.cpu) == pytest.approx((1.0 + pause + work - slept, 2.0 + work))
    assert watch.woken() == pytest.approx(slept)
    assert watch.woken() == 0


def test_ten_nonfinite_steps_end_a_run():
    seen = events(Budget(iterations=1000), inputs=np.array([0.0, np.nan]))
    assert (seen[-1].status, seen[-1].reason) == (
        Status.GAVE_UP,
        "10 steps in a row refused: nonfinite gradient",
    )
    assert (seen[-1].position.iteration, seen[-1].position.refused) == (10, 10)


def test_ten_nonfinite_steps_are_no_good_end_even_with_the_budget_spent():
    seen = events(Until(12), inputs=np.array([0.0, np.nan]), steps=4)
    assert seen[-1].reason == "12 steps in a row refused: nonfinite gradient"
    assert seen[-1].status is Status.GAVE_UP
    assert seen[-1].position.iteration == 12


DONE = "used its budget"


@pytest.mark.parametrize(
    ("first", "last", "ended", "iteration"),
    [
        (
            2,
            11,
            "10 steps in a row refused: nonfinite loss",
            12,
        ),  # all within a call, whose last step is good
        (8, 18, "11 steps in a row refused: nonfinite loss", 24),  # from one call into the next
        (8, 16, DONE, 36),
        (3, 11, DONE, 36),
        (27, 36, "10 steps in a row refused: nonfinite loss", 36),
        (28, 40, DONE, 36),  # the budget ends before the tenth
    ],
)
def test_steps_in_a_row_are_counted_within_and_across_calls(first, last, ended, iteration):
    seen = events(Until(36), steps=12, optimizer=Stumbling(first, last))
    assert (seen[-1].reason, seen[-1].position.iteration) == (ended, iteration)
    assert (seen[-1].status is Status.FINISHED) == (ended == DONE)
    assert [event.status for event in seen[:-1]] == [None] * (len(seen) - 1)
    assert seen[-1].position.refused == min(last, iteration) - first + 1


@pytest.mark.parametrize("last", [11, 12])
def test_what_was_given_up_goes_on_only_while_there_is_budget(last):
    """Whether or not the very last step was good."""
    choices = {"steps": 12, "optimizer": Stumbling(2, last)}
    found = events(Until(12), **choices)[-1]
    resume = (found.position, *found.trained)
    (again,) = Made(**choices).run(Until(12), resume)
    assert (again.status, again.reason) == (found.status, found.reason)
    assert again.reason == f"{last - 1} steps in a row refused: nonfinite loss"
    assert again.steps == ()
    *_, end = Made(**choices).run(Until(24), resume)
    assert (end.status, end.position.iteration) == (Status.FINISHED, 24)


REFUSED = (ng.Outcome.NO_DECREASE, ng.Outcome.REJECTED, ng.Outcome.NO_DIRECTION)
SMALL = (ng.Outcome.UNMEASURABLE,)
CONVERGED = "50 steps in a row changed the loss by less than it can resolve: converged, or stuck"
MIXED = "50 steps in a row refused or too small to measure, 25 of them too small"
RULE = ng.LevenbergMarquardt(1.0, bounds=(1e-8, 0.3e9))
PINNED = "50 steps in a row with λ at its upper bound, 3e+08"


@pytest.mark.parametrize(
    ("optimizer", "ended", "iteration"),
    [
        (Scripted(REFUSED[:1]), "50 steps in a row refused: no decrease", 50),
        (Scripted(REFUSED, first=7), "50 steps in a row refused: rejected", 56),
        (
            Scripted((*REFUSED[:1], ng.Outcome.NONFINITE_LOSS)),
            "50 steps in a row refused: nonfinite loss",
            50,
        ),
        (Scripted((*REFUSED, ng.Outcome.ACCEPTED)), DONE, 120),
        (Scripted(REFUSED, last=49), DONE, 120),
        (Scripted(SMALL, first=4), CONVERGED, 53),
        (Scripted(SMALL, last=49), DONE, 120),
        (Scripted((*SMALL, *REFUSED[:1])), MIXED, 50),
        (Scripted(held=0.3e9, damping=RULE, first=11), PINNED, 60),
        (Scripted(held=0.3e9, damping=RULE, last=49), DONE, 120),
        (Scripted(held=2.9e8, damping=RULE), DONE, 120),
        (Scripted(held=0.3e9, damping=ng.Constant(0.3e9)), DONE, 120),
        (Scripted(held=3.0, damping=ng.LevenbergMarquardt(3.0, bounds=(3.0, 3.0))), DONE, 120),
        (Scripted(held=1e-8, damping=RULE), DONE, 120),  # a floor is where a healthy λ may rest
        (
            Scripted(REFUSED[:1], held=1e-8, damping=RULE),
            "50 steps in a row refused: no decrease",
            50,
        ),
    ],
)
def test_a_run_that_leads_nowhere_ends_and_says_why(optimizer, ended, iteration):
    end = events(Until(120), optimizer=optimizer)[-1]
    assert (end.reason, end.position.iteration) == (ended, iteration)
    assert end.status is (Status.FINISHED if ended == DONE else Status.GAVE_UP)
    *_, evaluation = end.records()
    assert evaluation.keys() == {
        "record", "iteration", "refused", "training_seconds", "cpu_seconds", "evaluation_seconds",
        "compile_seconds", "squared_error", "accepted", "outcome", "damping",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("optimizer", "ended"),
    [
        (Scripted(REFUSED, first=7), "54 steps in a row refused: no direction"),
        (Scripted(REFUSED, first=2, last=51), "50 steps in a row refused: no direction"),  # whose end is good
        (Scripted(SMALL, first=7), CONVERGED.replace("50", "54")),
        (Scripted(held=0.3e9, damping=RULE, first=7), PINNED.replace("50", "54")),
    ],
)
@pytest.mark.parametrize("stop", [12, 48])
def test_streaks_are_counted_within_calls_and_across_a_resumed_run(optimizer, ended, stop):
    made = Made(steps=12, optimizer=optimizer)
    *_, whole = made.run(Until(120))
    *_, halfway = made.run(Until(stop))
    *_, end = made.run(Until(120), (halfway.position, *halfway.trained))
    assert end.reason == whole.reason == ended
    assert end.position.iteration == whole.position.iteration == 60


def test_a_method_compiles_once_for_all_seeds_and_for_other_numbers(compilations):
    made = Made(inputs=np.arange(4.0))
    list(made.run(Budget(iterations=2)))
    with compilations() as count:
        *_, last = made.run(Budget(iterations=9), seed=1)
    assert count() == 0
    assert last.position.compile_seconds == 0


def test_other_numbers_in_the_optimizer_compile_nothing(compilations):
    subject, settings = sums(), Settings()
    method = METHODS[0]
    trainer = Trainer(subject, method, settings)
    source = Placed(subject).source(method, trainer.settings, 0)
    *_, usual = trainer.run(0, source, Until(6))
    slower = ng.sgd(subject.model, subject.likelihood, learning_rate=0.001)
    with compilations() as count:
        *_, slow = trainer.run(0, source, Until(6), optimizer=slower)
        *_, again = trainer.run(0, source, Until(6))
    assert count() == 0
    assert slow.errors["squared_error"] > usual.errors["squared_error"]
    assert bits(again.trained) == bits(usual.trained)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_any_place_is_a_place_to_go_on_from(method):
    """Parameters, state and records are the same to the bit, whichever event one goes on from."""
    subject = sums()
    trainer = Trainer(subject, method, Settings())
    source = Placed(subject).source(method, trainer.settings, 0)
    budget, places, whole = Budget(iterations=20, evaluations=3), [], []
    for event in trainer.run(0, source, budget):
        places.append((event.position, *jax.tree.map(np.asarray, event.trained)))
        whole.append((event.position.iteration, _timeless(event), bits(event.trained)))
    for number, place in enumerate(places[:-1]):
        rest = [
            (event.position.iteration, _timeless(event), bits(event.trained))
            for event in trainer.run(0, source, budget, place)
        ]
        assert rest[1:] == whole[number + 1 :], place[0].iteration
        assert rest[0][2] == whole[number][2]


def _timeless(event):
    from natgrad_paper.training.log import without_times

    return [without_times(record) for record in event.records()]


def test_a_start_elsewhere_is_not_a_place_of_this_training():
    """Its numbers count on, and it is not evaluated before its first step unless it has to be."""
    made = Made()
    *_, first = made.run(Until(5))
    seen = list(made.run(Until(9), start=(Position(5), *first.trained)))
    assert [event.position.iteration for event in seen] == [5, 6, 7, 8, 9]
    assert looked(seen) == [9]
    assert seen[-1].errors["squared_error"] == pytest.approx(np.mean((9 - np.arange(8)) ** 2))


def patient(patience, valid=None, resume=None):
    """Return the events of a training towards a validation target, which it passes, and its trainer."""
    budget = Budget(iterations=6, evaluations=20, patience=patience)
    given = None if valid is None else (np.array(valid), np.array(valid))
    made = Made(valid=given)
    if patience:
        made.problem = made.problem.validated()
        made.trainer = Trainer(made.problem, made.trainer.method, Bare())
        made.placed = Placed(made.problem)
    return list(made.run(budget, resume)), made


def test_training_ends_early_where_validation_gets_no_better():
    found, _ = patient(2, [2.0])
    assert [event.errors["valid_squared_error"] for event in found] == [4.0, 1.0, 0.0, 1.0, 4.0]
    assert (found[-1].status, found[-1].reason) == (
        Status.EARLY,
        "no lower validation error in 2 evaluations",
    )
    assert found[-1].position.iteration == 4
    assert "waited" not in next(found[-1].records())
    assert patient(5, [2.0])[0][-1].status is Status.FINISHED


def test_patience_that_is_off_costs_and_changes_nothing():
    found, made = patient(None, [2.0])
    assert found[-1].status is Status.FINISHED
    assert found[-1].errors.keys() == {"squared_error"}
    assert len(made.placed.data[0]) == 8


def test_patience_holds_out_training_cases_where_there_are_no_others():
    found, made = patient(3)
    np.testing.assert_array_equal(made.placed.data[0], np.arange(7.0))
    assert made.problem.data == {"train": [7], "valid": [1]}
    assert [event.errors["valid_squared_error"] for event in found][:3] == [49.0, 36.0, 25.0]
    assert found[-1].status is Status.FINISHED


@pytest.mark.parametrize("nothing", [np.nan, np.inf])
def test_a_validation_error_that_is_not_finite_is_no_progress(nothing):
    found, _ = patient(3, [nothing])
    assert found[-1].position.iteration == 2
    assert found[-1].position.lowest is None


@pytest.mark.parametrize("iteration", [1, 3])
def test_patience_goes_on_where_it_was(iteration):
    whole, _ = patient(2, [2.0])
    position = whole[iteration].position
    rest, _ = patient(2, [2.0], (position, jnp.float64(iteration), jnp.float64(iteration)))
    assert [event.errors for event in rest[1:]] == [event.errors for event in whole[iteration + 1 :]]
    assert (rest[-1].reason, rest[-1].position.iteration) == (whole[-1].reason, 4)


def test_a_gauge_measures_logged_steps_outside_the_clock_and_changes_nothing():
    def gauge(before, after, gradient, metric, valid):
        return {"moved": after - before, "metric": metric[0], "valid": valid[0]}

    found = {}
    for given in (None, gauge):
        made = Made(
            gauge=given, valid=(np.array([5.0]), np.array([5.0])), batches=Batches(Minibatch(2), Others(3))
        )
        made.trainer.optimizer = _WithMetric()
        found[given] = list(made.run(Budget(iterations=60)))
    plain, gauged = ([event.position.iteration for event in each] for each in found.values())
    assert plain == gauged
    steps = [event.step for event in found[gauge][1:]]
    measured = [step for step in steps if "moved" in step]
    assert all(step["moved"] == 1 and step["valid"] == 5 for step in measured)
    assert len(measured) == sum(loop.on_grid(iteration) for iteration in range(1, 61)) < 60
    assert [event.errors for event in found[None]] == [event.errors for event in found[gauge]]


class _WithMetric(Countdown):
    def step(self, params, state, batch, metric_inputs):
        return super().step(params, state, batch)


def test_steps_are_logged_all_at_first_and_then_ever_fewer():
    logged = [iteration for iteration in range(1, 10_001) if loop.on_grid(iteration)]
    assert logged[:20] == list(range(1, 21))
    assert all(later <= 1.06 * earlier + 1 for earlier, later in pairwise(logged))
    assert len(logged) < 200


def test_a_logged_step_has_five_digits_no_long_lists_and_nothing_that_was_not_measured():
    step = {
        "loss": 1.23456789,
        "rho": float("nan"),
        "sizes": [1.0, 2.0],
        "all": [1.0, 2.0, 3.0],
        "accepted": True,
    }
    event = loop.Event(Position(3), 0.5, (step,), None, None, "", (None, None))
    (record,) = event.records()
    assert record == {"record": "step", "iteration": 3, "loss": 1.2346, "sizes": [1.0, 2.0], "accepted": True}


def test_batches_that_do_not_fit_are_refused_by_name():
    for batches, words in (
        (Batches(Minibatch(9)), "count: expected batches of at most 8 training cases, found 9"),
        (Batches(Minibatch(5), Others(4)), "expected batches of at most 8 training cases, found 9"),
        (Batches(Minibatch(5), Unlabelled(4)), "expected batches of at most 0 unlabelled cases, found 4"),
    ):
        with pytest.raises(FieldError, match=words):
            next(Made(batches=batches).run(Budget(iterations=2)))


def test_a_method_reads_its_own_sections_and_no_others():
    kind = create_model("All", __base__=Settings)
    own = METHODS[1].own(kind())
    assert vars(own).keys() == {"ngd", "damping"}
    with pytest.raises(AttributeError):
        own.sgd  # noqa: B018
