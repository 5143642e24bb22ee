"""What is minimized, and the model linearized at θ: the two things every method asks of a model and its data.

L(θ) = Σ_i c_i ℓ(f(θ, x_i), t_i),     c_i = w_i / Σ w
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import frozen, tree
from natgrad.examples import Examples, OverExamples
from natgrad.likelihood import Bernoulli, Categorical, Gaussian, Likelihood, Poisson, Product
from natgrad.packed import unpacked
from natgrad.tree import Tree

Model = Callable[..., Any]
SINGLE = (Bernoulli, Categorical, Gaussian, Poisson)
"""The likelihoods whose outputs are one array; a likelihood of a user's functions may take any tree."""
ROUNDING = 2.0
"""The rounding error of a loss, in units of eps times itself."""
CANCELLING = 1e4
"""Terms that cancel in the model's sums are taken to be no larger than this many times the loss and its outputs."""


@dataclass(frozen=True)
class Stateful:
    """A model that returns `(outputs, new_context)`, such as batch-norm statistics.

    Within a step the context is one fixed value; the new one comes from the gradient pass, in `info.context`.
    """

    fn: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        return self.fn(*args)


class Evaluation(NamedTuple):
    """The model at some parameters, on some examples."""

    examples: Examples
    outputs: Tree


class Linearization(NamedTuple):
    """The model linearized at θ on some examples: r = f(θ), v ↦ Jv and e ↦ Jᵀe."""

    examples: Examples
    outputs: Tree
    jvp: Callable[[Tree], Tree]
    vjp: Callable[[Tree], Tree]
    beside: Tree
    """(new context, aux): what the model returned beside its outputs."""


