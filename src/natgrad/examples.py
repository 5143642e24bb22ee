"""A batch with normalized weights, and every sum over it: at once or chunk by chunk, sharded or not.

The coefficients c carry the normalization, Σ c = 1, so a chunk's share of a sum is simply added.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from natgrad import tree
from natgrad.tree import Tree

Seen = TypeVar("Seen")
"""What is computed from a chunk: the model's outputs, for example, or its linearization there."""


class Examples(NamedTuple):
    """The data of one sum over examples."""

    inputs: Tree
    targets: Tree
    coefficients: Tree
    """c, one number per example; one array per factor of a `Product`."""
    index: Tree
    """Each example's place in its batch, so that random numbers do not depend on the chunking."""
    before: Tree = None
    """What is known about each example at θ, where a change of its loss is measured."""

    @property
    def longest(self) -> int:
        """The length of the longest example axis."""
        return max(leaf.shape[0] for leaf in jax.tree.leaves(self.inputs))

    def weighted(self, losses: Tree) -> Tree:
        """Return c_i ℓ_i, 0 where c_i is 0: what is masked may have any target."""

        def one(c: Array, loss: Array) -> Array:
            return jnp.where(c == 0, 0, c.astype(loss.dtype) * loss)

        return jax.tree.map(one, self.coefficients, losses)


class OverExamples(Generic[Seen]):
    """Sums over examples. What is computed from the whole batch is kept; what is computed from a chunk is not."""

    def __init__(self, make: Callable[[Examples], Seen], examples: Examples, microbatch: int | None):
        longest = examples.longest
        self.chunking = Chunking(longest, longest if microbatch is None else microbatch)
        self.examples = examples
        self._make = make
        self.whole = make(examples) if self.chunking.count == 1 else None
        """What is computed from the whole batch; None if the batch is taken in chunks."""

    def reduce(self, fn: Callable[..., tuple[Tree, Tree]], *rows: Tree) -> tuple[Tree, Tree]:
        """Return Σ over chunks of fn's first result, and its second from every chunk, stacked.

        `rows` have one row per example. fn gets what is computed from a chunk, and the chunk's own rows.
        """
        if self.whole is not None:
            total, extra = fn(self.whole, *rows)
            return total, jax.tree.map(lambda leaf: leaf[None], extra)
        return _scan(self.chunking, lambda part, own: fn(self._make(part), *own), self.examples, rows)

    def sum(self, fn: Callable[..., Tree], *rows: Tree) -> Tree:
        """Return Σ over chunks of fn(chunk, its rows), where fn is itself a sum over examples.

        So each device may add up its own share of every chunk, and the devices' totals are added once, at the end.
        The model then sees one share at a time, while `reduce` shows it whole chunks: it must not couple examples.
        """
        if self.whole is not None:
            return fn(self.whole, *rows)
        apart = not rows and all(map(self.chunking.keeps, jax.tree.leaves(self.examples)))
        examples, shards = _dealt(self.examples) if apart else (self.examples, 1)
        if shards == 1:
            return self.reduce(lambda chunk, *own: (fn(chunk, *own), None), *rows)[0]

        def each(part: Examples, _: Tree) -> tuple[Tree, Tree]:
            shares = jax.tree.map(lambda leaf: leaf.reshape(shards, -1, *leaf.shape[1:]), part)
            return jax.vmap(lambda share: fn(self._make(share)))(shares), None

        totals, _ = _scan(self.chunking, each, examples, ())
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), totals)

    def map(self, fn: Callable[[Seen], Tree]) -> Tree:
        """Return fn's rows, one per example, from all chunks, in the order of the examples."""
        if self.whole is not None:
            return fn(self.whole)
        _, stacked = self.reduce(lambda chunk: ((), fn(chunk)))

        def join(c: Array, rows: Tree) -> Tree:
            return jax.tree.map(lambda leaf: self.chunking.join(leaf, c.shape[0]), rows)

        return jax.tree.map(join, self.examples.coefficients, stacked)


def over_groups(
    fn: Callable[[Examples], tuple[Tree, Tree]], examples: Examples, groups: int
) -> tuple[Tree, Tree]:
    """Call fn on each of `groups` groups of examples; return its first results summed, its second results stacked."""
    chunking = Chunking(examples.longest, -(-examples.longest // groups))
    return _scan(chunking, lambda part, _: fn(part), examples, ())


def one_by_one(fn: Callable[[Examples], Tree], examples: Examples, count: int, at_once: int) -> Tree:
    """Return fn of each of the first `count` examples alone, stacked; a few are computed at a time.

    If an axis is shorter than `count`, its last example stands in for the missing ones.
    """

    def one(number: Array) -> Tree:
        return fn(jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, number, 1), examples))

    return jax.lax.map(one, jnp.arange(count, dtype=jnp.int32), batch_size=max(1, min(at_once, count)))


