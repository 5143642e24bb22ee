"""How leaves are read as matrices, and inputs in units of their own, against dense matrices."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

import natgrad as ng
from natgrad import units
from natgrad.arranged import arranged, usual_axes
from natgrad.kronecker import _rebased
from natgrad.metric.here import Here

pytestmark = pytest.mark.usefixtures("fast_compile")

CASES = 12


def test_what_the_axes_of_a_leaf_are():
    kinds = {
        ("kernel", (5, 3)): "io",
        ("weight", (3, 5)): "oi",
        ("kernel", (3, 3, 8, 4)): "iiio",
        ("kernel", (5, 5, 16, 3)): "iiio",
        ("weight", (16, 16, 3, 3)): "oiii",
        ("kernel", (64, 4, 16)): "ioo",
        ("qkv", (64, 3, 4, 16)): "iooo",
        ("kernel", (4, 16, 64)): "iio",
        ("embedding", (100, 8)): "io",
        ("scale", (8,)): "o",
        ("weight", (8,)): "o",
        ("number", ()): "",
    }
    for (name, shape), letters in kinds.items():
        for key in (DictKey(name), GetAttrKey(name)):
            assert usual_axes((SequenceKey(0), key), np.zeros(shape)) == letters
    assert usual_axes((), np.zeros((2, 3))) == "io"


def every_kind():
    """Return parameters with leaves of every kind, and what their axes are."""
    keys = iter(jax.random.split(jax.random.key(0), 9))

    def normal(*shape):
        return jax.random.normal(next(keys), shape, jnp.float64)

    params = {
        "conv": {"weight": normal(2, 3, 2, 2)},
        "embed": normal(7, 4),
        "norm": normal(4),
        "out": normal(2, 3, 4),
        "query": normal(4, 2, 3),
        "layers": {"kernel": normal(3, 4, 2, 2), "bias": normal(3, 4)},
    }
    letters = {
        "conv": {"weight": "oiii"},
        "embed": "io",
        "norm": "o",
        "out": "iio",
        "query": "ioo",
        "layers": {"kernel": "sioo", "bias": "so"},
    }
    pictures = normal(CASES, 3, 3, 3)
    tokens = jax.random.randint(next(keys), (CASES, 3), 0, 5)
    return params, letters, (pictures, tokens)


def one_number(params, inputs):
    """Return one output per case, which depends on every leaf; the embedding is tied."""
    pictures, tokens = inputs
    maps = jax.lax.conv_general_dilated(pictures, params["conv"]["weight"], (1, 1), "VALID")
    seen = jnp.tanh(maps).sum(axis=(1, 2, 3))
    values = params["embed"][tokens] * params["norm"]
    heads = jnp.tanh(jnp.einsum("ntd,dhk->nthk", values, params["query"]))
    values = values + jnp.einsum("nthk,hkd->ntd", heads, params["out"])

    def layer(values, own):
        more = jnp.einsum("ntd,dab->ntab", values, own["kernel"]).reshape(values.shape)
        return jnp.tanh(more + own["bias"]), None

    values, _ = jax.lax.scan(layer, values, params["layers"])
    return (seen + jnp.einsum("ntd,vd->n", values, params["embed"]))[:, None]


def asked(letters):
    """Return the argument `axes` from a tree of letters: only stacks have to be told."""
    known = dict(jax.tree_util.tree_leaves_with_path(letters))
    return lambda path, leaf: known[path] if "s" in known[path] else None


def as_matrices(letters, leaf):
    """Return (cases, stack, in, out) from (cases, …), the plain way."""
    places = [[1 + i for i, own in enumerate(letters) if own == kind] for kind in "sio"]
    sizes = [int(np.prod([leaf.shape[i] for i in own])) for own in places]
    return np.asarray(leaf).transpose([0, *places[0], *places[1], *places[2]]).reshape(len(leaf), *sizes)


def measured(kind, params, inputs):
    """Return the memory after one refresh and many turns of the bases: with one output per case it is exact.

    Every leaf counts as one that reads data.
    """
    problem = ng.natural_conjugate_gradient(
        one_number, ng.Gaussian(), direction=ng.Preconditioned(kind)
    ).problem
    examples = problem.examples(params, inputs, jnp.zeros((CASES, 1)))

    @jax.jit
    def memory():
        here = Here(problem, params, examples, jax.random.key(1), gradient=params)
        metric = ng.Fisher().operator(here, problem.linearize(params, examples))
        found = kind._refreshed(replace(here, metric=metric), kind.init(params))
        return _rebased(3000, kind._scaled(here, found))

    return memory()


@pytest.mark.parametrize(("uneven", "limit"), [(None, 5), (1.0, 2048), (1.0, 5)])
def test_every_kind_of_leaf_against_a_dense_product(uneven, limit, monkeypatch):
    monkeypatch.setattr(units, "READS", np.inf)
    monkeypatch.setattr(units, "columns", lambda _, own: [np.ones(each.shape) for each in own.inputs])
    params, letters, inputs = every_kind()
    kind = ng.Kronecker(
        blocks=CASES, size=None, decay=0.0, sketch=64, limit=limit, uneven=uneven, axes=asked(letters)
    )
    memory = measured(kind, params, inputs)
    scores = jax.jacrev(lambda p: one_number(p, inputs)[:, 0])(params)
    r = jax.tree.map(
        lambda leaf: jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape), params
    )
    damping = 0.01
    solved = kind._divider(memory, r, jnp.asarray(damping))(r)
    every = zip(*(jax.tree.leaves(tree) for tree in (letters, scores, r, solved)), strict=True)
    for own, score, right, found in every:
        if not {"i", "o"} <= set(own):
            diagonal = np.sum(np.asarray(score) ** 2, axis=0) / CASES
            np.testing.assert_allclose(found, right / (diagonal + damping), rtol=1e-8)
            continue
        D, sides = as_matrices(own, score), [as_matrices(own, each[None])[0] for each in (right, found)]
        for layer, (b, x) in enumerate(zip(*sides, strict=True)):
            # The largest that one case adds to the diagonal; of a long side only the sum over cases is known.
            peak = np.sum(D[:, layer] ** 2, axis=2) / CASES
            peak = peak.max(axis=0) if D.shape[2] <= limit else peak.sum(axis=0)
            S = np.ones(len(peak))
            if uneven is not None:
                seen = peak > 0
                S[seen] = peak[seen] / np.exp(np.mean(np.log(peak[seen])))
            L = np.einsum("nij,nkj->ik", D[:, layer], D[:, layer]) / CASES
            R = np.einsum("nij,nik,i->jk", D[:, layer], D[:, layer], 1 / S) / CASES
            L, R = (f if len(f) <= limit else np.diag(np.diag(f)) for f in (L, R))
            P = np.kron(L, R) / np.trace(R) + damping * np.kron(np.diag(S), np.eye(len(R)))
            # No eigenvalue is below 1e-4 of the mean, which here is less than the damping.
            wanted = np.linalg.solve(P, b.ravel()).reshape(b.shape)
            np.testing.assert_allclose(x, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


def test_leaves_come_back_as_they_were():
    params, letters, _ = every_kind()
    leaves = jax.tree.leaves(params)
    whole = arranged(params, 2048, 128, asked(letters))
    changed = [jnp.zeros_like(leaf) for leaf in leaves]
    for group in whole.groups:
        assert len(group.sizes) == len(group.matrices(leaves)) == group.left.stop - group.left.start
        group.put(group.matrices(leaves), changed)
    for row in whole.rows:
        row.put(row.joined(leaves), changed)
    for before, after in zip(leaves, changed, strict=True):
        np.testing.assert_array_equal(before, after)
    # Two sides of a leaf, and of each layer of a stack: one of them has the inputs.
    inputs = sum(own.any(axis=1).sum() for own in whole.inputs)
    assert inputs == sum(whole.counts) / 2 == 4 + 3


@pytest.mark.parametrize("letters", ["i", "iox", "ioio"])
def test_wrong_letters_are_refused_in_a_sentence(letters):
    with pytest.raises(ValueError, match=r"axes gives .* one letter per axis"):
        ng.Kronecker(axes=lambda path, leaf: letters).init({"w": jnp.ones((2, 3, 4))})


def test_scales_are_those_of_inputs_that_differ():
    peak = jnp.asarray(
        [[1e-5, 0.2, 1.0, 1.0, 5.0, 1e5, 0.0, 7.0], [0.01, 1.0, 1.0, 1.0, 1.0, 100.0, 0.0, 7.0]]
    )
    inputs = np.array([[True] * 7 + [False]] * 2)
    roots = np.sqrt(np.where(np.arange(8) < 6, peak, 1))

    def scale(peak, uneven, columns=None):
        columns = peak if columns is None else columns
        return np.asarray(units.scale(peak, inputs, columns, uneven))

    # log p has a standard deviation of 6.7 and of 2.7.
    np.testing.assert_allclose(scale(peak, 1.0), roots)
    np.testing.assert_allclose(scale(peak, 100.0), [roots[0], np.ones(8)])
    np.testing.assert_array_equal(scale(peak, 1e4), 1)
    np.testing.assert_array_equal(scale(0 * peak, 1.0), 1)
    # The peaks follow the columns of the data, up to a factor; those of hidden units do not.
    np.testing.assert_allclose(
        scale(peak, 100.0, 30 * peak * jnp.asarray([[2.0, 0.5] * 4])), scale(peak, 100.0)
    )
    np.testing.assert_array_equal(scale(peak, 100.0, jnp.ones_like(peak)), 1)
    np.testing.assert_array_equal(scale(peak, 100.0, 0 * peak), 1)


def net(params, inputs):
    return jnp.tanh(inputs @ params["w"] + params["b"]) @ params["v"]


def start(columns, seed=1):
    rng = np.random.default_rng(seed)
    shapes = {"w": (len(columns), 8), "b": (8,), "v": (8, 1)}
    params = {name: jnp.asarray(rng.normal(size=shape) / shape[0] ** 0.5) for name, shape in shapes.items()}
    return {**params, "w": params["w"] / jnp.asarray(columns)[:, None]}


def table(columns, cases=200):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(cases, len(columns)))
    t = np.sin(x[:, :1] + x[:, 1:2]) * x[:, 2:3] + x[:, 3:4]
    return jnp.asarray(x * columns), jnp.asarray(t)


COLUMNS = 10.0 ** np.array([-2, 2, -1, 1, 0, 0])


def trained(opt, params, batch, steps):
    state, step = opt.init(params), jax.jit(opt.step)
    infos = []
    for _ in range(steps):
        params, state, info = step(params, state, batch)
        infos.append(info)
    return params, infos


@pytest.mark.parametrize("limit", [2048, 5])
def test_steps_do_not_depend_on_the_units_of_inputs(limit):
    opt = ng.kncg(
        net,
        ng.Gaussian(),
        preconditioner=ng.Kronecker(uneven=1.0, limit=limit),
        damping=ng.LevenbergMarquardt(0.01, stretch=None),
        average=None,
    )
    plain, other = (trained(opt, start(columns), table(columns), 20) for columns in (COLUMNS**0, COLUMNS))
    np.testing.assert_allclose(other[0]["w"] * COLUMNS[:, None], plain[0]["w"], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(other[1][-1].loss, plain[1][-1].loss, rtol=1e-6)


def test_the_flagship_learns_from_inputs_of_all_scales():
    losses = {}
    for name, kind in (("own", None), ("λI", ng.Kronecker())):
        for columns in (COLUMNS**0, COLUMNS):
            opt = ng.kncg(net, ng.Gaussian(), preconditioner=kind, average=None)
            _, infos = trained(opt, start(columns), table(columns), 150)
            losses[name, columns[0]] = float(infos[-1].loss)
    assert losses["own", 0.01] < 1.2 * losses["own", 1.0]
    assert losses["λI", 0.01] > 1.2 * losses["λI", 1.0]


def test_rows_never_seen_stay_and_a_new_one_takes_no_giant_step():
    def model(params, tokens):
        return jnp.tanh(params["embed"][tokens].reshape(len(tokens), -1) @ params["w"])

    rng = np.random.default_rng(0)
    params = {"embed": jnp.asarray(rng.normal(size=(12, 3))), "w": jnp.asarray(rng.normal(size=(6, 2)))}
    tokens = rng.integers(0, 8, size=(64, 2))
    targets = jnp.asarray(rng.normal(size=(64, 2)))
    opt = ng.kncg(model, ng.Gaussian(), average=None)
    before, state, step = params, opt.init(params), jax.jit(opt.step)
    moved = []
    for number in range(40):
        # Row 8 is seen from the 31st step on, which is no turn of the factors.
        now = np.where((number >= 30) & (np.arange(64)[:, None] == 3), 8, tokens)
        old = before["embed"]
        before, state, info = step(before, state, (jnp.asarray(now), targets))
        assert info.accepted or np.array_equal(old, before["embed"])
        moved.append(np.abs(np.asarray(before["embed"] - old)).max(axis=1))
    np.testing.assert_array_equal(before["embed"][9:], params["embed"][9:])
    moved = np.stack(moved)
    assert 0 < moved[30:, 8].max() < 3 * moved[:, :8].max()


def as_before(path, leaf):
    """Return the last axis against all others, for any leaf."""
    return "i" * (leaf.ndim - 1) + "o" if leaf.ndim > 1 else None


def both_ways(model, params, batch, steps=30):
    """Return the last loss with the rule for axes, and with the last axis against all others."""
    found = []
    for axes in (None, as_before):
        kind = ng.Kronecker(axes=axes)
        opt = ng.kncg(model, ng.Categorical(), preconditioner=kind, average=None)
        _, infos = trained(opt, params, batch, steps)
        found.append(np.asarray([info.loss for info in infos]))
    return found


@pytest.mark.long
def test_an_equinox_convolution_learns_faster_than_with_another_split():
    first, second, last = jax.random.split(jax.random.key(0), 3)
    net = [
        eqx.nn.Conv2d(2, 6, 4, key=first),
        eqx.nn.Conv2d(6, 6, 4, key=second),
        eqx.nn.Linear(6, 4, key=last),
    ]
    params, static = eqx.partition(net, eqx.is_array)

    def model(params, inputs):
        one, two, three = eqx.combine(params, static)
        return jax.vmap(lambda x: three(jnp.tanh(two(jnp.tanh(one(x)))).mean(axis=(1, 2))))(inputs)

    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(4, 2, 3, 3))
    labels = rng.integers(0, 4, size=200)
    # Neighbouring pixels are alike, as in photographs.
    x = 2 * np.cumsum(np.cumsum(rng.normal(size=(200, 2, 8, 8)), axis=2), axis=3) / 8
    for picture, label in zip(x, labels, strict=True):
        at = rng.integers(0, 6, size=2)
        picture[:, at[0] : at[0] + 3, at[1] : at[1] + 3] += 2 * patterns[label]
    own, other = both_ways(model, params, (jnp.asarray(x), jnp.asarray(labels)))
    assert np.isfinite(own).all()
    assert own[-1] < other[-1] < other[0]


@pytest.mark.long
def test_a_tiny_transformer_learns_faster_than_with_another_split():
    words, width, heads, length = 11, 16, 2, 6
    rng = np.random.default_rng(0)

    def normal(*shape, fan):
        return jnp.asarray(rng.normal(size=shape) / fan**0.5)

    params = {
        "embed": normal(words + 2, width, fan=width),
        "places": normal(length, width, fan=width),
        "qkv": normal(width, 3, heads, width // heads, fan=width),
        "out": normal(heads, width // heads, width, fan=width),
        "scale": jnp.ones(width),
        "up": normal(width, 32, fan=width),
        "down": normal(32, width, fan=32),
    }

    def normalized(scale, values):
        return scale * values / jnp.sqrt(jnp.mean(values**2, axis=-1, keepdims=True) + 1e-5)

    def model(params, tokens):
        values = params["embed"][tokens] + params["places"]
        seen = normalized(params["scale"], values)
        query, keys, read = jnp.einsum("btd,dchk->cbhtk", seen, params["qkv"])
        scores = jnp.einsum("bhtk,bhsk->bhts", query, keys) / (width // heads) ** 0.5
        shares = jax.nn.softmax(jnp.where(np.tril(np.ones((length, length), bool)), scores, -1e9))
        values = values + jnp.einsum("bhts,bhsk,hkd->btd", shares, read, params["out"])
        values = values + jnp.tanh(values @ params["up"]) @ params["down"]
        return normalized(params["scale"], values) @ params["embed"].T

    tokens = rng.integers(0, words, size=(128, length + 1))
    # The word after next is the sum of the last two.
    for place in range(2, length + 1):
        tokens[:, place] = (tokens[:, place - 1] + tokens[:, place - 2]) % words
    own, other = both_ways(model, params, (jnp.asarray(tokens[:, :-1]), jnp.asarray(tokens[:, 1:])), 60)
    assert np.isfinite(own).all()
    assert own[-1] < other[-1] < other[0]