class Start(NamedTuple):
    """The loss at θ on some examples, and what its changes are measured from."""

    loss: Array
    resolution: Array
    """The least change that cannot be mere rounding."""
    outputs: Tree = None
    """The outputs, if the batch is held whole."""
    losses: Tree = None
    """The losses, one number per example, if the batch is taken in chunks."""

    @classmethod
    def of_value(cls, loss: Array) -> "Start":
        """Return the start of a loss that is known as a number alone."""
        return cls(loss, ROUNDING * jnp.finfo(loss.dtype).eps * jnp.abs(loss))


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["likelihood", "rest", "context"],
    meta_fields=["model", "objective", "microbatch", "has_aux"],
)
@dataclass(frozen=True)
class Problem:
    """A model, the meaning of its outputs, and the loss to minimize."""

    model: Model
    likelihood: Likelihood
    objective: Callable[[Tree, Tree], Array] | None = None
    """ℓ(outputs, targets), one number per example; None is the likelihood's negative log-likelihood."""
    microbatch: int | None = None
    """Examples held in memory at a time; None is the whole batch, linearized once."""
    has_aux: bool = False
    """Whether the model returns something else after its outputs (and its new context)."""
    rest: Tree = None
    """The parameters that are not trained, with None in the places of the others; None if all are."""
    context: Tree = None
    """The model's third argument, one fixed value."""

    def evaluate(self, params: Tree, inputs: Tree) -> tuple[Tree, Tree]:
        """Return the model's outputs, and (new context, aux)."""
        return _evaluate(self.model, self.has_aux, params, self.rest, inputs, self.context)

    def losses(self, outputs: Tree, examples: Examples) -> Tree:
        """Return ℓ for each example, or for each of its positions where these have weights of their own."""
        return _per_weight(self.objective or self.likelihood.nll, examples, outputs, examples.targets)

    def changes(self, outputs: Tree, new_outputs: Tree, examples: Examples) -> Tree:
        """Return ℓ(new_outputs) − ℓ(outputs) for each example; a small change keeps its digits."""
        if self.objective is None:
            return _per_weight(self.likelihood.change, examples, outputs, new_outputs, examples.targets)
        return tree.sub(self.losses(new_outputs, examples), self.losses(outputs, examples))

    def total(self, outputs: Tree, examples: Examples) -> Array:
        """Return Σ_i c_i ℓ_i."""
        return tree.total(examples.weighted(self.losses(outputs, examples)))

    def examples(self, params: Tree, inputs: Tree, targets: Tree = None, weights: Tree = None) -> Examples:
        """Return a batch with normalized weights; refuse arrays that do not fit together."""
        lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(inputs)}
        if not lengths or () in lengths or (0,) in lengths:
            raise ValueError("The batch is empty, or an input has no example axis.")
        outputs = working_shapes(jax.eval_shape(self.evaluate, params, inputs)[0])
        _check_outputs(self.likelihood, outputs, lengths)
        if targets is not None and self.objective is None:
            self.likelihood.check(outputs, jax.tree.map(_shape_of, targets))
        coefficients = self.likelihood.coefficients(outputs, weights)
        if targets is not None and self.objective is not None:
            whole = Examples(inputs, targets, coefficients, None)
            found = jax.eval_shape(partial(_per_weight, self.objective, whole), outputs, targets)
            _check_objective(found, coefficients)
        index = jax.tree.map(lambda c: jnp.arange(c.shape[0], dtype=jnp.uint32), coefficients)
        return Examples(inputs, targets, coefficients, index)

    def at(self, params: Tree, examples: Examples) -> OverExamples[Evaluation]:
        """Return the model evaluated at θ, for sums that need its outputs alone."""

        def evaluated(part: Examples) -> Evaluation:
            return Evaluation(part, working(self.evaluate(params, part.inputs)[0]))

        return OverExamples(evaluated, examples, self.microbatch)

    def linearize(self, params: Tree, examples: Examples) -> OverExamples[Linearization]:
        """Return the model linearized at θ. Vectors live in `working(params)`, float32 at the least."""

        def linearized(part: Examples) -> Linearization:
            def model(theta: Tree) -> tuple[Tree, Tree]:
                outputs, beside = self.evaluate(tree.cast_like(theta, params), part.inputs)
                return working(outputs), beside

            outputs, jvp, beside = jax.linearize(model, working(params), has_aux=True)
            transpose = jax.linear_transpose(jvp, working(params))
            return Linearization(part, outputs, jvp, lambda e: transpose(e)[0], beside)

        return OverExamples(linearized, examples, self.microbatch)

    def linearize_gradient(self, params: Tree, examples: Examples) -> OverExamples[Callable[[Tree], Tree]]:
        """Return the gradient linearized at θ: v ↦ Hv, the Hessian's product."""

        def linearized(part: Examples) -> Callable[[Tree], Tree]:
            def loss(theta: Tree) -> Array:
                outputs, _ = self.evaluate(tree.cast_like(theta, params), part.inputs)
                return self.total(working(outputs), part)

            return jax.linearize(jax.grad(loss), working(params))[1]

        return OverExamples(linearized, examples, self.microbatch)

    def second(self, params: Tree, examples: Examples, v: Tree) -> Tree:
        """Return d²f(θ + sv)/ds² at s = 0: how the outputs bend along v."""

        def outputs(theta: Tree) -> Tree:
            return working(self.evaluate(tree.cast_like(theta, params), examples.inputs)[0])

        def slope(theta: Tree) -> Tree:
            return jax.jvp(outputs, (theta,), (v,))[1]

        return jax.jvp(slope, (working(params),), (v,))[1]

    def residual(self, seen: Linearization) -> Tree:
        """Return e with C e = ∇ᵣℓ per example, where the likelihood has one and the loss is its own; else None."""
        if self.objective is not None or seen.examples.targets is None:
            return None
        return self.likelihood.residual(seen.outputs, seen.examples.targets)

    def loss(self, params: Tree, examples: Examples) -> Array:
        """Return L(θ)."""
        return self.at(params, examples).sum(lambda seen: self.total(seen.outputs, seen.examples))

    def loss_and_gradient(self, linear: OverExamples[Linearization]) -> tuple[Array, Tree, Tree]:
        """Return L, ∇L = Jᵀ ∇ᵣL and (new context, aux), from a linearization."""

        def part(seen: Linearization) -> tuple[Any, Any]:
            loss, slope = jax.value_and_grad(self.total)(seen.outputs, seen.examples)
            return (loss, seen.vjp(slope)), seen.beside

        if not (isinstance(self.model, Stateful) or self.has_aux):
            return *linear.sum(lambda seen: part(seen)[0]), (None, None)
        (loss, gradient), beside = linear.reduce(part)
        return loss, gradient, jax.tree.map(_over_chunks, beside)

    def slope(self, linear: OverExamples[Linearization], v: Tree) -> Array:
        """Return ∇Lᵀv, from a linearization and without the gradient."""

        def part(seen: Linearization) -> Array:
            pull = jax.grad(self.total)(seen.outputs, seen.examples)
            return tree.vdot(pull, seen.jvp(v))

        return linear.sum(part)

    def start(self, seen: OverExamples[Any], params: Tree) -> Start:
        """Return the loss where the model was evaluated or linearized, ready to measure changes of it.

        The rounding error of an example's loss is eps times the loss, plus the effect of an error of eps r in the
        outputs r. The examples' errors are independent, so the error of their sum is the root of the sum of their
        squares.
        """

        def own(seen: Any) -> Tree:
            losses, shaken = jax.jvp(
                lambda r: self.losses(r, seen.examples), (seen.outputs,), (seen.outputs,)
            )
            return jax.tree.map(lambda loss, change: (loss, jnp.abs(loss) + jnp.abs(change)), losses, shaken)

        rows, parts = seen.map(own), seen.examples.coefficients
        losses, errors = (jax.tree.map(lambda _, pair, k=k: pair[k], parts, rows) for k in range(2))
        loss = tree.total(seen.examples.weighted(losses))
        resolution = ROUNDING * self._precision(params, seen)[0] * tree.norm(seen.examples.weighted(errors))
        if seen.whole is None:
            return Start(loss, resolution, losses=losses)
        return Start(loss, resolution, outputs=seen.whole.outputs)

    def refined(
        self, start: Start, linear: OverExamples[Linearization], params: Tree, promise: Array
    ) -> Start:
        """Return the start with the effect of sums that cancel in its resolution, if the promised change is small.

        Large terms that cancel in a sum leave an error of their own size. J(s ∘ θ) with mixed signs s estimates that
        size. It takes a pass over the model, so it is measured only where it could matter.
        """
        eps, inside = self._precision(params, linear)

        def own(seen: Linearization) -> Tree:
            losses, through = jax.linearize(lambda r: self.losses(r, seen.examples), seen.outputs)
            shaken, cancelled = through(seen.outputs), through(seen.jvp(with_signs(working(params))))
            return jax.tree.map(
                lambda loss, change, left: eps * (jnp.abs(loss) + jnp.abs(change)) + inside * jnp.abs(left),
                losses, shaken, cancelled,
            )  # fmt: skip

        def measured() -> Array:
            return ROUNDING * tree.norm(linear.examples.weighted(linear.map(own)))

        large = promise > CANCELLING * start.resolution
        return start._replace(resolution=jax.lax.cond(large, lambda: start.resolution, measured))

    def _precision(self, params: Tree, seen: OverExamples[Any]) -> tuple[float, float]:
        """Return eps of the model's outputs, and of the sums in it."""
        raw = jax.eval_shape(self.evaluate, params, seen.examples.inputs)[0]
        return _eps(raw), _eps(working_shapes(raw))

    def change(self, params: Tree, examples: Examples, start: Start) -> Array:
        """Return L(params) − L(θ): the sum of the examples' changes, not the difference of two sums."""
        known = examples._replace(before=(start.outputs, start.losses))

        def part(seen: Evaluation) -> Array:
            own = seen.examples
            outputs, losses = own.before
            if losses is None:
                changes = self.changes(outputs, seen.outputs, own)
            else:
                changes = tree.sub(self.losses(seen.outputs, own), losses)
            return tree.total(own.weighted(changes))

        return self.at(params, known).sum(part)


