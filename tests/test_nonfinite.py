"""A NaN or an infinity in any batch a step uses: refused to the bit, named, and forgotten.

λ has no part in what is not finite at θ itself; it rises where a larger one may mend it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import MODELS, dense

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

CASE = MODELS["mlp"]


def leaky(params, x):
    """A network that hides no infinity: tanh would turn one into a 1."""
    return dense(params[1], jax.nn.leaky_relu(dense(params[0], x)))


TARGETS = jax.random.bernoulli(jax.random.key(1), 0.4, (7, 3)).astype(jnp.float64)


def clean():
    """All batches, each its own arrays, so that each can be spoiled alone."""
    u, v, w = (CASE.inputs[k : k + 5] + 0.01 * k for k in range(3))
    return {
        "batch": (CASE.inputs, TARGETS, jnp.ones(7)),
        "metric_inputs": u,
        "search_batch": (v, TARGETS[1:6], jnp.ones(5)),
        "ratio_batch": (w, TARGETS[2:], jnp.ones(5)),
    }


def spoil(batches, name, part, value):
    """One bad number in the last example."""

    def bad(x):
        return x.at[(-1,) * x.ndim].set(value)

    old = batches[name]
    new = bad(old) if part is None else tuple(bad(x) if i == part else x for i, x in enumerate(old))
    return batches | {name: new}


def step(opt, params, state, batches):
    batches = dict(batches)
    return opt.step(params, state, batches.pop("batch"), **batches)


def identical(x, y):
    return all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
    )


def finite(state):
    leaves = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return all(jnp.isfinite(leaf).all() for leaf in leaves)


LM = ng.LevenbergMarquardt(0.5)
METHODS = {
    "NGD": ng.natural_gradient(leaky, ng.Bernoulli(), damping=LM),
    "NGD-L": ng.natural_gradient(leaky, ng.Bernoulli(), search=ng.LineSearch(), damping=LM),
    "KL": ng.natural_gradient(leaky, ng.Bernoulli(), search=ng.KLRadius(1e-3), damping=LM, max_norm=0.5),
    "chunks": ng.natural_gradient(leaky, ng.Bernoulli(), damping=LM, microbatch=2, l2=0.01, reject=-9.0),
    "diagonal": ng.natural_gradient(leaky, ng.Bernoulli(), metric=ng.DiagonalFisher(), damping=LM),
    "SGD-L": ng.sgd(leaky, ng.Bernoulli(), search=ng.LineSearch(), damping=LM),
}
PLACES = {
    "gradient inputs": ("batch", 0, "NONFINITE_GRADIENT", "KEPT_REFUSED"),
    "gradient targets": ("batch", 1, "NONFINITE_GRADIENT", "KEPT_REFUSED"),
    "gradient weights": ("batch", 2, "NONFINITE_GRADIENT", "KEPT_REFUSED"),
    "metric inputs": ("metric_inputs", None, "NONFINITE_METRIC", "RAISED_REFUSED"),
    "search inputs": ("search_batch", 0, "NONFINITE_LOSS", "KEPT_REFUSED"),
    "search targets": ("search_batch", 1, "NONFINITE_LOSS", "KEPT_REFUSED"),
    "ratio inputs": ("ratio_batch", 0, "NONFINITE_LOSS", "KEPT_REFUSED"),
    "ratio targets": ("ratio_batch", 1, "NONFINITE_LOSS", "KEPT_REFUSED"),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_bad_number_is_refused_named_and_forgotten(method):
    opt = METHODS[method]
    good = clean()
    start = opt.init(CASE.params)
    _, _, info = step(opt, CASE.params, start, good)
    assert info.accepted
    later = start._replace(steps=jnp.ones((), jnp.int32))
    want = {
        damping: step(opt, CASE.params, later._replace(damping=jnp.asarray(damping)), good)
        for damping in (0.5, 0.75)
    }
    for place, (name, part, reason, answer) in PLACES.items():
        damping = 0.75 if answer == "RAISED_REFUSED" else 0.5
        unused = (name == "search_batch" and not opt.search.measures) or (
            name == "metric_inputs" and not opt.direction.needs_metric
        )
        for value in (jnp.nan, jnp.inf):
            params, state, info = step(opt, CASE.params, start, spoil(good, name, part, value))
            if unused:
                assert info.accepted, (place, value)
                continue
            assert not info.accepted, (place, value)
            assert ng.Outcome(int(info.outcome)).name == reason, (place, value)
            assert identical(params, CASE.params), (place, value)
            assert ng.Answer(int(info.answer)).name == answer, (place, value)
            assert state.damping == damping, (place, value)
            assert finite(state), (place, value)
            # The next clean step is the one a fresh state with this λ would take.
            after, after_state, info = step(opt, params, state, good)
            assert info.accepted, (place, value)
            assert identical(after, want[damping][0]), (place, value)
            assert identical(after_state.damping, want[damping][1].damping), (place, value)


@pytest.mark.parametrize(("place", "damping"), [("gradient inputs", 0.5), ("metric inputs", 1.5)])
def test_a_bad_number_is_never_accepted_however_many_in_a_row(place, damping):
    """λ stays, or rises to three times its first value and no further."""
    opt = METHODS["NGD"]
    params, state = CASE.params, opt.init(CASE.params)
    bad = spoil(clean(), *PLACES[place][:2], jnp.nan)
    for k in range(60):
        params, state, info = step(opt, params, state, bad)
        assert not info.accepted
        assert state.steps == k + 1
    assert identical(params, CASE.params)
    assert state.damping == damping
    assert step(opt, params, state, clean())[2].accepted


@pytest.mark.parametrize(
    "opt",
    [
        ng.sgd(leaky, ng.Bernoulli()),
        ng.natural_gradient(leaky, ng.Bernoulli(), damping=ng.Constant(0.1)),
    ],
    ids=["sgd", "natural gradient with constant damping"],
)
def test_a_batch_the_method_does_not_use_does_not_matter(opt):
    good = clean()
    state = opt.init(CASE.params)
    want, _, _ = step(opt, CASE.params, state, good)
    bad = spoil(spoil(good, "search_batch", 0, jnp.nan), "ratio_batch", 1, jnp.inf)
    if not opt.direction.needs_metric:
        bad = spoil(bad, "metric_inputs", None, jnp.nan)
    found, new_state, info = step(opt, CASE.params, state, bad)
    assert info.accepted
    assert identical(found, want)
    assert finite(new_state)


def test_constant_damping_stays_constant_through_a_refusal():
    opt = ng.natural_gradient(leaky, ng.Bernoulli(), damping=ng.Constant(0.1))
    params, state, info = step(opt, CASE.params, opt.init(CASE.params), spoil(clean(), "batch", 0, jnp.nan))
    assert not info.accepted
    assert identical(params, CASE.params)
    assert state.damping == 0.1


def test_a_bad_gradient_from_elsewhere_is_refused():
    opt = ng.natural_gradient(leaky, ng.Bernoulli(), damping=ng.Constant(0.1))
    gradient = jax.tree.map(jnp.ones_like, CASE.params)
    bad = jax.tree.map(lambda leaf: leaf.at[0].set(jnp.nan), gradient)
    batch = (CASE.inputs, None)
    state = opt.init(CASE.params)
    params, state, info = opt.step(CASE.params, state, batch, gradient=bad)
    assert ng.Outcome.name_of(info.outcome) == "nonfinite gradient"
    assert identical(params, CASE.params)
    assert opt.step(params, state, batch, gradient=gradient)[2].accepted


@pytest.mark.parametrize("method", METHODS)
def test_weights_that_sum_to_zero_are_refused_and_leave_lambda_alone(method):
    opt = METHODS[method]
    batches = clean()
    empty = batches | {"batch": (*batches["batch"][:2], jnp.zeros(7))}
    params, state = CASE.params, opt.init(CASE.params)
    for _ in range(3):
        params, state, info = step(opt, params, state, empty)
        assert ng.Outcome(int(info.outcome)) == ng.Outcome.NONFINITE_GRADIENT
        assert identical(params, CASE.params)
        assert state.damping == 0.5
    assert finite(state)
    assert step(opt, params, state, batches)[2].accepted


def test_an_overflowing_step_is_refused():
    """Finite batch, finite gradient, a rate beyond reason: the loss after it is not finite."""

    def cubic(params, x):
        return leaky(params, x) ** 3

    opt = ng.natural_gradient(cubic, ng.Gaussian(), damping=LM)
    params, state, info = opt.step(
        CASE.params, opt.init(CASE.params), (CASE.inputs, TARGETS), learning_rate=1e60
    )
    assert ng.Outcome(int(info.outcome)) == ng.Outcome.NONFINITE_LOSS
    assert identical(params, CASE.params)
    assert state.damping == 0.75


def test_a_bad_batch_does_not_outlive_its_step_in_the_context():
    """The running mean of a Stateful model stays finite, so that the next clean step works."""

    def model(params, x, mean):
        return leaky(params, x - mean), 0.9 * mean + 0.1 * jnp.mean(x, axis=0)

    opt = ng.natural_gradient(ng.Stateful(model), ng.Bernoulli(), damping=LM)
    state, mean = opt.init(CASE.params), jnp.zeros(3)
    params, state, info = opt.step(
        CASE.params, state, (CASE.inputs.at[0, 0].set(jnp.nan), TARGETS), context=mean
    )
    assert not info.accepted
    assert jnp.array_equal(info.context, mean)
    _, _, info = opt.step(params, state, (CASE.inputs, TARGETS), context=info.context)
    assert info.accepted
    np.testing.assert_allclose(info.context, 0.1 * CASE.inputs.mean(0))
