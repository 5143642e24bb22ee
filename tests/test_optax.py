"""The bridge to optax: the same natural gradient, under optax's own contracts."""

import inspect
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from jax.flatten_util import ravel_pytree
from models import MODELS, targets_for

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

MODEL, PARAMS, X = MODELS["mlp"]
LIKELIHOOD = ng.Bernoulli()
T = targets_for(LIKELIHOOD, MODEL(PARAMS, X))
SOLVER = ng.CG(maxiter=60, rtol=1e-12)
# Older versions of optax have no such argument: they accumulate in the type of the parameters.
HAS_TYPE = "accumulator_dtype" in inspect.signature(optax.MultiSteps).parameters
IN_FLOAT64 = {"accumulator_dtype": jnp.float64} if HAS_TYPE else {}


def loss(params):
    return jnp.mean(LIKELIHOOD.nll(MODEL(params, X), T))


GRADIENT = jax.grad(loss)(PARAMS)


def scale_by(**options):
    return ng.optax.scale_by_natural_gradient(MODEL, LIKELIHOOD, solver=SOLVER, **options)


def dense(params=PARAMS):
    matrices = [oracles.bernoulli_matrix(np.asarray(r)) for r in MODEL(params, X)]
    return oracles.metric(oracles.jacobians(MODEL, params, X), matrices)


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


def run(tx, steps, params=PARAMS, **extra):
    @jax.jit
    def step(params, state):
        updates, state = tx.update(
            jax.grad(loss)(params), state, params, inputs=X, full_params=params, **extra
        )
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for _ in range(steps):
        params, state = step(params, state)
    return params, state


def test_the_natural_gradient_comes_out_with_the_gradients_sign():
    tx = scale_by(damping=0.1)
    assert isinstance(tx, optax.GradientTransformationExtraArgs)
    updates, state = tx.update(GRADIENT, tx.init(PARAMS), PARAMS, inputs=X, unknown="ignored")
    np.testing.assert_allclose(flat(updates), oracles.solve(dense(), flat(GRADIENT), 0.1), rtol=1e-7)
    assert float(flat(updates) @ flat(GRADIENT)) > 0
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(PARAMS))
    assert [a.dtype for a in jax.tree.leaves(state)] == [a.dtype for a in jax.tree.leaves(tx.init(PARAMS))]


def test_with_a_value_function_it_is_the_native_step():
    rule = ng.LevenbergMarquardt(0.3, reduction="linear")
    tx = ng.optax.natural_gradient(0.5, MODEL, LIKELIHOOD, solver=SOLVER, damping=rule)
    params, state = run(tx, 3, value_fn=loss)

    native = ng.natural_gradient(MODEL, LIKELIHOOD, learning_rate=0.5, solver=SOLVER, damping=rule)
    own, own_state = PARAMS, native.init(PARAMS)
    for _ in range(3):
        own, own_state, info = native.step(own, own_state, (X, T))
    np.testing.assert_allclose(flat(params), flat(own), rtol=1e-9)
    shown = optax.tree.get(state, "info")
    for field in ("loss", "new_loss", "rho", "damping", "grad_norm", "step_norm", "kl"):
        np.testing.assert_allclose(getattr(shown, field), getattr(info, field), rtol=1e-6, err_msg=field)
    np.testing.assert_allclose(state[0].steps.damping, own_state.damping, rtol=1e-12)


def test_the_value_function_may_ask_for_extra_arguments_and_the_known_value_is_used():
    tx = scale_by()
    calls = []

    def value_fn(params, inputs, shift):
        calls.append(1)
        return loss(params) + shift * inputs.shape[0]

    extra = {"inputs": X, "value_fn": value_fn, "shift": 2.0, "other": 1}
    _, state = tx.update(GRADIENT, tx.init(PARAMS), PARAMS, **extra)
    assert len(calls) == 2
    np.testing.assert_allclose(state.info.loss, loss(PARAMS) + 14)
    _, state = tx.update(GRADIENT, tx.init(PARAMS), PARAMS, **extra, value=3.0)
    assert len(calls) == 3
    assert state.info.loss == 3.0


