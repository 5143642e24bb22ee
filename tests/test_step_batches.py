"""Batches, weights, chunks, contexts and precisions: what a step may be given."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from jax.flatten_util import ravel_pytree
from models import MODELS, WEIGHTS, mlp, targets_for

import natgrad as ng
from natgrad.examples import window
from natgrad.problem import Problem

pytestmark = pytest.mark.usefixtures("fast_compile")

CASE = MODELS["mlp"]
X, PARAMS = CASE.inputs, CASE.params
T = targets_for(ng.Bernoulli(), mlp(PARAMS, X), 2)
FLAT, UNRAVEL = ravel_pytree(PARAMS)
EXACT = ng.CG(maxiter=300, rtol=1e-13)
CONSTANT = ng.Constant(0.2)


def close(x, y, tolerance=1e-12):
    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def flat(x):
    return np.asarray(ravel_pytree(x)[0])


@pytest.mark.parametrize(
    "metric",
    [ng.Fisher(), ng.MonteCarloFisher(2), ng.EmpiricalFisher(True), ng.Hessian(), ng.GaussNewton()],
    ids=lambda m: type(m).__name__,
)
def test_a_metric_in_chunks_is_the_whole_one(metric):
    """Seven examples in chunks of three: the last is ragged. Random draws do not feel the chunks."""
    targets = None if isinstance(metric, (ng.Fisher, ng.MonteCarloFisher)) else T

    def products(microbatch):
        @jax.jit
        def run(v):
            F = ng.metric_product(
                mlp, ng.Bernoulli(), PARAMS, X, WEIGHTS, metric, targets=targets, microbatch=microbatch
            )
            extra = ()
            if isinstance(metric, (ng.Fisher, ng.MonteCarloFisher, ng.GaussNewton)):
                rows = F.factor(v)
                extra = (rows, F.factor_transpose(rows))
            return F(v), F.quadratic(v), extra

        return run(jax.tree.map(lambda leaf: leaf + 1, PARAMS))

    close(products(3), products(None), 1e-13)


@pytest.mark.parametrize("microbatch", [1, 3])
def test_a_step_in_chunks_is_the_whole_one(microbatch):
    """Gradient, product, probes and ratio, with other metric inputs of another length."""

    def run(microbatch):
        opt = ng.natural_gradient(
            mlp, ng.Bernoulli(), search=ng.LineSearch(), solver=EXACT, microbatch=microbatch, l2=0.1
        )
        return opt.step(PARAMS, opt.init(PARAMS), (X, T, WEIGHTS), metric_inputs=X[:4] + 1)

    (params, state, info), (whole, whole_state, whole_info) = run(microbatch), run(None)
    close(params, whole, 1e-9)
    close(state.damping, whole_state.damping)
    for name in ("loss", "new_loss", "rho", "kl", "stretch", "resolution"):
        close(getattr(info, name), getattr(whole_info, name), 1e-9)
    np.testing.assert_allclose(info.resolution, whole_info.resolution, rtol=1e-9)
    assert info.answer == whole_info.answer


def test_weighted_is_replicated():
    counts = np.array([1, 3, 0, 2, 1, 4, 1])
    many = np.repeat(np.arange(7), counts)
    opt = ng.natural_gradient(mlp, ng.Bernoulli(), solver=EXACT)
    state = opt.init(PARAMS)
    weighted = opt.step(PARAMS, state, (X, T, jnp.asarray(counts)))
    replicated = opt.step(PARAMS, state, (X[many], T[many]))
    scaled = opt.step(PARAMS, state, (X, T, 10.0 * counts))
    for a, b, c in zip(
        *(jax.tree.leaves((p, i[:3], i.kl)) for p, _, i in (weighted, replicated, scaled)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(a, c, rtol=1e-9, atol=1e-12)


def test_weights_bias_the_metric_as_the_dense_formula_says():
    """The batch's weights, unless the metric has a q̃ of its own or inputs of its own, which are uniform."""
    q = jnp.array([3.0, 0.1, 0.0, 1.0, 2.0, 0.3, 0.7])
    J = oracles.jacobians(mlp, PARAMS, X)
    M = [oracles.bernoulli_matrix(row) for row in np.asarray(mlp(PARAMS, X))]
    c = WEIGHTS / WEIGHTS.sum()
    g = flat(jax.jit(jax.grad(lambda p: c @ ng.Bernoulli().nll(mlp(p, X), T)))(PARAMS))
    opt = ng.natural_gradient(mlp, ng.Bernoulli(), solver=EXACT, damping=CONSTANT)
    for options, weights in (({}, WEIGHTS), ({"metric_weights": q}, q), ({"metric_inputs": X}, None)):
        params, _, _ = opt.step(PARAMS, opt.init(PARAMS), (X, T, WEIGHTS), **options)
        expected = -oracles.solve(oracles.metric(J, M, weights), g, 0.2)
        np.testing.assert_allclose(flat(params) - FLAT, expected, rtol=1e-9, atol=1e-11)


