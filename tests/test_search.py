"""How far along the rows: each search on functions whose answer is known."""

from dataclasses import replace

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import natgrad as ng
from natgrad.directions import Proposal
from natgrad.metric.here import Here
from natgrad.problem import Start
from natgrad.search.line import Bracket, Point

few = settings(derandomize=True, deadline=None, max_examples=25)


def local(resolution=None, slope=-1.0, steps=0, learning_rate=None, metric=None):
    """Return what is known at θ, and a proposal of one row."""
    here = Here(
        None,
        None,
        None,
        None,
        search=None if resolution is None else Start(None, jnp.asarray(resolution)),
        shift=jnp.asarray(0.0),
        metric=metric,
        steps=jnp.asarray(steps),
        rate=learning_rate,
    )
    return here, Proposal(({"w": jnp.ones(2)},), jnp.array([slope]))


def several(slopes, resolution=0.0):
    """Return what is known at θ, and a proposal of unit rows."""
    slopes = jnp.asarray(slopes)
    rows = tuple({"w": row} for row in jnp.eye(slopes.size, dtype=slopes.dtype))
    return local(resolution)[0], Proposal(rows, slopes)


class Curved:
    """A metric with dᵀFd = c ‖d‖²/2, which is c at the ones of `local`."""

    def __init__(self, c):
        self.c = c

    def quadratic(self, v):
        return jnp.asarray(self.c) * jnp.sum(v["w"] ** 2) / 2

    divergence = quadratic


@jax.jit
def quartic_search(coefficients):
    """A line search on a random quartic through f(0) = 0 that grows in the end."""
    a, b, c = coefficients

    def probe(z):
        return a * z[0] + b * z[0] ** 2 + c * z[0] ** 3 + 0.1 * z[0] ** 4

    found = ng.LineSearch()(*local(0.0), probe)
    return found.z, found.change, probe(found.z)


