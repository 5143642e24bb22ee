"""`ng.check` finds each fault it claims to look for, and none where there is none."""

import equinox as eqx
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
    for weights in (-jnp.ones(7), jnp.zeros(7)):
        only(ng.check(MODEL, ng.Gaussian(), PARAMS, (X, ZERO_ONE, weights)), "data", "weights")


def test_data_that_are_not_finite_are_the_only_fault():
    report = ng.check(MODEL, ng.Bernoulli(), PARAMS, (X.at[0, 0].set(jnp.nan), ZERO_ONE))
    only(report, "data", "inputs")
    assert report.passed == ("parameters", "shapes")
    assert not report.warnings
    only(
        ng.check(lambda p, x: jnp.log(MODEL(p, x) - 9), ng.Gaussian(), PARAMS, (X, ZERO_ONE)),
        "data",
        "outputs",
    )


def test_shapes_dtypes_and_models_that_cannot_be_called():
    only(ng.check(MODEL, ng.Gaussian(), PARAMS, (X, ZERO_ONE[:, :2])), "shapes", "shape (7, 2)")
    only(ng.check(MODEL, ng.Gaussian(), {"i": jnp.arange(3)}, (X, ZERO_ONE)), "parameters", "int")
    only(ng.check(lambda p, x, c: x, ng.Gaussian(), PARAMS, (X, ZERO_ONE)), "shapes", "model(params, inputs)")
    only(ng.check(MODEL, ng.Gaussian(), PARAMS, X), "shapes", "(inputs, targets)")


@pytest.mark.parametrize(
    ("model", "batch", "words"),
    [
        (MODEL, (X, ZERO_ONE[:, :2]), "targets have shape (7, 2)"),
        (MODEL, (X, ZERO_ONE, jnp.ones(3)), "weights have shape (3,)"),
        (MODEL, (X[:0], ZERO_ONE[:0]), "The batch is empty"),
        (MODEL, X, "batch must be (inputs, targets)"),
        (lambda p, x: {"mean": MODEL(p, x)}, (X, {"mean": ZERO_ONE}), "returned a dict"),
    ],
)
def test_how_the_model_is_called_is_no_advice_on_data(model, batch, words):
    report = ng.check(model, ng.Gaussian(), PARAMS, batch)
    only(report, "shapes", words)
    assert "model(params, inputs)" not in str(report)
    assert "metric=" not in str(report)


def test_few_programs_are_compiled(compilations):
    """Compiling is all that takes time: the model's own programs, and a few numbers."""
    _, params = dense((3, 5, 3), key=7)
    ng.check(lambda p, x: MODEL(p, x), ng.Gaussian(), params, (X, ZERO_ONE))
    with compilations() as count:
        ng.check(lambda p, x: MODEL(p, x), ng.Gaussian(), params, (X, ZERO_ONE))
    assert count() <= 3


def test_a_class_of_minus_one_and_a_weight_for_it():
    report = ng.check(MODEL, ng.Categorical(), PARAMS, (X, CLASSES.at[0].set(-1)))
    only(report, "targets", "these run from -1 to 2")
    assert "Mask a position by a weight of 0" in str(report)
    weights = jnp.ones(len(X)).at[0].set(0)
    assert ng.check(MODEL, ng.Categorical(), PARAMS, (X, CLASSES.at[0].set(-1), weights))
    only(ng.check(MODEL, ng.Categorical(), PARAMS, (X, None)), "shapes", "the batch has no targets")


def test_a_target_outside_of_a_users_distribution():
    def log_prob(outputs, targets):
        return jnp.sum(jnp.log(targets) - outputs, axis=-1)

    half = ng.Likelihood.from_log_prob(log_prob, kl=lambda r, s: jnp.sum((s - r) ** 2, axis=-1))
    good = jnp.ones_like(MODEL(PARAMS, X))
    assert ng.check(MODEL, half, PARAMS, (X, good))
    report = ng.check(MODEL, half, PARAMS, (X, good.at[2].set(-1)))
    only(report, "targets", "log_prob is not finite for 1 of 7 examples, the first of them number 2")


def test_a_model_of_one_batch_size():
    report = ng.check(lambda p, x: MODEL(p, x.reshape(7, 3)), ng.Gaussian(), PARAMS, (X, ZERO_ONE))
    only(report, "independence", "half of the batch")