OTHER, HALF = (X[:4] + 0.2, T[:4], WEIGHTS[:4]), (X[2:] - 0.1, T[2:])
BATCHES = {
    "gradient": ({}, {}),
    "metric, inputs alone": ({"metric": OTHER[0]}, {"metric_inputs": OTHER[0]}),
    "metric, with weights": (
        {"metric": (OTHER[0], None, OTHER[2])},
        {"metric_inputs": OTHER[0], "metric_weights": OTHER[2]},
    ),
    "metric, weights alone": ({"metric": (None, None, WEIGHTS**2)}, {"metric_weights": WEIGHTS**2}),
    "search": ({"search": OTHER}, {"search_batch": OTHER}),
    "ratio": ({"ratio": OTHER}, {"ratio_batch": OTHER}),
    "all": (
        {"metric": X + 0.1, "search": OTHER, "ratio": HALF},
        {"metric_inputs": X + 0.1, "search_batch": OTHER, "ratio_batch": HALF},
    ),
}


def same(x, y):
    jax.tree.map(np.testing.assert_array_equal, x, y)


@pytest.mark.parametrize("name", BATCHES)
def test_batches_in_one_record_make_the_same_step_to_the_bit(name):
    fields, keywords = BATCHES[name]
    opt = ng.natural_gradient(mlp, ng.Bernoulli(), search=ng.LineSearch(), solver=ng.CG(5))
    state = opt.init(PARAMS)
    found = opt.step(PARAMS, state, ng.Batches(gradient=(X, T, WEIGHTS), **fields))
    same(found, opt.step(PARAMS, state, (X, T, WEIGHTS), **keywords))
    # Each batch makes a difference.
    plain = opt.step(PARAMS, state, (X, T, WEIGHTS) if fields else (X, T))
    assert any(
        not np.array_equal(a, b, equal_nan=True)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True)
    )


def test_one_batch_for_search_and_ratio_is_bound_once(monkeypatch):
    """The step is that of two batches that are equal."""
    bound, examples = [], Problem.examples
    monkeypatch.setattr(Problem, "examples", lambda *given: bound.append(given) or examples(*given))
    opt = ng.natural_gradient(lambda p, x: mlp(p, x), ng.Bernoulli(), search=ng.LineSearch(), solver=ng.CG(5))
    steps, counts = [], []
    for ratio in (OTHER, (*OTHER,)):
        bound.clear()
        steps.append(opt.step(PARAMS, opt.init(PARAMS), (X, T), search_batch=OTHER, ratio_batch=ratio))
        counts.append(len(bound))
    assert counts == [2, 3]
    close(*steps, 1e-12)


class Points(NamedTuple):
    inside: Any
    edge: Any


@pytest.mark.parametrize("kind", [Points, lambda *points: points], ids=["named", "plain"])
def test_a_tuple_like_the_inputs_is_the_metrics_inputs_alone(kind):
    """A Product's inputs are a tuple, too: it is not read as (inputs, targets)."""
    batch = kind(X, X[:4] - 0.5), (T[:, :1], jnp.array([0, 1, 1, 0]))
    other, labels = kind(X[:5] + 0.1, X[:3] - 0.2), (T[:5, :1], jnp.array([2, 0, 1]))
    likelihood = ng.Product(ng.Gaussian(0.5), ng.Categorical())
    opt = ng.natural_gradient(interior_and_boundary, likelihood, solver=EXACT)
    state = opt.init(PARAMS)
    wanted = opt.step(PARAMS, state, batch, metric_inputs=other)
    for metric in (other, (other, None), (other, None, None)):
        same(opt.step(PARAMS, state, ng.Batches(batch, metric)), wanted)
    labelled = replace(opt, metric=ng.EmpiricalFisher())
    wanted = labelled.step(PARAMS, state, batch, metric_inputs=other, metric_targets=labels)
    same(labelled.step(PARAMS, state, ng.Batches(batch, (other, labels))), wanted)
    with pytest.raises(ValueError, match="EmpiricalFisher is defined by labels"):
        labelled.step(PARAMS, state, ng.Batches(batch, other))


