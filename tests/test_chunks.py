"""Chunks, groups and windows of a batch, against the same by hand in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from natgrad import examples as chunks
from natgrad.examples import Chunking, Examples, OverExamples

pytestmark = pytest.mark.usefixtures("fast_compile")

LENGTHS = [(7, 3), (7, 1), (7, 7), (8, 4), (8, 3), (12, 5), (96, 40), (91, 40), (5, 2), (10, 9)]
"""Examples, and the most of them in a chunk."""


def numbered(length, *rest):
    """Return rows that tell where they stood."""
    size = int(np.prod(rest, dtype=int))
    return jnp.arange(1.0, length * size + 1).reshape(length, *rest)


def batch(length, *rest):
    """Return examples whose coefficients, targets and indices are all different."""
    coefficients = numbered(length, *rest) / 100
    return Examples(numbered(length, 2, 3), numbered(length, 2), coefficients, jnp.arange(length))


def places(length, microbatch):
    """Return the examples of every chunk by hand: neighbors out of each group; those that are missing are left out."""
    chunking = Chunking(length, microbatch)
    groups = chunking.groups(length)
    own = length // groups
    neighbors = -(-own // chunking.count)
    return [
        [
            group * own + place
            for group in range(groups)
            for place in range(number * neighbors, min((number + 1) * neighbors, own))
        ]
        for number in range(chunking.count)
    ]


def test_the_groups_of_an_axis_are_a_power_of_two_where_chunks_stay_small():
    """One neighbor out of each group makes the most even chunks; if no groups fit, a chunk is neighbors alone."""
    known = {(96, 40): 32, (91, 40): 13, (8, 4): 4, (8, 3): 1, (12, 5): 4, (7, 3): 1, (7, 7): 7, (64, 64): 64}
    assert {each: Chunking(*each).groups(each[0]) for each in known} == known
    # A shorter axis has its own groups in as many chunks.
    assert [Chunking(96, 40).groups(length) for length in (48, 24, 6, 5, 1)] == [16, 8, 2, 1, 1]
    assert [Chunking(*each).count for each in ((7, 3), (8, 4), (96, 40), (1, 1))] == [3, 2, 3, 1]


@pytest.mark.parametrize(("length", "microbatch"), LENGTHS)
def test_chunks_are_neighbors_out_of_each_group(length, microbatch):
    chunking = Chunking(length, microbatch)
    for rows in (numbered(length), numbered(length, 2), numbered(length, 2, 3)):
        arranged = chunking.arrange(rows)
        for number, wanted in enumerate(places(length, microbatch)):
            masked = np.asarray(chunking.chunk_with_zeros(arranged, jnp.int32(number)))
            own = np.asarray(chunking.chunk(arranged, jnp.int32(number)))
            there = masked.reshape(len(masked), -1).any(axis=1)
            np.testing.assert_array_equal(masked[there], np.asarray(rows)[wanted])
            np.testing.assert_array_equal(own[there], masked[there])
            assert own.shape == masked.shape
            assert len(own) <= microbatch
            assert np.isin(own, rows).all()


@pytest.mark.parametrize(("length", "microbatch"), LENGTHS)
def test_several_chunks_at_once_are_the_same(length, microbatch):
    chunking, wanted = Chunking(length, microbatch), places(length, microbatch)
    numbers = jnp.asarray([chunking.count - 1, 0], jnp.int32)
    for rows in (numbered(length), numbered(length, 2), numbered(length, 2, 3)):
        arranged = chunking.arrange(rows)
        masked = np.asarray(chunking.chunks_with_zeros(arranged, numbers))
        own = np.asarray(chunking.chunks(arranged, numbers))
        there = masked.reshape(len(masked), -1).any(axis=1)
        both = sorted(wanted[-1] + wanted[0])
        np.testing.assert_array_equal(np.sort(masked[there], axis=0), np.asarray(rows)[both])
        np.testing.assert_array_equal(own[there], masked[there])
        assert np.isin(own, rows).all()


@pytest.mark.parametrize(("length", "microbatch"), LENGTHS)
def test_sums_and_rows_over_chunks_are_those_of_the_whole(length, microbatch):
    """What rows hold comes back in the order of the examples; a row of any shape."""
    for rest in ((), (2,)):
        whole = batch(length, *rest)
        c = np.asarray(whole.coefficients)

        def made(part):
            return part

        def summed(part, rows):
            c, x = part.coefficients, part.targets
            c = c if c.ndim == 2 else c[:, None]
            return jnp.sum(c * x * rows[:, None] + part.inputs.sum(axis=(1, 2))[:, None] * c, axis=0)

        over = OverExamples(made, whole, microbatch)
        assert (over.whole is None) == (microbatch < length)
        rows = 3.0 + numbered(length)
        by_hand = c if rest else c[:, None]
        inputs = np.asarray(whole.inputs).sum(axis=(1, 2))[:, None]
        wanted = (by_hand * (np.asarray(whole.targets) * np.asarray(rows)[:, None] + inputs)).sum(axis=0)
        np.testing.assert_allclose(over.sum(summed, rows), wanted, rtol=1e-12)
        alone = over.sum(lambda part: jnp.sum(part.coefficients.T * part.targets[:, 0]))
        np.testing.assert_allclose(alone, np.sum(c.T * np.asarray(whole.targets)[:, 0]), rtol=1e-12)
        np.testing.assert_array_equal(over.map(lambda part: 2 * part.inputs), 2 * whole.inputs)
        np.testing.assert_array_equal(over.map(lambda part: part.index), whole.index)


def test_a_batch_that_is_one_chunk_is_kept_and_a_larger_one_is_not():
    seen = []
    for microbatch in (None, 8, 4, 3):
        over = OverExamples(lambda part: seen.append(len(part.index)) or part, batch(8), microbatch)
        assert (over.whole is None) == (microbatch in (3, 4))
    assert seen == [8, 8]


def test_the_longest_axis_counts():
    two = batch(7)._replace(inputs=(numbered(3, 2), numbered(7, 9)))
    assert two.longest == 7


def test_what_is_masked_may_have_any_target():
    own = batch(3)._replace(coefficients=jnp.array([0.5, 0.0, 1.0]))
    np.testing.assert_array_equal(own.weighted(jnp.array([2.0, jnp.nan, 3.0])), [1, 0, 3])


def test_plain_arrays_are_summed_chunk_by_chunk():
    """No devices share them, so nothing is added up in shares."""
    over = OverExamples(lambda part: part, batch(8), 4)

    def total(part):
        return jnp.sum(part.coefficients)

    found = jax.make_jaxpr(lambda: over.sum(total))()
    assert str(found) == str(jax.make_jaxpr(lambda: over.reduce(lambda part: (total(part), None))[0])())


@pytest.mark.parametrize("groups", [1, 2, 3, 7, 20])
def test_over_groups_every_example_counts_once(groups):
    whole = batch(7)

    def group(part):
        return jnp.sum(part.coefficients * part.targets[:, 0]), part.index

    total, kept = chunks.over_groups(group, whole, groups)
    np.testing.assert_allclose(total, np.sum(whole.coefficients * whole.targets[:, 0]), rtol=1e-12)
    assert kept.shape[0] == -(-7 // -(-7 // groups))
    assert kept.shape[1] <= -(-7 // groups)


def test_one_by_one_takes_each_example_alone():
    whole = batch(5)._replace(targets=numbered(3))

    def alone(part):
        assert part.index.shape == (1,)
        assert part.targets.shape == (1,)
        return part.inputs[0], part.targets[0]

    inputs, targets = chunks.one_by_one(alone, whole, 4, 2)
    np.testing.assert_array_equal(inputs, whole.inputs[:4])
    # An axis that is too short repeats its last example.
    np.testing.assert_array_equal(targets, [1, 2, 3, 3])
    for at_once, loop in ((0, 4), (1, 4), (2, 2), (9, 1)):
        text = str(jax.make_jaxpr(lambda n=at_once: chunks.one_by_one(alone, whole, 4, n))())
        assert f"length={loop}\n" in text


@pytest.mark.parametrize(("length", "size", "groups"), [(12, 3, 2), (11, 3, 2), (12, 5, 2), (7, 1, 3)])
def test_a_few_groups_stand_for_all(length, size, groups):
    """Whole groups are drawn, and their coefficients are larger by what was left out."""
    whole, wanted = batch(length), places(length, size)
    count = len(wanted)
    seen = set()
    for seed in range(8):
        few = chunks.drawn(whole, jax.random.key(seed), groups, size)
        there = np.asarray(few.coefficients) != 0
        index = np.asarray(few.index)[there]
        chosen = [number for number, own in enumerate(wanted) if set(own) <= set(index.tolist())]
        assert len(chosen) == groups
        assert sorted(index) == sorted(place for number in chosen for place in wanted[number])
        seen.add(tuple(chosen))
        scaled = count / groups * np.asarray(whole.coefficients)[index]
        np.testing.assert_allclose(np.asarray(few.coefficients)[there], scaled, rtol=1e-12)
        np.testing.assert_array_equal(few.inputs, np.asarray(whole.inputs)[few.index])
    assert len(seen) > 1
    for all_of_them in (count, count + 1):
        assert chunks.drawn(whole, jax.random.key(0), all_of_them, size) is whole


def test_a_window_of_one_array_or_many():
    rows, steps = numbered(7, 2), jnp.arange(3)
    found = [np.asarray(chunks.window({"x": rows, "t": rows[:, 0]}, 3, step)["x"]) for step in steps]
    alone = [np.asarray(chunks.window(rows, 3, step)) for step in steps]
    np.testing.assert_array_equal(found, alone)
    # The last window begins earlier.
    wanted = [rows[0:3], rows[3:6], rows[4:7]]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("windows", [2, 3, 5, 8])
def test_rounds_through_the_windows_begin_anywhere(windows):
    rows = jnp.arange(windows)
    begins = [int(chunks.window(rows, 1, jnp.int32(windows * turn))[0]) for turn in range(12 * windows)]
    assert set(begins) == set(range(windows))


@pytest.fixture
def mesh():
    """Yield a mesh whose arrays' types tell how they lie, as those of many devices do."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        yield mesh