def test_a_context_that_is_missing_or_too_many():
    report = ng.check(lambda p, x, key: MODEL(p, x), ng.Gaussian(), PARAMS, (X, ZERO_ONE))
    only(report, "shapes", "missing a required argument: 'key'")
    report = ng.check(MODEL, ng.Gaussian(), PARAMS, (X, ZERO_ONE), context=jnp.ones(()))
    only(report, "shapes", "too many")
    assert "context=" in str(report)


def test_a_module_is_no_model():
    module = eqx.nn.Linear(3, 3, key=jax.random.key(0))
    only(ng.check(module, ng.Gaussian(), PARAMS, (X, ZERO_ONE)), "model", "give a function")


def test_a_model_that_has_no_forward_mode():
    @jax.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))
    report = ng.check(lambda p, x: double(MODEL(p, x)), ng.Gaussian(), PARAMS, (X, ZERO_ONE))
    only(report, "metric", "jax.custom_jvp")
    assert "metric=" not in str(report)


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


def test_an_output_activation_at_parameters_of_0():
    weights = jnp.zeros((X.shape[1], 3))
    linear = ng.check(lambda p, x: x @ p, ng.Categorical(), weights, (X, CLASSES))
    assert not linear.faults
    only(
        ng.check(lambda p, x: jax.nn.softmax(x @ p), ng.Categorical(), weights, (X, CLASSES)),
        "outputs", "softmax",
    )  # fmt: skip


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
        def at(self, outputs):
            return super().at(outputs)._replace(product=lambda u: u + jnp.roll(u, 1, axis=-1))

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


def dense(sizes, key=0):
    """A network, and its parameters, for inputs of another width."""
    keys = jax.random.split(jax.random.key(key), len(sizes) - 1)
    shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
    params = [{"w": jax.random.normal(k, (n, m)) / n, "b": jnp.zeros(m)} for k, n, m in shapes]
    return MODEL, params


def warned(report):
    """The names of the warnings in a report without faults."""
    assert report, str(report)
    return [warning.check for warning in report.warnings]


def gaussian(x, outputs=3, model=MODEL, **options):
    _, params = dense((x.shape[1], 4, outputs))
    return ng.check(model, ng.Gaussian(), params, (x, jnp.zeros((x.shape[0], outputs))), **options)


NORMAL = jax.random.normal(jax.random.key(3), (20, 6))


def test_a_sound_case_has_no_warning():
    assert not warned(gaussian(NORMAL))
    assert "warning" not in str(gaussian(NORMAL))


def test_columns_of_different_scales():
    report = gaussian(NORMAL * jnp.array([1.0, 1.0, 1.0, 1e4, 1.0, 1.0]))
    assert warned(report) == ["scale"]
    assert "inputs[:, 3]" in str(report)
    assert "No fault found. 1 warning." in str(report)
    assert "  ! scale:" in str(report)
    assert not warned(gaussian(NORMAL * jnp.array([1.0, 1.0, 1.0, 100.0, 1.0, 1.0])))


def test_pixels_that_are_rarely_on_are_no_matter_of_scale():
    pixels = jnp.zeros((500, 6)).at[:, 0].set(jnp.linspace(0, 1, 500)).at[7, 1].set(1 / 255)
    assert pixels[:, 0].std() > 1e3 * pixels[:, 1].std()
    assert not warned(gaussian(pixels))


def test_columns_that_never_vary_are_counted_and_a_few_are_named():
    report = gaussian(NORMAL.at[:, 2].set(1.0))
    assert warned(report) == ["constant inputs"]
    assert "1 of 6 input columns never varies over the batch: inputs[:, 2]." in str(report)
    wide = jnp.concatenate([jnp.full((20, 37), -0.4), NORMAL], axis=1)
    report = gaussian(wide)
    assert (
        "37 of 43 input columns never vary over the batch: inputs[:, 0], inputs[:, 1], inputs[:, 2], …"
        in str(report)
    )
    assert len(str(report).splitlines()) == 6  # Two lines are the hint at ng.gauss_newton.


def test_columns_of_zeros_are_ordinary_unless_there_is_nothing_else():
    assert not warned(gaussian(NORMAL.at[:, :4].set(0.0)))
    assert "6 of 6 input columns" in str(gaussian(jnp.zeros((20, 6))))