def interior_and_boundary(params, inputs):
    inside, edge = inputs
    return mlp(params, inside)[:, :1], mlp(params, edge)[:, 1:]


@pytest.mark.parametrize("microbatch", [None, 2])
def test_product_with_unequal_axes(microbatch):
    """Seven interior and four boundary points, each factor averaged over its own, in chunks too."""
    edge, edge_t = X[:4] - 0.5, jnp.array([0, 1, 1, 0])
    likelihood = ng.Product(ng.Gaussian(0.5), ng.Categorical(), weights=(1.0, 3.0))
    own = jnp.array([1.0, 2.0, 0.5, 0.1])
    opt = ng.natural_gradient(
        interior_and_boundary, likelihood, solver=EXACT, damping=CONSTANT, microbatch=microbatch, reject=-99.0
    )
    params, _, info = opt.step(PARAMS, opt.init(PARAMS), ((X, edge), (T[:, :1], edge_t), (WEIGHTS, own)))

    def loss(p):
        inside, outside = interior_and_boundary(UNRAVEL(p), (X, edge))
        squares = jnp.sum((inside - T[:, :1]) ** 2, axis=1) / 0.5
        chosen = jax.nn.log_softmax(outside)[jnp.arange(4), edge_t]
        return WEIGHTS @ squares / WEIGHTS.sum() - 3 * (own @ chosen) / own.sum()

    J = oracles.jacobians(lambda p, x: mlp(p, x)[:, :1], PARAMS, X)
    K = oracles.jacobians(lambda p, x: mlp(p, x)[:, 1:], PARAMS, edge)
    outside = np.asarray(mlp(PARAMS, edge)[:, 1:])
    F = oracles.metric(J, [oracles.gaussian_matrix(np.ones(1), 0.5)] * 7, WEIGHTS)
    F = F + 3 * oracles.metric(K, [oracles.categorical_matrix(row) for row in outside], own)
    step = -oracles.solve(F, np.asarray(jax.grad(loss)(FLAT)), 0.2)
    np.testing.assert_allclose(flat(params) - FLAT, step, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(info.loss, loss(FLAT), rtol=1e-12)
    np.testing.assert_allclose(info.new_loss, loss(FLAT + step), rtol=1e-8)
    np.testing.assert_allclose(info.kl, step @ F @ step / 2, rtol=1e-8)


def test_context_is_one_fixed_argument_of_the_model_for_the_whole_step():
    """A dropout key: the step is that of the model with this very mask, in every pass, chunked or not."""

    def dropped(params, x, key):
        mask = jax.random.bernoulli(key, 0.7, (4,)).astype(x.dtype)
        hidden = jnp.tanh(x @ params[0]["w"] + params[0]["b"]) * mask
        return hidden @ params[1]["w"] + params[1]["b"]

    key = jax.random.key(9)
    search = ng.LineSearch()
    opt = ng.natural_gradient(dropped, ng.Bernoulli(), search=search, microbatch=3)
    fixed = ng.natural_gradient(lambda p, x: dropped(p, x, key), ng.Bernoulli(), search=search)
    found = opt.step(PARAMS, opt.init(PARAMS), (X, T), context=key)
    expected = fixed.step(PARAMS, fixed.init(PARAMS), (X, T))
    close(found[0], expected[0], 1e-8)
    close(found[2].new_loss, expected[2].new_loss, 1e-10)


@pytest.mark.parametrize("microbatch", [None, 2])
def test_stateful_models_hand_on_the_context_of_the_gradient_pass(microbatch):
    """New statistics from the gradient batch alone, not from the metric's; floats averaged over chunks."""

    def model(params, x, context):
        new = {"mean": jnp.mean(x, axis=0), "calls": context["calls"] + 1}
        return mlp(params, x - context["mean"]), new

    context = {"mean": jnp.full(3, 0.1), "calls": jnp.array(4)}
    opt = ng.natural_gradient(
        ng.Stateful(model), ng.Bernoulli(), search=ng.LineSearch(), microbatch=microbatch
    )
    x, t = X[:6], T[:6]
    params, _, info = opt.step(PARAMS, opt.init(PARAMS), (x, t), metric_inputs=X + 5, context=context)
    np.testing.assert_allclose(info.context["mean"], x.mean(axis=0), rtol=1e-12)
    assert info.context["calls"] == 5
    loss = jnp.mean(ng.Bernoulli().nll(mlp(params, x - 0.1), t))
    np.testing.assert_allclose(info.new_loss, loss, rtol=1e-10)


@pytest.mark.parametrize("microbatch", [None, 2])
def test_with_a_gradient_from_elsewhere_a_stateful_model_keeps_its_context(microbatch):
    """Nothing passes the gradient batch through the model for its sake: the old context comes back."""

    def model(params, x, context):
        return mlp(params, x - context["mean"]), jax.tree.map(lambda leaf: leaf + 1, context)

    context = {"mean": jnp.full(3, 0.1), "calls": jnp.array(4)}
    opt = ng.natural_gradient(
        ng.Stateful(model), ng.Bernoulli(), solver=EXACT, damping=CONSTANT, microbatch=microbatch
    )
    plain = ng.natural_gradient(
        lambda p, x: mlp(p, x - 0.1), ng.Bernoulli(), solver=EXACT, damping=CONSTANT, microbatch=microbatch
    )
    gradient = jax.jit(jax.grad(lambda p: jnp.mean(ng.Bernoulli().nll(mlp(p, X - 0.1), T))))(PARAMS)
    params, _, info = opt.step(PARAMS, opt.init(PARAMS), (X, None), gradient=gradient, context=context)
    expected, _, _ = plain.step(PARAMS, plain.init(PARAMS), (X, T))
    close(params, expected, 1e-10)
    assert info.accepted
    assert jax.tree.structure(info.context) == jax.tree.structure(context)
    close(info.context, context, 0)


def test_an_objective_replaces_the_loss_and_leaves_the_metric():
    def objective(r, t):
        return jnp.sum(jnp.abs(jax.nn.sigmoid(r) - t) ** 3, axis=1)

    opt = ng.natural_gradient(
        mlp, ng.Bernoulli(), solver=EXACT, damping=CONSTANT, objective=objective, reject=-99.0
    )
    params, _, info = opt.step(PARAMS, opt.init(PARAMS), (X, T, WEIGHTS))

    def loss(p):
        return jnp.sum(WEIGHTS * objective(mlp(UNRAVEL(p), X), T)) / WEIGHTS.sum()

    J = oracles.jacobians(mlp, PARAMS, X)
    F = oracles.metric(J, [oracles.bernoulli_matrix(row) for row in np.asarray(mlp(PARAMS, X))], WEIGHTS)
    step = -oracles.solve(F, np.asarray(jax.grad(loss)(FLAT)), 0.2)
    np.testing.assert_allclose(flat(params) - FLAT, step, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(info.loss, loss(FLAT), rtol=1e-12)
    np.testing.assert_allclose(info.new_loss, loss(FLAT + step), rtol=1e-9)


def test_a_gradient_from_elsewhere_takes_the_place_of_the_batchs():
    """In any dtype; the l2 penalty's own gradient is still added. The batch needs no targets."""
    opt = ng.natural_gradient(mlp, ng.Bernoulli(), solver=EXACT, damping=CONSTANT, l2=0.3)
    state = opt.init(PARAMS)
    gradient = jax.jit(jax.grad(lambda p: jnp.mean(ng.Bernoulli().nll(mlp(p, X), T))))(PARAMS)
    expected, _, _ = opt.step(PARAMS, state, (X, T))
    found, _, info = opt.step(PARAMS, state, (X, None), gradient=gradient)
    close(found, expected, 1e-10)
    assert jnp.isnan(info.loss)
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), gradient)
    close(opt.step(PARAMS, state, (X, None), gradient=single)[0], expected, 1e-5)


