"""kfac-jax with adaptive rate, momentum and damping, in the shape of a natgrad optimizer.

Its releases follow JAX at a distance, so it has an environment of its own and is no dependency of anything here.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import kfac_jax

import natgrad as ng

WARM = 12
"""Steps after which kfac-jax has met, and compiled, everything it does now and then."""


class Info(NamedTuple):
    """What a step says of itself."""

    loss: Any
    damping: Any


class Kfac:
    """The optimizer, which compiles and counts on its own."""

    def __init__(self, problem: Any, settings: dict[str, Any]) -> None:
        def loss(params: Any, batch: Any) -> jax.Array:
            inputs, targets = batch
            outputs = problem.model(params, inputs)
            _register(problem.likelihood, outputs, targets)
            return jnp.mean(problem.likelihood.nll(outputs, targets))

        self._optimizer = kfac_jax.Optimizer(
            value_and_grad_func=jax.value_and_grad(loss),
            l2_reg=0.0,
            use_adaptive_learning_rate=True,
            use_adaptive_momentum=True,
            use_adaptive_damping=True,
            initial_damping=settings["damping"],
            min_damping=settings["floor"],
            num_burnin_steps=0,
        )
        self._inner: Any = None
        self._warm = False

    def init(self, params: Any) -> Any:
        """Return the number of steps: the optimizer's own state needs a batch, and is made at the first step."""
        return jnp.zeros((), jnp.int32)

    def step(self, params: Any, state: Any, batch: Any) -> tuple[Any, Any, Info]:
        """Take a step. The very first call, which is not timed, runs a few to compile all kinds of them."""
        if not self._warm:
            self._warm = True
            moved, after = params, state
            for _ in range(WARM):
                moved, after, _ = self.step(moved, after, batch)
        count = int(state)
        key = jax.random.PRNGKey(count)
        params = jax.tree.map(jnp.copy, params)  # It gives its arguments' memory away.
        if count == 0:
            self._inner = self._optimizer.init(params, key, batch)
        params, self._inner, stats = self._optimizer.step(
            params, self._inner, key, batch=batch, global_step_int=count
        )
        return params, state + 1, Info(jnp.asarray(stats["loss"]), jnp.asarray(stats["damping"]))


def _register(likelihood: Any, outputs: jax.Array, targets: jax.Array) -> None:
    if isinstance(likelihood, ng.Bernoulli):
        kfac_jax.register_multi_bernoulli_predictive_distribution(outputs, targets=targets)
    elif isinstance(likelihood, ng.Categorical):
        kfac_jax.register_softmax_cross_entropy_loss(outputs, targets=targets)
    else:
        kfac_jax.register_squared_error_loss(outputs, targets=targets, weight=0.5)


def build(problem: Any, settings: dict[str, Any]) -> Kfac:
    """Return the contestant."""
    return Kfac(problem, settings)
