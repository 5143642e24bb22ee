"""The Kronecker preconditioner against dense factors, on models where its assumption holds and where it does not."""

import functools
from dataclasses import replace

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from natgrad.arranged import arranged
from natgrad.kronecker import Memory, Sides, Vectors, _rebased
from natgrad.metric.here import Here

pytestmark = pytest.mark.usefixtures("fast_compile")

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(24, 3)))
T = jnp.asarray(RNG.uniform(size=(24, 2)) > 0.5, jnp.float64)


def model(params, inputs):
    return jnp.tanh(inputs @ params["w"] + params["b"]) @ params["v"]


def params():
    rng = np.random.default_rng(1)
    return {
        "w": jnp.asarray(rng.normal(size=(3, 4))),
        "b": jnp.asarray(rng.normal(size=4)),
        "v": jnp.asarray(rng.normal(size=(4, 2))),
    }


def sides_of(memory, theta, limit=2048, rank=128, axes=None):
    """Return each matrix's sides, inputs and units, in the order of the leaves; for a vector None and its diagonal.

    Factors are cut to the side's own length, and the rows of bases.
    """
    found = {}
    whole = arranged(theta, limit, rank, axes)
    for group in whole.groups:
        matrices = [(member, layer) for member in group.members for layer in range(member.layers)]
        for place, (member, layer) in enumerate(matrices):
            both = [
                cut(
                    jax.tree.map(lambda leaf, at=slot.start + place: leaf[at], memory.sides[slot.stack]), size
                )
                for slot, size in zip((group.left, group.right), member.shape, strict=True)
            ]
            found[member.leaf, layer] = tuple(both[::-1] if member.turned else both)
    for row, vectors in zip(whole.rows, memory.vectors, strict=True):
        parts = np.split(np.asarray(vectors.diagonal), np.cumsum(row.sizes)[:-1])
        found.update(
            {(number, 0): (None, Sides(part)) for number, part in zip(row.leaves, parts, strict=True)}
        )
    return [found[number] for number in sorted(found)]


def cut(side, size):
    """Return a side without its padding, which must be zeros, and unit vectors that mix with nothing."""
    if side.basis is None:
        return side
    assert not np.any(side.factor[size:])
    assert not np.any(side.factor[:, size:])
    behind = np.any(np.asarray(side.basis[size:]), axis=0)
    assert behind.sum() == len(side.basis) - size
    assert not np.any(side.basis[:size, behind])
    assert not np.any(side.values[behind])
    kept = side._replace(factor=side.factor[:size, :size], basis=side.basis[:size, ~behind])
    return kept._replace(values=side.values[~behind])


def divided(kind, memory, shift, r):
    """Return P⁻¹r."""
    return kind._divider(memory, r, shift)(r)


def dense_factor(left, right, damping):
    """Return P, from factors or diagonals; a vector has its right side alone."""
    left, right = (None if f is None else f if f.ndim == 2 else np.diag(f) for f in (left, right))
    if left is None:
        return right + damping * np.eye(len(right))
    trace = np.sqrt(np.trace(left) * np.trace(right))
    return np.kron(left, right) / trace + damping * np.eye(len(left) * len(right))


def scores(theta):
    """Every example's and output's column of the factor: D = Jᵀ C e_o, (examples, outputs, leaf)."""
    jacobian = jax.jacrev(lambda p: model(p, X))(theta)
    y = jax.nn.sigmoid(model(theta, X))
    root = jnp.sqrt(y * (1 - y))
    return jax.tree.map(lambda j: j * root.reshape(*root.shape, *(1,) * (j.ndim - 2)), jacobian)


def factors(kind, draws=4000):
    """Return the memory after averaging over many draws of signs."""
    theta = params()
    opt = ng.natural_conjugate_gradient(model, ng.Bernoulli(), direction=ng.Preconditioned(kind))
    problem = opt.problem
    examples = problem.examples(theta, X, T)

    def one(memory, number):
        key = jax.random.fold_in(jax.random.key(0), number)
        here = Here(problem, theta, examples, key, gradient=theta)
        metric = ng.Fisher().operator(here, problem.linearize(theta, examples))
        here = replace(here, metric=metric)
        return kind._measured(here, memory), None

    # The mean of all draws: an average that forgets nothing is a sum with weights 1 - decay.
    return jax.jit(lambda: jax.lax.scan(one, kind.init(theta), jnp.arange(draws))[0])()


