"""One step is what the dense formulas say, and has the invariances that make it natural."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.flatten_util import ravel_pytree
from models import MODELS, WEIGHTS, layers, mlp, targets_for

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

EXACT = ng.CG(maxiter=400, rtol=1e-13)


def linear(w, x):
    return x @ w


def data(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float64)


X, T = data(0, 30, 4), data(1, 30, 2)
W = data(2, 4, 2)
LEAST_SQUARES = np.linalg.lstsq(np.asarray(X), np.asarray(T), rcond=None)[0]


def test_a_quadratic_is_solved_in_one_step():
    opt = ng.natural_gradient(linear, ng.Gaussian(), solver=EXACT, damping=ng.Constant(0.0))
    w, _, info = opt.step(W, opt.init(W), (X, T))
    np.testing.assert_allclose(w, LEAST_SQUARES, atol=1e-10)
    assert info.accepted
    assert info.outcome == ng.Outcome.ACCEPTED
    assert ng.Outcome.name_of(info.outcome) == "accepted"


def test_great_damping_gives_the_gradient_over_lambda():
    opt = ng.natural_gradient(linear, ng.Gaussian(), solver=EXACT, damping=ng.Constant(1e7))
    w, _, _ = opt.step(W, opt.init(W), (X, T))
    gradient = X.T @ (X @ W - T) / len(X)
    np.testing.assert_allclose((W - w) * 1e7, gradient, rtol=1e-5)


def test_rho_on_a_quadratic_is_one_by_the_quadratic_model_and_less_by_the_linear_one():
    """ρ_quadratic = 1 whatever λ, since λ is no part of the promise; ρ_linear = 1 − η/2 at λ = 0."""
    for rate, reduction, damping, expected in (
        *((rate, "quadratic", 0.7, 1.0) for rate in (0.2, 0.5, 1.0)),
        *((rate, "linear", 1e-8, 1 - rate / 2) for rate in (0.1, 0.3, 0.6, 1.0)),
    ):
        rule = ng.LevenbergMarquardt(damping, reduction=reduction)
        opt = ng.natural_gradient(linear, ng.Gaussian(), solver=EXACT, damping=rule)
        _, state, info = opt.step(W, opt.init(W), (X, T), learning_rate=rate)
        np.testing.assert_allclose(info.rho, expected, rtol=1e-6)
        # Above 0.9 a fall counts three times.
        lowered = damping * (2 / 3) ** (3 if expected > 0.9 else 1 if expected > 0.75 else 0)
        np.testing.assert_allclose(state.damping, lowered, rtol=1e-12)


@pytest.mark.parametrize(
    ("reduction", "rho", "factor"), [("linear", 0.5, 1.0), ("quadratic", 1.0, (2 / 3) ** 3)]
)
def test_under_an_exact_line_search_rho_is_one_half_by_the_linear_model_and_lambda_never_moves(
    reduction, rho, factor
):
    """Along any direction the lowest point of a parabola is half as deep as its slope promises."""
    rule = ng.LevenbergMarquardt(2.0, reduction=reduction)
    opt = ng.natural_gradient(linear, ng.Gaussian(), solver=ng.CG(1), search=ng.LineSearch(), damping=rule)
    w, state = W, opt.init(W)
    for k in range(5):
        w, state, info = opt.step(w, state, (X, T))
        np.testing.assert_allclose(info.rho, rho, rtol=1e-6)
        np.testing.assert_allclose(state.damping, 2 * factor ** (k + 1), rtol=1e-12)
        assert ng.Answer.name_of(info.answer) == ("kept" if factor == 1 else "lowered")


@pytest.mark.parametrize("search", [None, ng.LineSearch()], ids=["fixed rate", "line search"])
def test_a_step_too_short_to_be_seen_lowers_lambda(search):
    """λ = 1e12 makes a change of 1e-12 of the loss' own rounding. A rate takes it, a search stays."""
    x, t, w = (leaf.astype(jnp.float32) for leaf in (X, T, W))
    opt = ng.natural_gradient(
        linear, ng.Gaussian(), search=search, damping=ng.LevenbergMarquardt(1e12, bounds=(1e-8, 1e12))
    )
    state = opt.init(w)
    moved, state, info = opt.step(w, state, (x, t))
    assert ng.Outcome.name_of(info.outcome) == "unmeasurable"
    assert ng.Answer.name_of(info.answer) == "lowered unmeasurable"
    assert bool(info.accepted) == (search is None)
    assert info.rho == 1
    assert 0 < info.resolution < 1e-5 * info.loss
    np.testing.assert_allclose(state.damping, 1e12 * (2 / 3) ** 3, rtol=1e-6)
    if search is not None:
        assert jnp.array_equal(moved, w)
    # λ falls until steps can be seen, and they lead to the bottom, as far as can be seen.
    accepted = []
    for _ in range(40):
        moved, state, info = opt.step(moved, state, (x, t))
        accepted.append(ng.Outcome.name_of(info.outcome) == "accepted")
    assert any(accepted)
    above = np.asarray(X) @ (np.asarray(moved, np.float64) - LEAST_SQUARES)
    assert np.mean(np.sum(above**2, axis=1)) / 2 < 2 * float(info.resolution)