def run(
    model: Model, has_aux: bool, params: Tree, rest: Tree, inputs: Tree, context: Tree
) -> tuple[Any, tuple[Any, Any]]:
    """Run the model's own Python code with its frozen parameters; return outputs and (new context, aux)."""
    own = unpacked(params)
    whole = own if rest is None else frozen.merge(own, rest)
    args = (whole, inputs) if context is None else (whole, inputs, context)
    _check_call(model, args)
    returned = model(*args)
    if not (isinstance(model, Stateful) or has_aux):
        return returned, (None, None)
    names = ["outputs", *["context"] * isinstance(model, Stateful), *["aux"] * has_aux]
    if not isinstance(returned, (tuple, list)) or len(returned) != len(names):
        raise ValueError(f"This model must return a tuple ({', '.join(names)}).")
    found = dict(zip(names, returned, strict=True))
    return found["outputs"], (found.get("context"), found.get("aux"))


# The model is traced once per shape, however many passes over it a step makes.
_evaluate = jax.jit(run, static_argnums=(0, 1), inline=True)


def working(values: Tree) -> Tree:
    """Return arrays in the precision of the solver: half precision as float32, the others as they are."""
    return jax.tree.map(lambda leaf: leaf.astype(tree.at_least_single(leaf.dtype)), values)


