"""The contestants: methods that run as their authors say, without a pilot, and tuned methods for comparison.

Methods from optional packages are included if the package is installed.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import optax
from optax import contrib
from pydantic import Field

import natgrad as ng
from natgrad_paper.errors import UserError
from natgrad_paper.figures.arena.entry import Entry
from natgrad_paper.figures.arena.measured import Tuned, by_problem
from natgrad_paper.training.baselines import FirstOrder
from natgrad_paper.training.problem import Method, Problem
from natgrad_paper.training.settings import Count, Positive, Section, Size

WARMUP = 0.05
"""The share of a schedule's steps over which the rate rises."""
ADAM_BESIDE_MUON = 3e-4
"""The rate of the parameters that Muon leaves to Adam, as its author says; tuning scales both rates together."""
Rate = Any
"""A number, or an optax schedule."""


class Calls(Section):
    """The settings of a method without constants of its own."""

    steps_per_call: Size = 10
    """The most steps in one call of the compiled loop, which Python does not slow down."""


class Rated(Calls):
    """A first-order method at its author's rate."""

    rate: Positive
    """The learning rate."""


class AdamW(Rated):
    """AdamW at the rate that most papers start from."""

    rate: Positive = 1e-3
    """The learning rate."""


class ScheduleFree(Rated):
    """Schedule-free AdamW, judged at its average."""

    rate: Positive = 2.5e-3
    """The learning rate."""
    warmup: Count = 100
    """Steps over which the rate rises."""


class Prodigy(Rated):
    """Prodigy, which finds its rate; the number is a factor of that rate."""

    rate: Positive = 1.0
    """A factor of the rate that it finds."""


class Muon(Rated):
    """Muon on matrices, Adam on the rest."""

    rate: Positive = 0.02
    """The learning rate."""


class Soap(Rated):
    """SOAP with its author's constants."""

    rate: Positive = 3e-3
    """The learning rate."""


def kncg(problem: Problem, own: Any) -> ng.Averaged:
    """Return KNCG with untouched defaults."""
    return ng.kncg(problem.model, problem.likelihood, objective=problem.objective)


def on_loss(problem: Problem, transformation: Any, **rest: Any) -> FirstOrder:
    """Return an optax transformation on the problem's loss."""
    return FirstOrder(problem.model, problem.likelihood, transformation, objective=problem.objective, **rest)


def muon(rate: Rate) -> Any:
    """Return Muon; Adam's rate beside it keeps its author's proportion."""
    share = ADAM_BESIDE_MUON / Muon().rate
    beside = (lambda step: share * rate(step)) if callable(rate) else share * rate
    return contrib.muon(rate, adam_learning_rate=beside)


def peer(module: str) -> Any:
    """Return a module of an optional package; refuse one that cannot be imported, in one line."""
    try:
        return import_module(module)
    except (ImportError, AttributeError) as problem:
        raise UserError(f"{module}: expected a package that can be imported, found: {problem}") from None


def soap(rate: Rate) -> Any:
    """Return SOAP, from soap-jax."""
    found = peer("soap_jax")
    return found.soap(rate, b1=0.95, b2=0.95, weight_decay=0.0, precondition_frequency=10)


def shampoo(rate: Rate) -> Any:
    """Return distributed Shampoo, from google-research/precondition; roots every 20 steps."""
    found = peer("precondition.distributed_shampoo")
    return found.distributed_shampoo(
        rate,
        block_size=128,
        beta1=0.9,
        beta2=0.99,
        graft_type=found.GraftingType.RMSPROP_NORMALIZED,
        preconditioning_compute_steps=20,
        start_preconditioning_step=20,
    )


def kron(rate: Rate) -> Any:
    """Return PSGD with Kronecker factors, from psgd-jax."""
    # Its release imports a private module that newer releases of optax moved.
    if "optax._src.clipping" not in sys.modules and find_spec("optax.transforms._clipping"):
        sys.modules["optax._src.clipping"] = import_module("optax.transforms._clipping")
    found = peer("psgd_jax.kron")
    return found.kron(rate, b1=0.9, preconditioner_update_probability=1.0)


def schedule_free(problem: Problem, own: Any) -> FirstOrder:
    """Return schedule-free AdamW."""
    mine = own.schedule_free
    rule = contrib.schedule_free_adamw(mine.rate, warmup_steps=mine.warmup)
    return on_loss(problem, rule, evaluated=contrib.schedule_free_eval_params)


