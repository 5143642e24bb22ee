"""What is minimized, and the model linearized at θ: the two things every method asks of a model and its data.

    L(θ) = Σ_i c_i ℓ(f(θ, x_i), t_i),     c_i = w_i / Σ w

Every sum over examples in the library (loss, gradient, metric product, diagonal) is a `Pass.sum`: in one go, or
chunk by chunk in flat memory. The coefficients c carry the normalization, so a chunk's share is simply added.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.chunks import Cut, dealt, zeros_of
from natgrad.frozen import Frozen, merge
from natgrad.likelihood import Bernoulli, Categorical, Gaussian, Likelihood, Poisson, Product
from natgrad.tree import Tree

Model = Callable[..., Any]
SINGLE = (Bernoulli, Categorical, Gaussian, Poisson)
"""The likelihoods of one array; those of a user's functions may take any tree."""
ROUNDING = 2.0
"""The rounding error of a loss, in units of eps times itself."""


@dataclass(frozen=True)
class Stateful:
    """A model that returns `(outputs, new_context)`: batch-norm statistics, say.

    Within a step the context is one fixed value; the new one comes from the gradient pass, in `info.context`.
    """

    fn: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        return self.fn(*args)


class Examples(NamedTuple):
    """The data of one sum over examples."""

    inputs: Tree
    targets: Tree
    coefficients: Tree
    """c, one number an example; one array a factor of a `Product`."""
    index: Tree
    """Each example's place in its batch, so that random numbers do not depend on the chunking."""
    before: "Before | None" = None
    """What is known of each example's loss at θ, where a change of it is measured."""


class Before(NamedTuple):
    """The examples before a step: their outputs or, of a batch that is taken in chunks, their losses."""

    outputs: Tree
    losses: Tree


class Start(NamedTuple):
    """The loss at θ on some examples, and what its changes are measured from."""

    loss: Array
    before: Before
    resolution: Array
    """The least change that rounding cannot feign."""

    @classmethod
    def of_value(cls, loss: Array) -> "Start":
        """Return the start of a loss that is known as a number alone."""
        return cls(loss, Before(None, None), ROUNDING * jnp.finfo(loss.dtype).eps * jnp.abs(loss))


class Chunk(NamedTuple):
    """The model linearized at θ over some examples: r = f(θ), v ↦ Jv and e ↦ Jᵀe."""

    examples: Examples
    outputs: Tree
    jvp: Callable[[Tree], Tree]
    vjp: Callable[[Tree], Tree]
    context: Tree
    eps: float = 0.0
    """The rounding error of the outputs, as the model returned them."""


