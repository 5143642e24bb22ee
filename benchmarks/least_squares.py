"""Classic small problems of nonlinear least squares, three programs: python benchmarks/least_squares.py

Problems with data are NIST's (https://www.itl.nist.gov/div898/strd/) with the certified sum of squares, from both
starts, the far and the near one. The others are those of Moré, Garbow & Hillstrom (1981), with the minimum that they
state. Each program goes on until it makes no progress. `optimistix` (pip install optimistix) is left out where it is
not installed.
"""

import argparse
import time
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares

import natgrad as ng

STEPS = 2000
"""At most, for all."""
WORSE = 1e-6
"""A sum of squares is worse than another if it is larger by this share, and not zero to rounding."""
ZERO = 1e-18


class Classic(NamedTuple):
    """A vector of residuals, a start, and the least sum of squares."""

    residuals: Any
    start: tuple
    least: float


def fit(x, y, curve, start, least):
    """Return the residuals of a curve at points."""
    x, y = np.array(x, float), np.array(y, float)
    return Classic(lambda b: curve(b, x) - y, start, least)


def columns(text):
    return [float(word) for word in text.split()]


MISRA = (
    columns("77.6 114.9 141.1 190.8 239.9 289.0 332.8 378.4 434.8 477.3 536.8 593.1 689.1 760.0"),
    columns("10.07 14.73 17.94 23.93 29.61 35.18 40.02 44.82 50.76 55.05 61.01 66.40 75.47 81.78"),
)
KOWALIK = (
    columns("4 2 1 0.5 0.25 0.167 0.125 0.1 0.0833 0.0714 0.0625"),
    columns("0.1957 0.1947 0.1735 0.1600 0.0844 0.0627 0.0456 0.0342 0.0323 0.0235 0.0246"),
)
MEYER = (
    range(50, 130, 5),
    columns("34780 28610 23650 19630 16370 13720 11540 9744 8261 7030 6005 5147 4427 3820 3307 2872"),
)
PASTURE = (
    columns("9 14 21 28 42 57 63 70 79"),
    columns("8.93 10.8 18.59 22.33 39.35 56.11 61.73 64.62 67.08"),
)
ONION = (
    range(1, 16),
    columns(
        "16.08 33.83 65.80 97.20 191.55 326.20 386.87 520.53 590.03 651.92 724.93 699.56 689.96 637.56 717.41"
    ),
)
BARD = columns("0.14 0.18 0.22 0.25 0.29 0.32 0.35 0.39 0.37 0.58 0.73 0.96 1.34 2.10 4.39")
OSBORNE = columns(
    "0.844 0.908 0.932 0.936 0.925 0.908 0.881 0.850 0.818 0.784 0.751 0.718 0.685 0.658 0.628 0.603 0.580 "
    "0.558 0.538 0.522 0.506 0.490 0.478 0.467 0.457 0.448 0.438 0.431 0.424 0.420 0.414 0.411 0.406"
)


def helical(x):
    turn = jnp.arctan2(x[1], x[0]) / (2 * jnp.pi)
    return jnp.stack([10 * (x[2] - 10 * turn), 10 * (jnp.hypot(x[0], x[1]) - 1), x[2]])


def bard(x):
    u = jnp.arange(1.0, 16)
    v = 16 - u
    return jnp.array(BARD) - (x[0] + u / (v * x[1] + jnp.minimum(u, v) * x[2]))


def box(x):
    t = jnp.arange(1.0, 11) / 10
    return jnp.exp(-t * x[0]) - jnp.exp(-t * x[1]) - x[2] * (jnp.exp(-t) - jnp.exp(-10 * t))


def wood(x):
    root = 10**0.5
    return jnp.stack([
        10 * (x[1] - x[0] ** 2), 1 - x[0], 90**0.5 * (x[3] - x[2] ** 2), 1 - x[2], root * (x[1] + x[3] - 2),
        (x[1] - x[3]) / root,
    ])  # fmt: skip


def powell(x):
    return jnp.stack([
        x[0] + 10 * x[1], 5**0.5 * (x[2] - x[3]), (x[1] - 2 * x[2]) ** 2, 10**0.5 * (x[0] - x[3]) ** 2,
    ])  # fmt: skip


def dennis(x):
    t = jnp.arange(1.0, 21) / 5
    return (x[0] + t * x[1] - jnp.exp(t)) ** 2 + (x[2] + x[3] * jnp.sin(t) - jnp.cos(t)) ** 2


def biggs(x):
    t = jnp.arange(1.0, 14) / 10
    y = jnp.exp(-t) - 5 * jnp.exp(-10 * t) + 3 * jnp.exp(-4 * t)
    return x[2] * jnp.exp(-t * x[0]) - x[3] * jnp.exp(-t * x[1]) + x[5] * jnp.exp(-t * x[4]) - y