@pytest.mark.parametrize("mask", [None, [True, False]])
def test_the_value_function_may_ask_for_the_context(mask):
    def model(params, x, c):
        return c * MODEL(params, x)

    def value_fn(params, inputs, targets, context):
        return jnp.mean(LIKELIHOOD.nll(model(params, inputs, context), targets))

    tx = ng.optax.scale_by_natural_gradient(model, LIKELIHOOD, solver=SOLVER)
    tx = tx if mask is None else optax.masked(tx, mask)
    context = jnp.array(2.0)
    extra = {"inputs": X, "targets": T, "context": context, "value_fn": value_fn, "full_params": PARAMS}
    _, state = tx.update(GRADIENT, tx.init(PARAMS), PARAMS, **extra)
    np.testing.assert_allclose(optax.tree.get(state, "info").loss, value_fn(PARAMS, X, T, context))


def test_calibration_finds_its_first_damping():
    tx = scale_by(damping=ng.LevenbergMarquardt("calibrate"))
    native = ng.natural_gradient(MODEL, LIKELIHOOD, solver=SOLVER, damping=ng.LevenbergMarquardt("calibrate"))
    _, state = run(optax.chain(tx, optax.scale(-1.0)), 1, value_fn=loss)
    _, _, info = native.step(PARAMS, native.init(PARAMS), (X, T))
    np.testing.assert_allclose(optax.tree.get(state, "info").damping, info.damping)


@pytest.mark.parametrize(
    ("options", "extra", "words"),
    [
        ({"damping": 0.1}, {}, "inputs="),
        ({}, {"inputs": X}, "LevenbergMarquardt measures the loss.*value_fn"),
        ({"damping": 0.1, "reject": 0.0}, {"inputs": X}, "reject=.*value_fn"),
        ({"damping": 0.1, "metric": ng.EmpiricalFisher()}, {"inputs": X}, "EmpiricalFisher.*targets="),
    ],
)
def test_what_is_missing_is_named(options, extra, words):
    tx = scale_by(**options)
    with pytest.raises(ValueError, match=words):
        tx.update(GRADIENT, tx.init(PARAMS), PARAMS, **extra)


def test_an_argument_that_value_fn_takes_and_update_does_not_get_is_named():
    tx = scale_by()
    state = tx.init(PARAMS)
    with pytest.raises(ValueError, match=r"value_fn takes targets: give update the extra argument targets="):
        tx.update(GRADIENT, state, PARAMS, inputs=X, value_fn=lambda params, targets: loss(params))
    for value_fn in (lambda p, targets=None: loss(p), lambda p, **rest: loss(p), lambda p, *rest: loss(p)):
        tx.update(GRADIENT, state, PARAMS, inputs=X, value_fn=value_fn)


@pytest.mark.parametrize("average", [None, 0.99])
def test_an_optimizer_in_the_place_of_a_transformation_names_the_transformation(average):
    opt = ng.kncg(MODEL, LIKELIHOOD, average=average)
    chain = optax.chain(optax.clip(1.0), opt)
    state = chain.init(PARAMS)
    with pytest.raises(AttributeError, match=r"no optax transformation.*ng\.optax\.kncg"):
        chain.update(GRADIENT, state, PARAMS)
    assert not hasattr(opt, "update")


def test_parameters_must_be_given():
    tx = scale_by(damping=0.1)
    with pytest.raises(ValueError, match="params"):
        tx.update(GRADIENT, tx.init(PARAMS), inputs=X)
    with pytest.raises(ValueError, match="negative"):
        scale_by(damping=-1.0)


def test_inside_masked_the_metric_is_the_block_of_the_visible_parameters():
    mask = [True, False]
    tx = optax.masked(scale_by(damping=0.1), mask)
    with pytest.raises(ValueError, match="full_params"):
        tx.update(GRADIENT, tx.init(PARAMS), PARAMS, inputs=X)
    updates, _ = tx.update(GRADIENT, tx.init(PARAMS), PARAMS, inputs=X, full_params=PARAMS)
    size = flat(PARAMS[0]).size
    expected = oracles.solve(dense()[:size, :size], flat(GRADIENT[0]), 0.1)
    np.testing.assert_allclose(flat(updates[0]), expected, rtol=1e-7)
    np.testing.assert_array_equal(flat(updates[1]), flat(GRADIENT[1]))


def test_masked_and_value_functions_go_together():
    frozen = optax.chain(
        optax.masked(scale_by(), [False, True]),
        optax.masked(optax.set_to_zero(), [True, False]),
        optax.scale(-1.0),
    )
    params, state = run(frozen, 2, value_fn=loss)
    np.testing.assert_array_equal(flat(params[0]), flat(PARAMS[0]))
    assert loss(params) < loss(PARAMS)
    assert np.isfinite(optax.tree.get(state, "info").rho)