def test_what_lies_on_a_mesh_is_cut_where_it_lies(mesh):
    rows = [jax.device_put(numbered(8, *rest), NamedSharding(mesh, P("data"))) for rest in ((), (2,))]
    assert chunks._place(rows[0]) == ("data", 1)
    assert chunks._place(numbered(8)) is None
    for leaf in rows:
        assert Chunking(8, 4).keeps(leaf)
        cut = jax.eval_shape(lambda leaf: chunks.window(leaf, 3, jnp.int32(1)), leaf)
        assert cut.sharding.spec[0] == "data"
    whole = batch(8)._replace(inputs=rows[1], targets=rows[0])
    dealt, shards = chunks._dealt(whole)
    assert shards == 1
    assert all(chunks._place(leaf) == ("data", 1) for leaf in jax.tree.leaves(dealt))
    np.testing.assert_array_equal(dealt.coefficients, whole.coefficients)
    assert chunks._dealt(whole._replace(targets=numbered(8)))[1] == 1
    assert chunks._dealt(batch(8))[1] == 1


@pytest.mark.parametrize("microbatch", [4, 8, 12])
def test_every_device_adds_up_its_own_share(microbatch):
    """Of four devices that are not there: the types alone tell the shapes of the shares and of the sum."""
    abstract = jax.sharding.AbstractMesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    place = NamedSharding(abstract, P("data"))
    whole = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), batch(24))
    sizes = []

    def make(part):
        sizes.append((part.inputs.shape, part.coefficients.shape))
        return part

    def total(part):
        return jnp.einsum("i,iab->ab", part.coefficients, part.inputs)

    with jax.sharding.use_abstract_mesh(abstract):
        found = jax.eval_shape(lambda whole: OverExamples(make, whole, microbatch).sum(total), whole)
    assert found.shape == (2, 3)
    assert set(sizes) == {((microbatch // 4, 2, 3), (microbatch // 4,))}