def test_a_gradient_from_elsewhere_with_a_ratio_batch():
    opt = ng.natural_gradient(mlp, ng.Bernoulli(), solver=EXACT)
    gradient = jax.jit(jax.grad(lambda p: jnp.mean(ng.Bernoulli().nll(mlp(p, X), T))))(PARAMS)
    expected = opt.step(PARAMS, opt.init(PARAMS), (X, T))
    found = opt.step(PARAMS, opt.init(PARAMS), (X, None), gradient=gradient, ratio_batch=(X, T))
    close(found[0], expected[0], 1e-10)
    close(found[2].rho, expected[2].rho, 1e-8)


def test_a_ratio_batch_is_given_the_slope_of_the_gradient_batch_unless_the_gradient_comes_from_elsewhere():
    """ρ asks for the model's error, not for the difference of two batches; a foreign gradient has no batch."""
    opt = ng.natural_gradient(mlp, ng.Bernoulli(), solver=EXACT, reject=-1e9)
    other = (X[:4] + 0.2, T[:4])

    def loss(p, batch):
        return jnp.mean(ng.Bernoulli().nll(mlp(UNRAVEL(p), batch[0]), batch[1]))

    g, other_g = (np.asarray(jax.jit(jax.grad(loss))(FLAT, batch)) for batch in ((X, T), other))
    J = oracles.jacobians(mlp, PARAMS, X)
    F = oracles.metric(J, [oracles.bernoulli_matrix(row) for row in np.asarray(mlp(PARAMS, X))])
    step = -oracles.solve(F, g, 1.0)
    promise = g @ step + step @ F @ step / 2
    change = float(loss(FLAT + step, other) - loss(FLAT, other))
    assert abs((g - other_g) @ step) > 0.1 * abs(change)
    params, _, info = opt.step(PARAMS, opt.init(PARAMS), (X, T), ratio_batch=other)
    np.testing.assert_allclose(flat(params), FLAT + step, rtol=1e-9)
    np.testing.assert_allclose(info.rho, (change + (g - other_g) @ step) / promise, rtol=1e-8)
    params, _, info = opt.step(
        PARAMS, opt.init(PARAMS), (X, None), gradient=UNRAVEL(jnp.asarray(g)), ratio_batch=other
    )
    np.testing.assert_allclose(flat(params), FLAT + step, rtol=1e-9)
    np.testing.assert_allclose(info.rho, change / promise, rtol=1e-8)
    np.testing.assert_allclose(info.new_loss, loss(FLAT + step, other), rtol=1e-9)


