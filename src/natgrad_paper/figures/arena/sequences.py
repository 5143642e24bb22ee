"""Two problems on sequences: a memory of two numbers, and the next character of a text."""

from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad_paper.data import bundled
from natgrad_paper.figures.arena.entry import Entry, entry, thinned
from natgrad_paper.figures.arena.form import Form
from natgrad_paper.figures.arena.nets import CONTEXT, lstm, lstm_init, transformer, transformer_init
from natgrad_paper.training.problem import Cases

TICKS = 50
STRIDE = 7
"""Characters from one training window to the next."""


def adding(form: Form, path: Path | None) -> Entry:
    """Return the adding problem (Hochreiter and Schmidhuber 1997) over 50 ticks, for an LSTM."""

    def errors(params: Any, inputs: Array, targets: Array) -> Array:
        return jnp.sum((lstm(params, inputs) - targets) ** 2, axis=-1)

    few, more = form.counts(10_000, 2000)
    train, test = additions(form, 0, few), additions(form, 1, more)
    return entry(
        form, lstm, ng.Gaussian(), partial(lstm_init, numbers=2, dtype=form.dtype), f"addition over {TICKS} ticks",
        (train, test), 128, errors, "squared error", judged=thinned(train, 2000),
    )  # fmt: skip


def additions(form: Form, seed: int, count: int) -> Cases:
    """Return sequences of (number, mark), and the sum of the two marked numbers, one from either half."""
    generator = np.random.default_rng([seed, 0xADD])
    values, ticks = generator.random((count, TICKS)), np.arange(TICKS)
    early = generator.integers(0, TICKS // 2, (count, 1))
    late = generator.integers(TICKS // 2, TICKS, (count, 1))
    marks = (ticks == early) | (ticks == late)
    sums = (values * marks).sum(axis=1, keepdims=True)
    return form.inputs(np.stack([values, marks], axis=2)), form.targets(sums)


def characters(form: Form, path: Path | None) -> Entry:
    """Return the next character of a text to predict, for a small transformer; the last tenth is for testing."""
    text = bundled.descriptions()
    known = np.array(sorted(set(text)))
    numbers = np.searchsorted(known, np.array(list(text))).astype(np.int32)
    cut, likelihood = 9 * len(numbers) // 10, ng.Categorical()

    def errors(params: Any, inputs: Array, targets: Array) -> Array:
        return likelihood.nll(transformer(params, inputs), targets) / CONTEXT

    few, more = form.counts(len(numbers), len(numbers))
    train, test = windows(numbers[:cut], STRIDE, few), windows(numbers[cut:], CONTEXT, more)
    init = partial(transformer_init, characters=len(known), dtype=form.dtype)
    return entry(
        form, transformer, likelihood, init, "scikit-learn's descriptions of data sets", (train, test), 32, errors,
        "nats per character", judged=thinned(train, 250),
    )  # fmt: skip


def windows(numbers: np.ndarray, stride: int, most: int) -> Cases:
    """Return windows of a text, and the same windows one character later."""
    starts = np.arange(0, len(numbers) - CONTEXT, stride)[:most]
    found = numbers[starts[:, None] + np.arange(CONTEXT + 1)]
    return found[:, :-1], found[:, 1:]