def test_inside_multi_steps_the_gradients_are_averaged():
    tx = optax.MultiSteps(optax.chain(scale_by(damping=0.1), optax.scale(-1.0)), 2, **IN_FLOAT64)
    with jax.numpy_dtype_promotion("standard"):  # optax divides by an integer count
        after_two, _ = run(tx, 2)
    once, _ = run(optax.chain(scale_by(damping=0.1), optax.scale(-1.0)), 1)
    np.testing.assert_allclose(flat(after_two), flat(once), rtol=1e-9)


def test_damping_can_be_injected_scheduled_and_set_by_hand():
    inject = optax.inject_hyperparams(ng.optax.scale_by_natural_gradient, static_args=ng.optax.STATIC)
    tx = inject(MODEL, LIKELIHOOD, solver=SOLVER, damping=0.1, microbatch=4)
    state = tx.init(PARAMS)
    state.hyperparams["damping"] = jnp.array(0.7)
    updates, _ = jax.jit(lambda g, s: tx.update(g, s, PARAMS, inputs=X))(GRADIENT, state)
    np.testing.assert_allclose(flat(updates), oracles.solve(dense(), flat(GRADIENT), 0.7), rtol=1e-7)

    schedule = optax.linear_schedule(1.0, 0.2, 2)
    native, _ = run(optax.chain(scale_by(damping=schedule), optax.scale(-1.0)), 3)
    injected = inject(MODEL, LIKELIHOOD, solver=SOLVER, damping=schedule)
    params, state = run(optax.chain(injected, optax.scale(-1.0)), 3)
    # optax keeps the schedule's value in float32 arithmetic of its own.
    np.testing.assert_allclose(flat(params), flat(native), rtol=1e-5)
    np.testing.assert_allclose(optax.tree.get(state, "info").damping, 0.2, rtol=1e-6)


def test_a_learning_rate_schedule_is_followed_by_the_trial():
    tx = ng.optax.natural_gradient(
        optax.linear_schedule(1.0, 0.5, 1), MODEL, LIKELIHOOD, solver=SOLVER, damping=0.1
    )
    before, state = run(tx, 1)
    gradient = jax.grad(loss)(before)
    updates, state = tx.update(gradient, state, before, inputs=X)
    expected = -0.5 * oracles.solve(dense(before), flat(gradient), 0.1)
    np.testing.assert_allclose(flat(updates), expected, rtol=1e-6)
    np.testing.assert_allclose(optax.tree.get(state, "info").step_size, [0.5])


def test_a_gradient_that_is_not_finite_gives_no_update_and_says_so():
    tx = scale_by()
    bad = jax.tree.map(lambda g: g.at[(0,) * g.ndim].set(jnp.nan), GRADIENT)
    updates, state = tx.update(bad, tx.init(PARAMS), PARAMS, inputs=X, value_fn=loss)
    assert not flat(updates).any()
    assert ng.Outcome.name_of(state.info.outcome) == "nonfinite gradient"
    assert ng.Answer.name_of(state.info.answer) == "kept refused"
    assert state.steps.damping == 1


def test_a_change_the_value_function_cannot_resolve_lowers_lambda():
    """A loss that is known as a number alone has two of its last digits to lose."""
    tx = scale_by(damping=ng.LevenbergMarquardt(1e16, bounds=(1e-8, 1e16)))
    updates, state = tx.update(GRADIENT, tx.init(PARAMS), PARAMS, inputs=X, value_fn=loss)
    assert ng.Outcome.name_of(state.info.outcome) == "unmeasurable"
    assert ng.Answer.name_of(state.info.answer) == "lowered unmeasurable"
    assert state.info.accepted
    assert state.info.rho == 1
    np.testing.assert_allclose(state.info.resolution, 2 * np.finfo(np.float64).eps * loss(PARAMS))
    np.testing.assert_allclose(state.steps.damping, 1e16 * (2 / 3) ** 3)
    np.testing.assert_allclose(flat(updates) * 1e16, flat(GRADIENT), rtol=1e-9)