def test_the_search_probes_the_search_batch():
    """The point it takes is the lowest there. The loss that is shown, and ρ, are the gradient batch's."""
    other = (X[:4] + 0.2, T[:4])
    opt = ng.natural_gradient(mlp, ng.Bernoulli(), search=ng.LineSearch(refinements=8))
    params, _, info = opt.step(PARAMS, opt.init(PARAMS), (X, T), search_batch=other)

    def loss(p, batch):
        return jnp.mean(ng.Bernoulli().nll(mlp(p, batch[0]), batch[1]))

    np.testing.assert_allclose(info.loss, loss(PARAMS, (X, T)), rtol=1e-12)
    np.testing.assert_allclose(info.new_loss, loss(params, (X, T)), rtol=1e-12)
    along = jax.tree.map(jnp.subtract, params, PARAMS)
    _, slope = jax.jvp(lambda p: loss(p, other), (params,), (along,))
    assert abs(slope) < 1e-3 * (loss(PARAMS, other) - loss(params, other))
    _, own_slope = jax.jvp(lambda p: loss(p, (X, T)), (PARAMS,), (along,))
    np.testing.assert_allclose(info.rho, (info.new_loss - info.loss) / (own_slope + info.kl), rtol=1e-9)


@pytest.mark.parametrize("search", [None, ng.LineSearch()], ids=["fixed rate", "line search"])
def test_max_norm_shortens_long_steps(search):
    free = ng.natural_gradient(mlp, ng.Bernoulli(), search=search)
    state = free.init(PARAMS)
    params, _, info = free.step(PARAMS, state, (X, T))
    bound = float(info.step_norm) / 3
    capped = ng.natural_gradient(mlp, ng.Bernoulli(), search=search, max_norm=bound)
    short, _, capped_info = capped.step(PARAMS, state, (X, T))
    assert capped_info.step_norm <= bound * (1 + 1e-12)
    np.testing.assert_allclose(flat(short) - FLAT, (flat(params) - FLAT) / 3, rtol=1e-6, atol=1e-12)


