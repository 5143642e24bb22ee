"""λ over long runs in float32: it finds its place, keeps it, and comes back when the data change."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng

RECIPES = {
    "ngd": ng.natural_gradient,
    "ngd-l": lambda model, likelihood, **options: ng.natural_gradient(
        model, likelihood, search=ng.LineSearch(), **options
    ),
    "ncg-l": ng.natural_conjugate_gradient,
    "ncg-f": lambda model, likelihood, **options: ng.natural_conjugate_gradient(
        model, likelihood, beta=ng.PolakRibiere(), **options
    ),
    "kncg": partial(ng.kncg, average=None),
    "hf": ng.hessian_free,
}


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32)


def linear(w, x):
    return x @ w


X = normal(0, 200, 5)
T = X @ (jnp.arange(1, 6, dtype=jnp.float32)[:, None] / 3) + normal(1, 200, 1)
BEST = 0.5 * float(np.mean((T - X @ np.linalg.lstsq(np.asarray(X), np.asarray(T), rcond=None)[0]) ** 2))


def train(opt, params, state, batch, steps):
    def one(carry, _):
        params, state, info = opt.step(*carry, batch)
        return (params, state), info

    (params, state), history = jax.jit(lambda *start: jax.lax.scan(one, start, length=steps))(params, state)
    return params, state, jax.device_get(history)


def assert_comes_back(opt, params, state):
    """The targets are negated: within 20 steps the loss is within 1% of its least."""
    dtype = params.dtype
    _, _, history = train(opt, params, state, (X.astype(dtype), -T.astype(dtype)), 21)
    assert history.loss[0] > 3 * BEST
    assert history.loss[20] < 1.01 * BEST


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", RECIPES)
def test_a_converged_run_learns_again_when_the_targets_change(name, dtype):
    opt = RECIPES[name](linear, ng.Gaussian())
    params = jnp.zeros((5, 1), dtype)
    params, state, history = train(opt, params, opt.init(params), (X.astype(dtype), T.astype(dtype)), 300)
    assert history.loss[-1] < 1.01 * BEST
    # Once nothing can be seen any more, that is what the outcome says, and λ falls.
    assert np.mean(history.outcome[-100:] == ng.Outcome.UNMEASURABLE) > 0.9
    assert np.all(history.damping[-100:] <= opt.damping.init(jnp.float32))
    assert_comes_back(opt, params, state)


@pytest.mark.parametrize("name", RECIPES)
def test_a_hundred_refused_batches_end_nothing(name):
    opt = RECIPES[name](linear, ng.Gaussian())
    params = jnp.zeros((5, 1), jnp.float32)
    params, state, _ = train(opt, params, opt.init(params), (X, T), 20)
    for where in ("batch", "metric_inputs"):
        spoiled = X.at[3].set(jnp.nan)
        given = {"batch": (X, T), "metric_inputs": X} | {where: (spoiled, T) if where == "batch" else spoiled}

        def one(carry, _, opt=opt, given=given):
            params, state, info = opt.step(*carry, **given)
            return (params, state), info

        (same, after), history = jax.jit(lambda *start, one=one: jax.lax.scan(one, start, length=100))(
            params, state
        )
        assert not np.any(history.accepted)
        np.testing.assert_array_equal(same, params)
        assert_comes_back(opt, same, after)


def test_a_spoiled_first_batch_does_not_decide_the_calibration():
    opt = ng.natural_gradient(linear, ng.Gaussian(), damping=ng.LevenbergMarquardt("calibrate"))
    params = jnp.zeros((5, 1), jnp.float32)
    params, state, info = opt.step(params, opt.init(params), (X.at[0, 0].set(jnp.nan), T))
    assert ng.Answer.name_of(info.answer) == "kept refused"
    assert state.damping == 1
    params, state, _ = train(opt, params, state, (X, T), 20)
    assert_comes_back(opt, params, state)


def test_a_loss_of_small_scale_is_learned_too():
    """With a scale of 1e6 the metric is 1e-12, and λ = 1 is a million million times too large."""
    opt = ng.natural_gradient(linear, ng.Gaussian(scale=1e6))
    params = jnp.zeros((5, 1), jnp.float32)
    _, _, history = train(opt, params, opt.init(params), (X, T), 40)
    assert history.loss[-1] < 1.01 * BEST / 1e12


def student():
    """A regression with the Student-t likelihood of 3 degrees of freedom: by its metric, and by a sampler alone."""

    def log_prob(r, t):
        return -2 * jnp.sum(jnp.log1p((t - r) ** 2 / 3), -1)

    def kl(r, s):
        return jnp.sum((r - s) ** 2, -1) / 3

    def sample(key, r):
        return r + jax.random.t(key, 3.0, r.shape, r.dtype)

    exact = ng.Likelihood.from_log_prob(log_prob, kl=kl)
    return exact, ng.Likelihood.from_log_prob(log_prob, sample=sample)


def tanh_net(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def tanh_params(key):
    one, two = jax.random.split(key)
    return {
        "w": 0.5 * jax.random.normal(one, (3, 8), jnp.float32),
        "b": jnp.zeros(8, jnp.float32),
        "v": 0.3 * jax.random.normal(two, (8, 1), jnp.float32),
    }


@pytest.mark.parametrize("recipe", [ng.kncg, ng.natural_gradient])
def test_a_sampled_metric_learns_about_as_well_as_the_exact_one(recipe):
    exact, sampled = student()
    x = normal(2, 1000, 3)
    noise = jax.random.t(jax.random.key(3), 3.0, (1000, 1), jnp.float32)
    t = jnp.sin(2 * x[:, :1]) * x[:, 1:2] + 0.3 * noise
    params = tanh_params(jax.random.key(4))
    ends = {}
    for name, opt in (
        ("exact", recipe(tanh_net, exact)),
        ("sampled", recipe(tanh_net, sampled, metric=ng.MonteCarloFisher(1))),
    ):
        _, _, history = train(opt, params, opt.init(params), (x, t), 600)
        assert history.damping.max() < 1e3, name
        ends[name] = history.loss[-1]
    assert ends["sampled"] < 1.2 * ends["exact"]


class Stream:
    """Fresh batches of 32 from sin(xᵀw) with noise 0.1: 40 parameters, and 32 numbers per step to find them by."""

    def __init__(self, seed):
        keys = jax.random.split(jax.random.key(seed), 5)
        self.params = {
            "w": 0.5 * jax.random.normal(keys[0], (3, 8), jnp.float32),
            "b": jnp.zeros(8, jnp.float32),
            "v": 0.3 * jax.random.normal(keys[1], (8, 1), jnp.float32),
        }
        self.w = jax.random.normal(keys[2], (3, 1), jnp.float32)
        self.x = jax.random.normal(keys[3], (2000, 3), jnp.float32)
        self.key = keys[4]

    def batch(self, step):
        key = jax.random.fold_in(self.key, step)
        x = jax.random.normal(key, (32, 3), jnp.float32)
        noise = jax.random.normal(jax.random.fold_in(key, 1), (32, 1), jnp.float32)
        return x, jnp.sin(x @ self.w) + 0.1 * noise

    def error(self, params):
        return jnp.mean((tanh_net(params, self.x) - jnp.sin(self.x @ self.w)) ** 2)

    @staticmethod
    def run(opt, seed, steps, fresh_ratio=False):
        """Return the error and λ at every step; with `fresh_ratio`, ρ is taken on a fresh batch of its own."""
        stream = Stream(seed)

        def one(carry, step):
            more = {"ratio_batch": stream.batch(step + 10**6)} if fresh_ratio else {}
            params, state, info = opt.step(*carry, stream.batch(step), **more)
            return (params, state), (stream.error(params), info.damping)

        start = (stream.params, opt.init(stream.params))
        return jax.lax.scan(one, start, jnp.arange(steps, dtype=jnp.int32))[1]


SEEDS = jnp.arange(5, dtype=jnp.int32)


@pytest.fixture(scope="module")
def by_hand():
    """Errors with a floor of λ chosen by hand: 1e-2, the best of several."""
    floor = ng.LevenbergMarquardt(1.0, bounds=(1e-2, 1e8), stretch=None)
    opt = ng.natural_gradient(tanh_net, ng.Gaussian(), damping=floor)
    errors, _ = jax.jit(jax.vmap(lambda seed: Stream.run(opt, seed, 2000)))(SEEDS)
    return np.median(errors[:, -500:], axis=1)


@pytest.mark.parametrize("name", RECIPES)
def test_small_minibatches_are_no_danger_at_the_defaults(name, by_hand):
    opt = RECIPES[name](tanh_net, ng.Gaussian())
    errors, damping = jax.jit(jax.vmap(lambda seed: Stream.run(opt, seed, 2000)))(SEEDS)
    late = np.median(errors[:, -500:], axis=1)
    assert np.max(errors) < 10
    assert np.max(late / by_hand) < 3
    assert np.all((damping > 1e-7) & (damping < 1e6))


def test_rho_on_a_fresh_batch_ends_nothing(by_hand):
    opt = ng.natural_gradient(tanh_net, ng.Gaussian())
    run = jax.jit(jax.vmap(lambda seed: Stream.run(opt, seed, 2000, fresh_ratio=True)))
    errors, damping = run(SEEDS)
    assert np.max(np.median(errors[:, -500:], axis=1) / by_hand) < 3
    assert np.max(damping[:, 1000:]) < 1e3


def drifting_line(step, batch=32):
    """Regression on 5 inputs whose weights turn slowly: the least error is the noise's."""
    one, two = jax.random.split(jax.random.fold_in(jax.random.key(8), step))
    x = jax.random.normal(one, (batch, 5), jnp.float32)
    angle = step.astype(jnp.float32) / 300
    w = jnp.stack([jnp.sin(angle + i) for i in range(5)])[:, None]
    return (x, x @ w + 0.1 * jax.random.normal(two, (batch, 1), jnp.float32)), lambda p: jnp.mean(
        (p - w) ** 2
    )


