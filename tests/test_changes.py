"""The change of a loss, measured as a change: to the digits of the step, not to those of the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from models import MODELS, WEIGHTS, mlp, targets_for

import natgrad as ng
from natgrad.optimizer import probe, propose
from natgrad.problem import Problem, Start
from natgrad.state import Batches, Data

pytestmark = pytest.mark.usefixtures("fast_compile")


def squares(r, t):
    return jnp.sum((r - t) ** 2, axis=1)


BUILT_IN = {
    "gaussian": ng.Gaussian(0.7),
    "bernoulli": ng.Bernoulli(),
    "categorical": ng.Categorical(),
    "poisson": ng.Poisson(),
}
CUSTOM = {
    "log-prob": ng.Likelihood.from_log_prob(lambda r, t: -squares(r, t), kl=squares),
    "loss": ng.Likelihood.from_loss(squares),
}
EXAMPLES = 20


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float64)


OUTPUTS = normal(0, EXAMPLES, 3)


def drawn(likelihood):
    """Targets that could be these outputs', though not too probable."""
    sampled = likelihood if likelihood in BUILT_IN.values() else ng.Gaussian()
    return sampled.sample(jax.random.key(1), -OUTPUTS)


@pytest.mark.parametrize("beyond", [-1.5, -0.5, 0.5])
def test_counts_change_as_they_should_where_the_exponential_becomes_its_tangent(beyond):
    likelihood, by = ng.Poisson(), jnp.asarray([[0.2], [-0.2], [2.0], [-2.0]], jnp.float64)
    outputs = jnp.full_like(by, 0.5 * np.log(np.finfo(np.float64).max) + beyond)
    expected = likelihood.nll(outputs + by, 0 * by) - likelihood.nll(outputs, 0 * by)
    np.testing.assert_allclose(likelihood.change(outputs, outputs + by, 0 * by), expected, rtol=1e-9)


@pytest.mark.parametrize("size", [1e-3, 0.3, 1.0, 5.0, 60.0])
@pytest.mark.parametrize("name", [*BUILT_IN, *CUSTOM])
def test_in_double_precision_a_change_is_the_difference_of_two_losses(name, size):
    likelihood = (BUILT_IN | CUSTOM)[name]
    moved, targets = OUTPUTS + size * normal(2, EXAMPLES, 3), drawn(likelihood)
    before, after = likelihood.nll(OUTPUTS, targets), likelihood.nll(moved, targets)
    found = likelihood.change(OUTPUTS, moved, targets)
    assert found.shape == (EXAMPLES,)
    # Both lose what the larger of the losses rounds away.
    scale = np.maximum(np.abs(before), np.abs(after))
    np.testing.assert_array_less(np.abs(found - (after - before)), 1e-13 * (scale + 1))


def test_a_change_of_categorical_outputs_reads_classes_rows_and_time_axes_alike():
    likelihood = ng.Categorical()
    r, classes = normal(0, 5, 4, 3), jax.random.randint(jax.random.key(1), (5, 4), 0, 3)
    moved = r + normal(2, 5, 4, 3) * jnp.array([1e-3, 0.1, 1.0, 5.0])[:, None]
    by_class = likelihood.change(r, moved, classes)
    np.testing.assert_allclose(by_class, likelihood.change(r, moved, jax.nn.one_hot(classes, 3)), rtol=1e-11)
    by_time = sum(likelihood.change(r[:, k], moved[:, k], classes[:, k]) for k in range(4))
    np.testing.assert_allclose(by_class, by_time, rtol=1e-11)
    # Rows that do not sum to 1: each of them weighs the normalization.
    mass = 3 * jax.nn.softmax(normal(3, 5, 4, 3))
    np.testing.assert_allclose(
        likelihood.change(r, moved, mass), likelihood.nll(moved, mass) - likelihood.nll(r, mass), rtol=1e-11
    )


