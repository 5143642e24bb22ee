"""The contestants of the race: those of Curves, Hessian-Free on minibatches, and kfac-jax where it is installed."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import natgrad as ng
from natgrad_paper.figures.curves import methods as curves
from natgrad_paper.training.batches import Batches, Minibatch
from natgrad_paper.training.problem import Method, Problem
from natgrad_paper.training.settings import Count, Positive, Section, Size

WARM = 12
"""After this many steps, kfac-jax has compiled everything that it does only at some steps."""


class MinibatchHessianFree(Section):
    """Hessian-Free on minibatches, without a preconditioner."""

    batch: Count = 1000
    """Cases per step."""
    maxiter: Size = 20
    """Solver iterations at most."""
    damping: Positive = 0.1
    """The first λ."""


class Kfac(Section):
    """kfac-jax with adaptive rate, momentum and damping."""

    batch: Count = 1000
    """Cases per step."""
    damping: Positive = 150.0
    """The first λ."""
    floor: Positive = 1e-4
    """The least λ."""


class KfacInfo(NamedTuple):
    """What a step of kfac-jax reports."""

    loss: Any
    damping: Any


class KfacOptimizer:
    """kfac-jax in the shape of a natgrad optimizer; it compiles and counts on its own."""

    def __init__(self, problem: Problem, own: Any) -> None:
        # Its releases lag behind JAX, so nothing here depends on it.
        kfac_jax: Any = import_module("kfac_jax")

        def register(outputs: Any, targets: Any) -> None:
            if isinstance(problem.likelihood, ng.Bernoulli):
                kfac_jax.register_multi_bernoulli_predictive_distribution(outputs, targets=targets)
            elif isinstance(problem.likelihood, ng.Categorical):
                kfac_jax.register_softmax_cross_entropy_loss(outputs, targets=targets)
            else:
                kfac_jax.register_squared_error_loss(outputs, targets=targets, weight=0.5)

        def loss(params: Any, batch: Any) -> jax.Array:
            inputs, targets = batch
            outputs = problem.model(params, inputs)
            register(outputs, targets)
            return jnp.mean(problem.likelihood.nll(outputs, targets))

        self._optimizer = kfac_jax.Optimizer(
            value_and_grad_func=jax.value_and_grad(loss),
            l2_reg=0.0,
            use_adaptive_learning_rate=True,
            use_adaptive_momentum=True,
            use_adaptive_damping=True,
            initial_damping=own.kfac.damping,
            min_damping=own.kfac.floor,
            num_burnin_steps=0,
        )
        self._inner: Any = None
        self._warm = False

    def init(self, params: Any) -> Any:
        """Return the number of steps. The optimizer's own state needs a batch, so the first step makes it."""
        return jnp.zeros((), jnp.int32)

    def step(self, params: Any, state: Any, batch: Any) -> tuple[Any, Any, KfacInfo]:
        """Take a step. The very first call, which is not timed, runs a few steps to compile all kinds of steps."""
        if not self._warm:
            self._warm = True
            moved, after = params, jnp.zeros_like(state)
            for _ in range(WARM):
                moved, after, _ = self.step(moved, after, batch)
            self._inner = None
        count = int(state)
        key = jax.random.PRNGKey(count)
        params = jax.tree.map(jnp.copy, params)  # kfac-jax donates its arguments' memory.
        if count == 0:
            self._inner = self._optimizer.init(params, key, batch)
        params, self._inner, stats = self._optimizer.step(
            params, self._inner, key, batch=batch, global_step_int=count
        )
        return params, state + 1, KfacInfo(jnp.asarray(stats["loss"]), jnp.asarray(stats["damping"]))


KFAC = Method(
    "kfac", "kfac-jax", "#882255", KfacOptimizer, lambda own: Batches(Minibatch(own.kfac.batch)), Kfac,
    about="minibatches, adaptive rate, momentum and damping", on_host=True, resumes=False,
)  # fmt: skip
METHODS = (
    curves.KNCG,
    Method(
        "kncg-last", "KNCG, not averaged", "#E69F00", lambda problem, own: curves.kncg(problem, own).optimizer,
        curves.growing, curves.Kncg, "kncg", about="the control: KNCG judged by its last parameters",
    ),
    curves.NESTEROV,
    curves.ADAM,
    Method(
        "hf", "Hessian-Free", "#8C510A", curves.hessian_free(preconditioner=ng.Identity()),
        lambda own: Batches(Minibatch(own.hf.batch)), MinibatchHessianFree, about="Hessian-Free on minibatches",
    ),
    curves.LBFGS,
    *([KFAC] if find_spec("kfac_jax") else []),
)  # fmt: skip
