"""The protocol of figure 2: match the rates, then train with every segment replaced, again and again.

All trainings of a seed start from the same weights. Those that replace segment i share what comes before it: they start
from the state that the unperturbed training had there. That is the same sequence of the same compiled calls as training
from scratch, hence the same numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad_paper.data import characters
from natgrad_paper.data.glyphs import CHARACTERS
from natgrad_paper.figures.order import matching
from natgrad_paper.figures.order.matching import Tried
from natgrad_paper.figures.order.problem import Characters
from natgrad_paper.figures.order.streams import STREAM, Drifting, Examples, Plain, Replaced
from natgrad_paper.training.loop import Event
from natgrad_paper.training.measures import Measures
from natgrad_paper.training.models import Classifier, Layers
from natgrad_paper.training.pictures import pictures
from natgrad_paper.training.problem import Method, Until
from natgrad_paper.training.runner import Run, Training

UNPERTURBED, FORWARDS, BACKWARDS = "unperturbed", "drift-forwards", "drift-backwards"
SHOWN = 14
"""The number of characters of which every stage is kept for the report."""
CHUNK = 1000
"""The number of held-out examples computed at a time."""


class GivenUp(Exception):
    """A training was given up, and with it the protocol of its seed."""


def drive(run: Run) -> list[str]:
    """Follow the protocol for every seed; return a line for each seed that was given up."""
    assert isinstance(run.problem, Characters)
    failures = []
    for seed in run.seeds:
        examples = Examples(run.settings, run.problem.glyphs, seed)
        methods = [MethodRun(run, each, seed, examples, Measures(run, each, seed)) for each in run.methods]
        if all(each.measures.finished for each in methods):
            run.display.skip(f"seed {seed}", False)
            continue
        methods[0].measures.picture(shown(run.problem.glyphs, seed, run.settings.stream.pinched))
        try:
            for each, (rate, reached) in zip(methods, match(methods), strict=True):
                each.vary(rate, reached)
        except GivenUp as reason:
            failures.append(f"seed {seed}: {reason}")
    return failures


def match(methods: list["MethodRun"]) -> list[tuple[float, bool]]:
    """Return the rate of each method at which all have the same validation error, and whether they do."""
    rule = methods[0].run.settings.match
    trials = [each.trial(getattr(each.run.settings, each.method.name).rate) for each in methods]
    target = max(trial.error for trial in trials)
    found = []
    for each, trial in zip(methods, trials, strict=True):
        matched = matching.slow_down(trial, target, each.trial, rule.tolerance, rule.trainings)
        found.append((matched.rate, abs(matched.error - target) <= rule.tolerance))
    return found


@dataclass(frozen=True)
class MethodRun:
    """The trainings of a method and a seed, and the measures of several of them together."""

    run: Run
    method: Method
    seed: int
    examples: Examples
    measures: Measures

    def trial(self, rate: float) -> Tried:
        """Return the validation error of an unperturbed training with a rate."""
        training = self.training(f"match-{rate:g}", Plain(self.examples), rate, kind="match")
        return Tried(rate, self.train(training))

    def vary(self, rate: float, reached: bool) -> None:
        """Do everything that follows the matching, with the rate it found."""
        if self.measures.finished:
            return
        if self.measures.get("matched") is None:
            self.measures.write("matched", rate=rate, reached=reached)
        for name, alike in self.comparisons(rate, self.unperturbed(rate)):
            if self.measures.get(name) is None:
                found = variances(np.stack([self.outputs_after(training) for training in alike]))
                self.measures.write(name, **alike[0].facts, repeats=len(alike), **found)
                self.run.drop(alike)
                words = f"{self.method.label}, seed {self.seed}: {name}, variance of the outputs"
                self.run.display.tell(f"{words} {found['variance']:.3g}")
        self.measures.finish()
        self.run.tidy(self.method, self.seed)

    def unperturbed(self, rate: float) -> Training:
        """Train on the stream as it is, and keep the state at the start of each segment that is replaced."""
        stream = self.run.settings.stream
        training = self.training(UNPERTURBED, Plain(self.examples), rate, traced=True, kind=UNPERTURBED)
        places = {
            stream.start(segment): f"{segment:02d}" for segment in self.run.settings.replaces if segment > 1
        }

        def keep(event: Event) -> None:
            if (label := places.get(event.position.iteration)) is not None:
                self.run.keep(training, label, event)

        self.train(training, keep)
        return training

    def comparisons(self, rate: float, unperturbed: Training) -> Iterator[tuple[str, list[Training]]]:
        """Yield groups of trainings that should all give the same model, and the name of each group."""
        settings = self.run.settings
        for segment in settings.replaces:
            # If no start was kept, training from scratch gives the same numbers.
            start = self.run.start_of(unperturbed, f"{segment:02d}")
            name = f"segment-{segment:02d}"
            yield name, self.replaced(name, segment, rate, start, kind="segment")
        for factor in settings.limit.factors:
            name, slower = f"limit-{factor:g}", matching.rounded(rate * factor)
            yield name, self.replaced(name, settings.limit.segment, slower, kind="limit", factor=factor)
        drifting = {FORWARDS: Drifting(self.examples), BACKWARDS: Drifting(self.examples, backwards=True)}
        yield "drift", [self.training(*each, rate, traced=True, kind="drift") for each in drifting.items()]

    def replaced(
        self, name: str, segment: int, rate: float, start: Any = None, **facts: Any
    ) -> list[Training]:
        """Return trainings with a segment replaced, by other examples each time."""
        repeats = range(1, self.run.settings.repeats + 1)
        sources = {f"{name}-{repeat}": Replaced(self.examples, segment, repeat) for repeat in repeats}
        trainings = [self.training(*each, rate, segment=segment, **facts) for each in sources.items()]
        return [replace(training, start=start) for training in trainings]

    def training(self, name: str, source: Plain, rate: float, traced: bool = False, **facts: Any) -> Training:
        """Return a training with a rate; if it is traced, its error is also measured at the start of every segment."""
        stream = self.run.settings.stream
        looks = tuple(range(stream.segment, stream.updates, stream.segment)) if traced else ()
        return Training(
            self.method,
            self.seed,
            name,
            {**facts, "rate": rate},
            source,
            budget=Until(stream.updates, looks, evaluates_start=traced),
            change=lambda optimizer: replace(optimizer, search=ng.FixedRate(rate)),
            outputs=self.outputs if facts["kind"] in ("segment", "limit", "drift") else None,
        )

    def train(self, training: Training, watch: Callable[[Event], None] | None = None) -> float:
        """Return the validation error after a training, to six digits: exact in a log."""
        log = self.run.train(training, watch)
        if not log.done:
            raise GivenUp(f"{self.method.label}, {training.name}: {log.reason}")
        return round(float(log.evaluations[-1]["valid_misclassified"]), 6)

    def outputs_after(self, training: Training) -> np.ndarray:
        """Return the outputs of the model that a training makes."""
        self.train(training)
        found = self.run.outputs(training)
        assert found is not None
        return found

    def outputs(self, params: Layers) -> np.ndarray:
        """Return the logits on the held-out examples."""
        return np.asarray(logits(self.run.problem.model, params, self.examples.held_out[0]))


@partial(jax.jit, static_argnums=0)
def logits(model: Classifier, params: Layers, inputs: Array) -> Array:
    """Return the logits, computed in chunks, so that memory does not grow with the number of examples."""
    return jax.lax.map(lambda row: model(params, row[None])[0], inputs, batch_size=CHUNK)


def variances(logits: np.ndarray) -> dict[str, float]:
    """Return the variance of outputs over trainings, mean over examples and classes: of probabilities and of logits.

    The variance is the unbiased one. Adding a number to all logits of an example changes no probability, so the mean
    of each example's logits is subtracted.
    """
    logits = logits.astype(np.float64)
    logits = logits - logits.mean(axis=-1, keepdims=True)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    outputs = powers / powers.sum(axis=-1, keepdims=True)
    found = {"variance": outputs, "logit_variance": logits}
    return {name: float(values.var(axis=0, ddof=1).mean()) for name, values in found.items()}


def shown(source: characters.DeviceGlyphs, seed: int, pinched: bool) -> dict[str, Any]:
    """Return the first characters of a seed's stream, at every stage of their making, as a record for its log."""
    indices = jnp.arange(SHOWN, dtype=jnp.uint32)
    stages, labels = characters.show(source, characters.stream(seed, STREAM), indices, pinched=pinched)
    lines = np.asarray(stages).swapaxes(0, 1)
    names = " ".join(CHARACTERS[label] for label in np.asarray(labels))
    return pictures("data", f"first characters of a stream: {names}", lines, characters.STAGES[: len(lines)])
