"""Every recipe's step lowers for CUDA and for TPU: nothing that only a CPU has creeps in. Nothing is run there."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import export

import natgrad as ng

ROOT = Path(__file__).parents[1]
G = ng.Gaussian()


def model(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


# One side is longer than the eigenvectors that Kronecker keeps, so that both of its ways are lowered.
PARAMS = {"w": jax.ShapeDtypeStruct((140, 5), jnp.float32), "v": jax.ShapeDtypeStruct((5, 2), jnp.float32)}
BATCH = tuple(jax.ShapeDtypeStruct((8, n), jnp.float32) for n in (140, 2))
RECIPES = {
    "sgd": ng.sgd(model, G),
    "NGD": ng.natural_gradient(model, G, preconditioner=ng.Jacobi()),
    "NGD-L, MINRES-QLP": ng.natural_gradient(model, G, solver=ng.MinresQLP(5), search=ng.LineSearch()),
    "NGD, direct": ng.natural_gradient(model, G, solver=ng.Direct()),
    "NCG-L": ng.natural_conjugate_gradient(model, G),
    "NCG-F": ng.natural_conjugate_gradient(model, G, beta=ng.PolakRibiere()),
    "kncg": ng.kncg(model, G),
    "gauss_newton": ng.gauss_newton(model, G),
    "hessian_free": ng.hessian_free(model, G, solver=ng.TruncatedCG(4)),
    "krylov_subspace_descent": ng.krylov_subspace_descent(model, G, size=3),
    "tonga": ng.tonga(model, G),
}


def lowered(opt, params, batch):
    state = jax.eval_shape(opt.init, params)
    exported = export.export(jax.jit(opt.step), platforms=("cuda", "tpu"))(params, state, batch)
    assert exported.platforms == ("cuda", "tpu")
    return exported.mlir_module()


@pytest.mark.parametrize("name", RECIPES)
def test_a_step_lowers_for_cuda_and_tpu(name):
    assert "lapack" not in lowered(RECIPES[name], PARAMS, BATCH)


def test_many_digits_lower_for_cuda_and_tpu():
    """In float64, as `gauss_newton` is meant to be used; a TPU emulates it."""
    double = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float64)  # noqa: E731
    lowered(RECIPES["gauss_newton"], *jax.tree.map(double, (PARAMS, BATCH)))


def test_the_speed_table_is_printed(capsys):
    spec = importlib.util.spec_from_file_location("accelerator", ROOT / "benchmarks" / "accelerator.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        script.main([20], repeats=1, units=(6, 4, 6))
    printed = capsys.readouterr().out
    assert printed.count("\n|") == 7
    assert "a step of KNCG" in printed
