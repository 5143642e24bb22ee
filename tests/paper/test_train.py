"""The training loop on a problem small enough to check by hand: clocks, grid of evaluations, early end."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import natgrad as ng
from natgrad_paper import first_order, refusals
from natgrad_paper.batches import Batches, Minibatch, Whole
from natgrad_paper.experiment import Budget, Method, Problem
from natgrad_paper.log import done
from natgrad_paper.train import Trainer

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


@dataclass(frozen=True)
class Config:
    budget: Budget
    evaluation_chunk: int = 3


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


def trainer(budget, inputs=None, steps=1, batches=None, optimizer=None):
    method = Method(
        "count", "Count", "#000000", lambda problem, config: optimizer or Countdown(),
        lambda config: batches or Batches(Whole()), steps_per_call=lambda config: steps,
    )  # fmt: skip
    inputs = np.arange(8.0) if inputs is None else inputs
    return Trainer(problem(inputs), method, Config(budget))


def events(budget, **choices):
    return list(trainer(budget, **choices).run(0))


def test_evaluates_the_whole_set_in_ragged_chunks_on_the_grid():
    seen = events(Budget(iterations=100, evaluations=3))
    evaluated = [event for event in seen if event.errors]
    assert [event.position.iteration for event in evaluated] == [0, 1, 10, 100]
    for event in evaluated:
        assert event.errors == {
            "squared_error": pytest.approx(np.mean((event.position.iteration - np.arange(8)) ** 2))
        }
    assert len(seen) == 101
    assert [event.ended for event in seen[:-1]] == [None] * 100
    assert seen[-1].ended == "finished"
    assert seen[-1].fraction == 1


def test_several_steps_in_one_call():
    seen = events(Budget(iterations=10, evaluations=1), steps=5, batches=Batches(Minibatch(2)))
    assert [event.position.iteration for event in seen] == [0, 5, 10]
    assert seen[-1].errors == {"squared_error": pytest.approx(np.mean((10 - np.arange(8)) ** 2))}


def test_stops_by_training_time():
    seen = events(Budget(seconds=0.05, first=0.01, evaluations=3))
    assert seen[-1].ended == "finished"
    assert seen[-1].position.training_seconds >= 0.05
    assert all(event.position.training_seconds < 0.05 for event in seen[:-1])
    assert seen[0].position.compile_seconds == seen[-1].position.compile_seconds > 0


def test_ten_nonfinite_steps_end_a_run():
    seen = events(Budget(iterations=1000), inputs=np.array([0.0, np.nan]))
    assert seen[-1].ended == "10 steps in a row refused: nonfinite gradient"
    assert (seen[-1].position.iteration, seen[-1].position.refused) == (10, 10)


def test_a_first_order_method_says_what_became_of_a_step():
    found = replace(problem(np.ones((2, 1))), likelihood=ng.Gaussian(), model=lambda params, x: params * x)
    descent = first_order.FirstOrder(found, optax.sgd(0.1))
    params = jnp.ones(())
    for value, outcome in ((1.0, ng.Outcome.ACCEPTED), (jnp.nan, ng.Outcome.NONFINITE_GRADIENT)):
        batch = (jnp.full((2, 1), value), jnp.zeros((2, 1)))
        assert descent.step(params, descent.init(params), batch)[2].outcome == outcome


def test_ten_nonfinite_steps_are_no_good_end_even_with_the_budget_spent():
    seen = events(Budget(iterations=12), inputs=np.array([0.0, np.nan]), steps=4)
    assert seen[-1].ended == "12 steps in a row refused: nonfinite gradient"
    assert seen[-1].position.iteration == 12


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
        (8, 16, "finished", 36),
        (3, 11, "finished", 36),
        (27, 36, "10 steps in a row refused: nonfinite loss", 36),
        (28, 40, "finished", 36),  # the budget ends before the tenth
    ],
)
def test_steps_in_a_row_are_counted_within_and_across_calls(first, last, ended, iteration):
    seen = events(Budget(iterations=36), steps=12, optimizer=Stumbling(first, last))
    assert (seen[-1].ended, seen[-1].position.iteration) == (ended, iteration)
    assert [event.ended for event in seen[:-1]] == [None] * (len(seen) - 1)
    assert seen[-1].position.refused == min(last, iteration) - first + 1


@pytest.mark.parametrize("last", [11, 12])
def test_what_was_given_up_goes_on_only_while_there_is_budget(last):
    """Whether or not the very last step was good."""
    found = events(Budget(iterations=12), steps=12, optimizer=Stumbling(2, last))[-1]
    resume = (found.position, *found.trained)
    (again,) = trainer(Budget(iterations=12), steps=12, optimizer=Stumbling(2, last)).run(0, resume)
    assert again.ended == found.ended == f"{last - 1} steps in a row refused: nonfinite loss"
    assert again.steps == ()
    *_, end = trainer(Budget(iterations=24), steps=12, optimizer=Stumbling(2, last)).run(0, resume)
    assert (end.ended, end.position.iteration) == ("finished", 24)


REFUSED = (ng.Outcome.NO_DECREASE, ng.Outcome.REJECTED, ng.Outcome.NO_DIRECTION)
SMALL = (ng.Outcome.UNMEASURABLE,)
CONVERGED = "50 steps in a row changed the loss by less than it can resolve: converged, or stuck"
MIXED = "50 steps in a row refused or too small to measure, 25 of them the latter"
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
        (Scripted((*REFUSED, ng.Outcome.ACCEPTED)), "finished", 120),
        (Scripted(REFUSED, last=49), "finished", 120),
        (Scripted(SMALL, first=4), CONVERGED, 53),
        (Scripted(SMALL, last=49), "finished", 120),
        (Scripted((*SMALL, *REFUSED[:1])), MIXED, 50),
        (Scripted(held=0.3e9, damping=RULE, first=11), PINNED, 60),
        (Scripted(held=0.3e9, damping=RULE, last=49), "finished", 120),
        (Scripted(held=2.9e8, damping=RULE), "finished", 120),
        (Scripted(held=0.3e9, damping=ng.Constant(0.3e9)), "finished", 120),
        (Scripted(held=3.0, damping=ng.LevenbergMarquardt(3.0, bounds=(3.0, 3.0))), "finished", 120),
        (Scripted(held=1e-8, damping=RULE), "finished", 120),  # a floor is where a healthy λ may rest
        (
            Scripted(REFUSED[:1], held=1e-8, damping=RULE),
            "50 steps in a row refused: no decrease",
            50,
        ),
    ],
)
def test_a_run_that_leads_nowhere_ends_and_says_why(optimizer, ended, iteration):
    end = events(Budget(iterations=120), optimizer=optimizer)[-1]
    assert (end.ended, end.position.iteration) == (ended, iteration)
    assert done(end.ended) == (ended == "finished")
    assert end.evaluation().keys() == events(Budget(iterations=1))[-1].evaluation().keys() | {"damping"}


def test_the_bound_of_an_averaged_optimizer_is_that_of_its_rule():
    inner = ng.fast(lambda params, inputs: inputs, ng.Gaussian())
    assert refusals.highest(ng.Averaged(inner, 0.9)) == refusals.highest(inner) == inner.damping.bounds[1]
    assert refusals.highest(ng.sgd(lambda params, inputs: inputs, ng.Gaussian(), learning_rate=0.1)) is None


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
    choices = {"steps": 12, "optimizer": optimizer}
    whole = events(Budget(iterations=120), **choices)
    halfway = list(trainer(Budget(iterations=stop), **choices).run(0))[-1]
    *_, end = trainer(Budget(iterations=120), **choices).run(0, (halfway.position, *halfway.trained))
    assert end.ended == whole[-1].ended == ended
    assert end.position.iteration == whole[-1].position.iteration == 60


def test_a_method_compiles_once_for_all_seeds():
    method = Method("count", "Count", "#000000", lambda p, c: Countdown(), lambda c: Batches(Whole()))
    trainer = Trainer(problem(np.arange(4.0)), method, Config(Budget(iterations=2)))
    first, second = ([*trainer.run(seed)][-1] for seed in (0, 1))
    assert second.position.compile_seconds < first.position.compile_seconds / 5


def patient(patience, valid=None, resume=None):
    """Return the events of a training towards a validation target, which it passes, and its trainer."""
    method = Method("count", "Count", "#000000", lambda p, c: Countdown(), lambda c: Batches(Whole()))
    budget = Budget(iterations=6, evaluations=20, patience=patience)
    given = None if valid is None else (np.array(valid), np.array(valid))
    trainer = Trainer(replace(problem(np.arange(8.0)), valid=given), method, Config(budget))
    return list(trainer.run(0, resume)), trainer


def test_training_ends_early_where_validation_gets_no_better():
    found, _ = patient(2, [2.0])
    assert [event.errors["valid_squared_error"] for event in found] == [4.0, 1.0, 0.0, 1.0, 4.0]
    assert found[-1].ended == "stopped early: no lower validation error in 2 evaluations"
    assert done(found[-1].ended)
    assert found[-1].position.iteration == 4
    assert "waited" not in found[-1].evaluation()
    assert patient(5, [2.0])[0][-1].ended == "finished"


def test_patience_that_is_off_costs_and_changes_nothing():
    found, trainer = patient(None, [2.0])
    assert found[-1].ended == "finished"
    assert found[-1].errors.keys() == {"squared_error"}
    assert trainer.valid is None
    assert len(trainer.train[0]) == 8


def test_patience_holds_out_training_cases_where_there_are_no_others():
    found, trainer = patient(3)
    np.testing.assert_array_equal(trainer.train[0], np.arange(7.0))
    assert trainer.problem.data == {"train": [7], "valid": [1]}
    assert [event.errors["valid_squared_error"] for event in found][:3] == [49.0, 36.0, 25.0]
    assert found[-1].ended == "finished"


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
    assert (rest[-1].ended, rest[-1].position.iteration) == (whole[-1].ended, 4)