def test_rho_is_that_of_the_step_that_max_norm_left():
    """On a quadratic the model is exact, however short the step."""
    x, t = jax.random.normal(jax.random.key(0), (20, 3)), jnp.ones((20, 1))
    opt = ng.gauss_newton(lambda p, x: x @ p, ng.Gaussian(), max_norm=1e-3)
    params = jnp.zeros((3, 1))
    moved, _, info = opt.step(params, opt.init(params), (x, t))
    np.testing.assert_allclose(jnp.linalg.norm(moved), 1e-3, rtol=1e-6)
    np.testing.assert_allclose(info.rho, 1.0, rtol=1e-6)


def test_max_norm_leaves_short_steps():
    gradient_step, bounded = (ng.sgd(mlp, ng.Bernoulli(), max_norm=bound) for bound in (None, 1e3))
    params = [opt.step(PARAMS, opt.init(PARAMS), (X, T))[0] for opt in (gradient_step, bounded)]
    close(*params, 1e-15)


@pytest.mark.parametrize("recipe", [ng.natural_gradient, ng.sgd], ids=["natural", "sgd"])
def test_reject_refuses_a_rise_of_the_loss_and_nothing_else(recipe):
    damping = ng.LevenbergMarquardt(1.0)
    opt = recipe(mlp, ng.Bernoulli(), reject=0.0, damping=damping)
    state = opt.init(PARAMS)
    _, _, info = opt.step(PARAMS, state, (X, T), learning_rate=0.1)
    assert info.accepted
    assert info.new_loss < info.loss
    params, state, info = opt.step(PARAMS, state, (X, T), learning_rate=-0.1)
    assert info.new_loss > info.loss
    assert ng.Outcome.name_of(info.outcome) == "rejected"
    assert np.array_equal(flat(params), FLAT)
    assert state.damping == 1.5


@pytest.mark.parametrize("recipe", [ng.natural_gradient, ng.sgd], ids=["natural", "sgd"])
def test_by_default_a_rule_that_measures_rho_refuses_what_is_below_minus_one(recipe):
    """Uphill at a rate of −r the loss rises by nearly what r promised to lower it: ρ is near −1, on either side."""
    measured = recipe(mlp, ng.Bernoulli(), damping=ng.LevenbergMarquardt(1.0))
    constant = recipe(mlp, ng.Bernoulli(), damping=CONSTANT)
    assert (measured.least_ratio, constant.least_ratio) == (-1, None)
    assert recipe(mlp, ng.Bernoulli(), damping=CONSTANT, reject=0.3).least_ratio == 0.3
    seen = set()
    for rate in (-1e-3, -0.3, -1.0, -3.0, -30.0):
        params, _, info = measured.step(PARAMS, measured.init(PARAMS), (X, T), learning_rate=rate)
        outcome = ng.Outcome.name_of(info.outcome)
        assert outcome == ("rejected" if info.rho < -1 else "accepted")
        assert np.array_equal(flat(params), FLAT) == (outcome == "rejected")
        seen.add(outcome)
        assert constant.step(PARAMS, constant.init(PARAMS), (X, T), learning_rate=rate)[2].accepted
    assert "rejected" in seen
    lenient = recipe(mlp, ng.Bernoulli(), damping=ng.LevenbergMarquardt(1.0), reject=-1e9)
    assert lenient.step(PARAMS, lenient.init(PARAMS), (X, T), learning_rate=-3.0)[2].accepted