def test_weights_context_and_targets_reach_the_metric():
    def model(params, x, c):
        return c * MODEL(params, x)

    weights = jnp.arange(1.0, 8.0)
    tx = ng.optax.scale_by_natural_gradient(model, LIKELIHOOD, solver=SOLVER, damping=0.1)
    updates, _ = tx.update(
        GRADIENT, tx.init(PARAMS), PARAMS, inputs=X, weights=weights, context=jnp.array(2.0)
    )
    F = oracles.matrix(
        ng.metric_product(model, LIKELIHOOD, PARAMS, X, weights, context=jnp.array(2.0)), PARAMS
    )
    np.testing.assert_allclose(flat(updates), oracles.solve(F, flat(GRADIENT), 0.1), rtol=1e-7)

    tx = scale_by(damping=0.1, metric=ng.EmpiricalFisher())
    updates, _ = tx.update(GRADIENT, tx.init(PARAMS), PARAMS, inputs=X, targets=T)
    U = oracles.matrix(
        ng.metric_product(MODEL, LIKELIHOOD, PARAMS, X, metric=ng.EmpiricalFisher(), targets=T), PARAMS
    )
    np.testing.assert_allclose(flat(updates), oracles.solve(U, flat(GRADIENT), 0.1), rtol=1e-7)


def test_updates_keep_the_gradients_dtype():
    params, x = (jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree) for tree in (PARAMS, X))
    gradient = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), GRADIENT)
    tx = ng.optax.scale_by_natural_gradient(MODEL, LIKELIHOOD, damping=0.1)
    updates, _ = tx.update(gradient, tx.init(params), params, inputs=x)
    assert {leaf.dtype for leaf in jax.tree.leaves(updates)} == {jnp.dtype(jnp.bfloat16)}


def native(opt, steps, params=PARAMS):
    state = opt.init(params)
    for _ in range(steps):
        params, state, info = opt.step(params, state, (X, T))
    return params, state, info


def first_layer(path, leaf):
    return path.startswith("0")


STEPS = {
    "kncg": lambda **k: ng.kncg(MODEL, LIKELIHOOD, average=None, **k),
    "kncg, Jacobi": lambda **k: ng.kncg(MODEL, LIKELIHOOD, preconditioner=ng.Jacobi(), average=None, **k),
    "rate": lambda **k: ng.natural_gradient(MODEL, LIKELIHOOD, solver=SOLVER, learning_rate=0.5, **k),
    "spring": lambda **k: ng.Optimizer(
        MODEL,
        LIKELIHOOD,
        ng.directions.Spring(0.5),
        ng.FixedRate(0.3),
        damping=ng.LevenbergMarquardt(0.1),
        **k,
    ),
    "radius": lambda **k: ng.natural_gradient(MODEL, LIKELIHOOD, solver=SOLVER, search=ng.KLRadius(0.1), **k),
}


@pytest.mark.parametrize("options", [{}, {"trainable": first_layer}], ids=["all", "some"])
@pytest.mark.parametrize("name", STEPS)
def test_an_optimizers_steps_are_its_own(name, options):
    opt = STEPS[name](**options)
    params, state = run(ng.optax.from_optimizer(opt), 10, value_fn=loss)
    wanted, wanted_state, info = native(opt, 10)
    np.testing.assert_allclose(flat(params), flat(wanted), rtol=1e-6, atol=1e-9)
    if options:
        np.testing.assert_array_equal(flat(params[1]), flat(PARAMS[1]))
    for field in ("loss", "rho", "damping", "kl", "step_size"):
        np.testing.assert_allclose(getattr(state.info, field), getattr(info, field), rtol=1e-4, err_msg=field)
    np.testing.assert_allclose(state.steps.damping, wanted_state.damping, rtol=1e-6)


def test_the_recipe_to_try_first_in_a_chain():
    tx = ng.optax.kncg(MODEL, LIKELIHOOD, floor=1e-3, max_norm=0.5, trainable=first_layer)
    opt = ng.kncg(MODEL, LIKELIHOOD, floor=1e-3, max_norm=0.5, trainable=first_layer, average=None)
    params, state = run(optax.chain(optax.clip_by_global_norm(1e9), tx, optax.scale(1.0)), 5, value_fn=loss)
    np.testing.assert_allclose(flat(params), flat(native(opt, 5)[0]), rtol=1e-6, atol=1e-9)
    assert optax.tree.get(state, "info").step_norm <= 0.5 + 1e-9