@pytest.mark.parametrize(("sketch", "size"), [(16, None), (2, None), (16, 3)])
def test_factors_are_unbiased(sketch, size):
    kind = ng.Kronecker(blocks=6, decay=0.999, sketch=sketch, size=size)
    memory = factors(kind)
    dense = scores(params())
    found = sides_of(memory, params())
    for number, name in enumerate(sorted(dense)):
        D = np.asarray(dense[name]).reshape(48, *params()[name].shape)
        if D.ndim == 2:
            expected = [None, np.sum(D**2, axis=0) / 24]
        else:
            expected = [np.einsum("kij,klj->il", D, D) / 24, np.einsum("kij,kil->jl", D, D) / 24]
        for side, wanted in zip(found[number], expected, strict=True):
            if wanted is None:
                assert side is None
            else:
                np.testing.assert_allclose(side.factor, wanted, rtol=0, atol=0.06 * np.abs(wanted).max())


@pytest.mark.parametrize("limit", [2048, 3])
def test_inverse_is_the_dense_inverse_of_the_product(limit):
    kind = ng.Kronecker(blocks=6, limit=limit, refresh=1000, rebase=1)
    theta = params()
    opt = ng.natural_gradient(
        model, ng.Bernoulli(), preconditioner=kind, damping=ng.Constant(0.1), solver=ng.CG(3, 0.0)
    )
    state, step = opt.init(theta), jax.jit(opt.step)
    # No refresh from step 513 on: the bases have all the time they need.
    for number in (0, *range(513, 700)):
        _, state, _ = step(theta, state._replace(steps=jnp.int32(number)), (X, T))
    memory = state.direction.preconditioner
    assert isinstance(memory, Memory)
    rng = np.random.default_rng(2)
    r = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), theta)
    solved = divided(kind, memory, jnp.asarray(0.1), r)
    for sides, name in zip(sides_of(memory, theta, limit), sorted(theta), strict=True):
        P = dense_factor(*(None if side is None else np.asarray(side.factor) for side in sides), 0.1)
        np.testing.assert_allclose(
            np.asarray(solved[name]).ravel(), np.linalg.solve(P, np.asarray(r[name]).ravel()), rtol=1e-8
        )


def test_inverse_with_few_eigenvectors_has_the_mean_of_the_others_elsewhere():
    kind = ng.Kronecker(blocks=24, refresh=1000, rebase=1, rank=2)
    theta = params()
    opt = ng.natural_gradient(
        model,
        ng.Bernoulli(),
        preconditioner=kind,
        damping=ng.Constant(0.1),
        solver=ng.CG(1, 0.0),
        max_norm=1e-9,
    )
    state, step = opt.init(theta), jax.jit(opt.step)
    # The factors' last refresh in sight is that of step 512: then the bases have all the time they need.
    for number in (0, 1, 2, *range(513, 600)):
        theta, state, _ = step(theta, state._replace(steps=jnp.int32(number)), (X, T))
    memory = state.direction.preconditioner
    whole = []
    for side in (side for sides in sides_of(memory, theta, rank=2) for side in sides):
        if side is None or side.basis is None:
            whole.append(None if side is None else np.asarray(side.factor))
            continue
        rank = side.values.shape[0]
        assert rank == min(2, side.factor.shape[0])
        values = np.linalg.eigvalsh(side.factor)
        np.testing.assert_allclose(np.sort(side.values), values[-rank:], rtol=1e-6)
        rest = values[:-rank].mean() if rank < len(values) else 0.0
        assert (side.rest is None) == (rank == len(values))
        if side.rest is not None:
            np.testing.assert_allclose(side.rest, rest, atol=1e-9)
        basis = np.asarray(side.basis)
        np.testing.assert_allclose(basis.T @ basis, np.eye(rank), atol=1e-12)
        inside = basis @ np.diag(np.asarray(side.values) - rest) @ basis.T
        whole.append(inside + rest * np.eye(len(basis)))
    rng = np.random.default_rng(2)
    r = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), theta)
    solved = divided(kind, memory, jnp.asarray(0.1), r)
    for number, name in enumerate(sorted(theta)):
        P = dense_factor(*whole[2 * number : 2 * number + 2], 0.1)
        np.testing.assert_allclose(
            np.asarray(solved[name]).ravel(), np.linalg.solve(P, np.asarray(r[name]).ravel()), rtol=1e-8
        )


