"""The rivals: if one of them were wrong, every race would be won for nothing. Each against plain NumPy."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import natgrad as ng
from natgrad_paper.training import baselines

pytestmark = pytest.mark.usefixtures("fast_compile")

RNG = np.random.default_rng(0)
# Exact in float32, in which the experiments train; the references compute in float64.
INPUTS, TARGETS, START = (
    RNG.normal(size=size).astype(np.float32).astype(float) for size in ((40, 3), (40, 2), (3, 2))
)


@pytest.fixture(autouse=True)
def _optax_promotes():
    with jax.numpy_dtype_promotion("standard"):
        yield


def single(values):
    return jnp.asarray(values, jnp.float32)


def problem(model=lambda params, inputs: inputs @ params):
    return SimpleNamespace(model=model, likelihood=ng.Gaussian())


def batch(step):
    """The cases of a step: others each time."""
    chosen = np.random.default_rng([7, step]).integers(40, size=8)
    return INPUTS[chosen], TARGETS[chosen]


def gradient(params, inputs, targets):
    """Of the mean over cases of half the squared error, summed over outputs."""
    return inputs.T @ (inputs @ params - targets) / len(inputs)


def path(optimizer, steps, draw=batch):
    """Return the parameters after every step."""
    params = single(START)
    state, found = optimizer.init(params), []
    step = jax.jit(optimizer.step)
    for number in range(steps):
        params, state, info = step(params, state, tuple(map(single, draw(number))))
        assert bool(info.accepted)
        found.append(np.asarray(params, float))
    return np.stack(found)


def test_nesterov_is_sutskevers():
    """θ = φ + μv is where the gradient is taken: φ ← φ + v', v' = μv − ε∇f(φ + μv), on his schedule of μ."""
    steps, rate, last = 900, 0.01, 0.8
    momenta = [min(1 - 2 ** (-1 - np.log2(step // 250 + 1)), last) for step in range(steps + 1)]
    assert (momenta[0], momenta[249], momenta[250], momenta[500], momenta[899]) == (0.5, 0.5, 0.75, 0.8, 0.8)
    ahead, velocity, expected = START, np.zeros_like(START), []
    for step in range(steps):
        # optax keeps the point ahead, θ, and v / −ε; a step moves it by −ε (g + μ (g + μ v')).
        g = gradient(ahead, *batch(step))
        velocity = momenta[step] * velocity - rate * g
        ahead = ahead + momenta[step] * velocity - rate * g
        expected.append(ahead)
    found = path(baselines.nesterov(problem(), rate, last), steps)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_point_ahead_is_nesterovs_own():
    """With one momentum throughout, the same as looking ahead from φ, written as in the paper of Sutskever et al."""
    rate, momentum = 0.02, 0.5
    position, velocity, expected = START, np.zeros_like(START), []
    for step in range(200):
        velocity = momentum * velocity - rate * gradient(position + momentum * velocity, *batch(step))
        position = position + velocity
        expected.append(position + momentum * velocity)
    found = path(baselines.nesterov(problem(), rate, momentum), 200)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_adam_is_kingma_and_bas():
    steps, rate = 60, 0.03
    expected, params, first, second = [], START, 0.0, 0.0
    for step in range(1, steps + 1):
        g = gradient(params, *batch(step - 1))
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        params = params - rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        expected.append(params)
    np.testing.assert_allclose(path(baselines.adam(problem(), rate), steps), expected, atol=1e-5)


def test_an_average_over_the_last_steps_is_judged_and_changes_no_step():
    """θ̄ ← θ̄ + max(1 − γ, 10 / (t + 9)) (θ − θ̄), as `ng.Averaged` has it."""
    steps, rate, decay = 60, 0.03, 0.8
    rule = baselines.averaged(optax.sgd(rate), decay)
    optimizer = baselines.FirstOrder(
        lambda params, inputs: inputs @ params,
        ng.Gaussian(),
        rule,
        evaluated=lambda state, params: state.average,
    )
    params, average = START, START
    found, state = single(START), optimizer.init(single(START))
    for step in range(1, steps + 1):
        params = params - rate * gradient(params, *batch(step - 1))
        average = average + max(1 - decay, 10 / (step + 9)) * (params - average)
        found, state, _ = optimizer.step(found, state, tuple(map(single, batch(step - 1))))
        np.testing.assert_allclose(found, params, atol=1e-5)
        np.testing.assert_allclose(optimizer.kept(found, state), average, atol=1e-5)
    assert 1 - decay > 10 / (steps + 9)  # Both arms of the share were met.
    assert np.abs(average - params).max() > 1e-3


def two_loops(g, pairs):
    """Return L-BFGS's direction −Hg by the two-loop recursion, from pairs (s, y), oldest first."""
    q, kept = g.copy(), []
    for s, y in reversed(pairs):
        share = (s @ q) / (y @ s)
        q, kept = q - share * y, [share, *kept]
    if pairs:
        s, y = pairs[-1]
        q = q * (s @ y) / (y @ y)
    for (s, y), share in zip(pairs, kept, strict=True):
        q = q + s * (share - (y @ q) / (y @ s))
    return -q


def test_lbfgs_goes_where_the_two_loop_recursion_says():
    """Each step is a positive multiple of it, of a length that lowers the loss enough (Armijo) and is no overshoot."""
    memory = 3

    def everything(step):
        return INPUTS, TARGETS

    def loss(params):
        return np.mean(np.sum((INPUTS @ params - TARGETS) ** 2, axis=1)) / 2

    track = np.concatenate([START[None], path(baselines.lbfgs(problem(), memory), 6, everything)])
    gradients = [gradient(params, INPUTS, TARGETS).ravel() for params in track]
    pairs = []
    for before, after, g, later in zip(track, track[1:], gradients, gradients[1:], strict=False):
        moved, way = (after - before).ravel(), two_loops(g, pairs[-memory:])
        cosine = moved @ way / np.linalg.norm(moved) / np.linalg.norm(way)
        assert cosine > 1 - 1e-5
        assert loss(after) <= loss(before) + 1e-4 * g @ moved
        assert abs(later @ moved) <= 0.9 * abs(g @ moved) + 1e-12
        pairs.append((moved, later - g))
    solution = np.linalg.lstsq(INPUTS, TARGETS, rcond=None)[0]
    np.testing.assert_allclose(track[-1], solution, atol=1e-3)


@pytest.mark.parametrize(
    "optimizer",
    [baselines.nesterov(problem(), 0.1, 0.9), baselines.adam(problem(), 0.1), baselines.lbfgs(problem(), 3)],
    ids=["nesterov", "adam", "lbfgs"],
)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_step_that_meets_a_bad_number_is_refused(optimizer, bad):
    params = single(START)
    state = optimizer.init(params)
    inputs, targets = map(single, batch(0))
    moved, after, info = optimizer.step(params, state, (inputs.at[0, 0].set(bad), targets))
    assert not bool(info.accepted)
    assert int(info.outcome) == ng.Outcome.NONFINITE_GRADIENT
    np.testing.assert_array_equal(moved, params)
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(a, b)
    _, _, info = optimizer.step(moved, after, (inputs, targets))
    assert bool(info.accepted)
