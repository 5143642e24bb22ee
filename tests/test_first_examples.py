"""The examples for newcomers, small: they run, and show what they say."""

import importlib.util
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def as_a_user_runs_it():
    """Examples run in JAX's default settings: float32, standard promotion."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


def load(name):
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))  # for their helper
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_digits():
    assert load("digits").main(steps=30) > 0.9


def test_counts_have_the_negative_binomials_fisher_information():
    example = load("counts")
    r, u = np.linspace(-2, 4, 7, dtype=np.float32)[:, None], np.ones((7, 1), np.float32)
    mean = np.exp(r)
    expected = mean * example.SPREAD / (mean + example.SPREAD)
    np.testing.assert_allclose(example.negative_binomial.fisher(r, u), expected, rtol=1e-4)
    errors = example.main()
    assert errors["negative binomial"] < min(0.2, 0.9 * errors["Poisson"])


def test_batch_norm_predicts_with_its_running_statistics():
    running, first = load("batch_norm").main(steps=30)
    assert running > 0.9
    assert first < running - 0.1


def test_dropout_steps_see_one_network_each():
    before, after, rhos = load("dropout").main(steps=12)
    assert after < 0.7 * before
    assert 0.5 < min(rhos) <= max(rhos) < 1.3


def test_dropout_takes_both_losses_with_the_steps_own_key():
    example, key = load("dropout"), jax.random.key(5)
    x = jax.random.normal(jax.random.key(0), (200, 2))
    params, t = example.net.init(jax.random.key(1), x, train=False), (x[:, :1] > 0).astype(x.dtype)
    opt = ng.kncg(example.model, ng.Bernoulli(), average=None)
    after, _, info = opt.step(params, opt.init(params), (x, t), context=key)
    for found, place in ((info.loss, params), (info.new_loss, after)):
        own, other = (
            float(np.mean(ng.Bernoulli().nll(example.model(place, x, each), t)))
            for each in (key, jax.random.key(6))
        )
        assert abs(float(found) - own) < 0.05 * abs(own - other)


def test_physics_runs():
    errors = load("physics").main(seconds=0.5, side=8)
    assert all(np.isfinite(error) for error in errors.values())


@pytest.mark.long
def test_physics_gauss_newton_passes_adam():
    """A race by the clock: for a machine that does nothing else."""
    errors = load("physics").main(seconds=5.0, side=12)
    assert errors.pop("Gauss–Newton") < 0.1 * min(errors.values())


def test_online_needs_a_metric_from_other_examples():
    losses = load("online").main(count=1000)
    best = losses["the true model"]
    natural = losses["natural gradient, unlabelled metric"]
    assert natural < best + 0.06
    assert natural < losses["natural gradient, the example's own"] - 0.05


def test_uncertainty_is_larger_where_there_is_no_data():
    deviations = load("laplace").main(steps=40)
    assert deviations["in the data"] < 0.1
    assert deviations["in the gap"] > 1.5 * deviations["in the data"]
    assert deviations["outside"] > 3 * deviations["in the data"]


def test_the_autoencoder_leaves_the_mean_picture():
    example = load("autoencoder")
    x, _ = example.data()
    mean = float(np.sum(np.var(np.asarray(x), axis=0)))
    start = float(example.squared_error(example.init(jax.random.key(0)), x))
    _, rows = example.train(example.ng.kncg(example.model, example.LIKELIHOOD), x, 500, steps=40)
    assert rows[-1, 2] < 0.7 * mean < start


def test_the_recurrent_net_runs():
    """It learns, too, but not in the time of a test."""
    example = load("recurrent")
    opt = example.ng.kncg(example.model, example.ng.Gaussian())
    rows = example.train(opt, 10, 200, steps=25)
    assert rows[-1, 2] < 0.5 * example.BLIND


def test_among_the_predictions_the_natural_gradient_goes_straight():
    """The length of its path over the distance of its ends is 1 there, and not among the parameters."""
    paths = load("two_spaces").main(steps=60)

    def detour(points):
        points = np.asarray(points)
        return np.linalg.norm(np.diff(points, axis=0), axis=1).sum() / np.linalg.norm(points[-1] - points[0])

    parameters, predictions = paths["natural gradient"]
    assert detour(predictions) < 1.002 < 1.01 < detour(parameters)
    assert detour(paths["gradient"][1]) > 1.02
