"""Ten steps of every recipe on every kind of model and batch, in float64: numbers that a redesign must reproduce.

    cd tests && JAX_ENABLE_X64=1 python -m golden.trajectories        adds to golden/trajectories.npz what it lacks

One row per step: two fingerprints of the parameters, and the numbers of `info`. Beside it stands what a change of
1e-14 in the first parameters makes of it: nobody can ask for more digits than that.

The numbers were recorded before the step was redesigned, except those of `kncg`. The redesign gave its factors other
bases, by orthogonal iteration in place of LAPACK, and other random signs. So its former numbers could not be
reproduced, and it was recorded again after the redesign, in commit e52fc73. Its numbers hold what came later. They are
no evidence for the redesign itself. The recipes in `YOUNGER` were recorded later still.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from models import MODELS, layers, mlp, targets_for

import natgrad as ng

STEPS = 10
FILE = Path(__file__).with_name("trajectories.npz")
CG = ng.CG(6)
RECIPES = {
    "sgd": ng.sgd,
    "ngd": lambda *a, **o: ng.natural_gradient(*a, solver=CG, **o),
    "ngd-l": lambda *a, **o: ng.natural_gradient(*a, solver=CG, search=ng.LineSearch(), **o),
    "ncg-l": lambda *a, **o: ng.natural_conjugate_gradient(*a, direction=ng.Natural(CG), **o),
    "ncg-f": lambda *a, **o: ng.natural_conjugate_gradient(
        *a, direction=ng.Natural(CG), beta=ng.PolakRibiere(), **o
    ),
    "kncg": lambda *a, **o: ng.kncg(*a, floor=1e-4, probe=None, average=None, **o),
    "hf": lambda *a, **o: ng.hessian_free(*a, solver=ng.TruncatedCG(6, progress=None), **o),
    "ksd": lambda *a, **o: ng.krylov_subspace_descent(*a, size=3, search=ng.search.SubspaceBFGS(4, 5), **o),
    "tonga": lambda *a, **o: ng.tonga(*a, direction=ng.directions.Tonga(2, 3), **o),
}
YOUNGER = {"kncg, defaults": ng.kncg, "gauss-newton": ng.gauss_newton}
"""Recipes that are younger than the redesign: on the first model alone, whole and with weights."""
VARIANTS = ("whole", "microbatch", "weights", "trainable", "metric inputs", "gradient")
FORMER = {"kncg": "fast"}
"""What a recipe was called when its trajectories were recorded."""
NUMBERS = ("loss", "new_loss", "rho", "damping", "grad_norm", "step_norm", "kl", "outcome", "answer")
COLUMNS = ("norm", "print", *NUMBERS)
"""What a row holds."""


def pair(params, inputs):
    return mlp(params, inputs[0]), mlp(params, inputs[1])[:, :1]


def problems():
    """Return model, likelihood, parameters and batch by name."""
    for name, likelihood in (
        ("mlp", ng.Bernoulli()),
        ("conv", ng.Categorical()),
        ("recurrent", ng.Gaussian(0.5)),
    ):
        case = MODELS[name]
        targets = targets_for(likelihood, case.model(case.params, case.inputs), 1)
        yield name, case.model, likelihood, case.params, (case.inputs, targets)
    inputs = MODELS["mlp"].inputs, 0.5 * jax.random.normal(jax.random.key(3), (5, 3), jnp.float64)
    product, params = ng.Product(ng.Bernoulli(), ng.Gaussian(), weights=(1.0, 2.0)), layers(0, 3, 4, 3)
    yield "product", pair, product, params, (inputs, targets_for(product, pair(params, inputs), 1))


def trajectory(recipe, variant, model, likelihood, params, batch):
    """Return one row per step, from the parameters and from parameters that are a rounding error away."""
    options, extra = {}, {}
    if variant == "microbatch":
        options["microbatch"] = 3
    if variant == "trainable":
        options["trainable"] = lambda path, leaf: leaf.ndim > 1
    if variant == "weights":
        lengths = [leaf.shape[0] for leaf in jax.tree.leaves(batch[0])]
        weights = tuple(1.0 + jnp.arange(n, dtype=jnp.float64) % 3 for n in lengths)
        batch = (*batch, weights if len(weights) > 1 else weights[0])
    if variant == "metric inputs":
        extra["metric_inputs"] = jax.tree.map(lambda leaf: 0.9 * leaf + 0.05, batch[0])
    if variant == "gradient":
        extra["gradient"] = jax.tree.map(lambda leaf: 0.1 * jnp.cos(leaf), params)
    opt = (RECIPES | YOUNGER)[recipe](model, likelihood, **options)

    def one(carry, _):
        params, state, info = opt.step(*carry, batch, **extra)
        leaves = [leaf.ravel() for leaf in jax.tree.leaves(params)]
        flat = jnp.concatenate(leaves)
        prints = jnp.stack(
            [jnp.linalg.norm(flat), jnp.sum(flat * jnp.cos(jnp.arange(flat.size, dtype=flat.dtype)))]
        )
        numbers = jnp.stack([getattr(info, name).astype(flat.dtype) for name in NUMBERS])
        return (params, state), jnp.concatenate([prints, numbers])

    run = jax.jit(lambda *start: jax.lax.scan(one, start, length=STEPS)[1])
    nearby = jax.tree.map(
        lambda leaf: (
            leaf * (1 + 1e-14 * jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype).reshape(leaf.shape)))
        ),
        params,
    )
    return np.stack([run(params, opt.init(params)), run(nearby, opt.init(nearby))])


def names():
    """Return every (model, recipe, variant) that makes sense."""
    for model in ("mlp", "conv", "recurrent", "product"):
        for recipe in RECIPES:
            for variant in VARIANTS:
                if not (variant == "metric inputs" and recipe in ("sgd", "tonga")):
                    yield model, recipe, variant
    for recipe in YOUNGER:
        for variant in ("whole", "weights"):
            yield "mlp", recipe, variant


def key(model, recipe, variant):
    """Return the name of a trajectory in the file."""
    return "|".join((model, FORMER.get(recipe, recipe), variant))


def compute(model, recipe, variant):
    """Return one trajectory by name."""
    case = next(case for case in problems() if case[0] == model)
    return trajectory(recipe, variant, *case[1:])


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    rows = dict(np.load(FILE))
    for name in names():
        if key(*name) not in rows:
            rows[key(*name)] = compute(*name)
            print(*name, rows[key(*name)][0, -1, :3], flush=True)
    np.savez_compressed(FILE, **rows)