@dataclass(frozen=True)
class Problem:
    """A model, the meaning of its outputs, and the loss to minimize."""

    model: Model
    likelihood: Likelihood
    objective: Callable[[Tree, Tree], Array] | None = None
    """ℓ(outputs, targets), one number an example; None is the likelihood's negative log-likelihood."""
    microbatch: int | None = None
    """Examples held in memory at a time; None is the whole batch, linearized once."""

    def __post_init__(self) -> None:
        if self.microbatch is not None and self.microbatch < 1:
            raise ValueError(f"microbatch={self.microbatch}: give a positive number of examples, or None.")

    def losses(self, outputs: Tree, targets: Tree) -> Tree:
        """Return ℓ for each example."""
        return (self.objective or self.likelihood.nll)(outputs, targets)

    def total(self, outputs: Tree, examples: Examples) -> Array:
        """Return Σ_i c_i ℓ_i."""
        return tree.total(_weighted(examples, self.losses(outputs, examples.targets)))

    def start(self, at: "Pass") -> Start:
        """Return the loss where the model was evaluated or linearized, ready to measure changes of it.

        What rounding makes of an example's loss: eps times it, and eps times |rᵀ ∂ℓ/∂r|, that of the outputs. The
        examples' errors are independent: that of their sum is the root of the sum of their squares.
        """

        def own(chunk: Chunk) -> Tree:
            targets = chunk.examples.targets
            losses, shaken = jax.jvp(lambda r: self.losses(r, targets), (chunk.outputs,), (chunk.outputs,))

            def row(loss: Array, change: Array) -> Array:
                return jnp.stack([loss, chunk.eps * (jnp.abs(loss) + jnp.abs(change))], axis=-1)

            return jax.tree.map(row, losses, shaken)

        rows = own(at.whole) if at.whole is not None else at.map(own)
        losses, errors = (jax.tree.map(lambda leaf, k=k: leaf[..., k], rows) for k in range(2))
        before = Before(at.whole.outputs, None) if at.whole is not None else Before(None, losses)
        resolution = ROUNDING * tree.norm(_weighted(at.examples, errors))
        return Start(tree.total(_weighted(at.examples, losses)), before, resolution)

    def change(self, params: Tree, examples: Examples, context: Tree, start: Start) -> Array:
        """Return L(params) − L(θ): the sum of the examples' changes, not the difference of two sums."""

        def part(chunk: Chunk) -> Array:
            own = chunk.examples
            assert own.before is not None
            if own.before.losses is None:
                changes = self._changes(own.before.outputs, chunk.outputs, own.targets)
            else:
                changes = tree.sub(self.losses(chunk.outputs, own.targets), own.before.losses)
            return tree.total(_weighted(own, changes))

        return self.forward(params, examples._replace(before=start.before), context).sum(part)

    def _changes(self, outputs: Tree, new_outputs: Tree, targets: Tree) -> Tree:
        if self.objective is None:
            return self.likelihood.change(outputs, new_outputs, targets)
        return tree.sub(self.objective(new_outputs, targets), self.objective(outputs, targets))

    def examples(self, params: Tree, inputs: Tree, targets: Tree, weights: Tree, context: Tree) -> Examples:
        """Bundle a batch, after refusing what does not fit together."""
        lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(inputs)}
        if not lengths or () in lengths or (0,) in lengths:
            raise ValueError("The batch is empty, or an input has no example axis.")
        outputs = jax.eval_shape(partial(evaluate, self.model), params, inputs, context)
        _check_outputs(self.likelihood, outputs, lengths)
        if targets is not None:
            if self.objective is None:
                self.likelihood.check(outputs, jax.tree.map(_shape_of, targets))
            else:
                _check_objective(jax.eval_shape(self.objective, outputs, targets), outputs, self.likelihood)
        coefficients = self.likelihood.coefficients(outputs, weights)
        index = jax.tree.map(lambda c: jnp.arange(c.shape[0], dtype=jnp.uint32), coefficients)
        return Examples(inputs, targets, coefficients, index)

    def forward(self, params: Tree, examples: Examples, context: Tree) -> "Pass":
        """Return the model evaluated at θ, for sums that need its outputs alone."""

        def chunk(part: Examples) -> Chunk:
            outputs, new_context = _evaluate(self.model, params, part.inputs, context)
            return Chunk(part, working(outputs), _not_linearized, _not_linearized, new_context, _eps(outputs))

        return Pass(chunk, examples, self.microbatch)

    def linearize(self, params: Tree, examples: Examples, context: Tree) -> "Pass":
        """Return the model linearized at θ. Vectors live in `working(params)`, float32 at the least."""

        def chunk(part: Examples) -> Chunk:
            eps = 0.0

            def model(p: Tree) -> Any:
                nonlocal eps
                outputs, context_after = _evaluate(
                    self.model, tree.cast_like(p, params), part.inputs, context
                )
                eps = _eps(outputs)
                return working(outputs), context_after

            outputs, jvp, new_context = jax.linearize(model, working(params), has_aux=True)
            transpose = jax.linear_transpose(jvp, working(params))
            return Chunk(part, outputs, jvp, lambda e: transpose(e)[0], new_context, eps)

        return Pass(chunk, examples, self.microbatch)

    def linearize_gradient(self, params: Tree, examples: Examples, context: Tree) -> "Pass":
        """Return the gradient linearized at θ: the `jvp` of its chunks is v ↦ Hv, the Hessian's product."""

        def chunk(part: Examples) -> Chunk:
            def loss(p: Tree) -> Array:
                outputs, _ = _evaluate(self.model, tree.cast_like(p, params), part.inputs, context)
                return self.total(working(outputs), part)

            _, hvp = jax.linearize(jax.grad(loss), working(params))
            return Chunk(part, None, hvp, hvp, None)

        return Pass(chunk, examples, self.microbatch)

    def loss(self, params: Tree, examples: Examples, context: Tree) -> Array:
        """Return L(θ)."""
        return self.forward(params, examples, context).sum(
            lambda chunk: self.total(chunk.outputs, chunk.examples)
        )

    def loss_and_gradient(self, linear: "Pass") -> tuple[Array, Tree, Tree]:
        """Return L, ∇L = Jᵀ ∇ᵣL and the new context, from a linearization."""

        def part(chunk: Chunk) -> tuple[Any, Any]:
            loss, slope = jax.value_and_grad(self.total)(chunk.outputs, chunk.examples)
            return (loss, chunk.vjp(slope)), chunk.context

        if not isinstance(self.model, Stateful):
            return *linear.sum(lambda chunk: part(chunk)[0]), None
        (loss, gradient), contexts = linear.reduce(part)
        return loss, gradient, jax.tree.map(_over_chunks, contexts)


