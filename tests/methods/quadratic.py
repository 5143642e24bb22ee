"""A quadratic world: linear regression, whose Hessian H and metric F are constant and known densely."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import natgrad as ng


class Quadratic(NamedTuple):
    batch: tuple
    other_inputs: jax.Array
    start: jax.Array
    hessian: np.ndarray
    metric: np.ndarray
    """The Fisher metric on the other inputs: not the Hessian."""
    gradient_at_zero: np.ndarray

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        return self.hessian @ theta + self.gradient_at_zero

    def minimum(self) -> np.ndarray:
        return np.linalg.solve(self.hessian, -self.gradient_at_zero)


def model(theta, inputs):
    return inputs @ theta


def quadratic(size=7, examples=40, seed=0) -> Quadratic:
    keys = jax.random.split(jax.random.key(seed), 4)
    scales = jnp.logspace(0, 1, size)
    x = jax.random.normal(keys[0], (examples, size)) * scales
    u = jax.random.normal(keys[1], (examples, size)) * jnp.roll(scales, 1)
    t = jax.random.normal(keys[2], (examples,))
    hessian, metric = np.asarray(x.T @ x) / examples, np.asarray(u.T @ u) / examples
    start = jax.random.normal(keys[3], (size,))
    return Quadratic((x, t), u, start, hessian, metric, -np.asarray(x.T @ t) / examples)


EXACT = ng.CG(maxiter=100, rtol=1e-14)
NO_DAMPING = ng.Constant(0.0)


def iterates(opt, problem: Quadratic, steps: int, theta=None, **batches) -> np.ndarray:
    """Return θ before the first step and after each."""
    params = problem.start if theta is None else theta
    state, path = opt.init(params), [np.asarray(params)]
    for _ in range(steps):
        params, state, _ = opt.step(params, state, problem.batch, **batches)
        path.append(np.asarray(params))
    return np.stack(path)


def preconditioned_cg(problem: Quadratic, inverse: np.ndarray, steps: int) -> np.ndarray:
    """Return the iterates of textbook conjugate gradients on ½θᵀHθ + gᵀθ, preconditioned by `inverse`."""
    theta = np.asarray(problem.start)
    path, residual = [theta], -problem.gradient(theta)
    z = inverse @ residual
    direction, decrement = z, residual @ z
    for _ in range(steps):
        product = problem.hessian @ direction
        alpha = decrement / (direction @ product)
        theta = theta + alpha * direction
        residual = residual - alpha * product
        z = inverse @ residual
        direction, decrement = z + (residual @ z / decrement) * direction, residual @ z
        path.append(theta)
    return np.stack(path)
