"""Does a model fit its likelihood and its data? `check` answers before the first step, in plain words.

A traced step can refuse wrong shapes; it cannot see values. `check` runs the model a few times and reports what would
go wrong later without a message.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array

from natgrad import cautions, faults
from natgrad.custom import Loss
from natgrad.faults import Finding, Remark, Stop
from natgrad.likelihood import Likelihood
from natgrad.metric import Fisher, GaussNewton, Metric
from natgrad.problem import Model
from natgrad.tree import Tree


@dataclass(frozen=True)
class Report:
    """What `check` found; print it to read it. It is true if there is no fault, with or without warnings."""

    faults: tuple[Finding, ...]
    passed: tuple[str, ...]
    """The checks that found no fault. A check that an earlier fault made impossible is in neither list."""
    warnings: tuple[Finding, ...] = ()
    """What is not wrong but makes training hard."""
    hints: tuple[Finding, ...] = ()
    """What may work better."""

    def __bool__(self) -> bool:
        return not self.faults

    def __str__(self) -> str:
        lines = [f"{_count(len(self.faults), 'fault')} found."]
        if self.warnings:
            lines[0] += f" {_count(len(self.warnings), 'warning')}."
        for mark, found in (("✗", self.faults), ("!", self.warnings), ("→", self.hints)):
            for each in found:
                lines += [f"  {mark} {each.check}: {each.found}", f"      {each.advice}"]
        if self.passed:
            lines.append(f"  ✓ {', '.join(self.passed)}")
        return "\n".join(lines)


def _count(number: int, word: str) -> str:
    return f"No {word}" if not number else f"{number} {word}{'s' if number > 1 else ''}"


def check(
    model: Model,
    likelihood: Likelihood,
    params: Tree,
    batch: Any,
    *,
    loss: Callable[[Tree], Any] | None = None,
    metric: Metric | None = None,
    objective: Callable[[Tree, Tree], Array] | None = None,
    context: Tree = None,
    trainable: Any = None,
    has_aux: bool = False,
    key: Array | None = None,
) -> Report:
    """Look for what would make training fail, and report it in plain words: `print(ng.check(...))`.

    It looks for faults:

    * parameters that are not floating, or not finite;
    * shapes, dtypes and target values that do not fit the likelihood;
    * a model that returns probabilities in place of logits;
    * a model that is random, or whose output for one example depends on the others;
    * a metric that is not symmetric or not positive;
    * a loss of your own that is not the likelihood's.

    It also warns of what makes training hard: inputs of very different scales, inputs and outputs that never vary, a
    batch with fewer examples than outputs. A report with warnings alone is still true. A small least-squares problem
    gets a hint: `ng.gauss_newton` solves it directly.

    Args:
        model: As for an optimizer, `ng.Stateful` included.
        likelihood: What the outputs mean.
        params: The parameters.
        batch: `(inputs, targets)` or `(inputs, targets, weights)`; a few dozen examples are enough.
        loss: Your own loss, `loss(params)` on this batch. It is compared with the likelihood's, up to a constant.
        metric: Default `Fisher()`; `GaussNewton()` for `Likelihood.from_loss`.
        objective: As for an optimizer.
        context: The model's third argument.
        trainable: As for an optimizer.
        has_aux: As for an optimizer.
        key: The key for the random probes.
    """
    key = jax.random.key(0) if key is None else key
    if metric is None:
        metric = GaussNewton() if isinstance(likelihood, Loss) else Fisher()
    wrong: list[Finding] = []
    passed: list[str] = []
    warned: list[Finding] = []
    hints: list[Finding] = []
    try:
        case = faults.prepare(model, likelihood, params, batch, objective, context, trainable, has_aux)
        passed += ["parameters", "shapes"]
        looks: dict[str, Callable[[], Remark]] = {
            "data": lambda: faults.data(case),
            "targets": lambda: faults.targets(case),
            "outputs": lambda: faults.outputs(case),
            "determinism": lambda: faults.determinism(case),
            "independence": lambda: faults.independence(case),
            "metric": lambda: faults.metric(case, metric, key),
        }
        if loss is not None:
            looks["loss"] = lambda: faults.loss(case, loss)
        for name, look in looks.items():
            found = look()
            if found is None:
                passed.append(name)
                continue
            wrong.append(Finding(name, *found))
            if name == "data":  # A NaN is not equal to itself: every later check would find a fault.
                raise Stop
        warned = [
            Finding(name, *found)
            for name, found in {
                "scale": cautions.scale(case),
                "constant inputs": cautions.inputs(case),
                "constant outputs": cautions.outputs(case, key),
                "batch": cautions.batch(case),
            }.items()
            if found is not None
        ]
        found = cautions.few_parameters(case)
        hints = [] if found is None else [Finding("few parameters", *found)]
    except Stop as stop:
        wrong += stop.args
    return Report(tuple(wrong), tuple(passed), tuple(warned), tuple(hints))
