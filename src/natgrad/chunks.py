"""How examples are cut into chunks, and where a sharded example axis lies."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from natgrad.tree import Tree


@dataclass(frozen=True)
class Cut:
    """How examples are cut into chunks: every chunk takes a few neighbours out of each of several equal groups.

    An example axis that is sharded over devices is then cut without moving an example, as long as the groups
    can be dealt out to the devices: each chunk is spread over all of them as the batch is. The groups follow from
    the numbers alone, so one device and many devices sum the same chunks.
    """

    longest: int
    """Examples on the longest example axis."""
    microbatch: int
    """Examples of it in a chunk, at most."""

    @property
    def count(self) -> int:
        """The number of chunks, the same for all axes."""
        return -(-self.longest // self.microbatch)

    def groups(self, length: int) -> int:
        """Return the groups an axis is cut in: of those that keep chunks small enough, powers of two first."""
        most = -(-self.microbatch * length // self.longest)
        fitting = [
            groups
            for groups in range(1, most + 1)
            if length % groups == 0 and groups * -(-length // (groups * self.count)) <= most
        ]
        # -n & n is the largest power of two in n. One group is the last resort: chunks of neighbours.
        return max(fitting, key=lambda groups: (-groups & groups, groups), default=1)

    def keeps(self, leaf: Array) -> bool:
        """Whether an axis whose type tells its place can be cut where it is: otherwise every device gets all of it."""
        place = _place(leaf)
        return place is None or self.groups(leaf.shape[0]) % place[1] == 0

    def arrange(self, leaf: Array) -> Array:
        """Return the examples as (groups, chunks × neighbours, …): a view, whose last neighbours may be missing.

        Not with an axis each: of one neighbour, XLA takes the axis of length 1 for another layout and copies.
        """
        length, *rest = leaf.shape
        groups = self.groups(length)
        if not self.keeps(leaf):
            leaf = jax.reshard(leaf, NamedSharding(jax.typeof(leaf).sharding.mesh, PartitionSpec()))
        return leaf.reshape(groups, length // groups, *rest)

    def chunk(self, arranged: Array, number: Array) -> Array:
        """Return one chunk of an arranged array; earlier examples stand in for those that are missing."""
        length, neighbours = arranged.shape[1], self._neighbours(arranged)
        # A slice that would pass the end is moved back, and the examples in it then to where they belong: nothing
        # is copied to fill the array up.
        own = jax.lax.dynamic_slice_in_dim(arranged, number * neighbours, neighbours, axis=1)
        if length < neighbours * self.count:
            own = jnp.roll(own, -jnp.maximum(number * neighbours - (length - neighbours), 0), axis=1)
        return own.reshape(-1, *own.shape[2:])

    def chunk_with_zeros(self, arranged: Array, number: Array) -> Array:
        """Return one chunk of numbers, 0 for the examples that are missing."""
        groups, length = arranged.shape
        neighbours = self._neighbours(arranged)
        own = self.chunk(arranged, number)
        if length == neighbours * self.count:
            return own
        there = number * neighbours + jnp.arange(neighbours, dtype=number.dtype) < length
        return (own.reshape(groups, neighbours) * there.astype(own.dtype)).reshape(-1)

    def chunks(self, arranged: Array, numbers: Array) -> Array:
        """Return several chunks of an arranged array at once, group by group."""
        places = self._places(arranged, numbers) % arranged.shape[1]
        return arranged[:, places].reshape(-1, *arranged.shape[2:])

    def chunks_with_zeros(self, arranged: Array, numbers: Array) -> Array:
        """Return several chunks of numbers, 0 for the examples that are missing."""
        there = self._places(arranged, numbers) < arranged.shape[1]
        own = self.chunks(arranged, numbers).reshape(arranged.shape[0], -1)
        return (own * there.astype(own.dtype)).reshape(-1)

    def join(self, stacked: Array, length: int) -> Array:
        """Return rows stacked chunk by chunk in the order of the examples, without the fill."""
        groups = self.groups(length)
        apart = stacked.reshape(self.count, groups, -1, *stacked.shape[2:])
        in_order = jnp.moveaxis(apart, 0, 1).reshape(groups, -1, *stacked.shape[2:])
        return in_order[:, : length // groups].reshape(length, *stacked.shape[2:])

    def _neighbours(self, arranged: Array) -> int:
        return -(-arranged.shape[1] // self.count)

    def _places(self, arranged: Array, numbers: Array) -> Array:
        neighbours = self._neighbours(arranged)
        return (numbers[:, None] * neighbours + jnp.arange(neighbours, dtype=numbers.dtype)).ravel()


def dealt(examples: Any) -> tuple[Any, int]:
    """Return the examples and the number of devices they are dealt out to, if their types tell: otherwise 1.

    Types tell on a mesh with `Explicit` axes, the kind that `jax.make_mesh` makes. Coefficients and indices made
    in the step are placed like the inputs.
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


def zeros_of(fn: Callable[[], Tree]) -> Tree:
    """Return zeros shaped, and on a mesh with explicit axes placed, like what fn would return."""

    def zeros(leaf: Any) -> Array:
        return jnp.zeros(leaf.shape, leaf.dtype, out_sharding=getattr(leaf, "sharding", None))

    return jax.tree.map(zeros, jax.eval_shape(fn))


def _place(leaf: Any) -> tuple[Any, int] | None:
    """Return the mesh axes of the example axis and their size, if the leaf's type has any."""
    sharding = jax.typeof(leaf).sharding
    names = sharding.spec[0] if len(sharding.spec) else None
    if names is None:
        return None
    axes = names if isinstance(names, tuple) else (names,)
    return names, math.prod(sharding.mesh.shape[axis] for axis in axes)