def test_a_rho_that_is_no_number_is_refused():
    """Nothing was promised, and something was done."""

    class Silent(ng.LevenbergMarquardt):
        def predict(self, slope, curvature):
            return jnp.zeros_like(slope)

    opt = ng.natural_gradient(mlp, ng.Bernoulli(), damping=Silent(1.0))
    params, state, info = opt.step(PARAMS, opt.init(PARAMS), (X, T))
    assert jnp.isnan(info.rho)
    assert ng.Outcome.name_of(info.outcome) == "rejected"
    assert np.array_equal(flat(params), FLAT)
    assert state.damping == 1.5


def test_schedules_follow_the_count_of_steps():
    schedule = optax.exponential_decay(0.3, 1, 0.5)
    scheduled = ng.natural_gradient(mlp, ng.Bernoulli(), learning_rate=schedule, damping=CONSTANT)
    given = ng.natural_gradient(mlp, ng.Bernoulli(), damping=CONSTANT)
    params, state = PARAMS, scheduled.init(PARAMS)
    other, other_state = PARAMS, given.init(PARAMS)
    for k in range(3):
        params, state, info = scheduled.step(params, state, (X, T))
        other, other_state, _ = given.step(other, other_state, (X, T), learning_rate=0.3 * 0.5**k)
        np.testing.assert_allclose(info.step_size, 0.3 * 0.5**k, rtol=1e-6)
    close(params, other, 1e-6)


def test_a_rate_given_to_the_step_is_the_rate_of_the_recipe_to_the_last_bit():
    recipe = ng.natural_gradient(mlp, ng.Bernoulli(), learning_rate=0.1, damping=CONSTANT)
    given = ng.natural_gradient(mlp, ng.Bernoulli(), learning_rate=0.7, damping=CONSTANT)
    state = recipe.init(PARAMS)
    expected, _, _ = recipe.step(PARAMS, state, (X, T))
    found, _, info = given.step(PARAMS, state, (X, T), learning_rate=0.1)
    assert info.step_size == 0.1
    close(found, expected, 1e-15)


def dtypes(x):
    return {str(leaf.dtype) for leaf in jax.tree.leaves(x) if jnp.issubdtype(leaf.dtype, jnp.floating)}


@pytest.mark.parametrize("search", [None, ng.LineSearch(), ng.KLRadius(1e-3)], ids=str)
def test_float32_stays_float32(search):
    case = CASE.cast(jnp.float32)
    opt = ng.natural_gradient(
        mlp, ng.Bernoulli(), search=search, microbatch=None if search else 3, l2=0.01, max_norm=1.0
    )
    batch = (case.inputs, T.astype(jnp.float32), WEIGHTS.astype(jnp.float32))
    params, state, info = opt.step(case.params, opt.init(case.params), batch)
    assert dtypes((params, state, info)) == {"float32"}
    assert info.accepted


def test_bfloat16_parameters_are_solved_in_float32():
    """The parameters stay bfloat16; λ, the solver and every reported number are float32."""
    half, single = CASE.cast(jnp.bfloat16), CASE.cast(jnp.bfloat16).cast(jnp.float32)
    opt = ng.natural_gradient(mlp, ng.Bernoulli(), solver=ng.CG(50, 1e-6), damping=ng.LevenbergMarquardt(1.0))
    t = T.astype(jnp.float32)
    params, state, info = opt.step(half.params, opt.init(half.params), (half.inputs, t))
    expected, _, wide = opt.step(single.params, opt.init(single.params), (single.inputs, t))
    assert dtypes(params) == {"bfloat16"}
    assert dtypes((state, info)) == {"float32"}
    assert info.accepted
    np.testing.assert_allclose(info.step_norm, wide.step_norm, rtol=0.05)
    moved = flat(params).astype(np.float32) - flat(half.params).astype(np.float32)
    wanted = flat(expected) - flat(single.params)
    assert np.linalg.norm(moved - wanted) < 0.1 * np.linalg.norm(wanted)