def broyden(x):
    before, after = jnp.concatenate([jnp.zeros(1), x[:-1]]), jnp.concatenate([x[1:], jnp.zeros(1)])
    return (3 - 2 * x) * x - before - 2 * after + 1


def chebyquad(x):
    """The mean of each shifted Chebyshev polynomial at the points is to be its integral."""
    y, found = 2 * x - 1, []
    before, now = jnp.ones_like(x), y
    for k in range(1, len(x) + 1):
        found.append(jnp.mean(now) - (0.0 if k % 2 else -1 / (k**2 - 1)))
        before, now = now, 2 * y * now - before
    return jnp.stack(found)


STARTS = {
    "Misra1a": ((500, 1e-4), (250, 5e-4)),
    "Misra1b": ((500, 1e-4), (300, 2e-4)),
    "Misra1c": ((500, 1e-4), (600, 2e-4)),
    "Misra1d": ((500, 1e-4), (450, 3e-4)),
    "DanWood": ((1, 5), (0.7, 4)),
    "BoxBOD": ((1, 1), (100, 0.75)),
    "MGH09": ((25, 39, 41.5, 39), (0.25, 0.39, 0.415, 0.39)),
    "MGH10": ((2, 4e5, 25000), (0.02, 4000, 250)),
    "Rat42": ((100, 1, 0.1), (75, 2.5, 0.07)),
    "Rat43": ((100, 10, 1, 1), (700, 5, 0.75, 1.3)),
}
NIST = {
    "Misra1a": (*MISRA, lambda b, x: b[0] * (1 - jnp.exp(-b[1] * x)), 1.2455138894e-1),
    "Misra1b": (*MISRA, lambda b, x: b[0] * (1 - (1 + b[1] * x / 2) ** -2), 7.5464681533e-2),
    "Misra1c": (*MISRA, lambda b, x: b[0] * (1 - (1 + 2 * b[1] * x) ** -0.5), 4.0966836971e-2),
    "Misra1d": (*MISRA, lambda b, x: b[0] * b[1] * x / (1 + b[1] * x), 5.6419295283e-2),
    "DanWood": (columns("1.309 1.471 1.490 1.565 1.611 1.680"), columns("2.138 3.421 3.597 4.340 4.882 5.660"),
                lambda b, x: b[0] * x ** b[1], 4.3173084083e-3),
    "BoxBOD": ([1, 2, 3, 5, 7, 10], [109, 149, 149, 191, 213, 224], lambda b, x: b[0] * (1 - jnp.exp(-b[1] * x)),
               1.1680088766e3),
    "MGH09": (*KOWALIK, lambda b, x: b[0] * (x**2 + x * b[1]) / (x**2 + x * b[2] + b[3]), 3.0750560385e-4),
    "MGH10": (*MEYER, lambda b, x: b[0] * jnp.exp(b[1] / (x + b[2])), 8.7945855171e1),
    "Rat42": (*PASTURE, lambda b, x: b[0] / (1 + jnp.exp(b[1] - b[2] * x)), 8.0565229338),
    "Rat43": (*ONION, lambda b, x: b[0] / (1 + jnp.exp(b[1] - b[2] * x)) ** (1 / b[3]), 8.7864049080e3),
}  # fmt: skip
"""Points, observations, curve and certified sum of squares."""
PROBLEMS = {
    f"{name}, {far}": fit(x, y, curve, start, least)
    for name, (x, y, curve, least) in NIST.items()
    for far, start in zip(("far", "near"), STARTS[name], strict=True)
} | {
    "Rosenbrock": Classic(lambda x: jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]]), (-1.2, 1), 0),
    "Freudenstein–Roth": Classic(
        lambda x: x[0] + jnp.stack([-13 + ((5 - x[1]) * x[1] - 2) * x[1], -29 + ((x[1] + 1) * x[1] - 14) * x[1]]),
        (0.5, -2), 0),
    "Powell, badly scaled": Classic(
        lambda x: jnp.stack([1e4 * x[0] * x[1] - 1, jnp.exp(-x[0]) + jnp.exp(-x[1]) - 1.0001]), (0, 1), 0),
    "Brown, badly scaled": Classic(lambda x: jnp.stack([x[0] - 1e6, x[1] - 2e-6, x[0] * x[1] - 2]), (1, 1), 0),
    "Beale": Classic(lambda x: jnp.array([1.5, 2.25, 2.625]) - x[0] * (1 - x[1] ** jnp.arange(1.0, 4)), (1, 1), 0),
    "Jennrich–Sampson": Classic(
        lambda x: 2 + 2 * jnp.arange(1.0, 11) - jnp.exp(jnp.outer(jnp.arange(1.0, 11), x)).sum(1), (0.3, 0.4), 124.362),
    "helical valley": Classic(helical, (-1, 0, 0), 0),
    "Bard": Classic(bard, (1, 1, 1), 8.21487e-3),
    "Box, 3 dimensions": Classic(box, (0, 10, 20), 0),
    "Powell, singular": Classic(powell, (3, -1, 0, 1), 0),
    "Wood": Classic(wood, (-3, -1, -3, -1), 0),
    "Brown–Dennis": Classic(dennis, (25, 5, -5, -1), 85822.2),
    "Osborne 1": fit(10.0 * np.arange(33), OSBORNE,
                     lambda b, t: b[0] + b[1] * jnp.exp(-t * b[3]) + b[2] * jnp.exp(-t * b[4]),
                     (0.5, 1.5, -1, 0.01, 0.02), 5.46489e-5),
    "Biggs": Classic(biggs, (1, 2, 1, 1, 1, 1), 0),
    "Broyden, tridiagonal": Classic(broyden, (-1.0,) * 10, 0),
    "Chebyquad": Classic(chebyquad, tuple(k / 9 for k in range(1, 9)), 3.51687e-3),
}  # fmt: skip