@few
@given(st.tuples(*(st.floats(-20, 20),) * 3))
def test_line_search_never_raises_the_loss_and_reports_what_it_saw(coefficients):
    z, change, value = quartic_search(coefficients)
    assert change <= 0
    assert (change < 0) or (z == 0)
    np.testing.assert_allclose(change, value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("minimum", [1e-4, 0.03, 0.9, 1.0, 7.0, 5e3])
def test_line_search_finds_the_minimum_of_a_parabola(minimum):
    def probe(z):
        return z[0] * (z[0] - 2 * minimum)

    found = ng.LineSearch()(*local(0.0), probe)
    np.testing.assert_allclose(found.change, -(minimum**2), rtol=1e-11)
    np.testing.assert_allclose(found.z, [minimum], rtol=1e-6)


@pytest.mark.parametrize("beyond", [jnp.nan, jnp.inf, -jnp.inf])
def test_line_search_stays_on_this_side_of_a_wall(beyond):
    """What is not finite is too far, even where it compares as lower."""

    def probe(z):
        return jnp.where(z[0] < 0.2, -z[0], beyond)

    found = ng.LineSearch()(*local(0.0), probe)
    assert 0.1 < found.z[0] < 0.2
    assert found.change == -found.z[0]


@pytest.mark.parametrize(
    "probe", [lambda z: z[0], lambda z: jnp.full((), jnp.nan), lambda z: 0 * z[0], lambda z: z[0] ** 2]
)
def test_line_search_returns_zero_where_nothing_is_lower(probe):
    found = ng.LineSearch()(*local(0.0), probe)
    assert found.z[0] == 0
    assert found.change == 0


@pytest.mark.parametrize(
    "search",
    [ng.FixedRate(), ng.KLRadius(1.0), ng.LineSearch(), ng.search.Armijo()],
    ids=lambda search: type(search).__name__,
)
def test_one_length_does_not_say_how_to_combine_two_rows(search):
    with pytest.raises(ValueError, match=f"{type(search).__name__} needs one row; this direction gives 2"):
        search(*several([-1.0, -2.0]), lambda z: -jnp.sum(z))


MEASURING = {
    "line": (ng.LineSearch(), 1),
    "Armijo": (ng.search.Armijo(), 1),
    "backtracking": (ng.search.Backtrack(), 2),
    "plane": (ng.PlaneSearch(), 2),
    "BFGS": (ng.search.SubspaceBFGS(), 2),
    "COBYLA": (ng.Cobyla(), 2),
}


@pytest.mark.parametrize("name", MEASURING)
def test_what_is_lower_by_less_than_the_resolution_is_not_lower(name):
    """The parabola (z₀ − 1)² − 1 in units of 1e-6: seen at a resolution of half its depth, not at its depth."""
    search, rows = MEASURING[name]

    def probe(z):
        return 1e-6 * (z[0] * (z[0] - 2) + jnp.sum(z[1:] ** 2))

    def at(resolution):
        slopes = -2e-6 * jnp.eye(rows)[0]
        return search(*several(slopes, resolution), probe)

    seen, unseen = at(0.5e-6), at(1e-6)
    assert seen.change < -0.5e-6
    np.testing.assert_allclose(probe(seen.z), seen.change, rtol=1e-9)
    assert jnp.all(unseen.z == 0)
    assert unseen.change == 0


def test_the_plane_search_goes_forward_along_its_first_row_however_short():
    """Where the loss rises at length 1 the first row is halved until it falls: the second alone leads nowhere."""

    def probe(z):
        return -z[0] + 300 * z[0] ** 2 + z[1] ** 2

    plane = several(jnp.array([-1.0, 0.0]))
    found = ng.PlaneSearch()(*plane, probe)
    np.testing.assert_allclose(found.z, [1 / 600, 0], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.change, -1 / 1200, rtol=1e-9)


def test_the_plane_search_takes_the_last_step_back_where_that_is_lower():
    def probe(z):
        return (z[0] - 1) ** 2 + 3 * (z[1] + 0.5) ** 2 + (z[0] - 1) * (z[1] + 0.5) - 1.25

    np.testing.assert_allclose(probe(jnp.zeros(2)), 0, atol=1e-15)
    plane = several(jnp.array([-1.5, 2.0]))
    found = ng.PlaneSearch()(*plane, probe)
    np.testing.assert_allclose(found.z, [1, -0.5], rtol=1e-6)
    np.testing.assert_allclose(found.change, -1.25, rtol=1e-9)


@pytest.mark.parametrize("maxprobes", [1, 4, 9])
def test_line_search_keeps_to_its_probes(maxprobes):
    for shape in (lambda x: -x, lambda x: x * (x - 0.6), lambda x: x):
        probes = []

        def probe(z, shape=shape, probes=probes):
            probes.append(z)
            return shape(z[0])

        with jax.disable_jit():
            ng.LineSearch(maxprobes=maxprobes)(*local(0.0), probe)
        assert 0 < len(probes) <= maxprobes


def test_fixed_rate_is_a_number_a_schedule_or_the_steps_own():
    probe = None
    assert ng.FixedRate(0.3)(*local(), probe).z == 0.3
    schedule = ng.FixedRate(lambda count: 1.0 / (1 + count))
    assert schedule(*local(steps=3), probe).z == 0.25
    assert schedule(*local(steps=3, learning_rate=jnp.asarray(0.7)), probe).z == 0.7


def test_kl_radius_scales_to_the_radius_and_no_further_than_its_bound():
    """½ z² dᵀFd = δ: dᵀFd = 8 and δ = 1 give z = ½."""
    assert ng.KLRadius(1.0)(*local(metric=Curved(8.0)), None).z == 0.5
    assert ng.KLRadius(1.0)(*local(metric=Curved(1e-3)), None).z == 1
    assert ng.KLRadius(1.0, max_rate=9.0)(*local(metric=Curved(0.0)), None).z == 9
    assert jnp.isnan(ng.KLRadius(1.0)(*local(metric=Curved(np.nan)), None).z)
    with pytest.raises(ValueError, match=r"KLRadius measures steps in the metric.*has none"):
        ng.KLRadius(1.0)(*local(), None)


def test_loss_never_rises_over_thousands_of_searched_steps():
    """200 random problems of 10 steps each, searched on the batch the gradient comes from."""

    def model(params, x):
        return jnp.sin(3 * x @ params["a"]) @ params["b"]

    opt = ng.natural_gradient(
        model, ng.Gaussian(), search=ng.LineSearch(maxprobes=8), solver=ng.CG(4), damping=ng.Constant(0.01)
    )

    @jax.jit
    @jax.vmap
    def run(key):
        a, b, c, d = jax.random.split(key, 4)
        params = {"a": jax.random.normal(a, (2, 4)), "b": jax.random.normal(b, (4, 1))}
        batch = (jax.random.normal(c, (6, 2)), 3 * jax.random.normal(d, (6, 1)))

        def step(carry, _):
            params, state = carry
            params, state, info = opt.step(params, state, batch)
            after = jnp.mean(jnp.sum((model(params, batch[0]) - batch[1]) ** 2, 1)) / 2
            return (params, state), (info.loss, after, info.accepted)

        return jax.lax.scan(step, (params, opt.init(params)), None, 10)[1]

    before, after, accepted = run(jax.random.split(jax.random.key(0), 200))
    assert (after <= before + 1e-12).all()
    assert accepted.mean() > 0.9
    assert (after[:, -1] < before[:, 0]).all()


def test_a_line_search_has_its_limit_where_a_term_only_damps_too():
    """The model's minimum lies at 1 / 4, with the term counted; twice the KL leaves it out."""

    class Damped:
        damps = True

        def divergence(self, v):
            return jnp.asarray(1.0)

        def quadratic(self, v):
            return jnp.asarray(4.0)

    class Plain(Damped):
        damps = False

        def divergence(self, v):
            return self.quadratic(v)

    here, free = ([*local(0.0, metric=metric)] for metric in (Damped(), None))
    found, plain, far = (
        ng.LineSearch(initial=1e-3)(*each, lambda z: -z[0])
        for each in (here, local(0.0, metric=Plain()), free)
    )
    np.testing.assert_array_equal(found.z, plain.z)
    assert found.z < far.z
    np.testing.assert_allclose(found.curvature, found.z[0] ** 2)


def test_the_quadratic_model_scales_its_damping_and_not_the_penalty():
    """Q = 4 + λ · 6² + l2 · 2² for a row of 2 that a scale of 3 damps."""

    class Unit:
        damps = False

        def gram(self, rows):
            return jnp.full((1, 1), 4.0)

    here = Here(None, None, None, None, damping=jnp.asarray(2.0), shift=jnp.asarray(5.0), metric=Unit())
    proposal = Proposal(({"w": jnp.array([2.0])},), jnp.array([-1.0]), scale={"w": jnp.array([3.0])})
    found = ng.QuadraticModel()(here, proposal, None)
    np.testing.assert_allclose(found.z, 1 / (4 + 2 * 36 + 3 * 4), rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_cobyla_minds_a_wall_and_finds_the_minimum_before_it(scale):
    """Beyond z₀ = 1.2 the loss is not a number, and COBYLA's first radius leads there."""

    def probe(z):
        change = scale * (50 * z[0] * (z[0] - 2.2) + 20 * z[1] * (z[1] - 0.6))
        return jnp.where(z[0] > 1.2, jnp.nan, change)

    plane = several(scale * jnp.array([-110.0, -12.0]))
    found = ng.Cobyla(final_radius=1e-6, maxprobes=500)(*plane, probe)
    np.testing.assert_allclose(found.z, [1.1, 0.3], atol=1e-3)
    np.testing.assert_allclose(found.change, -scale * (50 * 1.1**2 + 20 * 0.3**2), atol=1e-3 * scale)


@pytest.mark.parametrize(("middle", "halved"), [(3.0, 2.0), (2.0, 3.0)])
def test_without_a_parabola_the_longer_half_is_halved(middle, halved):
    """Three equal values have no lowest point: the search looks in the middle of the wider gap between 1 and 4."""
    points = [Point(jnp.asarray(at), jnp.asarray(1.0), jnp.array(True)) for at in (1.0, middle, 4.0)]
    assert Bracket(*points).next(1.0) == halved


def test_the_quadratic_model_leaves_out_what_does_not_curve_up():
    """Q has the eigenvalues 3, −1 and 0: a minimum along (1, 1, 0) alone."""

    class Indefinite:
        damps = False

        def gram(self, rows):
            return jnp.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 0.0]])

    here, proposal = several([-1.0, 0.0, 0.0])
    found = ng.QuadraticModel()(replace(here, metric=Indefinite()), proposal, None)
    np.testing.assert_allclose(found.z, [1 / 6, 1 / 6, 0], rtol=1e-9, atol=1e-12)