@pytest.mark.parametrize("promises", ["much", "little"])
def test_the_resolution_is_what_rounding_leaves_of_the_loss(promises):
    """2 eps √Σ c_i² (ℓ_i + |r_iᵀ ∂ℓ/∂r_i| + |(J(s∘θ))_iᵀ ∂ℓ/∂r_i|)²: of the loss, the outputs and the terms they sum.

    The examples' errors are independent. s are signs, from the top bits of a Weyl sequence. The terms of sums count
    only if the step promises less than 1e4 times the rest.
    """
    little = promises == "little"
    rule = ng.LevenbergMarquardt(1e15 if little else 1.0, bounds=(1e-12, 1e20))
    opt = ng.natural_gradient(linear, ng.Gaussian(), l2=0.3, damping=rule)
    weights = jnp.arange(1.0, 31.0)
    _, _, info = opt.step(W, opt.init(W), (X, T, weights))
    x, t, w = map(np.asarray, (X, T, W))
    signs = [1 if k * 2654435769 % 2**32 >= 2**31 else -1 for k in range(w.size)]
    residuals = x @ w - t
    losses = np.sum(residuals**2, axis=1) / 2
    shaken = np.abs(np.sum((x @ w) * residuals, axis=1))
    cancelled = little * np.abs(np.sum((x @ (np.reshape(signs, w.shape) * w)) * residuals, axis=1))
    c = np.arange(1, 31) / np.arange(1, 31).sum()
    expected = 2 * np.finfo(np.float64).eps * np.linalg.norm(c * (losses + shaken + cancelled))
    np.testing.assert_allclose(info.resolution, expected, rtol=1e-6)


def test_the_last_step_is_measured_again_on_the_next_batch():
    """stretch = dᵀF′d / dᵀFd, with F on the batch of the step and F′ on the one after it; λ rises above 2."""
    opt = ng.natural_gradient(linear, ng.Gaussian(), solver=EXACT, damping=ng.LevenbergMarquardt(0.7))
    w, state, info = opt.step(W, opt.init(W), (X, T))
    assert info.stretch == 0
    d = np.asarray(w - W)
    np.testing.assert_allclose(state.last.step, d, rtol=1e-12)
    np.testing.assert_allclose(state.last.curvature, np.mean(np.sum((X @ d) ** 2, axis=1)), rtol=1e-10)
    np.testing.assert_allclose(state.last.loss, info.new_loss, rtol=1e-12)
    np.testing.assert_allclose(2 * info.kl, state.last.curvature, rtol=1e-10)
    for longer, answer in ((1.3, "lowered"), (1.6, "raised stretched")):
        _, after, info = opt.step(w, state, (longer * X, T))
        np.testing.assert_allclose(info.stretch, longer**2, rtol=1e-10)
        assert ng.Answer.name_of(info.answer) == answer
        assert (after.damping > state.damping) == (longer == 1.6)
    # The same batch again is no other batch.
    _, _, info = opt.step(w, state, (X, T))
    np.testing.assert_allclose(info.stretch, 1, rtol=1e-10)
    assert ng.Answer.name_of(info.answer) == "lowered"
    # A refused step leaves nothing behind.
    _, refused, info = opt.step(w, state, (X.at[0, 0].set(jnp.nan), T))
    assert not info.accepted
    assert not np.any(refused.last.step)
    assert refused.last.curvature == 0
    # A rule that does not look keeps nothing.
    plain = ng.natural_gradient(linear, ng.Gaussian(), damping=ng.LevenbergMarquardt(0.7, stretch=None))
    assert plain.init(W).last == ()
    assert plain.step(W, plain.init(W), (X, T))[2].stretch == 0


