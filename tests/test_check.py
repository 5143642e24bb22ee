"""`ng.check` finds each fault it claims to look for, and none where there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import MODELS, targets_for

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

MODEL, PARAMS, X = MODELS["mlp"]
CLASSES = jnp.array([0, 1, 2, 0, 1, 2, 0])
ZERO_ONE = targets_for(ng.Bernoulli(), MODEL(PARAMS, X))


def only(report, check, words):
    """The report has this one fault."""
    assert not report
    assert [fault.check for fault in report.faults] == [check], str(report)
    assert words in str(report), str(report)


def test_a_sound_case_has_no_fault():
    model, params, inputs = MODELS["mlp"]
    for likelihood in (ng.Gaussian(), ng.Categorical()):
        targets = targets_for(likelihood, model(params, inputs))

        def loss(p, likelihood=likelihood, targets=targets):
            return 5.0 + jnp.mean(likelihood.nll(model(p, inputs), targets))

        report = ng.check(model, likelihood, params, (inputs, targets), loss=loss)
        assert report, str(report)
        assert "loss" in report.passed
        assert "No fault found." in str(report)


def test_float32_and_a_product_have_no_fault():
    case = MODELS["mlp"].cast(jnp.float32)

    def model(params, x):
        return MODEL(params, x[0]), MODEL(params, x[1])

    inputs = (case.inputs, case.inputs[:4])
    targets = (ZERO_ONE.astype(jnp.float32), CLASSES[:4])
    likelihood = ng.Product(ng.Bernoulli(), ng.Categorical())
    assert ng.check(model, likelihood, case.params, (inputs, targets)), "sound"
    bad = (targets[0], targets[1] + 1)
    only(ng.check(model, likelihood, case.params, (inputs, bad)), "targets", "0…2")


@pytest.mark.parametrize(
    ("likelihood", "targets", "words"),
    [
        (ng.Bernoulli(), ZERO_ONE * 255, "[0, 1]"),
        (ng.Categorical(), CLASSES + 1, "from 1 to 3"),
        (ng.Categorical(), jnp.ones((7, 3)), "sum to 1"),
        (ng.Poisson(), -jnp.ones((7, 3)), "counts"),
    ],
)
def test_target_values(likelihood, targets, words):
    only(ng.check(MODEL, likelihood, PARAMS, (X, targets)), "targets", words)


def test_numbers_that_are_not_finite():
    only(ng.check(MODEL, ng.Gaussian(), PARAMS, (X, ZERO_ONE.at[2].set(jnp.nan))), "data", "targets")
    bad = jax.tree.map(lambda leaf: leaf * jnp.inf, PARAMS)
    only(ng.check(MODEL, ng.Gaussian(), bad, (X, ZERO_ONE)), "parameters", "[0]['b'] holds")
    weights = -jnp.ones(7)
    only(ng.check(MODEL, ng.Gaussian(), PARAMS, (X, ZERO_ONE, weights)), "data", "weights")


def test_shapes_dtypes_and_models_that_cannot_be_called():
    only(ng.check(MODEL, ng.Gaussian(), PARAMS, (X, ZERO_ONE[:, :2])), "shapes", "shape (7, 2)")
    only(ng.check(MODEL, ng.Gaussian(), {"i": jnp.arange(3)}, (X, ZERO_ONE)), "parameters", "int")
    only(ng.check(lambda p, x, c: x, ng.Gaussian(), PARAMS, (X, ZERO_ONE)), "shapes", "model(params, inputs)")
    only(ng.check(MODEL, ng.Gaussian(), PARAMS, X), "shapes", "(inputs, targets)")


@pytest.mark.parametrize(
    ("likelihood", "activation", "targets", "words"),
    [
        (ng.Categorical(), jax.nn.softmax, CLASSES, "softmax"),
        (ng.Bernoulli(), jax.nn.sigmoid, ZERO_ONE, "sigmoid"),
        (ng.Poisson(), jnp.exp, ZERO_ONE, "exponential"),
    ],
)
def test_output_activations(likelihood, activation, targets, words):
    report = ng.check(lambda p, x: activation(MODEL(p, x)), likelihood, PARAMS, (X, targets))
    only(report, "outputs", words)


def test_a_model_that_draws_its_own_noise():
    rng = np.random.default_rng(0)

    def noisy(params, x):
        return MODEL(params, x) * rng.uniform(size=(x.shape[0], 1))

    report = ng.check(noisy, ng.Gaussian(), PARAMS, (X, ZERO_ONE))
    assert "determinism" in [fault.check for fault in report.faults]
    assert "context=" in str(report)


def test_batch_statistics_couple_examples():
    def normalized(params, x):
        hidden = MODEL(params, x)
        return hidden - jnp.mean(hidden, axis=0)

    only(ng.check(normalized, ng.Gaussian(), PARAMS, (X, ZERO_ONE)), "independence", "batch normalization")
    declared = ng.Stateful(lambda params, x, c: (normalized(params, x), c))
    assert ng.check(declared, ng.Gaussian(), PARAMS, (X, ZERO_ONE), context=jnp.zeros(()))


def test_metrics_that_are_no_metric():
    concave = ng.Likelihood.from_loss(lambda r, t: -jnp.sum((r - t) ** 2, axis=-1))
    only(ng.check(MODEL, concave, PARAMS, (X, ZERO_ONE)), "metric", "not positive")

    class Skewed(ng.Gaussian):
        def fisher(self, outputs, u):
            return u + jnp.roll(u, 1, axis=-1)

    only(ng.check(MODEL, Skewed(), PARAMS, (X, ZERO_ONE)), "metric", "not symmetric")
    only(
        ng.check(lambda p, x: x + 0 * p[0]["b"][0], ng.Gaussian(), PARAMS, (X, ZERO_ONE)),
        "metric",
        "do not depend",
    )
    sampled = ng.Likelihood.from_log_prob(
        lambda r, t: -jnp.sum((r - t) ** 2, axis=-1) / 2, sample=lambda k, r: r
    )
    only(ng.check(MODEL, sampled, PARAMS, (X, ZERO_ONE)), "metric", "MonteCarloFisher")


def test_a_loss_that_is_not_the_likelihoods():
    def mean_over_outputs(params):
        return jnp.mean((MODEL(params, X) - ZERO_ONE) ** 2) / 2

    def other(params):
        return jnp.mean(jnp.abs(MODEL(params, X) - ZERO_ONE))

    batch = (X, ZERO_ONE)
    only(ng.check(MODEL, ng.Gaussian(), PARAMS, batch, loss=mean_over_outputs), "loss", "0.3333 times")
    only(ng.check(MODEL, ng.Gaussian(), PARAMS, batch, loss=other), "loss", "different directions")
    only(ng.check(MODEL, ng.Gaussian(), PARAMS, batch, loss=lambda p: MODEL(p, X)), "loss", "one number")


def test_frozen_parameters_are_left_out():
    params = {"own": PARAMS, "order": jnp.array([2, 0, 1])}

    def model(p, x):
        return MODEL(p["own"], x[:, p["order"]])

    def loss(p):
        return jnp.mean(ng.Gaussian().nll(model(p, X), ZERO_ONE))

    mask = {"own": True, "order": False}
    assert ng.check(model, ng.Gaussian(), params, (X, ZERO_ONE), trainable=mask, loss=loss)
    only(ng.check(model, ng.Gaussian(), params, (X, ZERO_ONE)), "parameters", "int")