def test_inputs_in_a_tree_are_named_by_their_path():
    inputs = {"age": 1e5 * NORMAL[:, :1], "images": NORMAL.reshape(20, 3, 2).at[:, 1, 0].set(2.0)}

    def model(params, x):
        return MODEL(params, jnp.concatenate([x["age"], x["images"].reshape(-1, 6)], axis=1))

    _, params = dense((7, 4, 3))
    report = ng.check(model, ng.Gaussian(), params, (inputs, jnp.zeros((20, 3))))
    assert warned(report) == ["scale", "constant inputs"]
    assert ", inputs['age'][:, 0] " in str(report)
    assert "1 of 7 input columns never varies over the batch: inputs['images'][:, 1, 0]." in str(report)


def test_integers_are_indices():
    tokens = jnp.array([[0, 5, 50_000]] * 10)
    params = {"table": jax.random.normal(jax.random.key(0), (8, 2))}

    def model(params, x):
        return params["table"][x % 8].reshape(x.shape[0], -1) * jnp.arange(1.0, x.shape[0] + 1)[:, None]

    report = ng.check(model, ng.Gaussian(), params, (tokens, jnp.zeros((10, 6))))
    assert not report.warnings


def test_a_dead_output_is_told_from_a_last_layer_that_starts_at_zero():
    model, params = dense((6, 4, 3))
    batch = (NORMAL, jnp.zeros((20, 3)))
    zero = [params[0], jax.tree.map(jnp.zeros_like, params[1])]
    assert not warned(ng.check(model, ng.Gaussian(), zero, batch))

    def rectified(p, x):
        return jax.nn.relu(model(p, x) + jnp.array([5.0, -100.0, 5.0]))

    report = ng.check(rectified, ng.Gaussian(), params, batch)
    assert warned(report) == ["constant outputs"]
    assert "1 of 3 outputs never varies over the batch: outputs[:, 1]." in str(report)


def test_fewer_examples_than_outputs():
    report = gaussian(NORMAL[:4], outputs=5)
    assert warned(report) == ["batch"]
    assert "4 examples for 5 outputs: the metric has rank 20 at most, for 53 parameters" in str(report)
    assert not warned(gaussian(NORMAL[:5], outputs=5))


def test_positions_of_a_sequence_count_as_rows():
    _, params = dense((6, 4, 5))
    steps = NORMAL.reshape(4, 5, 6)
    assert not warned(ng.check(MODEL, ng.Categorical(), params, (steps, jnp.zeros((4, 5), jnp.int32))))
    assert warned(ng.check(MODEL, ng.Categorical(), params, (steps[:, :1], jnp.zeros((4, 1), jnp.int32))))


def test_one_example_and_half_precision_are_looked_at_without_a_word():
    assert warned(gaussian(NORMAL[:1], outputs=1)) == []
    case = MODELS["mlp"].cast(jnp.bfloat16)
    report = ng.check(MODEL, ng.Gaussian(), case.params, (case.inputs, ZERO_ONE.astype(jnp.bfloat16)))
    assert not warned(report)


def test_few_parameters_and_squares_get_a_hint():
    def model(params, x):
        return jnp.tanh(x) @ params

    x = jax.random.normal(jax.random.key(0), (20, 3))
    for dtype, words in ((jnp.float32, "jax_enable_x64"), (jnp.float64, "float64 as here")):
        batch = (x.astype(dtype), jnp.sin(x[:, 0]).astype(dtype))
        report = ng.check(model, ng.Gaussian(), jnp.array([0.1, -0.4, 0.3], dtype), batch)
        assert report
        assert not report.warnings
        (hint,) = report.hints
        assert "ng.gauss_newton" in hint.advice
        assert words in hint.advice
        assert "→ few parameters: 3 parameters" in str(report)
    assert not ng.check(model, ng.Bernoulli(), jnp.ones(3), (x, jnp.round(jax.nn.sigmoid(x[:, 0])))).hints
    many = jnp.ones((5000, 1)) / 100
    wide = (jnp.sin(jnp.arange(50_000.0).reshape(10, 5000)), jnp.ones((10, 1)))
    assert not ng.check(lambda p, x: x @ p, ng.Gaussian(), many, wide).hints