def test_targets_between_zero_and_one_count_by_their_part():
    r, t = normal(0, 5, 3), jnp.linspace(0.05, 0.95, 15).reshape(5, 3)
    for size in (1e-3, 0.3, 1.0, 3.0):
        moved = r + size * normal(2, 5, 3)
        wanted = ng.Bernoulli().nll(moved, t) - ng.Bernoulli().nll(r, t)
        np.testing.assert_allclose(ng.Bernoulli().change(r, moved, t), wanted, rtol=1e-9, atol=1e-13)


def test_rows_without_weight_do_not_change():
    r = normal(0, 2, 3)
    rows = jnp.array([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    found = ng.Categorical().change(r, r + 0.1 * normal(1, 2, 3), rows)
    assert found[0] == 0
    assert jnp.isfinite(found[1])


def test_a_small_change_of_huge_counts_keeps_its_digits_up_to_the_tangent():
    """From 1 below the limit on the exponential may become its tangent, and only there are digits lost."""
    limit = 0.5 * np.log(np.finfo(np.float64).max)
    for below in (1.01, 1.5, 4.0):
        r, by = jnp.full((1, 1), limit - below), 1e-9
        change = ng.Poisson().change(r, r + by, 0 * r)
        moved = float((r + by - r)[0, 0])
        np.testing.assert_allclose(change, np.exp(limit - below) * np.expm1(moved), rtol=1e-12)


@pytest.mark.parametrize("name", BUILT_IN)
def test_in_single_precision_a_small_change_keeps_its_digits(name):
    """δ ~ 1e-6: two losses in float32 differ by little but rounding."""
    likelihood = BUILT_IN[name]
    r, targets = OUTPUTS.astype(jnp.float32), drawn(likelihood)
    targets = targets if name == "categorical" else targets.astype(jnp.float32)
    moved = r + (1e-6 * normal(2, EXAMPLES, 3)).astype(jnp.float32)
    wide = [x.astype(jnp.float64) for x in (r, moved)]
    truth = np.asarray(likelihood.nll(wide[1], targets) - likelihood.nll(wide[0], targets))
    found = likelihood.change(r, moved, targets)
    difference = likelihood.nll(moved, targets) - likelihood.nll(r, targets)
    assert found.dtype == jnp.float32
    assert np.all(np.abs(np.asarray(found) - truth) < 1e-5 * np.abs(truth))
    assert np.median(np.abs(np.asarray(difference) - truth) / np.abs(truth)) > 0.01


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("size", [1e-6, 0.5, 1.0, 60.0])
@pytest.mark.parametrize("name", BUILT_IN)
def test_the_gradient_of_a_change_is_that_of_the_loss(name, size, dtype):
    """Near and far, on either side: what is computed one way does not spoil the derivative of the other."""
    likelihood = BUILT_IN[name]
    targets = drawn(likelihood)
    targets = targets if name == "categorical" else targets.astype(dtype)
    r = OUTPUTS.astype(dtype)
    for signs in (1.0, -1.0, jnp.sign(normal(2, EXAMPLES, 3)).astype(dtype)):
        moved = r + size * signs
        found = jax.grad(lambda s: likelihood.change(r, s, targets).sum())(moved)
        expected = jax.grad(lambda s: likelihood.nll(s, targets).sum())(moved)
        assert jnp.isfinite(found).all()
        tolerance = 3e-6 if dtype == jnp.float32 else 1e-12
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_change_at_extreme_float32_outputs_is_finite(name):
    likelihood = BUILT_IN[name]
    r = jnp.array([[1e4, 0.0, -1e4], [43.5, 44.5, -100.0]], jnp.float32)
    targets = likelihood.mean(jnp.zeros_like(r))
    for by in (1e-6, 0.9, -0.9, 60.0, -60.0):
        found = likelihood.change(r, r + by, targets)
        assert found.dtype == jnp.float32
        assert jnp.isfinite(found).all()


def test_a_product_changes_factor_by_factor():
    product = ng.Product(ng.Gaussian(0.5), ng.Bernoulli(), ng.Categorical(), weights=(1.0, 0.5, 2.0))
    r = (normal(0, 4, 2), normal(1, 3, 1), normal(2, 5, 3))
    moved = tuple(x + 0.3 * normal(k + 3, *x.shape) for k, x in enumerate(r))
    t = (normal(6, 4, 2), jnp.ones((3, 1)), jnp.array([0, 1, 2, 0, 1]))
    found, before, after = product.change(r, moved, t), product.nll(r, t), product.nll(moved, t)
    assert [x.shape for x in found] == [(4,), (3,), (5,)]
    for change, a, b in zip(found, before, after, strict=True):
        np.testing.assert_allclose(change, b - a, rtol=1e-11, atol=1e-14)


# Over a batch


CASE = MODELS["mlp"]
FLAT, UNRAVEL = ravel_pytree(CASE.params)
STEP = 0.1 * normal(3, FLAT.size)
MOVED = UNRAVEL(FLAT + STEP)


def two_outputs(params, inputs):
    inside, edge = inputs
    return mlp(params, inside)[:, :1], mlp(params, edge)[:, 1:]


def cubes(r, t):
    return jnp.sum(jnp.abs(jax.nn.sigmoid(r) - t) ** 3, axis=1)


X, T = CASE.inputs, targets_for(ng.Bernoulli(), mlp(CASE.params, CASE.inputs), 2)
PRODUCT = ng.Product(ng.Gaussian(0.5), ng.Categorical(), weights=(1.0, 3.0))
BATCHES = {
    "plain": (mlp, ng.Bernoulli(), None, (X, T, None)),
    "weighted": (mlp, ng.Bernoulli(), None, (X, T, WEIGHTS)),
    "objective": (mlp, ng.Bernoulli(), cubes, (X, T, WEIGHTS)),
    "custom": (mlp, CUSTOM["log-prob"], None, (X, T, WEIGHTS)),
    "product": (
        two_outputs,
        PRODUCT,
        None,
        ((X, X[:4] - 0.5), (T[:, :1], jnp.array([0, 1, 1, 0])), (WEIGHTS, None)),
    ),
}


@pytest.mark.parametrize("microbatch", [None, 1, 3, 7])
@pytest.mark.parametrize("name", BATCHES)
def test_the_change_over_a_batch_is_that_of_its_loss_whole_or_in_chunks(name, microbatch):
    model, likelihood, objective, (x, t, w) = BATCHES[name]
    problem = Problem(model, likelihood, objective, microbatch)

    @jax.jit
    def measure(params, moved):
        examples = problem.examples(params, x, t, w)
        linear = problem.linearize(params, examples)
        starts = [problem.start(seen, params) for seen in (problem.at(params, examples), linear)]
        starts += [problem.refined(starts[1], linear, params, jnp.asarray(promise)) for promise in (1.0, 0.0)]
        return (
            starts[0].loss,
            [problem.change(moved, examples, start) for start in starts],
            [start.resolution for start in starts],
            [problem.change(params, examples, start) for start in starts],
        )

    def dense(params, of=lambda outputs: (objective or likelihood.nll)(outputs, t)):
        """Return the loss, and c_i ℓ_i of all examples; or those of something else than ℓ."""
        losses = of(model(params, x))
        shares = []
        for part, weight, factor in zip(
            *((losses, w, PRODUCT.weights) if name == "product" else ((losses,), (w,), (1.0,))), strict=True
        ):
            weight = np.ones(len(part)) if weight is None else np.asarray(weight)
            shares.append(factor * weight / weight.sum() * np.asarray(part))
        shares = np.concatenate(shares)
        return shares.sum(), shares

    loss, changes, resolutions, nothing = measure(CASE.params, MOVED)
    before, shares = dense(CASE.params)
    after, _ = dense(MOVED)
    np.testing.assert_allclose(loss, before, rtol=1e-13)
    np.testing.assert_allclose(changes, after - before, rtol=1e-12)

    def shaken(outputs, by=None):
        """Return |δᵀ ∂ℓ/∂r| per example: what an error δ of the outputs does to the loss; δ = r, a relative one."""
        direction = outputs if by is None else by
        return jax.tree.map(
            jnp.abs, jax.jvp(lambda r: (objective or likelihood.nll)(r, t), (outputs,), (direction,))[1]
        )

    def signed(leaf):
        """Return the leaf with the signs of a Weyl sequence: those above ½ stay."""
        place = np.arange(leaf.size, dtype=np.uint64) * 2654435769 % 2**32
        return jnp.where(jnp.asarray(place >= 2**31).reshape(leaf.shape), leaf, -leaf)

    _, by = jax.jvp(lambda params: model(params, x), (CASE.params,), (jax.tree.map(signed, CASE.params),))
    errors = np.abs(shares) + dense(CASE.params, shaken)[1]
    # If little is promised, also what rounding makes of large terms that cancel.
    cancelled = errors + dense(CASE.params, lambda outputs: shaken(outputs, by))[1]
    expected = [
        2 * np.finfo(np.float64).eps * np.linalg.norm(each) for each in (errors, errors, errors, cancelled)
    ]
    np.testing.assert_allclose(resolutions, expected, rtol=1e-12)
    assert nothing == [0] * 4


@pytest.mark.parametrize("microbatch", [None, 1, 3])
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_a_search_probes_the_change_with_its_l2_term(microbatch, l2):
    opt = ng.natural_gradient(
        mlp, ng.Bernoulli(), search=ng.LineSearch(), solver=ng.CG(30, 1e-12), l2=l2, microbatch=microbatch
    )
    data = Data(Batches((X, T, WEIGHTS), None, (X[:4] + 0.1, T[:4], None)))

    @jax.jit
    def probes(params, lengths):
        here, proposal, _ = propose(opt, params, opt.init(params), data)
        changes = jax.vmap(lambda z: probe(opt, here, proposal.rows, z))(lengths)
        return proposal.rows, changes, here.search.resolution

    lengths = jnp.array([[0.0], [1e-6], [0.1], [-1.0], [3.0]])
    rows, found, resolution = probes(CASE.params, lengths)
    row = ravel_pytree(rows[0])[0]

    def loss(p):
        return jnp.mean(ng.Bernoulli().nll(mlp(UNRAVEL(p), X[:4] + 0.1), T[:4])) + l2 / 2 * p @ p

    expected = [loss(FLAT + z * row) - loss(FLAT) for z in lengths[:, 0]]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    # Many lengths at once round otherwise than one, by less than counts as seen.
    assert abs(found[0]) < resolution


def test_in_single_precision_a_small_change_of_a_batch_keeps_its_digits():
    """A step of 1e-5 changes the loss by some 1e-5 of itself."""
    case = CASE.cast(jnp.float32)
    moved = jax.tree.map(
        lambda p, d: p + 1e-5 * d.astype(jnp.float32), case.params, UNRAVEL(normal(4, FLAT.size))
    )
    x, t = case.inputs, T.astype(jnp.float32)

    def change(params, moved, x, t):
        problem = Problem(mlp, ng.Bernoulli())
        examples = problem.examples(params, x, t)
        start = problem.start(problem.at(params, examples), params)
        return problem.change(moved, examples, start), problem.loss(moved, examples) - start.loss

    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (case.params, moved, x, t))
    truth = float(change(*wide)[1])
    found, difference = (float(value) for value in change(case.params, moved, x, t))
    # What is left is the rounding of the model itself.
    assert abs(found - truth) < 2e-3 * abs(truth)
    assert abs(difference - truth) > 1e-2 * abs(truth)


def test_a_loss_known_as_a_number_is_resolved_to_two_of_its_last_digits():
    start = Start.of_value(jnp.float32(-3.0))
    np.testing.assert_allclose(start.resolution, 2 * np.finfo(np.float32).eps * 3)
    assert start.loss == -3
