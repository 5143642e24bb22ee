"""A fan of steps for many λ, the search that picks one, the recipe that uses both, and SPRING."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.flatten_util import ravel_pytree
from models import MODELS, WEIGHTS, layers, mlp

import natgrad as ng
from natgrad import tree
from natgrad.directions import Fan, Proposal, Spring, fan
from natgrad.metric.here import Here
from natgrad.optimizer import look
from natgrad.problem import Start
from natgrad.search import Pick
from natgrad.solve import Space
from natgrad.state import Batches, Data

pytestmark = pytest.mark.usefixtures("fast_compile")

CASE = MODELS["mlp"]
TARGETS = 0.3 * jnp.sin(CASE.inputs)
FLAT, UNRAVEL = ravel_pytree(CASE.params)


def two(params, x):
    """Inside and on the edge: two outputs with their own points."""
    return mlp(params, x[0])[:, 0], jnp.tanh(mlp(params, x[1]))


PROBLEMS = {
    "gaussian": (CASE.model, ng.Gaussian(0.5), (CASE.inputs, TARGETS)),
    "weights": (CASE.model, ng.Gaussian(), (CASE.inputs, TARGETS, WEIGHTS)),
    "bernoulli": (CASE.model, ng.Bernoulli(), (CASE.inputs, jnp.round(jax.nn.sigmoid(CASE.inputs)))),
    "product": (
        two,
        ng.Product(ng.Gaussian(), ng.Gaussian(2.0), weights=(1.0, 3.0)),
        ((CASE.inputs, CASE.inputs[:4] + 0.1), (TARGETS[:, 0], TARGETS[:4])),
    ),
    "loss": (
        CASE.model,
        ng.Likelihood.from_loss(lambda r, t: jnp.sum(jnp.logaddexp(r - t, t - r), -1)),
        (CASE.inputs, TARGETS),
    ),
}
OPTIONS = {
    "plain": {},
    "l2": {"l2": 0.1},
    "decayed": {"l2": 0.1, "decayed": lambda path, leaf: leaf.ndim > 1},
    "chunks": {"microbatch": 2},
}


def seen(opt, params, batch):
    """What is known at θ, and what the fan proposes there."""
    inputs, targets, weights = (*batch, None)[:3]
    data = Data(Batches((inputs, targets, weights)))
    here = look(opt, params, opt.init(params), data)
    return here, opt.direction.propose(here, ())


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("examples", [7, 35])
def test_every_row_is_the_dense_solve_and_keeps_the_models_promise(problem, options, examples):
    """7 examples are fewer than the parameters, 35 (copies, moved) more: the dual and the primal."""
    model, likelihood, batch = PROBLEMS[problem]
    if examples == 35:
        copies = jax.tree.map(lambda leaf: jnp.concatenate([leaf + 0.1 * k for k in range(5)]), batch)
        batch = copies if problem != "bernoulli" else (copies[0], jnp.tile(batch[1], (5, 1)))
    opt = ng.gauss_newton(model, likelihood, count=6, **OPTIONS[options])

    def rows(floor):
        straight = replace(opt, direction=replace(opt.direction, bend=None, floor=floor))
        here, proposal = seen(straight, CASE.params, batch)
        F = oracles.matrix(here.metric, CASE.params)
        stack = tree.ravel(proposal.rows.leaves, lead=1)
        return stack, proposal.dampings, proposal.promises, F, ravel_pytree(here.gradient)[0]

    for floor in (None, 0.1):
        B, dampings, promises, F, g = map(np.asarray, jax.jit(lambda f=floor: rows(f))())
        if options == "l2":
            F = F + 0.1 * np.eye(len(F))
        D = np.sqrt(np.diagonal(F))
        D = np.eye(len(F)) if floor is None else np.diag(np.maximum(D, floor * D.max()) ** 2)
        for row, damping, promise in zip(B, dampings, promises, strict=True):
            if damping < 1e-9 * dampings[-1]:
                continue  # Here a dense solve with F itself has no digits left.
            wanted = -np.linalg.solve(F + damping * D, g)
            assert np.linalg.norm(row - wanted) <= 1e-6 * np.linalg.norm(wanted)
            np.testing.assert_allclose(promise, g @ wanted + wanted @ F @ wanted / 2, rtol=1e-6)


@pytest.mark.parametrize("floor", [None, 0.1])
def test_a_gradient_outside_the_metrics_rows_keeps_the_promise_too(floor):
    """A metric on three other inputs has fewer rows than there are parameters, and does not reach all of g."""
    opt = ng.gauss_newton(CASE.model, ng.Gaussian(), count=6)
    opt = replace(opt, direction=replace(opt.direction, bend=None, floor=floor))
    data = Data(Batches((CASE.inputs, TARGETS, None), metric=(CASE.inputs[:3] + 0.3, None, None)))

    @jax.jit
    def rows():
        here = look(opt, CASE.params, opt.init(CASE.params), data)
        proposal = opt.direction.propose(here, ())
        F = oracles.matrix(here.metric, CASE.params)
        stack = tree.ravel(proposal.rows.leaves, lead=1)
        return stack, proposal.dampings, proposal.promises, F, ravel_pytree(here.gradient)[0]

    B, dampings, promises, F, g = map(np.asarray, rows())
    values, vectors = np.linalg.eigh(F)
    assert np.linalg.norm(vectors[:, values < 1e-12 * values[-1]].T @ g) > 1e-3 * np.linalg.norm(g)
    D = np.sqrt(np.diagonal(F))
    D = np.eye(len(F)) if floor is None else np.diag(np.maximum(D, floor * D.max()) ** 2)
    for row, damping, promise in zip(B[2:], dampings[2:], promises[2:], strict=True):
        wanted = -np.linalg.solve(F + damping * D, g)
        assert np.linalg.norm(row - wanted) <= 1e-6 * np.linalg.norm(wanted)
        np.testing.assert_allclose(promise, g @ wanted + wanted @ F @ wanted / 2, rtol=1e-6)


def test_a_fan_of_33_takes_the_decompositions_of_one():
    def count(number):
        opt = ng.gauss_newton(CASE.model, ng.Gaussian(), count=number)
        jaxpr = jax.make_jaxpr(opt.step)(CASE.params, opt.init(CASE.params), (CASE.inputs, TARGETS))
        names = [each.primitive.name for each in oracles.primitives(jaxpr.jaxpr)]
        assert not [
            each
            for each in oracles.primitives(jaxpr.jaxpr, looped=True)
            if each.primitive.name in ("svd", "eigh", "geqrf", "qr")
        ]
        return {name: names.count(name) for name in ("svd", "eigh", "geqrf", "householder_product")}

    assert count(33) == count(2)
    assert count(33)["svd"] == 1


def fit(dtype=jnp.float64, **options):
    """A net that some parameters fit exactly, started elsewhere."""
    x = jnp.linspace(-1, 1, 40)[:, None].astype(dtype)
    cast = lambda params: jax.tree.map(lambda leaf: leaf.astype(dtype), params)  # noqa: E731
    true, params = cast(layers(3, 1, 4, 1)), cast(layers(20, 1, 4, 1))
    return ng.gauss_newton(mlp, ng.Gaussian(), **options), params, (x, mlp(true, x))


@pytest.mark.parametrize(
    ("examples", "direction", "space"),
    [(40, Fan(), "parameters"), (5, Fan(), "residuals"), (40, Fan(largest=4, size=3), "krylov")],
    ids=["primal", "dual", "matrix-free"],
)
def test_info_says_where_the_step_was_solved(examples, direction, space):
    opt, params, batch = fit()
    opt = replace(opt, direction=direction)
    _, _, info = opt.step(params, opt.init(params), jax.tree.map(lambda leaf: leaf[:examples], batch))
    assert Space.name_of(info.solver.space) == space
    assert info.solver.iterations == (3 if space == "krylov" else 1)
    assert ng.Reason.name_of(info.solver.reason) == "solved"


def test_a_krylov_space_has_no_more_vectors_than_there_are_parameters():
    opt, params, batch = fit()
    opt = replace(opt, direction=Fan(largest=4, size=50))
    _, _, info = opt.step(params, opt.init(params), batch)
    assert info.solver.iterations == 13


@pytest.mark.parametrize(
    ("examples", "solver", "space"),
    [(40, ng.Direct(), "parameters"), (5, ng.Direct(), "residuals"), (40, ng.CG(), "krylov")],
    ids=["primal", "dual", "CG"],
)
def test_a_solver_says_where_it_worked(examples, solver, space):
    _, params, batch = fit()
    opt = ng.natural_gradient(mlp, ng.Gaussian(), solver=solver)
    _, _, info = opt.step(params, opt.init(params), jax.tree.map(lambda leaf: leaf[:examples], batch))
    assert Space.name_of(info.solver.space) == space


@pytest.mark.parametrize("options", [{}, {"ratio": None}, {"microbatch": 7}], ids=str)
def test_a_loss_that_can_reach_zero_does_so_superlinearly(options):
    """exp(−at) + exp(−bt), well separated rates: the Jacobian has full rank where the residual is 0."""

    def model(rates, t):
        return jnp.sum(jnp.exp(-rates * t), axis=-1)

    t, rates = jnp.linspace(0, 3, 30)[:, None], jnp.array([2.0, 0.2])
    batch = (t, model(jnp.array([4.0, 0.7]), t))
    opt = ng.gauss_newton(model, ng.Gaussian(), **options)
    state, losses = opt.init(rates), []
    for _ in range(12):
        rates, state, info = opt.step(rates, state, batch)
        losses.append(float(info.new_loss))
        assert info.new_loss <= info.loss
        if losses[-1] < 1e-28:
            break
    np.testing.assert_allclose(rates, [4.0, 0.7], rtol=1e-12)
    # The last steps each gain more than the one before.
    assert losses[-2] / losses[-3] < losses[-3] / losses[-4] < 0.1


def test_the_search_takes_the_longest_step_that_keeps_enough_of_its_promise():
    opt, params, batch = fit()
    _, _, longest = opt.step(params, opt.init(params), batch)
    greedy = replace(opt, search=Pick(None))
    _, _, lowest = greedy.step(params, opt.init(params), batch)
    assert longest.damping <= lowest.damping
    assert lowest.new_loss <= longest.new_loss
    assert longest.rho >= 0.01
    index = int(np.argmax(longest.step_size))
    np.testing.assert_array_equal(longest.step_size, np.eye(33)[index])
    one_at_a_time = replace(opt, search=Pick(at_once=1))
    np.testing.assert_allclose(
        one_at_a_time.step(params, opt.init(params), batch)[2].new_loss, longest.new_loss
    )


def test_bending_follows_the_second_derivative():
    """At a point that fits but for a small residual, a bent step leaves a smaller error by one order."""
    x = jnp.linspace(0.1, 1, 20)[:, None]

    def model(params, x):
        return jnp.exp(params * x)

    start = jnp.array([0.5])
    rests = []
    for gap in (0.2, 0.1):
        batch = (x, model(start + gap, x))
        rest = []
        for bend in (None, 10.0):
            opt = ng.gauss_newton(model, ng.Gaussian())
            opt = replace(opt, direction=replace(opt.direction, bend=bend))
            moved, _, _ = opt.step(start, opt.init(start), batch)
            rest.append(abs(float(moved[0] - start[0]) - gap))
        rests.append(rest)
    (plain, bent), (half_plain, half_bent) = rests
    assert bent < plain / 3
    assert 3 < plain / half_plain < 5
    assert bent / half_bent > 6


def test_too_large_a_problem_is_projected_and_still_trains():
    opt, params, batch = fit()
    small = replace(opt, direction=Fan(largest=4, size=10))
    tight = replace(opt, direction=Fan(solver=ng.Direct(memory=1000), size=10))
    jaxpr = jax.make_jaxpr(small.step)(params, small.init(params), batch)
    assert "svd" not in {each.primitive.name for each in oracles.primitives(jaxpr.jaxpr)}
    for each in (small, tight):
        theta, state, first = each.step(params, each.init(params), batch)
        for _ in range(10):
            theta, state, info = each.step(theta, state, batch)
        assert info.new_loss < first.loss / 100
    # As many vectors as parameters span everything: the projection is exact.
    whole = replace(opt, direction=Fan(largest=4, size=13, floor=None, bend=None, count=5))
    exact = replace(opt, direction=Fan(floor=None, bend=None, count=5))

    def rows(opt):
        here, proposal = seen(opt, params, batch)
        gradient = ravel_pytree(here.gradient)[0]
        stack = tree.ravel(proposal.rows.leaves, lead=1)
        return stack, proposal.dampings, oracles.matrix(here.metric, params), gradient

    for each in (whole, exact):
        B, dampings, F, g = map(np.asarray, jax.jit(lambda o=each: rows(o))())
        for row, damping in list(zip(B, dampings, strict=True))[-3:]:
            np.testing.assert_allclose(row, -oracles.solve(F, g, damping), rtol=1e-6, atol=1e-9)


def test_a_penalty_counts_as_rows():
    """Five residuals and 13 parameters: small as the dual, but a penalty adds a row for each parameter."""
    opt, params, batch = fit()
    few = jax.tree.map(lambda leaf: leaf[:5], batch)
    for l2, decomposes in ((None, True), (0.1, False)):
        small = replace(opt, direction=Fan(largest=8, size=5), l2=l2)
        jaxpr = jax.make_jaxpr(small.step)(params, small.init(params), few)
        assert ("svd" in {each.primitive.name for each in oracles.primitives(jaxpr.jaxpr)}) == decomposes


def test_a_metric_without_a_factor_is_projected():
    opt = ng.gauss_newton(CASE.model, ng.Bernoulli(), metric=ng.EmpiricalFisher(centered=True))
    targets = jnp.round(jax.nn.sigmoid(CASE.inputs))
    given = {"metric_inputs": CASE.inputs, "metric_targets": targets}
    info = opt.step(CASE.params, opt.init(CASE.params), (CASE.inputs, targets), **given)[2]
    assert info.accepted
    assert info.solver.space == Space.KRYLOV
    diagonal = replace(opt, metric=ng.DiagonalFisher())
    info = diagonal.step(CASE.params, diagonal.init(CASE.params), (CASE.inputs, targets))[2]
    assert info.accepted
    assert info.solver.space == Space.PARAMETERS


def test_a_dead_model_stays_where_it_is():
    """A zero Jacobian: no row leads anywhere, nothing is raised, nothing is not finite."""

    def dead(params, x):
        return 0 * jnp.sum(params) + x

    for recipe in (ng.gauss_newton(dead, ng.Gaussian()), ng.gauss_newton(dead, ng.Bernoulli())):
        params, state, info = recipe.step(jnp.ones(3), recipe.init(jnp.ones(3)), (jnp.ones(5), jnp.zeros(5)))
        np.testing.assert_array_equal(params, 1)
        assert not info.accepted
        assert ng.Outcome(int(info.outcome)) in (ng.Outcome.UNMEASURABLE, ng.Outcome.NO_DECREASE)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    # Without a largest eigenvalue λ is in units of 1.
    proposal = seen(recipe, jnp.ones(3), (jnp.ones(5), jnp.zeros(5)))[1]
    np.testing.assert_allclose(proposal.dampings[-1], 10)


def test_parameters_that_do_nothing_stay():
    def idle(params, x):
        return mlp(params["net"], x) + 0 * params["idle"]

    opt, net, batch = fit()
    opt = ng.gauss_newton(idle, ng.Gaussian())
    params = {"net": net, "idle": jnp.ones(())}
    for _ in range(5):
        params, _, info = opt.step(params, opt.init(params), batch)
        assert info.accepted
    assert params["idle"] == 1


@pytest.mark.parametrize("where", ["batch", "metric_inputs", "search_batch"])
@pytest.mark.parametrize("size", [4096, 1])
def test_a_bad_number_is_named(where, size):
    opt, params, (x, t) = fit()
    opt = replace(opt, direction=replace(opt.direction, largest=size))
    good = {"batch": (x, t), "metric_inputs": x, "search_batch": (x, t)}
    assert opt.step(params, opt.init(params), **good)[2].accepted
    bad = good | {where: x.at[3].set(jnp.nan) if where == "metric_inputs" else (x.at[3].set(jnp.nan), t)}
    same, state, info = opt.step(params, opt.init(params), **bad)
    wanted = {
        "batch": ng.Outcome.NONFINITE_GRADIENT,
        "metric_inputs": ng.Outcome.NONFINITE_METRIC,
        "search_batch": ng.Outcome.NONFINITE_LOSS,
    }
    assert ng.Outcome(int(info.outcome)) == wanted[where]
    jax.tree.map(np.testing.assert_array_equal, same, params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


def test_single_precision_stays_single_and_trains():
    opt, far, batch = fit(jnp.float32)
    true = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), layers(3, 1, 4, 1))
    # From further away, rounding decides between the solution and a minimum of 6e-8.
    params = jax.tree.map(lambda one, other: one + 0.1 * (other - one), true, far)
    state = opt.init(params)
    for _ in range(25):
        params, state, info = opt.step(params, state, batch)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    assert info.damping.dtype == jnp.float32
    assert info.loss < 1e-9


def test_packed_and_unpacked_parameters_take_the_same_step():
    opt, params, batch = fit()
    direct, _, _ = opt.step(params, opt.init(params), batch)
    inside = jax.jit(lambda params: opt.step(params, opt.init(params), batch)[0])(params)
    for a, b in zip(jax.tree.leaves(direct), jax.tree.leaves(inside), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    frozen = ng.gauss_newton(mlp, ng.Gaussian(), trainable=lambda path, leaf: path.startswith("1"))
    moved, _, info = frozen.step(params, frozen.init(params), batch)
    assert info.accepted
    jax.tree.map(np.testing.assert_array_equal, moved[0], params[0])


def test_a_given_gradient_is_obeyed():
    """It need not lie in the range of Aᵀ, and the residuals have no say."""
    opt, params, batch = fit()
    gradient = jax.tree.map(jnp.ones_like, params)

    def rows():
        data = Data(Batches((*batch, None)), gradient=gradient)
        straight = replace(opt, direction=Fan(bend=None, floor=None, count=4))
        here = look(straight, params, straight.init(params), data)
        proposal = straight.direction.propose(here, ())
        return (
            tree.ravel(proposal.rows.leaves, lead=1),
            proposal.dampings,
            oracles.matrix(here.metric, params),
        )

    B, dampings, F = map(np.asarray, jax.jit(rows)())
    for row, damping in list(zip(B, dampings, strict=True))[2:]:
        wanted = -oracles.solve(F, np.ones(len(F)), damping)
        np.testing.assert_allclose(row, wanted, rtol=1e-6, atol=1e-9 * np.abs(wanted).max())


def test_pick_needs_a_fan():
    opt = ng.natural_gradient(CASE.model, ng.Gaussian(), search=Pick())
    with pytest.raises(ValueError, match=r"ng.directions.Fan\(\)"):
        opt.step(CASE.params, opt.init(CASE.params), (CASE.inputs, TARGETS))


def test_a_loss_needs_no_metric_to_be_named():
    model, likelihood, batch = PROBLEMS["loss"]
    opt = ng.gauss_newton(model, likelihood)
    assert isinstance(opt.metric, ng.GaussNewton)
    assert opt.step(CASE.params, opt.init(CASE.params), batch)[2].accepted


def test_spring_solves_its_own_equation_step_by_step():
    """d = argmin gᵀd + ½dᵀFd + (λ/2)‖d − μd₋‖², from dense matrices; and after a refusal d₋ = 0."""
    model, likelihood, batch = PROBLEMS["bernoulli"]
    opt = ng.Optimizer(
        model, likelihood, Spring(0.7), ng.FixedRate(0.5), damping=ng.Constant(0.03), reject=-1e9
    )
    params, state, before = CASE.params, opt.init(CASE.params), np.zeros(FLAT.size)

    @jax.jit
    def dense(params):
        F = oracles.matrix(ng.metric_product(model, likelihood, params, batch[0]), params)
        g = jax.grad(lambda p: jnp.mean(likelihood.nll(model(p, batch[0]), batch[1])))(params)
        return F, ravel_pytree(g)[0]

    for _ in range(4):
        F, g = map(np.asarray, dense(params))
        wanted = oracles.solve(F, -g + 0.03 * 0.7 * before, 0.03)
        moved, state, info = opt.step(params, state, batch)
        assert info.accepted
        step = (ravel_pytree(moved)[0] - ravel_pytree(params)[0]) / 0.5
        np.testing.assert_allclose(step, wanted, rtol=1e-7, atol=1e-9)
        params, before = moved, wanted
    bad = (batch[0].at[0, 0].set(jnp.nan), batch[1])
    _, state, info = opt.step(params, state, bad)
    assert not info.accepted
    np.testing.assert_array_equal(ravel_pytree(state.direction.direction)[0], 0)


def test_spring_without_momentum_is_the_natural_gradient():
    model, likelihood, batch = PROBLEMS["bernoulli"]
    spring = ng.Optimizer(
        model, likelihood, Spring(0.0, ng.Natural(ng.CG(60, 1e-12))), damping=ng.Constant(0.1)
    )
    plain = ng.natural_gradient(model, likelihood, solver=ng.CG(60, 1e-12), damping=ng.Constant(0.1))
    found, wanted = (
        ravel_pytree(opt.step(CASE.params, opt.init(CASE.params), batch)[0])[0] for opt in (spring, plain)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize(("problem", "chunks"), [("weights", None), ("product", 2)])
def test_a_second_derivative_in_the_order_of_the_rows_is_the_force_that_bends(problem, chunks):
    """Aᵀ √c Cᵀ f″ = Σ c Jᵀ M f″."""
    model, likelihood, batch = PROBLEMS[problem]
    opt = ng.gauss_newton(model, likelihood, microbatch=chunks)

    def both():
        here, _ = seen(opt, CASE.params, batch)
        along = UNRAVEL(jnp.cos(jnp.arange(len(FLAT), dtype=FLAT.dtype)))
        A = here.metric.matrix(here.gradient)
        return here.metric.second(along) @ A, tree.ravel(here.metric.bend(along))

    found, wanted = jax.jit(both)()
    assert np.linalg.norm(wanted) > 1e-3
    np.testing.assert_allclose(found, wanted, atol=1e-10 * np.linalg.norm(wanted))


def test_the_longest_rows_that_can_be_believed_are_bent(monkeypatch):
    """A window of ten of 33 has what all of them bent have."""
    opt, params, batch = fit()

    def rows(bent):
        monkeypatch.setattr(fan, "BENT", bent)
        straight = replace(opt, direction=replace(opt.direction, bend=None))
        found = jax.jit(lambda: [seen(each, params, batch)[1].rows.leaves for each in (opt, straight)])()
        one, other = (tree.ravel(each, lead=1) for each in found)
        return np.asarray(one), np.linalg.norm(one - other, axis=1) > 0

    (every, all_bent), (some, ten_bent) = rows(33), rows(10)
    first = int(np.argmax(ten_bent))
    assert ten_bent.sum() <= 10
    assert not ten_bent[first + 10 :].any()
    assert not all_bent[first - 1]
    np.testing.assert_array_equal(ten_bent[first : first + 10], all_bent[first : first + 10])
    np.testing.assert_allclose(some[ten_bent], every[ten_bent], rtol=1e-9)


def test_if_every_row_can_be_believed_the_ten_longest_are_bent():
    opt, params, batch = fit()

    def rows(bend):
        each = replace(opt, direction=replace(opt.direction, bend=bend))
        return tree.ravel(jax.jit(lambda: seen(each, params, batch)[1].rows.leaves)(), lead=1)

    bent = np.linalg.norm(np.asarray(rows(1e300) - rows(None)), axis=1) > 0
    assert bent.tolist() == [True] * fan.BENT + [False] * (opt.direction.count - fan.BENT)


def test_where_no_row_lowers_the_loss_a_part_of_the_shortest_does():
    """r = (1 + 10⁴x², x): the residual is large and bends more than any λ of the fan knows."""

    def model(x, _):
        return jnp.stack([1 + 1e4 * x[0] ** 2, 0.1 * x[0]])[None]

    opt = ng.gauss_newton(model, ng.Gaussian())
    opt = replace(opt, direction=replace(opt.direction, bend=None))
    x, batch = jnp.array([1e-5]), (jnp.zeros(1), jnp.array([[0.0, -0.1]]))
    state = opt.init(x)
    for _ in range(40):
        x, state, info = opt.step(x, state, batch)
        assert info.new_loss <= info.loss
    # 2·10⁴x (1 + 10⁴x²) + 0.01 (x + 1) = 0.
    np.testing.assert_allclose(x, -0.01 / (2e4 + 0.01), rtol=1e-3)


def test_rows_go_one_by_one_on_a_cpu_and_together_elsewhere(monkeypatch):
    assert tree.at_once(33) is None
    assert tree.at_once(33, 5) == 5
    assert tree.at_once(3, 5) == 3
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert tree.at_once(33) == 8


def picked(changes, promises, ratio=0.01, shorter=0.0):
    """Return what `Pick` finds among rows whose changes are known; a part of the last one changes by `shorter`."""
    count = len(changes)

    def probe(z):
        whole = jnp.asarray(changes)[jnp.argmax(z)]
        return jnp.where(jnp.max(z) == 1, whole, shorter / jnp.max(z))

    proposal = Proposal(
        None, -jnp.ones(count), dampings=jnp.arange(1.0, count + 1), promises=jnp.asarray(promises)
    )
    here = Here(None, None, None, None, search=Start(None, jnp.asarray(1e-3)))
    return Pick(ratio)(here, proposal, probe)


@pytest.mark.parametrize(
    ("changes", "promises", "row"),
    [
        ([1.0, -0.5, -0.6], [-1.0, -1.0, -1.0], 1),
        ([-0.009, -0.5, -0.6], [-1.0, -1.0, -1.0], 1),
        ([-0.011, -0.5, -0.6], [-1.0, -1.0, -1.0], 0),
        # A row that promises nothing keeps no promise.
        ([-0.5, -0.4, -0.6], [0.5, -1.0, -1.0], 1),
        # Where none keeps enough, the lowest is taken.
        ([-0.002, -0.003, 0.1], [-1.0, -1.0, -1.0], 1),
        ([np.nan, -0.0005, -0.003], [-1.0, -0.001, -1.0], 2),
    ],
)
def test_pick_takes_the_first_row_that_keeps_a_hundredth_of_its_promise(changes, promises, row):
    found = picked(changes, promises)
    np.testing.assert_array_equal(found.z, np.eye(3)[row])
    assert (found.change, found.damping, found.predicted) == (changes[row], row + 1, promises[row])


def test_pick_shortens_the_last_row_where_none_is_lower():
    """To a tenth, and a tenth of that, until the loss falls by more than it can resolve."""
    found = picked([1.0, 0.5, -0.0005], [-1.0, -1.0, -3.0], shorter=-0.00002)
    np.testing.assert_allclose(found.z, [0, 0, 0.01])
    np.testing.assert_allclose((found.change, found.damping, found.predicted), (-0.002, 3, -0.03))


@pytest.mark.parametrize("shorter", [0.0, 1.0])
def test_pick_gives_up_at_last(shorter):
    found = picked([1.0, 0.5, 0.5], [-1.0, -1.0, -3.0], shorter=shorter)
    assert not np.any(found.z)
    assert (found.change, found.predicted) == (0, 0)


@pytest.mark.parametrize("other", [0.0, 0.3])
def test_a_penalty_counts_on_a_krylov_space_too(other):
    """Every row is −(F + (l2 + λ)I)⁻¹g, as long as the space is whole; a damping rule's λ has no part in it."""
    rng = np.random.default_rng(0)
    x, t, params = (jnp.asarray(rng.normal(size=shape)) for shape in ((9, 3), (9, 1), (3, 1)))
    opt = ng.gauss_newton(lambda p, x: x @ p, ng.Gaussian(), l2=0.1)
    opt = replace(opt, direction=replace(opt.direction, largest=1, size=3, bend=None))
    opt = replace(opt, damping=ng.Constant(other))
    proposal = seen(opt, params, (x, t))[1]
    F, g = np.asarray(x.T @ x) / 9, np.asarray(x.T @ (x @ params - t) / 9 + 0.1 * params)
    rows = tree.ravel(proposal.rows.leaves, lead=1)
    for damping, row in zip(proposal.dampings, rows, strict=True):
        wanted = -np.linalg.solve(F + (0.1 + float(damping)) * np.eye(3), g)[:, 0]
        np.testing.assert_allclose(row, wanted, rtol=1e-8)
