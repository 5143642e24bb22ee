"""No wrong claim, and no way out by declining: seeded systems of every kind, judged in float64."""

from functools import cache

import jax
import numpy as np
import pytest
from corpus import KINDS, SIZES, batch
from judge import POSITIVE, easy, inconsistent, judge

from natgrad.solve import CG, MINRES, MinresQLP, Reason

RTOL = {np.float64: 1e-8, np.float32: 1e-4}
EASY = {np.float64: 1e4 * (1 + 1e-9), np.float32: 1e2 * (1 + 1e-6)}


def solver_for(name, size, rtol):
    # Four products are left for the checks: 5n in all.
    maxiter = max(5 * size - 4, 1)
    return {
        "cg": CG(maxiter, rtol),
        "minres": MINRES(maxiter, rtol, reorthogonalize=size),
        "minres-qlp": MinresQLP(maxiter, rtol, reorthogonalize=size),
        "minres-qlp short recurrence": MinresQLP(maxiter, rtol),
    }[name]


@cache
def compiled(name, size, rtol):
    solver = solver_for(name, size, rtol)

    def solve(system):
        return solver(lambda v: system[0] @ v, system[1])

    # Together while they are small; one after the other where the slowest would hold up large ones.
    return jax.jit(jax.vmap(solve) if size <= 75 else lambda systems: jax.lax.map(solve, systems))


class Tally:
    def __init__(self):
        self.systems = self.wrong = self.easy = self.solved = self.singular = self.shortest = 0

    def add(self, name, seed, size, count, dtype, rtol=None):
        rtol = rtol or RTOL[dtype]
        drawn = batch(seed, size, count, dtype)
        solution = compiled(name, size, rtol)((drawn.A, drawn.b))
        verdict = judge(drawn, solution.x, solution.reason, rtol)
        must_solve = easy(drawn, EASY[dtype])
        if name == "cg":
            must_solve &= np.isin(drawn.kind, POSITIVE)
        singular = inconsistent(drawn)
        self.systems += count
        self.wrong += int(verdict.wrong.sum())
        self.easy += int(must_solve.sum())
        self.solved += int((must_solve & verdict.solved).sum())
        self.singular += int(singular.sum())
        self.shortest += int((singular & (verdict.shortest <= 1e-6)).sum())

    def __str__(self):
        return (
            f"{self.systems} systems, {self.wrong} wrong claims, {self.solved}/{self.easy} easy ones solved, "
            f"{self.shortest}/{self.singular} inconsistent ones to 1e-6 of the pseudo-inverse"
        )


@pytest.mark.usefixtures("fast_compile")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["cg", "minres", "minres-qlp"])
def test_sample(name, dtype):
    """500 systems for each solver, 250 in each precision."""
    tally = Tally()
    for size, count in ((3, 110), (24, 140)):
        tally.add(name, 7, size, count, dtype)
    print(name, np.dtype(dtype), tally)
    assert tally.wrong == 0
    assert tally.solved == tally.easy
    if name == "minres-qlp" and dtype == np.float64:
        assert tally.shortest >= 0.9 * tally.singular


@pytest.mark.long
@pytest.mark.parametrize("name", ["cg", "minres", "minres-qlp", "minres-qlp short recurrence"])
def test_ten_thousand(name):
    tallies = {}
    for dtype in (np.float64, np.float32):
        tally = tallies[dtype] = Tally()
        for size in SIZES:
            count = 580 if size <= 75 else 150 if size <= 200 else 100
            tally.add(name, 0, size, count, dtype)
        print(f"{name} {np.dtype(dtype)}: {tally}")
    assert sum(tally.systems for tally in tallies.values()) >= 10_000
    assert all(tally.wrong == 0 for tally in tallies.values())
    if name != "minres-qlp short recurrence":
        assert all(tally.solved >= 0.999 * tally.easy for tally in tallies.values())
    if name == "minres-qlp":
        assert tallies[np.float64].shortest >= 0.9 * tallies[np.float64].singular


def test_corpus_covers_what_it_says():
    drawn = batch(0, 40, 200, np.float64)
    assert set(drawn.kind) == set(KINDS)
    norms = np.linalg.norm(drawn.b, axis=1)
    assert norms.min() == 0
    assert (norms > 1e17).any()
    assert ((norms > 0) & (norms < 1e-17)).any()
    assert drawn.condition.max() > 1e12
    assert (drawn.rank < 40).any()


def test_judge_catches_a_lie():
    drawn = batch(0, 13, 20, np.float64)
    lie = np.full(20, Reason.SOLVED)
    nothing = np.zeros_like(drawn.b)
    assert judge(drawn, nothing, lie, 1e-8).wrong.sum() == (np.linalg.norm(drawn.b, axis=1) > 0).sum()