def working_shapes(shapes: Tree) -> Tree:
    """Return the shapes of `working` arrays."""
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, tree.at_least_single(s.dtype)), shapes)


def _eps(outputs: Tree) -> float:
    return max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(outputs))


def with_signs(theta: Tree) -> Tree:
    """Return θ with about half of its signs changed, as the top bits of a Weyl sequence say."""

    def one(leaf: Array) -> Array:
        place = jax.lax.iota(jnp.uint32, leaf.size).reshape(leaf.shape)
        return jnp.where(place * jnp.uint32(2654435769) >= jnp.uint32(2**31), leaf, -leaf)

    return jax.tree.map(one, theta)


def _per_weight(fn: Callable[..., Tree], examples: Examples, *values: Tree) -> Tree:
    """Return fn's numbers, one per weight. With one weight per position, each position counts as an example."""
    coefficients = examples.coefficients
    if all(c.ndim == 1 for c in jax.tree.leaves(coefficients)):
        return fn(*values)

    def fold(c: Array, part: Tree) -> Tree:
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[c.ndim :]), part)

    folded = (jax.tree.map(fold, coefficients, value) for value in values)
    return jax.tree.map(lambda c, losses: losses.reshape(c.shape), coefficients, fn(*folded))


def _over_chunks(stacked: Array) -> Array:
    """Return one context for all chunks: the mean of floating arrays, the last value of the rest (counters, keys)."""
    if jnp.issubdtype(stacked.dtype, jnp.floating) and stacked.shape[0] > 1:
        return jnp.mean(stacked, axis=0)
    return stacked[-1]


def _shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))


def check_model(model: Any) -> None:
    """Refuse what is not a function, and a module that holds its own parameters."""
    if not callable(model):
        raise TypeError("model must be a function: model(params, inputs) -> outputs.")
    inner = model.fn if isinstance(model, Stateful) else model
    # A Partial is a function that has arrays bound to it on purpose.
    holds = not isinstance(inner, jax.tree_util.Partial) and any(
        hasattr(leaf, "dtype") for leaf in jax.tree.leaves(inner)
    )
    if holds or not _hashable(inner):
        raise TypeError(
            f"model is a {type(inner).__name__} that holds arrays, or cannot be hashed: give a function, "
            "lambda params, x: eqx.combine(params, static)(x) or nnx.merge(graph, params)(x)."
        )


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _check_call(model: Model, args: tuple[Any, ...]) -> None:
    """Refuse a missing or a superfluous context, in a message that names it; Python's own would not."""
    try:
        taken = inspect.signature(model.fn if isinstance(model, Stateful) else model)
    except (TypeError, ValueError):  # Some callables have no known signature.
        return
    try:
        taken.bind(*args)
    except TypeError as error:
        words = "model(params, inputs, context)" if len(args) == 3 else "model(params, inputs)"
        raise TypeError(
            f"The model is called as {words}, and it does not fit: {error}. "
            "Give context= for a model with a third argument, and only for such a model."
        ) from None


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


def _check_objective(found: Tree, coefficients: Tree) -> None:
    want, have = (jax.tree.map(jnp.shape, values) for values in (coefficients, found))
    if want != have:
        raise ValueError(f"objective returned shape {have}; it must give one number per example, {want}.")