def places(search, probe, slopes):
    """Return where a search probed."""
    seen = []

    def recorded(z):
        seen.append(np.asarray(z).tolist())
        return probe(z)

    with jax.disable_jit():
        search(*several(jnp.asarray(slopes), 0.0), recorded)
    return seen


def test_searches_of_two_rows_begin_with_the_whole_first_row():
    def probe(z):
        return jnp.sum((z - jnp.array([0.7, -0.2])) ** 2) - 0.53

    for search in (ng.PlaneSearch(), ng.Cobyla()):
        assert places(search, probe, [-1.4, 0.4])[0] == [1, 0]


def test_a_plane_search_is_four_line_searches():
    assert len(places(ng.PlaneSearch(maxprobes=2), lambda z: jnp.sum(z**2) - z[0], [-1.0, 0.0])) == 8


def test_the_plane_search_takes_the_second_row_where_the_first_leads_nowhere():
    def probe(z):
        return jnp.where(z[0] == 0, z[1] * (z[1] - 1), jnp.nan)

    found = ng.PlaneSearch()(*several([-1.0, -1.0], 0.0), probe)
    np.testing.assert_allclose(found.z, [0, 0.5], atol=1e-6)


def closed(*values):
    return Bracket(*(Point(*(jnp.asarray(part) for part in value), jnp.array(True)) for value in values))


