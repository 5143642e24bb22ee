"""Batches are pure functions of (seed, step), and the metric's cases are not the gradient's."""

import numpy as np
import pytest

from natgrad_paper.training.batches import Batches, FullBatch, Growing, Minibatch, Others, Unlabelled


def test_each_case_once_an_epoch_in_an_order_of_its_own():
    batches = Batches(Minibatch(10))
    first = batches.draw(50, 0, 0, 5)["gradient"]
    second = batches.draw(50, 0, 5, 5)["gradient"]
    for epoch in (first, second):
        assert sorted(epoch.ravel()) == list(range(50))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize(
    "batches", [Batches(Minibatch(7)), Batches(Minibatch(7), Others(9), search=Others(5))]
)
def test_any_step_can_be_drawn_alone(batches):
    together = batches.draw(30, 3, 0, 9)
    for step in range(9):
        alone = batches.draw(30, 3, step, 1)
        assert alone.keys() == together.keys()
        for part, chosen in alone.items():
            np.testing.assert_array_equal(chosen[0], together[part][step])


def test_batches_double_up_to_a_limit():
    batches = Batches(Growing(first=3, last=20, double=2))
    sizes = [batches.draw(30, 0, step, 1)["gradient"].shape[1] for step in range(9)]
    assert sizes == [3, 3, 6, 6, 12, 12, 20, 20, 20]
    walk = np.concatenate([batches.draw(30, 0, step, 1)["gradient"][0] for step in range(200)])
    for epoch in range(len(walk) // 30):
        assert set(walk[30 * epoch : 30 * epoch + 30]) == set(range(30))
    assert not np.array_equal(walk[:30], walk[30:60])
    late = batches.draw(30, 0, 10_000, 1)["gradient"][0]
    assert late.shape == (20,)
    np.testing.assert_array_equal(late, batches.draw(30, 0, 9_999, 2)["gradient"][1])


def test_growing_batches_say_how_many_steps_see_as_many_cases():
    """So that several steps in one call never straddle the place where the batch doubles."""
    batches = Batches(Growing(first=3, last=20, double=5), metric=Others(4))
    step, sizes = 0, []
    while step < 40:
        steps = min(4, batches.same(step))
        sizes.append(batches.draw(60, 0, step, steps)["gradient"].shape)
        step += steps
    assert sizes[:8] == [(4, 3), (1, 3), (4, 6), (1, 6), (4, 12), (1, 12), (4, 20), (4, 20)]
    assert batches.same(15) > 1000
    assert Batches(Minibatch(3)).same(7) > 1000


def test_other_cases_are_others():
    drawn = Batches(Minibatch(12), Others(12), search=Others(12)).draw(30, 0, 0, 20)
    for step in range(20):
        assert not set(drawn["gradient"][step]) & set(drawn["metric"][step])
        assert len(set(drawn["metric"][step])) == 12
    assert not np.array_equal(drawn["metric"], drawn["search"])


def test_unlabelled_inputs_come_from_the_pool_alone():
    batches = Batches(Minibatch(5), Unlabelled(8))
    together = batches.draw(10, 3, 0, 40, pool=20)
    assert together["metric"].shape == (40, 8)
    assert set(together["metric"].ravel()) == set(range(20))  # beyond the ten training cases, and all of them
    assert all(len(set(row)) == 8 for row in together["metric"])
    alone = batches.draw(10, 3, 17, 1, pool=20)
    np.testing.assert_array_equal(alone["metric"][0], together["metric"][17])
    # What the metric draws does not change what the gradient sees.
    for others in (Batches(Minibatch(5)), Batches(Minibatch(5), Others(4))):
        np.testing.assert_array_equal(others.draw(10, 3, 0, 40)["gradient"], together["gradient"])
    inputs, pool = np.arange(10.0), 100 + np.arange(20.0)
    drawn = {part: rows[0] for part, rows in together.items()}
    arguments = batches.arguments(inputs, -inputs, drawn, pool)
    np.testing.assert_array_equal(arguments["metric_inputs"], 100 + drawn["metric"])
    np.testing.assert_array_equal(arguments["batch"][0], drawn["gradient"])


def test_seeds_differ():
    batches = Batches(Minibatch(10), Others(10))
    one, other = batches.draw(50, 0, 0, 1), batches.draw(50, 1, 0, 1)
    assert not np.array_equal(one["gradient"], other["gradient"])
    assert not np.array_equal(one["metric"], other["metric"])


def test_arguments_are_those_of_a_step():
    inputs, targets = np.arange(6.0), -np.arange(6.0)
    whole = Batches(FullBatch()).arguments(inputs, targets, {})
    assert whole.keys() == {"batch"}
    assert whole["batch"][0] is inputs
    drawn = {"gradient": np.array([1, 2]), "metric": np.array([3, 4, 5])}
    arguments = Batches(Minibatch(2), Others(3), search=FullBatch()).arguments(inputs, targets, drawn)
    assert arguments.keys() == {"batch", "metric_inputs", "search_batch"}
    np.testing.assert_array_equal(arguments["batch"][1], [-1, -2])
    np.testing.assert_array_equal(arguments["metric_inputs"], [3, 4, 5])
    np.testing.assert_array_equal(arguments["search_batch"][0], inputs)


@pytest.mark.parametrize(
    ("batches", "least"),
    [
        (Batches(FullBatch()), (0, 0)),
        (Batches(Minibatch(9)), (9, 0)),
        (Batches(Minibatch(9), Others(5)), (14, 0)),
        (Batches(FullBatch(), metric=Minibatch(7), search=Others(8)), (8, 0)),
        (Batches(Growing(2, 30, 5)), (30, 0)),
        (Batches(Minibatch(9), Unlabelled(40)), (9, 40)),
    ],
)
def test_how_many_cases_the_largest_step_needs(batches, least):
    assert batches.least() == least
    cases = max(least[0], 1)
    for step in (0, 3, 1000):  # Enough for every step.
        batches.draw(cases, 0, step, 1, least[1])
