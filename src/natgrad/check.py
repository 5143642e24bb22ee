"""Does a model fit its likelihood and its data? A look before the first step, in plain words.

A traced step can refuse wrong shapes; it cannot see values. `check` runs the model for real, a few times, and
tells what would go wrong later and silently.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array

from natgrad import faults
from natgrad.custom import Loss
from natgrad.faults import Fault, Stop
from natgrad.likelihood import Likelihood
from natgrad.metric import Fisher, GaussNewton, Metric
from natgrad.problem import Model
from natgrad.tree import Tree


@dataclass(frozen=True)
class Report:
    """What `check` found: true if nothing is wrong; print it to read."""

    faults: tuple[Fault, ...]
    passed: tuple[str, ...]
    """The checks without a fault. What could not be looked at, because of an earlier fault, is in neither."""

    def __bool__(self) -> bool:
        return not self.faults

    def __str__(self) -> str:
        count = len(self.faults)
        lines = ["No fault found." if not count else f"{count} fault{'s' if count > 1 else ''} found."]
        for fault in self.faults:
            lines += [f"  ✗ {fault.check}: {fault.found}", f"      {fault.advice}"]
        if self.passed:
            lines.append(f"  ✓ {', '.join(self.passed)}")
        return "\n".join(lines)


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
    key: Array | None = None,
) -> Report:
    """Look for what would make training fail, and say it in plain words: `print(ng.check(...))`.

    Are the parameters floating and finite; do shapes, dtypes and target values fit the likelihood; does the model
    return logits rather than probabilities; is it deterministic, and each example's output its own; is the metric
    symmetric and positive; is your own loss the likelihood's?

    Args:
        model: As for an optimizer, `ng.Stateful` included.
        likelihood: What the outputs mean.
        params: The parameters.
        batch: `(inputs, targets)` or `(inputs, targets, weights)`; a few dozen examples are enough.
        loss: Your own loss, `loss(params)` on this batch: compared with the likelihood's up to a constant.
        metric: Default `Fisher()`; `GaussNewton()` for `Likelihood.from_loss`.
        objective: As for an optimizer.
        context: The model's third argument.
        trainable: As for an optimizer.
        key: Of the random probes.
    """
    key = jax.random.key(0) if key is None else key
    if metric is None:
        metric = GaussNewton() if isinstance(likelihood, Loss) else Fisher()
    wrong: list[Fault] = []
    passed: list[str] = []
    try:
        case = faults.prepare(model, likelihood, params, batch, objective, context, trainable)
        passed += ["parameters", "shapes"]
        for name, look in {
            "data": lambda: faults.data(case),
            "targets": lambda: faults.targets(case),
            "outputs": lambda: faults.outputs(case),
            "determinism": lambda: faults.determinism(case),
            "independence": lambda: faults.independence(case),
            "metric": lambda: faults.metric(case, metric, key),
            "loss": lambda: None if loss is None else faults.loss(case, loss),
        }.items():
            found = look()
            if found is not None:
                wrong.append(Fault(name, *found))
            elif name != "loss" or loss is not None:
                passed.append(name)
    except Stop as stop:
        wrong.append(stop.args[0])
    return Report(tuple(wrong), tuple(passed))