@functools.cache
def graded(size, rank, seed):
    """Return a side in float32 whose eigenvalues fall as 30/k² to 1e-6; all its eigenvalues and eigenvectors."""
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    values = np.r_[30 / np.arange(1, rank + 1) ** 2, np.full(size - rank, 1e-6)]
    parts = (basis * values) @ basis.T, basis[:, :rank], values[:rank], values[-1]
    return Sides(*(jnp.asarray(part, jnp.float32)[None] for part in parts)), values, basis


@pytest.mark.parametrize("damping", [1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8])
@pytest.mark.parametrize("shape", [(400, 300), (2000, 30)])
def test_few_eigenvectors_in_float32_are_as_good_as_in_float64(shape, damping):
    """Eigenvalues over many orders of magnitude: what belongs to the large ones must not leak into the rest."""
    left, a, U = graded(shape[0], 64, 0)
    right, b, V = graded(shape[1], 10, 1)
    memory = Memory(jnp.ones((), jnp.float32), (left, right))
    tau = np.sqrt(a.sum() * b.sum())
    # No eigenvalue is below 1e-4 of their mean.
    P = np.maximum(np.outer(a, b) / tau + damping, 1e-4 * tau / np.prod(shape))
    # Spread as gradients are: E[rrᵀ] = P.
    rng = np.random.default_rng(2)
    sides = [(U @ (np.sqrt(P) * rng.normal(size=shape)) @ V.T).astype(np.float32) for _ in range(2)]
    shift = jnp.asarray(damping, jnp.float32)
    solved = [divided(ng.Kronecker(), memory, shift, jnp.asarray(r)) for r in sides]
    assert {leaf.dtype for leaf in solved} == {jnp.dtype(jnp.float32)}
    found = [np.asarray(leaf, np.float64) for leaf in solved]

    # In P's own norm, the one a solver counts in: ‖x − P⁻¹r‖_P ≤ 1e-4 ‖P⁻¹r‖_P.
    lengths = []
    for r, x in zip(sides, found, strict=True):
        wanted = U.T @ r @ V / P
        lengths.append(np.sqrt(np.sum(P * wanted**2)))
        assert np.sqrt(np.sum(P * (U.T @ x @ V - wanted) ** 2)) < 1e-4 * lengths[-1]
    u, w = sides
    assert np.abs(np.sum(w * found[0]) - np.sum(u * found[1])) < 1e-6 * lengths[0] * lengths[1]


