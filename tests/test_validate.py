"""A call that cannot mean what it says gets one clear sentence."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from models import MODELS, mlp

import natgrad as ng

CASE = MODELS["mlp"]
X, T = CASE.inputs, jnp.ones((7, 3))
W = jnp.ones(7)
OPT = ng.natural_gradient(mlp, ng.Bernoulli())


def step(opt=OPT, params=CASE.params, batch=(X, T), **options):
    return opt.step(params, opt.init(CASE.params), batch, **options)


def with_model(model, likelihood=None):
    return ng.natural_gradient(model, ng.Bernoulli() if likelihood is None else likelihood)


BAD_STEPS = {
    "empty batch": (lambda: step(batch=(X[:0], T[:0])), ValueError, "The batch is empty"),
    "scalar inputs": (lambda: step(batch=(jnp.ones(()), T)), ValueError, "no example axis"),
    "not a pair": (lambda: step(batch=X), TypeError, r"batch must be \(inputs, targets\) or"),
    "too many parts": (lambda: step(batch=(X, T, W, W)), TypeError, r"batch must be \(inputs, targets\) or"),
    "lists": (lambda: step(batch=([1.0, 2.0], T)), TypeError, r"batch holds float.*must be arrays"),
    "no targets": (lambda: step(batch=(X, None)), ValueError, "batch has no targets, and its loss is needed"),
    "targets of another shape": (
        lambda: step(batch=(X, T[:, :2])),
        ValueError,
        r"Bernoulli targets have shape \(7, 2\); the model's outputs have \(7, 3\)",
    ),
    "targets of another length": (lambda: step(batch=(X, T[:5])), ValueError, r"targets have shape \(5, 3\)"),
    "weights of another length": (
        lambda: step(batch=(X, T, W[:4])),
        ValueError,
        r"weights have shape \(4,\); one number per example is \(7,\)",
    ),
    "weights with an axis too many": (
        lambda: step(batch=(X, T, W[:, None])),
        ValueError,
        r"weights have shape \(7, 1\)",
    ),
    "search batch": (
        lambda: step(search_batch=(X, None)),
        ValueError,
        "search_batch has no targets",
    ),
    "ratio batch": (lambda: step(ratio_batch=X), TypeError, r"ratio_batch must be \(inputs, targets\)"),
    "float classes": (
        lambda: step(with_model(mlp, ng.Categorical()), batch=(X, jnp.ones(7))),
        ValueError,
        r"Categorical targets have shape \(7,\) and dtype float64; logits of shape \(7, 3\) need integer classes",
    ),
    "classes in a column": (
        lambda: step(with_model(mlp, ng.Categorical()), batch=(X, jnp.ones((7, 1), jnp.int32))),
        ValueError,
        r"need integer classes of shape \(7,\) or one-hot rows of shape \(7, 3\)",
    ),
    "integer parameters": (
        lambda: step(params=[{"w": jnp.ones((3, 3), jnp.int32)}]),
        TypeError,
        r"params holds an array of int32.*eqx.partition.*nnx.split",
    ),
    "a float among the parameters": (
        lambda: step(params={"w": 1.0}),
        TypeError,
        r"params holds float: every leaf must be a floating array",
    ),
    "a key among the parameters": (
        lambda: OPT.init({"w": jnp.ones(3), "key": jax.random.key(0)}),
        TypeError,
        r"params holds an array of key.*eqx.partition",
    ),
    "no parameters": (lambda: OPT.init({}), ValueError, "params has no arrays"),
    "learning_rate with a search": (
        lambda: step(ng.natural_gradient(mlp, ng.Bernoulli(), search=ng.LineSearch()), learning_rate=0.1),
        ValueError,
        "learning_rate= was given, but LineSearch chooses the step length",
    ),
    "labels handed to Fisher": (
        lambda: step(metric_inputs=X, metric_targets=T),
        ValueError,
        "Fisher takes no labels: its expectation is over the model's own distribution",
    ),
    "labels handed to a sampled Fisher": (
        lambda: step(
            ng.natural_gradient(mlp, ng.Bernoulli(), metric=ng.MonteCarloFisher()),
            metric_inputs=X,
            metric_targets=T,
        ),
        ValueError,
        "MonteCarloFisher takes no labels",
    ),
    "labels handed to a sum of metrics without labels": (
        lambda: step(
            ng.natural_gradient(
                mlp, ng.Bernoulli(), metric=ng.Fisher() + ng.StructuralDamping(mlp, tied=False)
            ),
            metric_inputs=X,
            metric_targets=T,
        ),
        ValueError,
        "Sum takes no labels",
    ),
    "a preconditioner for the dual solve": (
        lambda: step(
            ng.natural_gradient(mlp, ng.Bernoulli(), solver=ng.Direct(), preconditioner=ng.Jacobi())
        ),
        ValueError,
        "Direct solves at once: it takes no warm start, x0= or preconditioner=",
    ),
    "a warm start for the dual solve": (
        lambda: step(replace(OPT, direction=ng.Natural(ng.Direct(), warm_start=0.5))),
        ValueError,
        "Direct solves at once: it takes no warm start, x0= or preconditioner=",
    ),
    "labels beside the metric inputs": (
        lambda: step(metric_inputs=(X, T)),
        ValueError,
        "metric_inputs must look like the batch's inputs, without labels",
    ),
    "metric inputs of another shape": (
        lambda: step(metric_inputs=X[:, :2]),
        ValueError,
        r"metric_inputs have shape \(7, 2\); the batch's inputs have shape \(7, 3\)",
    ),
    "metric weights of another length": (
        lambda: step(metric_inputs=X, metric_weights=W[:3]),
        ValueError,
        r"weights have shape \(3,\)",
    ),
    "metric targets alone": (
        lambda: step(ng.natural_gradient(mlp, ng.Bernoulli(), metric=ng.EmpiricalFisher()), metric_targets=T),
        ValueError,
        "metric_targets= was given without metric_inputs=",
    ),
    "a metric that needs labels": (
        lambda: step(ng.natural_gradient(mlp, ng.Bernoulli(), metric=ng.EmpiricalFisher()), metric_inputs=X),
        ValueError,
        "EmpiricalFisher is defined by labels: give metric_targets= beside metric_inputs=",
    ),
    "a given gradient, but the ratio needs targets": (
        lambda: step(batch=(X, None), gradient=CASE.params),
        ValueError,
        "batch has no targets, and its loss is needed",
    ),
    "a given gradient, but the metric needs targets": (
        lambda: step(
            ng.natural_gradient(mlp, ng.Bernoulli(), metric=ng.EmpiricalFisher(), damping=ng.Constant(1.0)),
            batch=(X, None),
            gradient=CASE.params,
        ),
        ValueError,
        "batch has no targets",
    ),
    "a gradient of another shape": (
        lambda: step(gradient=CASE.params[:1]),
        ValueError,
        "gradient must have the structure and shapes of params",
    ),
    "a search in a metric there is not": (
        lambda: step(ng.sgd(mlp, ng.Bernoulli(), search=ng.KLRadius(1.0))),
        ValueError,
        "KLRadius measures steps in the metric, and this direction has none",
    ),
    "a model without an example axis": (
        lambda: step(with_model(lambda p, x: jnp.sum(mlp(p, x)))),
        ValueError,
        r"The model returned shape \(\) for inputs of \[7\] examples: its first axis must be the example axis",
    ),
    "a model with another example axis": (
        lambda: step(with_model(lambda p, x: mlp(p, x).T)),
        ValueError,
        r"The model returned shape \(3, 7\)",
    ),
    "a model that returns integers": (
        lambda: step(with_model(lambda p, x: jnp.argmax(mlp(p, x), 1))),
        ValueError,
        "The model must return floating arrays",
    ),
    "a model that returns nothing": (
        lambda: step(with_model(lambda p, x: None)),
        ValueError,
        "The model must return floating arrays",
    ),
    "a list for a Product": (
        lambda: step(
            with_model(lambda p, x: [mlp(p, x), mlp(p, x)], ng.Product(ng.Bernoulli(), ng.Gaussian())),
            batch=(X, (T, T)),
        ),
        ValueError,
        "A Product of 2 likelihoods needs a model that returns a tuple of 2 outputs",
    ),
    "one target for a Product": (
        lambda: step(
            with_model(lambda p, x: (mlp(p, x), mlp(p, x)), ng.Product(ng.Bernoulli(), ng.Gaussian())),
            batch=(X, T),
        ),
        ValueError,
        "Product targets must be a tuple of 2 entries",
    ),
    "a dictionary of outputs": (
        lambda: step(with_model(lambda p, x: {"mean": mlp(p, x)}), batch=(X, {"mean": T})),
        ValueError,
        "The model returned a dict, and Bernoulli reads one array of outputs.*ng.Product",
    ),
    "a tuple of outputs without a Product": (
        lambda: step(with_model(lambda p, x: (mlp(p, x), mlp(p, x)), ng.Gaussian()), batch=(X, (T, T))),
        ValueError,
        "The model returned a tuple, and Gaussian reads one array of outputs",
    ),
    "a dictionary in a Product": (
        lambda: step(
            with_model(lambda p, x: (mlp(p, x), {"a": mlp(p, x)}), ng.Product(ng.Bernoulli(), ng.Gaussian())),
            batch=(X, (T, {"a": T})),
        ),
        ValueError,
        "returned a dict, and Gaussian reads one array",
    ),
    "an objective of another shape": (
        lambda: step(ng.natural_gradient(mlp, ng.Bernoulli(), objective=lambda r, t: jnp.mean(r))),
        ValueError,
        r"objective returned shape \(\); it must give one number per example, \(7,\)",
    ),
    "a loss of another shape": (
        lambda: step(
            ng.natural_gradient(
                mlp, ng.Likelihood.from_loss(lambda r, t: (r - t) ** 2), metric=ng.GaussNewton()
            )
        ),
        ValueError,
        r"loss returned shape \(7, 3\); it must give one number per example",
    ),
    "a bare loss and Fisher": (
        lambda: step(with_model(mlp, ng.Likelihood.from_loss(lambda r, t: jnp.sum((r - t) ** 2, 1)))),
        TypeError,
        "from_loss defines no distribution, so no Fisher",
    ),
}

BAD_STEPS |= {
    "a context forgotten": (
        lambda: step(with_model(lambda p, x, key: mlp(p, x))),
        TypeError,
        r"The model is called as model\(params, inputs\).*missing a required argument: 'key'.*context=",
    ),
    "a context too many": (
        lambda: step(context=jnp.ones(())),
        TypeError,
        r"The model is called as model\(params, inputs, context\).*too many.*context=",
    ),
    "a context forgotten by a search on the host": (
        lambda: step(
            ng.natural_conjugate_gradient(lambda p, x, key: mlp(p, x), ng.Bernoulli(), search=ng.Cobyla())
        ),
        TypeError,
        "context=",
    ),
    "a module for metric_product": (
        lambda: ng.metric_product(eqx.nn.Linear(3, 3, key=jax.random.key(0)), ng.Gaussian(), CASE.params, X),
        TypeError,
        "model is a Linear that holds arrays",
    ),
    "a module for optax": (
        lambda: ng.optax.kncg(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), ng.Gaussian()),
        TypeError,
        "model is a Linear that holds arrays",
    ),
}

BAD_PARTS = {
    "negative damping": (lambda: ng.Constant(-1.0), r"Constant\(-1.0\): damping cannot be negative"),
    "NaN damping": (lambda: ng.Constant(np.nan), "damping cannot be negative"),
    "negative first damping": (lambda: ng.LevenbergMarquardt(-3.0), "outside its bounds .*, or not positive"),
    "zero damping": (lambda: ng.LevenbergMarquardt(0.0), "not positive"),
    "unknown reduction": (lambda: ng.LevenbergMarquardt(reduction="cubic"), 'choose "quadratic" or "linear"'),
    "thresholds": (lambda: ng.LevenbergMarquardt(low=0.9), "low < high"),
    "learning_rate and search": (
        lambda: ng.natural_gradient(mlp, ng.Bernoulli(), learning_rate=1.0, search=ng.LineSearch()),
        "Give learning_rate= or search=LineSearch, not both",
    ),
    "learning_rate and search of sgd": (
        lambda: ng.sgd(mlp, ng.Bernoulli(), learning_rate=1.0, search=ng.LineSearch()),
        "not both",
    ),
    "negative l2": (lambda: ng.sgd(mlp, ng.Bernoulli(), l2=-1.0), "l2=-1.0: a penalty cannot be negative"),
    "max_norm": (lambda: ng.sgd(mlp, ng.Bernoulli(), max_norm=0.0), "max_norm=0.0: give a positive length"),
    "microbatch": (lambda: ng.sgd(mlp, ng.Bernoulli(), microbatch=0), "microbatch=0: give a positive number"),
    "scale": (lambda: ng.Gaussian(-1.0), "the standard deviation must be positive"),
    "radius": (lambda: ng.KLRadius(0.0), "both must be positive"),
    "line search": (lambda: ng.LineSearch(maxprobes=0), "LineSearch needs"),
    "samples": (lambda: ng.MonteCarloFisher(0), "at least one sample"),
    "empty product": (lambda: ng.Product(), "one weight for each"),
    "nested product": (lambda: ng.Product(ng.Product(ng.Bernoulli())), "flatten the inner Product"),
    "product weights": (lambda: ng.Product(ng.Bernoulli(), weights=(1.0, 2.0)), "one weight for each"),
}


class Unhashable:
    """A callable that defines equality alone."""

    def __call__(self, params, inputs):
        return inputs

    def __eq__(self, other):
        return True

    __hash__ = None


BAD_TYPES = {
    "a module as the model": (
        lambda: ng.sgd(eqx.nn.Linear(3, 3, key=jax.random.key(0)), ng.Gaussian()),
        "model is a Linear that holds arrays, or cannot be hashed: give a function, lambda params, x: eqx.combine",
    ),
    "an nnx module as the model": (
        lambda: ng.kncg(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), ng.Gaussian()),
        "model is a Linear that holds arrays.*nnx.merge",
    ),
    "a module in a Stateful": (
        lambda: ng.sgd(ng.Stateful(eqx.nn.Linear(3, 3, key=jax.random.key(0))), ng.Gaussian()),
        "model is a Linear that holds arrays",
    ),
    "a model without a hash": (
        lambda: ng.sgd(Unhashable(), ng.Gaussian()),
        "model is a Unhashable that holds arrays, or cannot be hashed",
    ),
    "likelihoods in a tuple": (
        lambda: ng.Product((ng.Gaussian(), ng.Bernoulli())),
        r"Product got a tuple: give likelihoods one by one, ng.Product\(ng.Gaussian\(\), …\)",
    ),
    "a class in a Product": (lambda: ng.Product(ng.Gaussian), "Product got a Gaussian"),
    "a misspelt option of from_log_prob": (
        lambda: ng.Likelihood.from_log_prob(lambda r, t: r[:, 0], sampel=lambda key, r: r),
        r"from_log_prob\(\) got an unexpected keyword argument 'sampel'",
    ),
    "a class for a likelihood": (
        lambda: ng.sgd(mlp, ng.Bernoulli),
        "likelihood is the class Bernoulli: give an instance, with parentheses",
    ),
    "no likelihood": (lambda: ng.sgd(mlp, "bernoulli"), "likelihood must be a natgrad likelihood"),
    "no model": (
        lambda: ng.sgd(CASE.params, ng.Bernoulli()),
        r"model must be a function: model\(params, inputs\)",
    ),
}


@pytest.mark.parametrize("call", BAD_STEPS)
def test_bad_steps(call):
    run, kind, sentence = BAD_STEPS[call]
    with pytest.raises(kind, match=sentence) as caught:
        run()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("call", BAD_PARTS)
def test_bad_parts(call):
    run, sentence = BAD_PARTS[call]
    with pytest.raises(ValueError, match=sentence):
        run()


@pytest.mark.parametrize("call", BAD_TYPES)
def test_bad_types(call):
    run, sentence = BAD_TYPES[call]
    with pytest.raises(TypeError, match=sentence):
        run()


def test_functions_that_carry_arrays_are_models():
    bound = jax.tree_util.Partial(lambda a, p, x: a + mlp(p, x), jnp.ones(3))
    for model in (bound, eqx.filter_jit(mlp), ng.Stateful(lambda p, x, c: (mlp(p, x), c))):
        assert ng.sgd(model, ng.Bernoulli()).model is model


def test_metric_product_refuses_what_the_step_refuses():
    with pytest.raises(ValueError, match="Fisher takes no targets"):
        ng.metric_product(mlp, ng.Bernoulli(), CASE.params, X, targets=T)
    with pytest.raises(ValueError, match="DiagonalFisher takes no targets"):
        ng.metric_product(mlp, ng.Bernoulli(), CASE.params, X, metric=ng.DiagonalFisher(), targets=T)
    with pytest.raises(ValueError, match="EmpiricalFisher is defined by the data's targets: give targets="):
        ng.metric_product(mlp, ng.Bernoulli(), CASE.params, X, metric=ng.EmpiricalFisher())
    with pytest.raises(ValueError, match="GaussNewton is defined by the data's targets"):
        ng.metric_product(
            mlp, ng.Likelihood.from_loss(lambda r, t: r[:, 0]), CASE.params, X, metric=ng.GaussNewton()
        )
    with pytest.raises(TypeError, match="Hessian has no factor"):
        ng.metric_product(mlp, ng.Bernoulli(), CASE.params, X, metric=ng.Hessian(), targets=T).factor(
            CASE.params
        )


RECIPES = {
    "sgd": ng.sgd(mlp, ng.Bernoulli()),
    "natural_gradient": OPT,
    "ncg": ng.natural_conjugate_gradient(mlp, ng.Bernoulli()),
    "kncg": ng.kncg(mlp, ng.Bernoulli(), average=None),
    "calibrating": ng.kncg(mlp, ng.Bernoulli(), damping=ng.LevenbergMarquardt("calibrate"), average=None),
    "on the host": ng.natural_conjugate_gradient(mlp, ng.Bernoulli(), search=ng.Cobyla()),
    "hessian_free": ng.hessian_free(mlp, ng.Bernoulli()),
    "ksd": ng.krylov_subspace_descent(mlp, ng.Bernoulli(), size=3),
    "tonga": ng.tonga(mlp, ng.Bernoulli()),
}
SAME_STATE = ({"natural_gradient", "ncg", "on the host"}, {"kncg", "calibrating"})
"""These remember the same things: each can go on from another's state."""


@pytest.mark.parametrize("name", RECIPES)
def test_a_state_of_another_recipe_or_of_other_parameters_is_refused(name):
    opt = RECIPES[name]
    others = {
        other: RECIPES[other].init(CASE.params)
        for other in RECIPES
        if other != name and not any({name, other} <= alike for alike in SAME_STATE)
    }
    others["none"] = None
    others["averaged"] = ng.Averaged(opt).init(CASE.params)
    if name != "sgd":  # Its state knows nothing of the parameters.
        others["one layer"] = opt.init(CASE.params[:1])
        others["wider"] = opt.init(jax.tree.map(lambda leaf: jnp.ones((*leaf.shape, 2)), CASE.params))
    for state in others.values():
        with pytest.raises(ValueError, match=r"state does not belong to this optimizer and these parameters"):
            opt.step(CASE.params, state, (X, T))


def test_a_bad_call_is_refused_under_jit_too():
    with pytest.raises(ValueError, match="targets have shape"):
        jax.jit(OPT.step)(CASE.params, OPT.init(CASE.params), (X, T[:5]))
