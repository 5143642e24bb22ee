"""Batches that depend on the key of their step and on the parameters: the same for every method and every loop."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad_paper.training.baselines import FirstOrder
from natgrad_paper.training.batches import Batches, FullBatch, Minibatch
from natgrad_paper.training.loop import Trainer
from natgrad_paper.training.problem import Method, Until
from natgrad_paper.training.source import Placed, step_key
from training import tiny

pytestmark = pytest.mark.usefixtures("fast_compile")


def draw(key, params, batch):
    """Return inputs with noise, and targets that the parameters move."""
    inputs, targets = batch
    return inputs + jax.random.normal(key, inputs.shape, inputs.dtype), targets + jnp.sum(params["v"])


PROBLEM = tiny.problem(draw=draw, batches=Batches(Minibatch(10)))


def method(steps):
    build = lambda problem, own: ng.sgd(problem.model, problem.likelihood, learning_rate=0.02)  # noqa: E731
    return Method("sgd", "SGD", "#000000", build, steps_per_call=lambda own: steps)


def trained(steps, seed=0, count=7, problem=PROBLEM):
    trainer = Trainer(problem, method(steps), tiny.Settings())
    source = Placed(problem).source(method(steps), trainer.settings, seed)
    *_, last = trainer.run(seed, source, Until(count))
    return jax.device_get(last.trained[0])


def test_every_loop_sees_what_the_plain_loop_sees():
    params = tiny.init(3)
    opt = ng.sgd(PROBLEM.model, PROBLEM.likelihood, learning_rate=0.02)
    state = opt.init(params)
    inputs, targets = map(jnp.asarray, PROBLEM.train)
    chosen = Batches(Minibatch(10)).draw(tiny.CASES, 3, 0, 7)["gradient"]
    for step, cases in enumerate(chosen):
        batch = draw(step_key(3, step), params, (inputs[cases], targets[cases]))
        params, state, _ = opt.step(params, state, batch)
    for steps in (1, 4):
        for one, other in zip(jax.tree.leaves(trained(steps, 3)), jax.tree.leaves(params), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


def test_seeds_and_steps_have_keys_of_their_own():
    keys = {
        tuple(np.asarray(jax.random.key_data(step_key(seed, step)))) for seed in range(9) for step in range(9)
    }
    assert len(keys) == 81
    assert not np.array_equal(trained(4, 0)["w"], trained(4, 1)["w"])


def test_a_step_outside_a_loop_is_the_same():
    straight = replace(PROBLEM, looped=False)
    for one, other in zip(
        *(jax.tree.leaves(trained(4, problem=each)) for each in (PROBLEM, straight)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_every_batch_with_labels_is_remade():
    batches = Batches(FullBatch(), FullBatch(), ratio=FullBatch())
    remade = lambda batch: (batch[0] + 1, batch[1] + 2)  # noqa: E731
    found = batches.arguments(jnp.arange(9.0), jnp.zeros(9), {}, remade=remade)
    np.testing.assert_array_equal(found["metric_inputs"], np.arange(9) + 1)
    np.testing.assert_array_equal(found["ratio_batch"][1], np.full(9, 2.0))


def test_inputs_may_be_tuples():
    inputs, targets = PROBLEM.train
    problem = tiny.problem(
        model=lambda params, pair: tiny.model(params, pair[0] + pair[1]),
        errors=lambda params, pair, targets: tiny.errors(params, pair[0] + pair[1], targets),
        train=((inputs, 0 * inputs), targets),
        test=None,
        batches=Batches(Minibatch(10)),
    )
    for one, other in zip(
        jax.tree.leaves(trained(4, problem=problem)),
        jax.tree.leaves(trained(4, problem=replace(PROBLEM, draw=None))),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    split = problem.validated()
    assert split.data["train"] == [54, 3]
    assert [leaf.shape for leaf in jax.tree.leaves(split.valid)] == [(6, 3), (6, 3), (6, 1)]


def test_errors_may_be_measured_on_other_cases():
    inputs, targets = PROBLEM.train
    problem = tiny.problem(judged=(inputs[:5], targets[:5]))
    assert Placed(problem).judged[""][0].shape == (5, 3)


def test_a_baseline_lowers_the_weighted_objective():
    import optax

    inputs, targets = map(jnp.asarray, PROBLEM.train)
    weights = jnp.arange(60, dtype=jnp.float32)
    absolute = lambda outputs, targets: jnp.sum(jnp.abs(outputs - targets), axis=-1)  # noqa: E731
    rule = FirstOrder(PROBLEM.model, PROBLEM.likelihood, optax.sgd(0.1), objective=absolute)
    params = tiny.init(0)
    with jax.numpy_dtype_promotion("standard"):
        moved, _, info = rule.step(params, rule.init(params), (inputs, targets, weights))

    def loss(params):
        return jnp.sum(weights * absolute(tiny.model(params, inputs), targets)) / weights.sum()

    value, slope = jax.value_and_grad(loss)(params)
    np.testing.assert_allclose(info.loss, value, rtol=1e-5)
    np.testing.assert_allclose(moved["w"], params["w"] - 0.1 * slope["w"], rtol=1e-4, atol=1e-6)


def test_what_a_baseline_hands_over_may_be_an_average():
    from optax import contrib

    rule = FirstOrder(
        PROBLEM.model, PROBLEM.likelihood, contrib.schedule_free_adamw(0.1),
        evaluated=contrib.schedule_free_eval_params,
    )  # fmt: skip
    params = tiny.init(0)
    state = rule.init(params)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(3):
            params, state, _ = rule.step(params, state, tuple(map(jnp.asarray, PROBLEM.train)))
        kept = rule.kept(params, state)
    assert not np.allclose(kept["w"], params["w"])
    expected = contrib.schedule_free_eval_params(state, params)
    np.testing.assert_array_equal(kept["w"], expected["w"])


def test_double_precision_is_for_as_long_as_it_is_asked_for():
    before = jax.config.read("jax_enable_x64")
    try:
        jax.config.update("jax_enable_x64", False)
        with tiny.problem(float64=True).precise():
            assert jnp.zeros(1, np.float64).dtype == np.float64
        assert not jax.config.jax_enable_x64
        with tiny.problem().precise():
            assert not jax.config.jax_enable_x64
    finally:
        jax.config.update("jax_enable_x64", before)