def test_a_gradient_whose_square_overflows_still_refreshes_the_factors():
    kind = ng.Kronecker(blocks=4)
    opt = ng.natural_conjugate_gradient(model, ng.Bernoulli(), direction=ng.Preconditioned(kind))
    theta = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params())
    huge = jax.tree.map(lambda leaf: jnp.full_like(leaf, 1e25), theta)
    _, state, _ = opt.step(
        theta, opt.init(theta), (X.astype(jnp.float32), T.astype(jnp.float32)), gradient=huge
    )
    assert _kronecker(state).mass > 0


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_an_empty_leaf_changes_nothing(shape):
    def with_empty(params, inputs):
        return model(params["own"], inputs) + jnp.sum(params["empty"])

    opt, plain = (ng.kncg(each, ng.Bernoulli(), average=None) for each in (with_empty, model))
    p, q = {"own": params(), "empty": jnp.zeros(shape)}, params()
    state, other = opt.init(p), plain.init(q)
    for _ in range(3):
        p, state, info = opt.step(p, state, (X, T))
        q, other, _ = plain.step(q, other, (X, T))
        assert info.accepted
    # Sides as narrow as these are not sketched, so the signs, drawn for all leaves at once, do not matter.
    for a, b in zip(jax.tree.leaves(p["own"]), jax.tree.leaves(q), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_one_linear_layer_with_one_output_is_exact():
    """F = E[y(1 − y) x xᵀ] is L itself: with every example its own group and a settled basis, a step is Newton's."""

    def linear(w, inputs):
        return inputs @ w

    w = jnp.asarray(np.random.default_rng(3).normal(size=(3, 1)))
    t = T[:, :1]
    kind = ng.Kronecker(blocks=24, refresh=1000, rebase=1)
    opt = ng.natural_gradient(
        linear, ng.Bernoulli(), preconditioner=kind, damping=ng.Constant(1e-6), solver=ng.CG(1, 0.0)
    )
    state, step = opt.init(w), jax.jit(opt.step)
    for number in (0, *range(513, 600)):
        _, state, _ = step(w, state._replace(steps=jnp.int32(number)), (X, t))
    exact = ng.natural_gradient(linear, ng.Bernoulli(), damping=ng.Constant(1e-6), solver=ng.CG(30, 1e-12))
    one, _, _ = step(w, state._replace(steps=jnp.int32(601)), (X, t))
    other, _, _ = exact.step(w, exact.init(w), (X, t))
    np.testing.assert_allclose(one, other, rtol=1e-5)


def test_cuts_the_solvers_iterations():
    """An ill-conditioned input: CG to a residual of 0.1 with and without, in all on some networks."""
    scale = jnp.geomspace(1, 100, 12)

    def net(p, x):
        return jnp.tanh(x @ p["w"]) @ p["v"]

    iterations = {}
    for kind in (ng.Identity(), ng.Jacobi(blocks=50), ng.Kronecker(blocks=50)):
        opt = ng.natural_gradient(
            net, ng.Bernoulli(), preconditioner=kind, damping=ng.Constant(1e-3), solver=ng.CG(200, 0.1)
        )
        step, name = jax.jit(opt.step), type(kind).__name__
        for seed in range(4):
            for_x, for_t, for_w = jax.random.split(jax.random.key(seed), 3)
            x = jax.random.normal(for_x, (300, 12)) * scale
            t = (jax.random.normal(for_t, (300, 3)) > 0).astype(x.dtype)
            p = {"w": jax.random.normal(for_w, (12, 10)) / scale[:, None], "v": jnp.ones((10, 3)) / 3}
            count = int(step(p, opt.init(p), (x, t))[2].solver.iterations)
            iterations[name] = iterations.get(name, 0) + count
    assert 3 * iterations["Kronecker"] <= iterations["Identity"]
    assert iterations["Kronecker"] < iterations["Jacobi"]


def pictures_and_a_tied_weight(params, inputs):
    """A convolution, and a matrix used twice: once as it is, once transposed."""
    maps = jax.lax.conv_general_dilated(
        inputs, params["kernel"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    hidden = jnp.tanh(jnp.tanh(maps).mean(axis=(1, 2)) @ params["w"])
    return jnp.tanh(hidden @ params["w"].T + params["b"]) @ params["v"]


def shared_weights():
    keys = jax.random.split(jax.random.key(3), 6)
    p = {
        "kernel": jax.random.normal(keys[0], (2, 2, 1, 3)),
        "w": jax.random.normal(keys[1], (3, 4)),
        "b": jax.random.normal(keys[2], (3,)),
        "v": jax.random.normal(keys[3], (3, 2)),
    }
    x = jax.random.normal(keys[4], (30, 4, 4, 1))
    return p, x, (jax.random.normal(keys[5], (30, 2)) > 0).astype(x.dtype)


@pytest.mark.parametrize(
    "solver",
    [ng.CG(100, 1e-10), ng.MinresQLP(100, 1e-10)],
    ids=lambda s: type(s).__name__,
)
def test_every_solver_finds_the_same_with_it_for_kernels_and_shared_weights(solver):
    p, x, t = shared_weights()
    flat, unravel = jax.flatten_util.ravel_pytree(p)

    def z(flat):
        return pictures_and_a_tied_weight(unravel(flat), x)

    jacobian, y = jax.jacrev(z)(flat), jax.nn.sigmoid(z(flat))
    fisher = jnp.einsum("noi,no,noj->ij", jacobian, y * (1 - y), jacobian) / len(x)
    gradient = jnp.einsum("noi,no->i", jacobian, y - t) / len(x)
    wanted = flat - jnp.linalg.solve(fisher + 1e-2 * jnp.eye(flat.size), gradient)
    opt = ng.natural_gradient(
        pictures_and_a_tied_weight,
        ng.Bernoulli(),
        solver=solver,
        preconditioner=ng.Kronecker(),
        damping=ng.Constant(1e-2),
    )
    moved, _, info = opt.step(p, opt.init(p), (x, t))
    assert info.accepted
    np.testing.assert_allclose(jax.flatten_util.ravel_pytree(moved)[0], wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "opt",
    [
        ng.hessian_free(pictures_and_a_tied_weight, ng.Bernoulli(), preconditioner=ng.Kronecker()),
        ng.kncg(pictures_and_a_tied_weight, ng.Bernoulli(), average=None),
    ],
    ids=["HF", "NCG-Q"],
)
def test_hessian_free_and_ncg_q_train_with_it_on_kernels_and_shared_weights(opt):
    p, x, t = shared_weights()
    state, step, losses = opt.init(p), jax.jit(opt.step), []
    for _ in range(20):
        p, state, info = step(p, state, (x, t))
        losses.append(float(info.loss))
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.8 * losses[0]


def test_intervals_state_and_one_compilation(compilations):
    kind = ng.Kronecker(blocks=4, refresh=2, rebase=4)
    opt = ng.natural_conjugate_gradient(model, ng.Bernoulli(), direction=ng.Preconditioned(kind))
    theta, state = params(), None
    state = opt.init(theta)
    seen = []
    for step in range(7):
        with compilations() as count:
            theta, new, info = opt.step(theta, state, (X, T))
        assert jax.tree.structure(new) == jax.tree.structure(state)
        assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(new.direction))
        if step:
            assert count() == 0
        before, after = _kronecker(state), _kronecker(new)
        if bool(info.accepted):
            moved = [
                bool(jnp.any(a != b))
                for a, b in ((before.mass, after.mass), (before.sides[0].basis, after.sides[0].basis))
            ]
            seen.append((step, *moved))
        state = new
    for step, averaged, rebased in seen:
        assert averaged == (step in (0, 1, 2, 4, 6))
        assert rebased == (step in (0, 1, 2, 4))
    assert len(seen) >= 5


def _kronecker(state):
    found = [
        leaf
        for leaf in jax.tree.leaves(state.direction, is_leaf=lambda x: isinstance(x, Memory))
        if isinstance(leaf, Memory)
    ]
    return found[0]


def test_a_nan_leaves_the_memory_as_it_was():
    kind = ng.Kronecker(blocks=4, rebase=1)
    opt = ng.natural_conjugate_gradient(model, ng.Bernoulli(), direction=ng.Preconditioned(kind))
    theta = params()
    _, state, _ = opt.step(theta, opt.init(theta), (X, T))
    _, after, info = opt.step(theta, state, (X.at[0, 0].set(jnp.nan), T))
    assert not info.accepted
    for a, b in zip(jax.tree.leaves(_kronecker(state)), jax.tree.leaves(_kronecker(after)), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_microbatch_and_weights_change_nothing_they_should_not():
    kind = ng.Kronecker(blocks=24)
    opt = ng.natural_conjugate_gradient(model, ng.Bernoulli(), direction=ng.Preconditioned(kind))
    theta = params()
    whole, _, _ = opt.step(theta, opt.init(theta), (X, T))
    chunked, _, _ = replace(opt, microbatch=7).step(theta, opt.init(theta), (X, T))
    weighted, _, _ = opt.step(theta, opt.init(theta), (X, T, jnp.full(24, 2.0)))
    for other in (chunked, weighted):
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)


def test_eigenvalues_follow_the_factors_between_bases():
    """The diagonal of each factor in its basis, also when the basis is old; the others share what the trace leaves."""
    kind = ng.Kronecker(blocks=4, refresh=1, rebase=1000, rank=2)
    opt = ng.natural_conjugate_gradient(model, ng.Bernoulli(), direction=ng.Preconditioned(kind))
    theta = params()
    state, step = opt.init(theta), jax.jit(opt.step)
    for number in (0, 1, 2, 3, 5, 6, 7):  # The last bases are those of step 2.
        theta, state, _ = step(theta, state._replace(steps=jnp.int32(number)), (X, T))
    memory = _kronecker(state)
    sides = [side for both in sides_of(memory, theta, rank=2) for side in both if side is not None]
    dense = [side for side in sides if side.basis is not None]
    assert len(dense) == 4
    for side in dense:
        factor, basis = np.asarray(side.factor), np.asarray(side.basis)
        np.testing.assert_allclose(side.values, np.diag(basis.T @ factor @ basis), rtol=1e-9)
        outside = len(factor) - len(side.values)
        assert (side.rest is None) == (outside == 0)
        if outside:
            rest = (np.trace(factor) - side.values.sum()) / outside
            np.testing.assert_allclose(side.rest, rest, atol=1e-12)
    # One side has all its eigenvectors: those of an older factor.
    (whole,) = [side for side in dense if side.basis.shape == (2, 2)]
    assert np.abs(np.linalg.eigvalsh(whole.factor) - np.sort(whole.values)).max() > 1e-9


def test_a_refused_step_keeps_what_was_measured_but_not_of_a_bad_batch():
    opt = ng.kncg(
        model, ng.Bernoulli(), reject=jnp.inf, preconditioner=ng.Kronecker(blocks=4, rebase=1), average=None
    )
    theta = params()
    start = opt.init(theta)
    _, state, info = opt.step(theta, start, (X, T))
    assert ng.Outcome.name_of(info.outcome) == "rejected"
    assert float(_kronecker(state).mass) > 0
    assert any(bool(jnp.any(sides.factor != 0)) for sides in _kronecker(state).sides)
    # Inputs are fine, targets are not: the scores, which see no targets, would be finite.
    _, after, info = opt.step(theta, state, (X, T.at[0, 0].set(jnp.nan)))
    assert ng.Outcome.name_of(info.outcome) == "nonfinite gradient"
    for a, b in zip(jax.tree.leaves(_kronecker(state)), jax.tree.leaves(_kronecker(after)), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_without_damping_what_no_score_has_shown_is_not_divided_by_nothing():
    """One group a refresh shows one direction a side; elsewhere the mean curvature sets the scale."""
    kind = ng.Kronecker(blocks=1)
    memory = kind.init(params())
    seen = memory._replace(
        sides=tuple(sides._replace(values=sides.values.at[:, 0].set(1.0)) for sides in memory.sides),
        vectors=tuple(Vectors(own.diagonal.at[-1].set(1.0), own.mean + 0.25) for own in memory.vectors),
    )
    r = jax.tree.map(jnp.ones_like, params())
    solved = divided(kind, seen, jnp.asarray(0.0), r)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(solved))
    # The mean curvature of a leaf of n entries is 1/n, and 1e-4 of that is the least.
    for name in ("w", "v"):
        assert np.abs(solved[name]).max() < 1e4 * r[name].size * 4


def layers(shapes):
    """Return a chain of layers of these shapes; what does not fit is cut or padded."""

    def net(params, inputs):
        for w, b in params:
            inputs = jnp.pad(inputs, ((0, 0), (0, max(len(w) - inputs.shape[1], 0))))[:, : len(w)]
            inputs = jnp.tanh(inputs @ w + b)
        return inputs

    return net, [(jnp.ones(shape), jnp.zeros(shape[1])) for shape in shapes]


def equations(jaxpr):
    """Count the equations of a jaxpr and of all those inside it."""
    inner = [
        sub for eqn in jaxpr.eqns for sub in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr)
    ]
    return len(jaxpr.eqns) + sum(equations(getattr(sub, "jaxpr", sub)) for sub in inner if _is_jaxpr(sub))


def _is_jaxpr(x):
    return hasattr(x, "eqns") or hasattr(x, "jaxpr")


def test_the_program_grows_with_shapes_not_with_leaves():
    shapes = [(5, 7), (7, 6), (6, 5)]
    counts = {}
    kind = ng.Kronecker()
    for times in (1, 2, 20):
        _, theta = layers(shapes * times)
        memory = kind.init(theta)
        # Short sides are padded to one length, and vectors lie end to end.
        assert len(memory.sides) == len(memory.vectors) == 1
        rebase = jax.make_jaxpr(_rebased)(2, memory)
        apply = jax.make_jaxpr(lambda memory, r: divided(kind, memory, jnp.asarray(0.1), r))(memory, theta)
        counts[times] = equations(rebase.jaxpr), equations(apply.jaxpr)
    assert counts[1][0] == counts[2][0] == counts[20][0]
    # A leaf more is put into a stack and taken out again.
    per_leaf = (counts[20][1] - counts[2][1]) / (6 * 18)
    assert per_leaf < 7


def test_a_refresh_measures_all_leaves_of_a_shape_at_once():
    counts = {}
    for times in (1, 20):
        net, theta = layers([(5, 7), (7, 6), (6, 5)] * times)
        kinds = [ng.Identity(), ng.Kronecker()]
        steps = [ng.kncg(net, ng.Gaussian(), preconditioner=kind, average=None) for kind in kinds]
        plain, own = (
            equations(jax.make_jaxpr(opt.step)(theta, opt.init(theta), (X[:, :3], jnp.ones((24, 5)))).jaxpr)
            for opt in steps
        )
        counts[times] = own - plain
    # The scores go forward and back through the net once more, and that grows; the rest does not.
    assert counts[20] - counts[1] < 45 * 57


def test_bases_stay_orthonormal_in_float32_over_two_hundred_rebases():
    kind = ng.Kronecker(blocks=2, decay=0.5, refresh=1, rebase=1, rank=3)
    opt = ng.natural_conjugate_gradient(model, ng.Bernoulli(), direction=ng.Preconditioned(kind))
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (params(), X, T))
    theta, state, step = single[0], opt.init(single[0]), jax.jit(opt.step)
    for number in range(200):
        scale = 10.0 ** (3 * np.sin(number))
        theta, state, _ = step(theta, state, (single[1] * jnp.float32(scale), single[2]))
        for sides in _kronecker(state).sides:
            if sides.basis is not None:
                basis = np.asarray(sides.basis, np.float64)
                assert np.abs(basis.swapaxes(1, 2) @ basis - np.eye(basis.shape[2])).max() < 1e-5