def planned(opt, params, cases):
    """Return the bytes a compiled step needs beside its arguments and results."""
    x = jnp.zeros((cases, 50))
    step = jax.jit(opt.step).lower(params, opt.init(params), (x, x)).compile()
    return step.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        (ng.natural_gradient, {}),
        (ng.kncg, {}),
        (ng.hessian_free, {}),
        (ng.natural_gradient, {"preconditioner": ng.Jacobi()}),
        (ng.natural_gradient, {"metric": ng.DiagonalFisher()}),
        (ng.kncg, {"preconditioner": ng.Kronecker(size=None)}),
    ],
    ids=["ngd", "kncg", "hf", "Jacobi", "DiagonalFisher", "Kronecker"],
)
def test_with_chunks_memory_does_not_follow_the_batch(recipe, options):
    """Nor does a group of a diagonal's or a factor's examples: 65,536 in 100 groups are 656 each."""

    def model(params, inputs):
        return jnp.tanh(inputs @ params["w"]) @ params["v"]

    params = {"w": jnp.ones((50, 20)), "v": jnp.ones((20, 50))}
    opt = recipe(model, ng.Bernoulli(), microbatch=64, **options)
    # What grows is a few numbers per example (its coefficient and its place, bound once for the whole step; its loss at
    # θ, from which changes are measured, weighted and not; and the loss's rounding error), and no copy of its 100.
    few, many = planned(opt, params, 8192), planned(opt, params, 65536)
    assert many - few < (65536 - 8192) * 8 * 9
    assert few < 8192 * 4 * 50


@pytest.mark.parametrize("microbatch", [None, 2])
def test_a_probe_is_the_next_examples_of_the_batch_for_metric_and_ratio(microbatch):
    """Step by step, those that a user would have cut out, and after the last of them the first again."""
    common = {"preconditioner": ng.Jacobi(), "average": None, "microbatch": microbatch}
    probing = ng.kncg(mlp, ng.Bernoulli(), probe=3, **common)
    plain = ng.kncg(mlp, ng.Bernoulli(), probe=None, **common)
    one, other = (PARAMS, probing.init(PARAMS)), (PARAMS, plain.init(PARAMS))
    assert len(X) % 3
    starts = [*range(0, len(X) - 3, 3), len(X) - 3]  # The last window ends with the batch.
    for start in starts:
        part = slice(start, start + 3)
        *one, info = probing.step(*one, (X, T))
        *other, wanted = plain.step(*other, (X, T), metric_inputs=X[part], ratio_batch=(X[part], T[part]))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), one[0], other[0])
        np.testing.assert_allclose(info.rho, wanted.rho, rtol=1e-6)


@pytest.mark.parametrize("windows", range(2, 10))
def test_no_window_is_missed_by_what_happens_every_few_steps(windows):
    """And every round of steps takes all of them."""
    batch = jnp.arange(windows)
    steps = jnp.arange(windows * 200)
    taken = jax.vmap(lambda step: window(batch, 1, step)[0])(steps).tolist()
    for start in range(0, len(taken), windows):
        assert set(taken[start : start + windows]) == set(range(windows))
    for every in range(1, 10):
        assert set(taken[::every]) == set(range(windows))


def test_a_gradient_that_is_given_tells_one_batch_from_many_under_a_penalty_too():
    opt = ng.kncg(mlp, ng.Bernoulli(), preconditioner=ng.Jacobi(), l2=0.1)
    found = []
    for given in (False, True):
        params, state = PARAMS, opt.init(PARAMS)
        for _ in range(8):
            loss = jax.grad(lambda p: jnp.mean(ng.Bernoulli().nll(mlp(p, X), T)))
            rest = {"gradient": loss(params)} if given else {}
            params, state, info = opt.step(params, state, (X, T), **rest)
        found.append((state.average, state.inner.record, info.loss))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-12), *found)


def test_a_probe_leaves_alone_what_is_given_weighted_or_short():
    opt = ng.kncg(mlp, ng.Bernoulli(), preconditioner=ng.Jacobi(), probe=3, average=None)
    whole = replace(opt, probe=None)
    for batch, given in (
        ((X, T, WEIGHTS), {}),
        ((X[:3], T[:3]), {}),
        ((X, T), {"metric_inputs": X + 1, "ratio_batch": (X[:4], T[:4])}),
    ):
        one, other = (each.step(PARAMS, each.init(PARAMS), batch, **given) for each in (opt, whole))
        jax.tree.map(np.testing.assert_array_equal, one, other)
    with pytest.raises(ValueError, match="probe=0: give a positive number"):
        ng.kncg(mlp, ng.Bernoulli(), probe=0)
