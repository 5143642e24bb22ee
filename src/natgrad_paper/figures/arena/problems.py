"""The ten problems of the arena, the settings they share, and the variants of the sensitivity runs."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, model_validator

from natgrad_paper.figures.arena import control, images, science, sequences
from natgrad_paper.figures.arena.entry import Entry
from natgrad_paper.figures.arena.form import PLAIN, Form, Variant
from natgrad_paper.figures.arena.measured import NAMES, ProblemName, Targets
from natgrad_paper.training.problem import Budget
from natgrad_paper.training.settings import Count, Positive, Section, Size, unfit


class Posed(NamedTuple):
    """How a problem is posed, and which variants of it make sense."""

    make: Callable[[Form, Path | None], Entry]
    """From a form and the user's data, if any."""
    about: str
    variants: tuple[str, ...]


PROBLEMS = {
    "digits": Posed(images.digits, "MLP 64-256-128-10", ("inputs", "batch", "float64")),
    "conv": Posed(images.conv, "two convolutions, 128 units", ("batch", "float64")),
    "lstm": Posed(sequences.adding, "LSTM of 64 units", ("inputs", "targets", "batch", "float64")),
    "transformer": Posed(sequences.characters, "two blocks of width 64", ("batch", "float64")),
    "vae": Posed(images.vae, "VAE 64-128-8-128-64", ("inputs", "batch", "float64")),
    "curves": Posed(images.bottleneck, "autoencoder 784-…-6-…-784", ("inputs", "batch", "float64")),
    "pinn": Posed(science.pinn, "PINN 2-64-1, float64", ("targets",)),
    "regression": Posed(science.regression, "means and scales, 10-64-64-2", ("inputs", "targets", "batch", "float64")),
    "cartpole": Posed(control.cartpole, "policy 4-32-2", ("inputs", "batch", "float64")),
    "linear": Posed(science.linear, "eight linear layers of 32", ("inputs", "targets", "batch", "float64")),
}  # fmt: skip
assert tuple(PROBLEMS) == NAMES


class Limits(Section):
    """The most cases that a problem may have, for a quick look."""

    train: Count | None = None
    """The most training cases."""
    test: Count | None = None
    """The most test cases."""
    batch: Count | None = None
    """The most training cases per step."""


class Settings(Section):
    """The settings of the arena."""

    problems: Annotated[tuple[ProblemName, ...], Field(strict=False, min_length=1)] = NAMES
    """Which of the ten run."""
    variants: Annotated[tuple[Variant, ...], Field(strict=False, min_length=1)] = ("plain",)
    """In which forms: plain, and for the sensitivity table inputs, targets, batch, float64."""
    budget: Budget = Budget(seconds=20.0, evaluations=40, first=0.3)
    turn: Positive = 5.0
    """Seconds of training that each method has before it is the next one's turn."""
    cases: Limits = Limits()
    targets: Targets = Targets()  # type: ignore[valid-type]
    evaluation_chunk: Size = 500
    """Cases evaluated at a time."""

    @model_validator(mode="after")
    def _fits(self) -> "Settings":
        for name in ("problems", "variants"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                unfit(name, "different ones", list(getattr(self, name)))
        if PLAIN not in self.variants:
            unfit("variants", f"{PLAIN}, and others beside it", list(self.variants))
        return self


@dataclass(frozen=True)
class Suite(Entry):
    """All problems of a run. If there is only one, the suite is that problem, so that methods can be tuned on it."""

    entries: tuple[Entry, ...] = field(default=(), kw_only=True)


def problem_forms(settings: Any) -> Iterator[tuple[str, str]]:
    """Yield the problems of a run, each with the name of its variant."""
    for name in settings.problems:
        for variant in settings.variants:
            if variant in (PLAIN, *PROBLEMS[name].variants):
                yield name, variant


def prepare(settings: Any, path: Path | None) -> Suite:
    """Return the problems; the user's directory, if there is one, has MNIST for the convolutional net."""
    limits = settings.cases
    forms = {name: Form(name, limits.train, limits.test, limits.batch) for name in settings.variants}
    made = ((name, PROBLEMS[name].make(forms[variant], path)) for name, variant in problem_forms(settings))
    return suite(tuple(replace(each, name=name) for name, each in made))


def suite(entries: tuple[Entry, ...]) -> Suite:
    """Return problems as one suite; several problems have no cases in common."""
    first = {each.name: getattr(entries[0], each.name) for each in fields(Entry)}
    if len(entries) == 1:
        return Suite(**first, entries=entries)
    digest = hashlib.sha256("".join(entry.data["sha256"] for entry in entries).encode()).hexdigest()
    nothing = dict.fromkeys(("train", "test", "valid", "judged", "batches", "draw"))
    count = len({entry.name for entry in entries})
    words = f"{count} problem{'s' * (count > 1)}" + f" in {len(entries)} forms" * (len(entries) > count)
    data = {"name": words, "sha256": digest}
    return Suite(**{**first, **nothing, "data": data, "name": ""}, entries=entries)