class Pass:
    """A sum over examples: whole, with one linearization kept, or chunk by chunk, linearizing each anew."""

    def __init__(self, build: Callable[[Examples], Chunk], examples: Examples, microbatch: int | None):
        longest = _longest(examples)
        self.cut = Cut(longest, longest if microbatch is None else microbatch)
        self.examples = examples
        self._build = build
        self.whole = build(examples) if self.cut.count == 1 else None
        """The whole batch in one chunk; None of a batch in several."""

    def reduce(self, fn: Callable[..., tuple[Tree, Tree]], *rows: Tree) -> tuple[Tree, Tree]:
        """Return Σ over chunks of fn's first result, and its second from every chunk, stacked.

        `rows` have one row an example; fn is called with a chunk and the chunk's own rows of each.
        """
        if self.whole is not None:
            total, extra = fn(self.whole, *rows)
            return total, jax.tree.map(lambda leaf: leaf[None], extra)
        return _scan(self.cut, lambda part, own: fn(self._build(part), *own), self.examples, rows)

    def sum(self, fn: Callable[..., Tree], *rows: Tree) -> Tree:
        """Return Σ over chunks of fn(chunk, its rows), an fn that is itself a sum over examples.

        So each device may add up its own share of every chunk, and the devices' totals are added once, at the end.
        The model then sees the shares one by one, where `reduce` shows it whole chunks: it must not couple examples.
        """
        apart = not rows and self.whole is None and all(map(self.cut.keeps, jax.tree.leaves(self.examples)))
        examples, shards = dealt(self.examples) if apart else (self.examples, 1)
        if shards == 1:
            return self.reduce(lambda chunk, *own: (fn(chunk, *own), None), *rows)[0]

        def each(part: Examples, _: Tree) -> tuple[Tree, Tree]:
            shares = jax.tree.map(lambda leaf: leaf.reshape(shards, -1, *leaf.shape[1:]), part)
            return jax.vmap(lambda share: fn(self._build(share)))(shares), None

        totals, _ = _scan(self.cut, each, examples, ())
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), totals)

    def map(self, fn: Callable[[Chunk], Tree]) -> Tree:
        """Return fn's rows, one an example, from all chunks, in the order of the examples."""
        _, stacked = self.reduce(lambda chunk: ((), fn(chunk)))
        if self.whole is not None:
            return jax.tree.map(lambda leaf: leaf[0], stacked)

        def join(c: Array, rows: Tree) -> Tree:
            return jax.tree.map(lambda leaf: self.cut.join(leaf, c.shape[0]), rows)

        return jax.tree.map(join, self.examples.coefficients, stacked)