def ours(problem):
    """Return θ from Gauss–Newton steps of the library: one example, whose outputs are the residuals."""
    opt = ng.gauss_newton(lambda x, _: problem.residuals(x)[None], ng.Gaussian())
    start = jnp.array(problem.start, float)
    outputs = jax.eval_shape(problem.residuals, start).shape[0]
    batch = jnp.zeros(1), jnp.zeros((1, outputs))

    def again(carry):
        x, state, _, count = carry
        x, state, info = opt.step(x, state, batch)
        return x, state, info.accepted, count + 1

    @jax.jit
    def whole(x):
        going = jnp.array(True), jnp.array(0)
        return jax.lax.while_loop(lambda c: c[2] & (c[3] < STEPS), again, (x, opt.init(x), *going))[0]

    return lambda: whole(start)


def scipys(problem):
    """Return θ from MINPACK's Levenberg–Marquardt, with the exact Jacobian."""
    f, jacobian = jax.jit(problem.residuals), jax.jit(jax.jacfwd(problem.residuals))
    start = np.array(problem.start, float)
    method = "lm" if len(f(start)) >= len(start) else "trf"
    given = {"method": method, "xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": STEPS}
    return lambda: least_squares(f, start, jac=lambda x: np.asarray(jacobian(x)), **given).x


def optimistixs(problem):
    """Return θ from optimistix's Levenberg–Marquardt."""
    import optimistix

    solver = optimistix.LevenbergMarquardt(rtol=1e-12, atol=1e-12)

    @jax.jit
    def whole(x):
        return optimistix.least_squares(
            lambda y, _: problem.residuals(y), solver, x, max_steps=STEPS, throw=False
        ).value

    return lambda: whole(jnp.array(problem.start, float))


PROGRAMS = {"natgrad": ours, "scipy": scipys, "optimistix": optimistixs}


def run(name, programs):
    """Return the sum of squares and the milliseconds, compiling apart, of each program."""
    problem, found = PROBLEMS[name], {}
    for program in programs:
        solve = PROGRAMS[program](problem)
        jax.block_until_ready(solve())
        begin = time.perf_counter()
        x = jax.block_until_ready(solve())
        milliseconds = 1e3 * (time.perf_counter() - begin)
        found[program] = float(np.sum(np.asarray(problem.residuals(jnp.asarray(x))) ** 2)), milliseconds
    return found


def worse(one, other):
    """Tell whether a sum of squares is larger than another, beyond rounding. One that is no number always is."""
    return not (one <= other * (1 + WORSE) or one < ZERO)


def shown(value):
    return "0" if value < ZERO else f"{value:.6g}" if np.isfinite(value) else "–"


def main(names=tuple(PROBLEMS), programs=None):
    """Print a table; return on how many problems each program found a worse minimum than another."""
    programs = programs or [name for name in PROGRAMS if name != "optimistix" or find_spec("optimistix")]
    lost = dict.fromkeys(programs, 0)
    print(f"| problem | known | {' | '.join(programs)} | ms |\n|---|---|{'---|' * len(programs)}---|")
    for name in names:
        found = run(name, programs)
        best = min(value for value, _ in found.values() if np.isfinite(value))
        cells = [shown(found[each][0]) for each in programs]
        for k, each in enumerate(programs):
            if worse(found[each][0], best):
                lost[each] += 1
                cells[k] = f"*{cells[k]}*"
        times = " / ".join(f"{found[each][1]:.2g}" for each in programs)
        print(f"| {name} | {shown(PROBLEMS[name].least)} | {' | '.join(cells)} | {times} |", flush=True)
    print(f"\nWorse than another, of {len(names)}: " + ", ".join(f"{each} {lost[each]}" for each in programs))
    return lost


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS))
    main(parser.parse_args().problems)