def test_the_flagships_step_calls_no_lapack():
    opt = ng.kncg(model, ng.Bernoulli(), average=None)
    lowered = jax.jit(opt.step).lower(params(), opt.init(params()), (X, T))
    assert "lapack" not in lowered.as_text().lower()
    assert "lapack" in jax.jit(jnp.linalg.eigh).lower(jnp.eye(4)).as_text().lower()


def test_no_array_of_the_memory_is_empty():
    theta = {**params(), "none": jnp.zeros((0, 3)), "number": jnp.zeros(())}
    memory = ng.Kronecker(limit=3).init(theta)
    assert all(leaf.size for leaf in jax.tree.leaves(memory))
    assert {sides.basis is None for sides in memory.sides} == {True, False}


def test_a_factor_whose_trace_overflows_leaves_its_basis_and_no_other():
    theta = [jnp.ones((5, 4), jnp.float32), jnp.ones((5, 4), jnp.float32)]
    memory = ng.Kronecker(rank=3).init(theta)
    sides = tuple(
        each._replace(
            factor=each.factor
            + jnp.eye(each.factor.shape[1], dtype=jnp.float32).at[0, 1].set(0.5)
            * jnp.asarray([2e38, 1.0], jnp.float32)[:, None, None]
        )
        for each in memory.sides
    )
    after = _rebased(2, memory._replace(sides=sides))
    for old, new in zip(sides, after.sides, strict=True):
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(new))
        np.testing.assert_allclose(new.basis[0], old.basis[0], atol=1e-6)
        assert np.any(new.values[1] != old.values[1])