def over_groups(
    fn: Callable[[Examples], tuple[Tree, Tree]], examples: Examples, groups: int
) -> tuple[Tree, Tree]:
    """Return Σ over groups of examples of fn's first result, and its second from every group, stacked."""
    longest = _longest(examples)
    cut = Cut(longest, -(-longest // groups))
    return _scan(cut, lambda part, _: fn(part), examples, ())


def drawn(examples: Examples, key: Array, groups: int, size: int) -> Examples:
    """Return so many groups of neighbours, drawn at random; their coefficients make up for the ones left out."""
    cut = Cut(_longest(examples), size)
    if groups >= cut.count:
        return examples
    chosen = jax.random.permutation(key, cut.count)[:groups]

    arranged = jax.tree.map(cut.arrange, examples)
    few = jax.tree.map(lambda leaf: cut.chunks(leaf, chosen), arranged)
    coefficients = jax.tree.map(lambda leaf: cut.chunks_with_zeros(leaf, chosen), arranged.coefficients)
    return few._replace(coefficients=tree.scale(cut.count / groups, coefficients))


def _scan(
    cut: Cut, fn: Callable[[Examples, Tree], tuple[Tree, Tree]], examples: Examples, rows: Tree
) -> tuple[Tree, Tree]:
    """Return Σ of fn's first result over chunks of the examples and rows, and its second stacked."""
    arranged = jax.tree.map(cut.arrange, (examples, rows))

    # Under differentiation a chunk is computed again rather than kept: memory stays flat.
    @jax.checkpoint
    def share(number: Array) -> tuple[Tree, Tree]:
        part, own = jax.tree.map(lambda leaf: cut.chunk(leaf, number), arranged)
        # What fills a chunk up has coefficient 0: it adds nothing.
        coefficients = jax.tree.map(lambda leaf: cut.chunk_with_zeros(leaf, number), arranged[0].coefficients)
        return fn(part._replace(coefficients=coefficients), own)

    def body(total: Tree, number: Array) -> tuple[Tree, Tree]:
        more, extra = share(number)
        return tree.add(total, more), extra

    numbers = jnp.arange(cut.count, dtype=jnp.int32)
    return jax.lax.scan(body, zeros_of(lambda: share(numbers[0])[0]), numbers)


def _longest(examples: Examples) -> int:
    return max(leaf.shape[0] for leaf in jax.tree.leaves(examples.inputs))


def _weighted(examples: Examples, losses: Tree) -> Tree:
    """Return c_i ℓ_i."""
    return jax.tree.map(lambda c, loss: c.astype(loss.dtype) * loss, examples.coefficients, losses)


def working(params: Tree) -> Tree:
    """Return params in the precision of the solver: half-precision leaves as float32, the others as they are."""
    return jax.tree.map(lambda leaf: leaf.astype(tree.at_least_single(leaf.dtype)), params)


def evaluate(model: Model, params: Tree, inputs: Tree, context: Tree) -> Tree:
    """Return the model's outputs, float32 at the least."""
    return working(_evaluate(model, params, inputs, context)[0])


def _eps(outputs: Tree) -> float:
    return max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(outputs))


def _evaluate(model: Model, params: Tree, inputs: Tree, context: Tree) -> tuple[Tree, Tree]:
    if isinstance(context, Frozen):
        params, context = merge(params, context.rest), context.context
    args = (params, inputs) if context is None else (params, inputs, context)
    outputs, context = model(*args) if isinstance(model, Stateful) else (model(*args), None)
    return outputs, context


def _over_chunks(stacked: Array) -> Array:
    """One context from the chunks': the mean of what can be averaged, the last of the rest (counters, keys)."""
    if jnp.issubdtype(stacked.dtype, jnp.floating) and stacked.shape[0] > 1:
        return jnp.mean(stacked, axis=0)
    return stacked[-1]


def _not_linearized(_: Tree) -> Tree:
    raise AssertionError("this pass was evaluated, not linearized")


def _shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))


def _check_outputs(likelihood: Likelihood, outputs: Tree, lengths: set[tuple[int, ...]]) -> None:
    leaves = jax.tree.leaves(outputs)
    if not leaves or any(not jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
        raise ValueError(
            "The model must return floating arrays (a Stateful model: outputs and a new context)."
        )
    for leaf in leaves:
        if leaf.shape[:1] not in lengths:
            raise ValueError(
                f"The model returned shape {leaf.shape} for inputs of {sorted(n for (n,) in lengths)} examples: "
                "its first axis must be the example axis."
            )
    parts = len(likelihood.parts())
    if isinstance(likelihood, Product) and not (type(outputs) is tuple and len(outputs) == parts):
        raise ValueError(
            f"A Product of {parts} likelihoods needs a model that returns a tuple of {parts} outputs."
        )
    for part, own in zip(
        likelihood.parts(), outputs if isinstance(likelihood, Product) else (outputs,), strict=True
    ):
        if isinstance(part, SINGLE) and not hasattr(own, "dtype"):
            raise ValueError(
                f"The model returned a {type(own).__name__}, and {type(part).__name__} reads one array of outputs: "
                "return that array, or a tuple of arrays with ng.Product."
            )


def _check_objective(found: Tree, outputs: Tree, likelihood: Likelihood) -> None:
    want = jax.tree.map(jnp.shape, jax.eval_shape(lambda r: likelihood.coefficients(r, None), outputs))
    have = jax.tree.map(jnp.shape, found)
    if want != have:
        raise ValueError(f"objective returned shape {have}; it must give one number an example, {want}.")