def drawn(examples: Examples, key: Array, groups: int, size: int) -> Examples:
    """Return a few groups of neighbors, drawn at random; their coefficients compensate for the examples left out."""
    chunking = Chunking(examples.longest, size)
    if groups >= chunking.count:
        return examples
    chosen = jax.random.permutation(key, chunking.count)[:groups]

    arranged = jax.tree.map(chunking.arrange, examples)
    few = jax.tree.map(lambda leaf: chunking.chunks(leaf, chosen), arranged)
    coefficients = jax.tree.map(lambda leaf: chunking.chunks_with_zeros(leaf, chosen), arranged.coefficients)
    return few._replace(coefficients=tree.scale(chunking.count / groups, coefficients))


def window(batch: Tree, count: int, steps: Array) -> Tree:
    """Return `count` neighbors of a batch: every step takes the next ones, and after the last the first ones again.

    If `count` does not divide the batch, the last window begins earlier, and shares examples with the one before. Every
    round through the windows begins elsewhere, so that what happens every few steps does not always meet the same one.
    """
    length = jax.tree.leaves(batch)[0].shape[0]
    windows = -(-length // count)
    # A Weyl sequence by the golden ratio, as a fraction of 2¹⁶.
    part = ((steps // windows).astype(jnp.uint32) * jnp.uint32(2654435769)) >> 16
    begin = (part * jnp.uint32(windows)) >> 16
    start = ((steps + begin.astype(steps.dtype)) % windows) * count

    def cut(leaf: Array) -> Array:
        shards = _place(leaf)
        leaf = leaf if shards is None or count % shards[1] == 0 else _gathered(leaf)
        return jax.lax.dynamic_slice_in_dim(leaf, start, count)

    return jax.tree.map(cut, batch)


def _scan(
    chunking: "Chunking", fn: Callable[[Examples, Tree], tuple[Tree, Tree]], examples: Examples, rows: Tree
) -> tuple[Tree, Tree]:
    """Return Σ of fn's first result over chunks of the examples and rows, and its second stacked."""
    arranged = jax.tree.map(chunking.arrange, (examples, rows))

    # Differentiation recomputes a chunk instead of keeping it, so memory stays flat.
    @jax.checkpoint
    def share(number: Array) -> tuple[Tree, Tree]:
        part, own = jax.tree.map(lambda leaf: chunking.chunk(leaf, number), arranged)
        # The examples that fill up a chunk have coefficient 0: they add nothing.
        coefficients = jax.tree.map(
            lambda leaf: chunking.chunk_with_zeros(leaf, number), arranged[0].coefficients
        )
        return fn(part._replace(coefficients=coefficients), own)

    def body(total: Tree, number: Array) -> tuple[Tree, Tree]:
        more, extra = share(number)
        return tree.add(total, more), extra

    numbers = jnp.arange(chunking.count, dtype=jnp.int32)
    return jax.lax.scan(body, _zeros_of(lambda: share(numbers[0])[0]), numbers)


@dataclass(frozen=True)
class Chunking:
    """How examples are cut into chunks: every chunk takes a few neighbors out of each of several equal groups.

    An example axis that is sharded over devices is then cut without moving an example, if the devices can share the
    groups out evenly. Each chunk is then spread over the devices as the batch is. The groups depend on the sizes
    alone, so one device and many devices sum the same chunks.
    """

    longest: int
    """The number of examples on the longest example axis."""
    microbatch: int
    """The most of them in one chunk."""

    @property
    def count(self) -> int:
        """The number of chunks, the same for all axes."""
        return -(-self.longest // self.microbatch)

    def groups(self, length: int) -> int:
        """Return the number of groups of an axis: one that keeps chunks small, a power of two if possible."""
        most = -(-self.microbatch * length // self.longest)
        fitting = [
            groups
            for groups in range(1, most + 1)
            if length % groups == 0 and groups * -(-length // (groups * self.count)) <= most
        ]
        # -n & n is the largest power of two in n. One group, so chunks of neighbors, is the last resort.
        return max(fitting, key=lambda groups: (-groups & groups, groups), default=1)

    def keeps(self, leaf: Array) -> bool:
        """Tell whether a sharded axis can be cut where it lies; if not, every device gets all of it."""
        place = _place(leaf)
        return place is None or self.groups(leaf.shape[0]) % place[1] == 0

    def arrange(self, leaf: Array) -> Array:
        """Return the examples as (groups, chunks × neighbors, …): a view, whose last neighbors may be missing.

        Chunks and neighbors share one axis: XLA would copy an axis of length 1, for one neighbor, to another layout.
        """
        length, *rest = leaf.shape
        groups = self.groups(length)
        if not self.keeps(leaf):
            leaf = _gathered(leaf)
        return leaf.reshape(groups, length // groups, *rest)

    def chunk(self, arranged: Array, number: Array) -> Array:
        """Return one chunk of an arranged array; earlier examples stand in for those that are missing."""
        length, neighbors = arranged.shape[1], self._neighbors(arranged)
        # A slice that would pass the end is moved back, and its examples are then rolled to where they belong. So
        # nothing is copied to fill up the array.
        own = jax.lax.dynamic_slice_in_dim(arranged, number * neighbors, neighbors, axis=1)
        if length < neighbors * self.count:
            own = jnp.roll(own, -jnp.maximum(number * neighbors - (length - neighbors), 0), axis=1)
        return own.reshape(-1, *own.shape[2:])

    def chunk_with_zeros(self, arranged: Array, number: Array) -> Array:
        """Return one chunk of coefficients, which are 0 for missing examples."""
        groups, length = arranged.shape[:2]
        neighbors = self._neighbors(arranged)
        own = self.chunk(arranged, number)
        if length == neighbors * self.count:
            return own
        there = number * neighbors + jnp.arange(neighbors, dtype=number.dtype) < length
        return own * jnp.tile(there, groups).astype(own.dtype).reshape(-1, *(1,) * (own.ndim - 1))

    def chunks(self, arranged: Array, numbers: Array) -> Array:
        """Return several chunks of an arranged array at once, group by group."""
        places = self._places(arranged, numbers) % arranged.shape[1]
        return arranged[:, places].reshape(-1, *arranged.shape[2:])

    def chunks_with_zeros(self, arranged: Array, numbers: Array) -> Array:
        """Return several chunks of coefficients, which are 0 for missing examples."""
        there = self._places(arranged, numbers) < arranged.shape[1]
        own = self.chunks(arranged, numbers)
        there = jnp.tile(there, arranged.shape[0]).astype(own.dtype)
        return own * there.reshape(-1, *(1,) * (own.ndim - 1))

    def join(self, stacked: Array, length: int) -> Array:
        """Return rows that were stacked chunk by chunk in the order of the examples, without the filling."""
        groups = self.groups(length)
        apart = stacked.reshape(self.count, groups, -1, *stacked.shape[2:])
        in_order = jnp.moveaxis(apart, 0, 1).reshape(groups, -1, *stacked.shape[2:])
        return in_order[:, : length // groups].reshape(length, *stacked.shape[2:])

    def _neighbors(self, arranged: Array) -> int:
        return -(-arranged.shape[1] // self.count)

    def _places(self, arranged: Array, numbers: Array) -> Array:
        neighbors = self._neighbors(arranged)
        return (numbers[:, None] * neighbors + jnp.arange(neighbors, dtype=numbers.dtype)).ravel()


def _dealt(examples: Any) -> tuple[Any, int]:
    """Return the examples and the number of devices that share them, if their types tell; otherwise 1.

    Types tell on a mesh with `Explicit` axes, the kind that `jax.make_mesh` makes. Coefficients and indices made in
    the step are placed like the inputs.
    """
    places = {_place(leaf) for leaf in jax.tree.leaves((examples.inputs, examples.targets))}
    place = places.pop()
    if places or place is None:
        return examples, 1
    _, shards = place
    first = jax.tree.leaves(examples.inputs)[0]
    like = jnp.zeros_like(first.reshape(first.shape[0], -1)[:, 0])

    def alike(leaf: Array) -> Array:
        return leaf if _place(leaf) == place else leaf + like.astype(leaf.dtype)

    made = {name: getattr(examples, name) for name in ("coefficients", "index", "before")}
    return examples._replace(**jax.tree.map(alike, made)), shards


def _zeros_of(fn: Callable[[], Tree]) -> Tree:
    """Return zeros shaped like what fn would return, and placed like it on a mesh with explicit axes."""

    def zeros(leaf: Any) -> Array:
        return jnp.zeros(leaf.shape, leaf.dtype, out_sharding=getattr(leaf, "sharding", None))

    return jax.tree.map(zeros, jax.eval_shape(fn))


def _gathered(leaf: Array) -> Array:
    """Return a sharded array on every device."""
    return jax.reshard(leaf, NamedSharding(jax.typeof(leaf).sharding.mesh, PartitionSpec()))


def _place(leaf: Any) -> tuple[Any, int] | None:
    """Return the mesh axes of the example axis and their size, if the leaf's type has any."""
    sharding = jax.typeof(leaf).sharding
    names = sharding.spec[0] if len(sharding.spec) else None
    if names is None:
        return None
    axes = names if isinstance(names, tuple) else (names,)
    return names, math.prod(sharding.mesh.shape[axis] for axis in axes)