def test_every_number_of_a_step_is_the_dense_formulas():
    """Weighted gradient batch, other metric inputs with biased weights, other search and ratio batches, l2."""
    case = MODELS["mlp"]
    likelihood, damping, l2, rate = ng.Bernoulli(), 0.3, 0.05, 0.4
    flat, unravel = ravel_pytree(case.params)
    x, metric_x, ratio_x = case.inputs, data(20, 5, 3), data(21, 4, 3)
    t, ratio_t = (targets_for(likelihood, case.model(case.params, u), 1) for u in (x, ratio_x))
    metric_w, ratio_w = jnp.array([0.1, 5.0, 1.0, 2.0, 0.4]), jnp.array([1.0, 0.5, 3.0, 2.0])

    def loss(p, x, t, w):
        r = case.model(unravel(p), x)
        losses = jnp.sum(jnp.log1p(jnp.exp(r)) - t * r, axis=1)
        return jnp.sum(w * losses) / jnp.sum(w) + l2 / 2 * p @ p

    gradient = jax.jit(jax.grad(loss))
    g, ratio_g = (
        np.asarray(gradient(flat, *batch)) for batch in ((x, t, WEIGHTS), (ratio_x, ratio_t, ratio_w))
    )
    J = oracles.jacobians(case.model, case.params, metric_x)
    r = np.asarray(case.model(case.params, metric_x))
    F = oracles.metric(J, [oracles.bernoulli_matrix(row) for row in r], metric_w)
    step = -rate * oracles.solve(F, g, damping + l2)
    before, after = (float(loss(jnp.asarray(p), ratio_x, ratio_t, ratio_w)) for p in (flat, flat + step))
    # ρ asks for the model's error: what the ratio batch's own slope adds to the change is taken off.
    change = after - before + (g - ratio_g) @ step
    promise = {
        "quadratic": g @ step + step @ F @ step / 2 + l2 / 2 * step @ step,
        "linear": g @ step,
    }

    for reduction in promise:
        opt = ng.natural_gradient(
            case.model,
            likelihood,
            learning_rate=rate,
            solver=EXACT,
            damping=ng.LevenbergMarquardt(damping, reduction=reduction),
            l2=l2,
        )
        params, state, info = opt.step(
            case.params,
            opt.init(case.params),
            (x, t, WEIGHTS),
            metric_inputs=metric_x,
            metric_weights=metric_w,
            search_batch=(x + jnp.nan, t, WEIGHTS),  # a fixed rate searches nothing
            ratio_batch=(ratio_x, ratio_t, ratio_w),
        )
        np.testing.assert_allclose(ravel_pytree(params)[0], flat + step, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(info.loss, loss(flat, x, t, WEIGHTS), rtol=1e-12)
        np.testing.assert_allclose(info.ratio_loss, before, rtol=1e-12)
        np.testing.assert_allclose(info.rho, change / promise[reduction], rtol=1e-7)
        np.testing.assert_allclose(info.kl, step @ F @ step / 2, rtol=1e-8)
        np.testing.assert_allclose(info.grad_norm, np.linalg.norm(g), rtol=1e-12)
        np.testing.assert_allclose(info.step_norm, np.linalg.norm(step), rtol=1e-9)
        assert info.damping == damping
        assert info.step_size == rate
        assert state.steps == 1
        assert info.solver.residual <= 1e-12 * info.grad_norm
        # The loss itself is shown as it is.
        np.testing.assert_allclose(info.new_loss, after, rtol=1e-10)


def test_sgd_is_the_gradient_step_with_l2():
    case = MODELS["mlp"]
    flat, unravel = ravel_pytree(case.params)
    t = jnp.ones((7, 3))

    def loss(p):
        r = case.model(unravel(p), case.inputs)
        return jnp.sum(WEIGHTS * jnp.sum((r - t) ** 2, axis=1)) / (2 * WEIGHTS.sum()) + 0.15 * p @ p

    opt = ng.sgd(case.model, ng.Gaussian(), learning_rate=0.1, l2=0.3)
    params, state, info = opt.step(case.params, opt.init(case.params), (case.inputs, t, WEIGHTS))
    np.testing.assert_allclose(ravel_pytree(params)[0], flat - 0.1 * jax.grad(loss)(flat), rtol=1e-12)
    np.testing.assert_allclose(info.loss, loss(flat), rtol=1e-12)
    assert jnp.isnan(info.kl)
    assert jnp.isnan(info.new_loss)
    assert info.solver is None
    assert state.damping == 0


SMALL = layers(30, 2, 3, 2)
INPUTS = data(31, 60, 2)
LABELS = targets_for(ng.Bernoulli(), mlp(SMALL, INPUTS), 3)
FLAT, UNRAVEL = ravel_pytree(SMALL)


def in_coordinates(A):
    """The same network with θ = Aφ."""
    return lambda phi, x: mlp(UNRAVEL(A @ phi), x)


def one_step(opt, params):
    params, _, info = opt.step(params, opt.init(params), (INPUTS, LABELS))
    assert info.accepted
    return params


def small_fisher():
    J = oracles.jacobians(mlp, SMALL, INPUTS)
    return oracles.metric(J, [oracles.bernoulli_matrix(row) for row in np.asarray(mlp(SMALL, INPUTS))])


def test_the_step_in_function_space_does_not_depend_on_the_coordinates():
    A = jnp.eye(len(FLAT)) + 0.15 * data(32, len(FLAT), len(FLAT))
    phi = jnp.linalg.solve(A, FLAT)
    moves = {}
    for name, make in (
        (
            "natural",
            lambda model: ng.natural_gradient(
                model, ng.Bernoulli(), learning_rate=0.1, solver=EXACT, damping=ng.Constant(0.0)
            ),
        ),
        ("sgd", lambda model: ng.sgd(model, ng.Bernoulli(), learning_rate=0.1)),
    ):
        here = mlp(one_step(make(mlp), SMALL), INPUTS)
        model = in_coordinates(A)
        there = model(one_step(make(model), phi), INPUTS)
        moves[name] = float(jnp.abs(there - here).max() / jnp.abs(here - mlp(SMALL, INPUTS)).max())
    assert moves["natural"] < 1e-6
    assert moves["sgd"] > 1e-2


def test_in_whitened_coordinates_the_natural_gradient_is_the_gradient():
    """φ = F^½ θ makes the metric the identity, so that SGD in φ is NGD in θ."""
    values, vectors = np.linalg.eigh(small_fisher())
    root = jnp.asarray(vectors * np.sqrt(values) @ vectors.T)
    inverse = jnp.linalg.inv(root)
    natural = ng.natural_gradient(
        mlp, ng.Bernoulli(), learning_rate=0.1, solver=EXACT, damping=ng.Constant(0.0)
    )
    plain = ng.sgd(in_coordinates(inverse), ng.Bernoulli(), learning_rate=0.1)
    theta = ravel_pytree(one_step(natural, SMALL))[0]
    phi = one_step(plain, root @ FLAT)
    np.testing.assert_allclose(inverse @ phi, theta, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "likelihood",
    [ng.Gaussian(0.5), ng.Bernoulli(), ng.Categorical(), ng.Poisson()],
    ids=lambda x: type(x).__name__,
)
def test_kl_of_a_small_step_tends_to_half_its_length_in_the_metric(likelihood):
    d = UNRAVEL(data(33, len(FLAT)))

    @jax.jit
    def excess(size):
        F = ng.metric_product(mlp, likelihood, SMALL, INPUTS)
        moved = jax.tree.map(lambda p, v: p + size * v, SMALL, d)
        kl = jnp.mean(likelihood.kl(mlp(SMALL, INPUTS), mlp(moved, INPUTS)))
        return kl / (size**2 / 2 * F.quadratic(d)) - 1

    coarse, fine = excess(1e-2), excess(1e-3)
    assert abs(fine) < 1e-2
    # The next term is linear in ε, so a tenth of the step leaves a tenth of the error.
    np.testing.assert_allclose(fine / coarse, 0.1, rtol=0.35)


@pytest.mark.parametrize("radius", [1e-5, 1e-4])
def test_kl_radius_makes_steps_of_that_kl(radius):
    opt = ng.natural_gradient(mlp, ng.Bernoulli(), search=ng.KLRadius(radius), damping=ng.Constant(0.1))
    moved, _, info = opt.step(SMALL, opt.init(SMALL), (INPUTS, LABELS))
    kl = jnp.mean(ng.Bernoulli().kl(mlp(SMALL, INPUTS), mlp(moved, INPUTS)))
    np.testing.assert_allclose(info.kl, radius, rtol=1e-10)
    np.testing.assert_allclose(kl, radius, rtol=0.05)


def test_no_other_step_of_that_length_in_the_metric_leads_down_more():
    """Of all d with ½dᵀFd = δ, the natural gradient's has the least gᵀd: −√(2δ gᵀF⁻¹g), by Cauchy and Schwarz."""
    radius, F = 1e-4, small_fisher()
    search = ng.KLRadius(radius, max_rate=1e3)
    opt = ng.natural_gradient(mlp, ng.Bernoulli(), search=search, solver=EXACT, damping=ng.Constant(0.0))
    step = np.asarray(ravel_pytree(one_step(opt, SMALL))[0] - FLAT)
    gradient = jax.jit(jax.grad(lambda p: jnp.mean(ng.Bernoulli().nll(mlp(UNRAVEL(p), INPUTS), LABELS))))
    g = np.asarray(gradient(FLAT))
    np.testing.assert_allclose(g @ step, -np.sqrt(2 * radius * g @ np.linalg.solve(F, g)), rtol=1e-6)
    far = np.random.default_rng(0).normal(size=(100, len(step)))
    others = np.concatenate([far, step + 0.1 * np.linalg.norm(step) * far])
    others *= np.sqrt(2 * radius / np.einsum("ki,ij,kj->k", others, F, others))[:, None]
    assert np.all(others @ g > g @ step)


def test_the_recipe_trains_with_its_defaults():
    opt = ng.natural_gradient(mlp, ng.Bernoulli())
    start = layers(70, 2, 3, 2)

    def step(carry, _):
        params, state, info = opt.step(*carry, (INPUTS, LABELS))
        return (params, state), (info.loss, info.damping, info.accepted)

    (_, state), (loss, damping, accepted) = jax.jit(
        lambda params: jax.lax.scan(step, (params, opt.init(params)), None, 40)
    )(start)
    assert accepted.all()
    assert loss[-1] < 0.8 * loss[0]
    assert damping[0] == 1
    assert state.damping < 1


@pytest.mark.parametrize("metric", [ng.Hessian(), ng.GaussNewton()], ids=["hessian", "gauss-newton"])
def test_a_solve_that_gives_nothing_is_refused_until_damping_makes_it_give_something(metric):
    """Negative curvature −cos(0.3) at the start: CG stops at once with 0, which must not pass for a step."""

    def model(params, x):
        return jnp.broadcast_to(params, (x.shape[0], 1))

    likelihood = ng.Likelihood.from_loss(lambda r, t: jnp.cos(r[:, 0]))
    opt = ng.natural_gradient(
        model, likelihood, metric=metric, damping=ng.LevenbergMarquardt(0.5), learning_rate=0.1
    )
    params, batch = jnp.array([0.3]), (jnp.ones((2, 1)), jnp.ones((2, 1)))
    state = opt.init(params)
    for _ in range(2):
        params, state, info = opt.step(params, state, batch)
        assert ng.Outcome.name_of(info.outcome) == "no direction"
        assert ng.Reason.name_of(info.solver.reason) == "indefinite"
        assert params == 0.3
    assert state.damping == 0.5 * 1.5 * 1.5**2
    params, _, info = opt.step(params, state, batch)
    assert info.accepted
    assert params > 0.3


def test_structural_damping_is_no_part_of_the_kl_radius():
    """It shortens no step by itself: ½dᵀFd with the model's own F is the radius."""
    metric = ng.Fisher() + ng.StructuralDamping(mlp, mu=3.0, tied=False)
    opt = ng.natural_gradient(
        mlp, ng.Bernoulli(), metric=metric, search=ng.KLRadius(1e-4), damping=ng.Constant(0.1)
    )
    _, _, info = opt.step(SMALL, opt.init(SMALL), (INPUTS, LABELS))
    np.testing.assert_allclose(info.kl, 1e-4, rtol=1e-10)