def drifting_classes(step, batch=32):
    """Two classes whose border turns slowly, one label in ten wrong; the error is the part of 1000 points misplaced."""
    one, two = jax.random.split(jax.random.fold_in(jax.random.key(9), step))
    x = jax.random.normal(one, (batch, 2), jnp.float32)
    flip = jax.random.bernoulli(two, 0.1, (batch,))
    angle = step.astype(jnp.float32) / 500
    border = jnp.stack([jnp.cos(angle), jnp.sin(angle)])
    points = normal(10, 1000, 2)

    def error(params):
        return jnp.mean(
            (classify(params, points)[:, 1] > classify(params, points)[:, 0]) != (points @ border > 0)
        )

    return (x, ((x @ border > 0) != flip).astype(jnp.int32)), error


def classify(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


@pytest.mark.parametrize("name", ["ngd", "ngd-l", "kncg"])
@pytest.mark.parametrize("drift", [drifting_line, drifting_classes])
def test_ten_thousand_steps_follow_a_drift(drift, name):
    if drift is drifting_line:
        opt, params, bound = RECIPES[name](linear, ng.Gaussian()), jnp.zeros((5, 1), jnp.float32), 0.02
    else:
        opt = RECIPES[name](classify, ng.Categorical())
        params = {"w": 0.5 * normal(5, 2, 6), "b": jnp.zeros(6, jnp.float32), "v": 0.3 * normal(6, 6, 2)}
        bound = 0.1

    def one(carry, step):
        batch, error = drift(step)
        params, state, info = opt.step(*carry, batch)
        return (params, state), (error(params), info.damping, info.accepted)

    start = (params, opt.init(params))
    run = jax.jit(lambda *start: jax.lax.scan(one, start, jnp.arange(10_000, dtype=jnp.int32)))
    errors, damping, accepted = jax.device_get(run(*start)[1])
    by_thousand = errors.reshape(10, -1).mean(1)
    assert np.all(by_thousand[1:] < bound), by_thousand
    assert np.all(damping < 1e5)
    assert accepted.mean() > 0.9


def test_hessian_free_shortens_where_its_solution_overshoots():
    """1,000 random saturating nets, wild weights: fewer than 1% of the first steps find nothing."""
    opt = ng.hessian_free(tanh_net, ng.Bernoulli(), damping=ng.LevenbergMarquardt(1e-3))
    x = normal(7, 40, 3)

    def first(key):
        one, two = jax.random.split(key)
        params = jax.tree.map(lambda leaf: 4 * leaf, tanh_params(one))
        t = (jax.random.normal(two, (40, 1), jnp.float32) > 0).astype(jnp.float32)
        return opt.step(params, opt.init(params), (x, t))[2].accepted

    accepted = jax.jit(jax.vmap(first))(jax.random.split(jax.random.key(1), 1000))
    assert np.mean(accepted) > 0.99
