"""The contestants of the race: KNCG, first-order methods and Shampoo's kin, Hessian-Free, L-BFGS and kfac-jax.

Methods from optional packages are included if the package is installed. Growing batches, a schedule and an average are
offered to every first-order method, as KNCG has its own.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from pydantic import model_validator

import natgrad as ng
from natgrad_paper.figures.arena import methods as arena
from natgrad_paper.figures.arena.measured import Tuned
from natgrad_paper.figures.curves import methods as curves
from natgrad_paper.training.baselines import FirstOrder, averaged, momentum
from natgrad_paper.training.batches import Batches, Growing, Minibatch
from natgrad_paper.training.problem import Method, Problem
from natgrad_paper.training.settings import Count, Decay, Positive, Section, Size, unfit

WARM = 12
"""After this many steps, kfac-jax has compiled everything that it does only at some steps."""


class Raced(Section):
    """A first-order method with everything that can be tuned."""

    batch: Count = 200
    """Cases in a late step."""
    first: Count | None = None
    """Cases in an early step: they double every `double` steps. Without it, all steps have `batch` cases."""
    double: Count = 1000
    """Steps until batches have doubled."""
    rate: Positive = 0.003
    """The learning rate; its highest value if there is a schedule."""
    steps: Count | None = None
    """Steps of the schedule: the rate rises over the first of them, and falls to zero as a cosine. None: constant."""
    average: Decay = 0.0
    """The decay of the average that is judged; 0 for none."""
    steps_per_call: Size = 20
    """Most steps in one call of the compiled loop."""

    @model_validator(mode="after")
    def _fits(self) -> "Raced":
        if self.first is not None and self.first > self.batch:
            unfit("first", f"at most batch = {self.batch}", self.first)
        return self

    @property
    def batches(self) -> Batches:
        """The batches of the steps."""
        if self.first is None:
            return Batches(Minibatch(self.batch))
        return Batches(Growing(self.first, self.batch, self.double))

    @property
    def schedule(self) -> Any:
        """The rate, or its schedule."""
        return arena.schedule(Tuned(rate=self.rate, steps=self.steps))


class RacedNesterov(Raced):
    """Nesterov momentum."""

    batch: Count = 100
    """Cases in a late step."""
    rate: Positive = 0.008
    """The learning rate; its highest value if there is a schedule."""
    momentum: Decay = 0.999
    """Where the schedule of momentum ends."""


class RacedMuon(Raced):
    """Muon on matrices, Adam on the rest."""

    rate: Positive = 0.02
    """The learning rate; its highest value if there is a schedule."""


class RacedShampoo(Raced):
    """Distributed Shampoo, with roots every 20 steps."""

    rate: Positive = 0.01
    """The learning rate; its highest value if there is a schedule."""


def rival(
    name: str, label: str, color: str, rule: Callable[[Any], Any], settings: type[Raced], about: str
) -> Method:
    """Return a first-order method; `rule` makes the transformation from its section."""

    def build(problem: Problem, own: Any) -> FirstOrder:
        mine: Raced = getattr(own, name)
        if not mine.average:
            return FirstOrder(problem.model, problem.likelihood, rule(mine))
        judged = averaged(rule(mine), mine.average)
        return FirstOrder(
            problem.model, problem.likelihood, judged, evaluated=lambda state, params: state.average
        )

    return Method(
        name, label, color, build, lambda own: getattr(own, name).batches, settings,
        steps_per_call=lambda own: getattr(own, name).steps_per_call, about=about,
    )  # fmt: skip


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
SOAP = rival(
    "soap",
    "SOAP",
    "#56B4E9",
    lambda own: arena.soap(own.schedule),
    Raced,
    "Adam in the eigenbases of Shampoo",
)
SHAMPOO = rival(
    "shampoo", "Shampoo", "#CC79A7", lambda own: arena.shampoo(own.schedule), RacedShampoo,
    "grafted on RMSProp, roots every 20 steps",
)  # fmt: skip
OPTIONAL = {"soap_jax": SOAP, "precondition": SHAMPOO, "kfac_jax": KFAC}
"""Contestants from packages that need not be installed."""
METHODS = (
    curves.KNCG,
    Method(
        "kncg-last", "KNCG, not averaged", "#E69F00", lambda problem, own: curves.kncg(problem, own).optimizer,
        curves.growing, curves.Kncg, "kncg", about="the control: KNCG judged by its last parameters",
    ),
    rival("nesterov", "Nesterov momentum", "#332288", lambda own: momentum(own.schedule, own.momentum), RacedNesterov,
          "minibatches, tuned (optax)"),
    rival("adam", "Adam", "#117733", lambda own: optax.adam(own.schedule), Raced, "minibatches, tuned (optax)"),
    rival("muon", "Muon", "#DDCC77", lambda own: arena.muon(own.schedule), RacedMuon,
          "on matrices, Adam on the rest (optax)"),
    *(method for module, method in OPTIONAL.items() if find_spec(module)),
    Method(
        "hf", "Hessian-Free", "#8C510A", curves.hessian_free(preconditioner=ng.Identity()),
        lambda own: Batches(Minibatch(own.hf.batch)), MinibatchHessianFree, about="Hessian-Free on minibatches",
    ),
    curves.LBFGS,
)  # fmt: skip