@pytest.mark.parametrize("shift", [0.0, 3.0, -7.0])
def test_a_bracket_goes_to_the_bottom_of_its_parabola(shift):
    points = [(at + shift, 3 * (at - 1.3) ** 2 + 0.5) for at in (0.5, 1.5, 4.0)]
    np.testing.assert_allclose(closed(*points).next(1.0), 1.3 + shift, rtol=1e-12)


@pytest.mark.parametrize(
    ("middle", "following"), [(0.5, (1.0, -7.0)), (-0.5, (7.0, -1.0)), (0.0, (7.0, -7.0)), (3.0, (6.0, -7.0))]
)
def test_an_open_bracket_goes_twice_as_far_or_begins(middle, following):
    """Forward where the high end is not known, else backward."""
    zero = jnp.asarray(0.0)
    own, end = Point(jnp.asarray(middle), zero - 1, jnp.array(True)), Point(zero, zero, jnp.array(True))
    unknown = Point.unknown(zero)
    assert Bracket(end, own, unknown).next(7.0) == following[0]
    assert Bracket(unknown, own, end).next(7.0) == following[1]
    # Without a middle it begins, or takes the mean of the two ends.
    assert Bracket(end, unknown, unknown).next(7.0) == 7
    assert Bracket(end._replace(at=zero + 1), unknown, end._replace(at=zero + 4)).next(7.0) == 2.5


@pytest.mark.parametrize(
    ("curvature", "shift", "limit"), [(4.0, 0.0, 10), (0.25, 0.0, 40), (0.125, 0.0625, 40)]
)
def test_a_line_search_goes_ten_times_as_far_as_the_model_or_its_first_length(curvature, shift, limit):
    """The slope is 1, so the model's minimum lies at 1 / (dᵀFd + λ‖d‖²), with ‖d‖² = 2."""

    class Known:
        damps = False

        def divergence(self, v):
            return jnp.asarray(curvature)

    here, proposal = local(0.0, metric=Known())
    found = ng.LineSearch()(replace(here, shift=jnp.asarray(shift)), proposal, lambda z: -z[0])
    assert limit / 2 < found.z[0] <= limit