def schedule(constants: Tuned) -> Rate:
    """Return a tuned rate: constant, or a rise and a cosine over the schedule's steps."""
    rate, steps = constants.rate, constants.steps
    if steps is None:
        return rate
    return optax.warmup_cosine_decay_schedule(0.0, rate, max(1, int(WARMUP * steps)), max(2, steps))


def untried(
    name: str, label: str, color: str, build: Callable[[Problem, Any], Any], kind: type[Section], about: str
) -> Method:
    """Return a method that runs as its author says."""
    section = name.replace("-", "_")
    return Method(
        name, label, color, build, settings=kind, section=section, about=about,
        steps_per_call=lambda own: getattr(own, section).steps_per_call,
    )  # fmt: skip


def rated(
    name: str, label: str, color: str, rule: Callable[[Rate], Any], kind: type[Section], about: str
) -> Method:
    """Return a first-order method at its author's rate."""

    def build(problem: Problem, own: Any) -> FirstOrder:
        return on_loss(problem, rule(getattr(own, name).rate))

    return untried(name, label, color, build, kind, about)


def tuned(name: str, label: str, color: str, rule: Callable[[Rate], Any]) -> Method:
    """Return a first-order method whose constants were chosen problem by problem."""
    section = f"tuned_{name}"

    def build(problem: Problem, own: Any) -> FirstOrder:
        assert isinstance(problem, Entry)
        return on_loss(problem, rule(schedule(getattr(getattr(own, section), problem.name))))

    about = f"The constants of {label}, problem by problem."
    calls = Field(10, description="Most steps in one call of the compiled loop.")
    kind = by_problem(Tuned, section, about, steps_per_call=(Size, calls))
    return Method(
        f"{name}-tuned", f"{label}, tuned", color, build, settings=kind, section=section,
        about="the ruler: rate and schedule from pilots on each problem",
        steps_per_call=lambda own: getattr(own, section).steps_per_call,
    )  # fmt: skip


def constants(method: Method, settings: Any, problem: str) -> Tuned | None:
    """Return the constants of a tuned method on a problem; None for a method that has none."""
    found = getattr(getattr(settings, method.section), problem, None)
    return found if isinstance(found, Tuned) else None


def refusal(settings: Any, entry: Entry, method: Method) -> str:
    """Return why a method cannot run on a problem; an empty text if it can."""
    chosen = constants(method, settings, entry.name)
    if chosen is not None and chosen.rate is None:
        return "no rate was chosen yet"
    return "not in double precision" if entry.float64 and method.name in SINGLE else ""


def installed(module: str) -> bool:
    """Whether an optional package can be imported."""
    return find_spec(module) is not None


KNCG = untried("kncg", "KNCG", "#0072B2", kncg, Calls, "defaults, nothing chosen")
UNTUNED = (
    KNCG,
    rated("adamw", "AdamW", "#D55E00", optax.adamw, AdamW, "rate 0.001, nothing chosen"),
    untried("schedule-free", "schedule-free AdamW", "#009E73", schedule_free, ScheduleFree,
            "rate 0.0025 after 100 steps, judged at its average"),
    rated("prodigy", "Prodigy", "#CC79A7", contrib.prodigy, Prodigy, "finds its rate"),
    untried("dowg", "DoWG", "#8C510A", lambda problem, own: on_loss(problem, contrib.dowg(), asks=True), Calls,
            "finds its rate"),
    rated("muon", "Muon", "#E69F00", muon, Muon, "rate 0.02 on matrices, Adam at 0.0003 on the rest"),
    *([rated("soap", "SOAP", "#56B4E9", soap, Soap, "rate 0.003, eigenbases every 10 steps")]
      if installed("soap_jax") else []),
)  # fmt: skip
RULER = (
    tuned("adamw", "AdamW", "#7F2A00", optax.adamw),
    tuned("muon", "Muon", "#7A5200", muon),
    *([tuned("soap", "SOAP", "#1B5E86", soap)] if installed("soap_jax") else []),
    *([tuned("shampoo", "Shampoo", "#882255", shampoo)] if installed("precondition") else []),
    *([tuned("kron", "PSGD Kron", "#332288", kron)] if installed("psgd_jax") else []),
)
METHODS = (*UNTUNED, *RULER)
SINGLE = ("shampoo-tuned",)
"""Methods that compute only in single precision."""
TARGETS = "adamw-tuned"
"""The method whose error is the target."""
