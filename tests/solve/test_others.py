"""The dual solve, the spectrum, the SciPy-style functions and the lineax adapter."""

import sys

import jax
import jax.numpy as jnp
import lineax
import numpy as np
import pytest
import scipy.sparse

from natgrad import solve
from natgrad.solve import CG, Dual, MinresQLP, Reason, extreme_eigenvalues, spectral_density, trace
from natgrad.solve.lineax_adapter import Lineax

pytestmark = pytest.mark.usefixtures("fast_compile")

RNG = np.random.default_rng(0)
J = jnp.asarray(RNG.normal(size=(6, 40)))
G = {"w": jnp.asarray(RNG.normal(size=(5, 8)))}


class Metric:
    def __init__(self, J):
        self.J = J

    def factor(self, v):
        return {"y": (self.J @ v["w"].ravel()).reshape(3, 2)}

    def factor_transpose(self, e):
        return {"w": (self.J.T @ e["y"].ravel()).reshape(5, 8)}

    def __call__(self, v):
        return self.factor_transpose(self.factor(v))


@pytest.mark.parametrize("block", [1, 4, 100])
def test_dual_is_the_direct_solve(block):
    F = np.asarray(J.T @ J)
    run = jax.jit(lambda shift: Dual(1e-8, block)(Metric(J), G, shift=shift))
    for shift in (1.0, 1e-3):
        solution = run(shift)
        expected = np.linalg.solve(F + shift * np.eye(40), np.asarray(G["w"]).ravel())
        np.testing.assert_allclose(solution.x["w"].ravel(), expected, rtol=1e-8)
        assert solution.reason == Reason.SOLVED


def test_dual_refinement_saves_float32():
    J32, G32 = J.astype(jnp.float32), jax.tree.map(lambda g: g.astype(jnp.float32), G)
    solution = jax.jit(lambda: Dual()(Metric(J32), G32, shift=0.3))()
    assert solution.reason == Reason.SOLVED
    expected = np.linalg.solve(np.float64(J32.T @ J32) + 0.3 * np.eye(40), np.float64(G32["w"]).ravel())
    np.testing.assert_allclose(solution.x["w"].ravel(), expected, atol=1e-4 * np.linalg.norm(expected))


def test_dual_refuses_zero_and_admits_cancellation():
    with pytest.raises(ValueError, match="must be positive"):
        Dual()(Metric(J), G, shift=0.0)
    run = jax.jit(lambda shift: Dual(1e-10)(Metric(J), G, shift=shift))
    hidden = run(0.0)
    assert Reason.name_of(hidden.reason) == "nonfinite"
    assert np.isfinite(hidden.x["w"]).all()
    assert Reason.name_of(run(1e-9).reason) == "stalled"
    bad = jax.tree.map(lambda g: g.at[0].set(jnp.nan), G)
    assert Reason.name_of(Dual()(Metric(J), bad, shift=1.0).reason) == "nonfinite"


def test_spectrum():
    Q = np.linalg.qr(RNG.normal(size=(60, 60)))[0]
    d = np.linspace(-2, 5, 60)
    A = (Q * d) @ Q.T
    key = jax.random.key(0)
    like = {"v": jnp.zeros((6, 10))}

    def matvec(t):
        return {"v": (A @ t["v"].ravel()).reshape(6, 10)}

    low, high = extreme_eigenvalues(matvec, like, key, steps=40)
    np.testing.assert_allclose([low, high], [-2, 5], atol=1e-5)
    assert abs(trace(matvec, like, key, probes=400) - d.sum()) < 5 * np.sqrt(2 * (A**2).sum() / 400)
    density = spectral_density(matvec, like, key, probes=64)
    np.testing.assert_allclose(density.weights.sum(), 1, rtol=1e-10)
    np.testing.assert_allclose((density.weights * density.eigenvalues**2).sum(), (d**2).mean(), rtol=0.15)


def test_extreme_eigenvalues_of_an_exhausted_space():
    d = jnp.array([1.0, 1.0, 3.0, 3.0])
    found = extreme_eigenvalues(lambda v: d * v, d, jax.random.key(1))
    np.testing.assert_allclose(found, [1, 3], rtol=1e-12)
    np.testing.assert_allclose(extreme_eigenvalues(lambda v: 2 * v, d, jax.random.key(1)), [2, 2])


@pytest.mark.parametrize("name", ["cg", "minres", "minres_qlp"])
def test_scipy_style(name):
    method = getattr(solve, name)
    A = scipy.sparse.diags([-1.0, 2.5, -1.0], [-1, 0, 1], shape=(30, 30))
    b = RNG.normal(size=30)
    for matrix in (A, A.toarray()):
        x, info = method(matrix, b, rtol=1e-9, shift=0.25, M=np.eye(30) / 2)
        assert info == 0
        assert isinstance(x, np.ndarray)
        assert np.linalg.norm(A @ x - 0.25 * x - b) <= 1e-8 * np.linalg.norm(b)
    x, info = method(A.astype(np.float32), b.astype(np.float32), rtol=1e-4)
    assert x.dtype == np.float32
    if name == "cg":
        assert method(A, b, maxiter=1)[1] == Reason.MAXITER
    with pytest.raises(ValueError, match="match b"):
        method(A, b[:-1])


def test_scipy_style_on_the_system_scipy_gets_wrong():
    x, info = solve.minres_qlp(np.diag([1.0, 2.0, 3.0, 0.0]), np.ones(4), rtol=1e-10)
    assert info == 0
    np.testing.assert_allclose(x, [1, 1 / 2, 1 / 3, 0], atol=1e-12)
    _, info = solve.minres_qlp(np.diag([1.0, np.nan]), np.ones(2))
    assert Reason.name_of(info) == "nonfinite"


def test_lineax_singular_and_derivative():
    d = jnp.arange(-10.0, 11)
    operator = lineax.MatrixLinearOperator(jnp.diag(d), lineax.symmetric_tag)
    solution = lineax.linear_solve(operator, jnp.ones(21), Lineax(MinresQLP(rtol=1e-10)))
    np.testing.assert_allclose(solution.value, np.where(d == 0, 0, 1 / np.where(d == 0, 1, d)), atol=1e-10)
    assert solution.stats["reason"] == Reason.LEAST_SQUARES

    def total(t):
        operator = lineax.MatrixLinearOperator(jnp.diag(jnp.array([1.0, 2, 3]) + t), lineax.symmetric_tag)
        return lineax.linear_solve(operator, jnp.ones(3), Lineax(CG(rtol=1e-12))).value.sum()

    np.testing.assert_allclose(jax.grad(total)(0.0), -(1 + 1 / 4 + 1 / 9), rtol=1e-10)


def test_lineax_reports_failure():
    operator = lineax.MatrixLinearOperator(jnp.diag(jnp.array([1.0, -1.0])), lineax.symmetric_tag)
    failed = lineax.linear_solve(operator, jnp.ones(2), Lineax(CG()), throw=False)
    assert failed.result != lineax.RESULTS.successful
    with pytest.raises(ValueError, match="symmetric_tag"):
        lineax.linear_solve(lineax.MatrixLinearOperator(jnp.eye(2)), jnp.ones(2), Lineax(CG()))


def test_without_lineax_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "lineax", None)
    monkeypatch.delitem(sys.modules, "natgrad.solve.lineax_adapter")
    with pytest.raises(ImportError, match=r"natgrad\[lineax\]"):
        __import__("natgrad.solve.lineax_adapter")