def test_a_search_that_probes_the_loss_is_refused():
    with pytest.raises(TypeError, match="average=None"):
        ng.optax.from_optimizer(ng.kncg(MODEL, LIKELIHOOD))
    for search in (ng.LineSearch(), ng.Cobyla()):
        with pytest.raises(ValueError, match=f"{type(search).__name__} probes the loss.*opt.step"):
            ng.optax.from_optimizer(ng.natural_gradient(MODEL, LIKELIHOOD, search=search))


@pytest.mark.parametrize(
    "tx",
    [
        scale_by(reject=1e9),
        ng.optax.kncg(MODEL, LIKELIHOOD, preconditioner=ng.Jacobi(), reject=1e9),
        ng.optax.kncg(MODEL, LIKELIHOOD, preconditioner=ng.Jacobi(), reject=1e9, weight_decay=0.1),
    ],
)
def test_a_refusal_gives_updates_of_zero(tx):
    updates, state = tx.update(GRADIENT, tx.init(PARAMS), PARAMS, inputs=X, value_fn=loss)
    assert not flat(updates).any()
    assert ng.Outcome.name_of(state.info.outcome) == "rejected"
    assert state.steps.damping > tx.init(PARAMS).steps.damping


def test_trainable_parameters_alone_have_a_metric():
    """The block of the metric, zeros for the rest, and the same as `optax.masked` from outside."""
    tx = scale_by(damping=0.1, trainable=first_layer)
    updates, _ = jax.jit(lambda g: tx.update(g, tx.init(PARAMS), PARAMS, inputs=X))(GRADIENT)
    size = flat(PARAMS[0]).size
    expected = oracles.solve(dense()[:size, :size], flat(GRADIENT[0]), 0.1)
    np.testing.assert_allclose(flat(updates[0]), expected, rtol=1e-7)
    assert not flat(updates[1]).any()


def test_inside_multi_steps_and_a_chain_the_steps_of_an_optimizer():
    tx = optax.MultiSteps(ng.optax.kncg(MODEL, LIKELIHOOD, preconditioner=ng.Jacobi()), 2, **IN_FLOAT64)
    with jax.numpy_dtype_promotion("standard"):  # optax divides by an integer count
        after, _ = run(tx, 4, value_fn=loss)
    wanted, _, _ = native(STEPS["kncg, Jacobi"](), 2)
    np.testing.assert_allclose(flat(after), flat(wanted), rtol=1e-6, atol=1e-9)


def test_targets_among_the_inputs_are_named():
    tx = scale_by(damping=0.1)
    with pytest.raises(TypeError, match=r"inputs= is a pair.*inputs=x alone"):
        tx.update(GRADIENT, tx.init(PARAMS), PARAMS, inputs=(X, T))
    with pytest.raises(TypeError, match=r"inputs= is a pair"):
        jax.jit(lambda g: tx.update(g, tx.init(PARAMS), PARAMS, inputs=(X, T)))(GRADIENT)
    pairs = ng.optax.scale_by_natural_gradient(lambda p, x: MODEL(p, x[0] + x[1]), LIKELIHOOD, damping=0.1)
    assert flat(pairs.update(GRADIENT, pairs.init(PARAMS), PARAMS, inputs=(X, X))[0]).any()


def test_the_rates_of_a_link_can_be_injected():
    inject = optax.inject_hyperparams(ng.optax.scale_by_natural_gradient, static_args=ng.optax.STATIC)
    tx = inject(MODEL, LIKELIHOOD, solver=SOLVER, damping=0.1, trial_rate=0.5, trainable=first_layer)
    assert set(tx.init(PARAMS).hyperparams) == {"damping", "trial_rate"}
    params, _ = run(optax.chain(tx, optax.scale(-0.5)), 3)
    np.testing.assert_array_equal(flat(params[1]), flat(PARAMS[1]))
    assert loss(params) < loss(PARAMS)


def test_an_eager_second_update_compiles_nothing(compilations):
    tx = scale_by()
    _, state = tx.update(GRADIENT, tx.init(PARAMS), PARAMS, inputs=X, value_fn=loss)
    _, state = tx.update(GRADIENT, state, PARAMS, inputs=X, value_fn=loss)
    with compilations() as count:
        tx.update(GRADIENT, state, PARAMS, inputs=X, value_fn=loss)
    assert count() == 0


def test_importing_natgrad_does_not_import_optax():
    code = (
        "import sys, natgrad; assert 'optax' not in sys.modules; natgrad.optax; assert 'optax' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = ng.nothing_of_the_kind
