"""The dual solve."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natgrad.solve import Dual, Reason

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
