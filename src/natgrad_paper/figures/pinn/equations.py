"""The equations: where they hold, what their nets are, and their solutions. Errors are relative, in L2 on a grid.

P1 to P6 are from Dangel, Müller & Zeinhofer (2024). P7 has the two viscosities in common use. P8b is from Schwencke &
Furtlehner (2025).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad_paper.figures.pinn import solutions, taylor
from natgrad_paper.figures.pinn.taylor import Jet, Weights

Points = tuple[Array, Array]
"""Points inside, and points where values are given."""
SMALL, MEDIUM, DEEP = (64,), (64, 64, 48, 48), (20, 20, 20, 20)
"""Hidden units."""


@dataclass(frozen=True)
class Equation:
    """An equation for u(point) with its net. Time, where there is one, is the first coordinate."""

    about: str
    dims: int
    units: tuple[int, ...]
    c: tuple[float, ...]
    """The coefficients of L, the second derivatives that the equation has."""
    side: Callable[[Jet], Array]
    """The equation's left side, from u and its derivatives."""
    force: Callable[[Array], Array]
    """Its right side, from points."""
    solution: Callable[[np.ndarray], np.ndarray]
    given: Callable[[Array], Array]
    """The values where they are given."""
    border: Callable[[Array, int, Array], Array]
    """From a key, a count and that many points of the unit cube to points where values are given."""
    counts: tuple[int, int] = (900, 120)
    """Points inside, and where values are given."""
    low: float = 0.0
    """Where space begins; it ends at 1, and time goes from 0 to 1."""
    timed: bool = True
    redrawn: bool = False
    """Whether every step has new points. A net that is large enough for a steep solution can fit kept points alone:
    all residuals vanish, and the solution is wrong."""
    grid: int = 41
    """Points of the error: this many along each of two coordinates; in more coordinates, its square at random."""
    embed: Callable[[Jet], Jet] | None = None
    """What the net sees in place of the coordinates."""

    def u(self, params: Weights, points: Array) -> Array:
        """Return the net's solution."""
        seen = points if self.embed is None else self.embed(taylor.coordinates(points)).value
        return taylor.outputs(params, seen)[:, 0]

    def model(self, params: Weights, points: Points) -> tuple[Array, Array]:
        """Return the equation's left side inside, and u where it is given."""
        inside, edge = points
        jet = taylor.coordinates(inside)
        jet = jet if self.embed is None else self.embed(jet)
        found = taylor.through(params, jet, jnp.asarray(self.c))
        u = Jet(found.value[:, 0], found.slopes[..., 0], found.second[:, 0])
        return self.side(u), self.u(params, edge)

    def init(self, key: Array) -> Weights:
        """Return weights and biases."""
        return taylor.start(key, (self.seen, *self.units, 1))

    @property
    def seen(self) -> int:
        """How many numbers the net sees."""
        if self.embed is None:
            return self.dims
        return int(self.embed(taylor.coordinates(jnp.zeros((1, self.dims)))).value.shape[1])

    def draw(self, key: Array, counts: tuple[int, int]) -> tuple[Points, tuple[Array, Array]]:
        """Return random points, and both right sides."""
        first, second, third = jax.random.split(key, 3)
        inside = self._stretched(jax.random.uniform(first, (counts[0], self.dims), jnp.float64))
        cube = jax.random.uniform(second, (counts[1], self.dims), jnp.float64)
        edge = self._stretched(self.border(third, counts[1], cube))
        return (inside, edge), (self.force(inside), self.given(edge))

    def _stretched(self, cube: Any) -> Any:
        """Return points of the unit cube where the equation holds."""
        low = np.full(self.dims, self.low)
        low[0] = 0.0 if self.timed else self.low
        return low + (1 - low) * cube

    def judged(self, grid: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the points of the error, and the solution there; above two dimensions they are random."""
        if self.dims == 2:
            line = np.linspace(0, 1, grid)
            cube = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
        else:
            cube = np.random.default_rng(seed).random((grid**2, self.dims))
        points = self._stretched(cube)
        return points, np.asarray(self.solution(points))

    @property
    def likelihood(self) -> ng.Product:
        """Both residuals are normal: the loss is half the sum of their mean squares."""
        return ng.Product(ng.Gaussian(), ng.Gaussian())


def faces(key: Array, count: int, cube: Array, first: int = 0) -> Array:
    """Return points with one coordinate, from the `first` on, set to 0 or 1."""
    one, two = jax.random.split(key)
    chosen = jax.random.randint(one, (count, 1), first, cube.shape[1]) == jnp.arange(cube.shape[1])
    return jnp.where(chosen, jax.random.randint(two, (count, 1), 0, 2), cube)


def beginning(key: Array, count: int, cube: Array) -> Array:
    """Return points at time 0."""
    return cube.at[:, 0].set(0)


def both(key: Array, count: int, cube: Array, share: float = 0.5) -> Array:
    """Return points on the faces of space, and a share at time 0."""
    late = count - int(share * count)
    return jnp.concatenate([faces(key, late, cube[:late], 1), beginning(key, count - late, cube[late:])])


def poisson(
    about: str, dims: int, units: tuple[int, ...], solution: Any, factor: float, **rest: Any
) -> Equation:
    """Return −Δu = factor · u*, which is what the sums and products of sines have."""
    return Equation(
        about, dims, units, (1.0,) * dims, lambda u: -u.second, lambda x: factor * solution(x), solution, solution,
        faces, timed=False, **rest,
    )  # fmt: skip


def heat(about: str, dims: int, solution: Any, **rest: Any) -> Equation:
    """Return u_t = ¼Δu."""
    return Equation(
        about, dims, SMALL, (0.0, *(1.0,) * (dims - 1)), lambda u: u.slopes[0] - u.second / 4, zero, solution,
        solution, both, **rest,
    )  # fmt: skip


def burgers(viscosity: float, words: str) -> Equation:
    """Return u_t + u u_x = ν u_xx, periodic: the net sees (t, cos πx, sin πx)."""
    return Equation(
        f"Burgers’ equation, ν = {words}", 2, DEEP, (0.0, 1.0),
        lambda u: u.slopes[0] + u.value * u.slopes[1] - viscosity * u.second, zero,
        partial(solutions.burgers_solution, viscosity=viscosity), lambda x: -jnp.sin(jnp.pi * x[:, 1]), beginning,
        (4096, 512), -1.0, redrawn=True, grid=101, embed=periodic,
    )  # fmt: skip


def periodic(jet: Jet) -> Jet:
    """Return (t, cos πx, sin πx) with their derivatives; L = ∂²/∂x²."""
    t, x = jet.value[:, :1], jnp.pi * jet.value[:, 1:]
    cosine, sine, zero = jnp.cos(x), jnp.sin(x), jnp.zeros_like(t)
    by_time = jnp.concatenate([zero + 1, zero, zero], axis=1)
    by_space = jnp.pi * jnp.concatenate([zero, -sine, cosine], axis=1)
    second = -(jnp.pi**2) * jnp.concatenate([zero, cosine, sine], axis=1)
    return Jet(jnp.concatenate([t, cosine, sine], axis=1), jnp.stack([by_time, by_space]), second)


def zero(points: Array) -> Array:
    """Return 0 at every point."""
    return jnp.zeros(len(points))


def sines(x: Any) -> Any:
    """Return Π sin πxᵢ."""
    return jnp.prod(jnp.sin(jnp.pi * x), axis=1)


def cosines(x: Any) -> Any:
    """Return Σ cos πxᵢ."""
    return jnp.sum(jnp.cos(jnp.pi * x), axis=1)


def cooling(x: Any) -> Any:
    """Return exp(−π²t/4) sin πx."""
    return jnp.exp(-(jnp.pi**2) * x[:, 0] / 4) * jnp.sin(jnp.pi * x[:, 1])


def cooling_more(x: Any) -> Any:
    """Return exp(−t) Σ sin 2xᵢ."""
    return jnp.exp(-x[:, 0]) * jnp.sum(jnp.sin(2 * x[:, 1:]), axis=1)


EQUATIONS = {
    "p1": poisson("Poisson’s equation in 2 dimensions, 2-64-1", 2, SMALL, sines, 2 * np.pi**2),
    "p2": heat("heat in 1 + 1 dimensions, 2-64-1", 2, cooling),
    "p3": poisson("Poisson’s equation in 5 dimensions, 5-64-1", 5, SMALL, cosines, np.pi**2, counts=(3000, 500),
                  redrawn=True, grid=100),
    "p4": heat("heat in 4 + 1 dimensions, 5-64-1", 5, cooling_more, counts=(3000, 500), redrawn=True, grid=100),
    "p5": poisson("Poisson’s equation in 5 dimensions, 5-64-64-48-48-1", 5, MEDIUM, cosines, np.pi**2,
                  counts=(3000, 500), redrawn=True, grid=100),
    "p6": poisson("Poisson’s equation in 2 dimensions, 2-64-64-48-48-1", 2, MEDIUM, sines, 2 * np.pi**2),
    "p7a": burgers(0.01, "0.01"),
    "p7b": burgers(0.01 / np.pi, "0.01/π"),
    "p8b": Equation(
        "the Allen–Cahn equation, 2-20-20-20-1", 2, (20, 20, 20), (0.0, 1.0),
        lambda u: u.slopes[0] - 1e-3 * u.second - 5 * u.value + 5 * u.value**3, zero, solutions.allen_cahn,
        lambda x: x[:, 1] ** 2 * jnp.cos(jnp.pi * x[:, 1]), partial(both, share=41 / 101), (900, 101), -1.0,
        redrawn=True, grid=101,
    ),
}  # fmt: skip
"""The equations by name. On the sides of the last one, x² cos πx is −1, the value given there."""
