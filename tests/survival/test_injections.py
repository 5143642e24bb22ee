"""A NaN or an infinity in any batch of any method of the benchmark: never accepted; ten in a row end the run."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved import bits
from typer.testing import CliRunner

import natgrad as ng
from natgrad_paper import figures
from natgrad_paper.cli.arguments import settings as chosen_settings
from natgrad_paper.cli.command import app
from natgrad_paper.training import cache, log

pytestmark = pytest.mark.usefixtures("fast_compile")

CURVES = figures.load("curves")
METHODS = {method.name: method for method in CURVES.methods}
CHANGES = (
    "data.train=24", "data.test=0", "model.encoder=[784, 3]", "evaluation_chunk=24", "sgd.batch=6", "ngd.batch=6",
    "ngd.metric_batch=6", "hf.part=6", "hf.maxiter=4", "ksd.part=6", "ksd.size=3", "full.maxiter=4", "ngd.maxiter=4",
    "tonga.batch=6", "kncg.batch=6", "kncg.first=6", "kncg.probe=4", "nesterov.batch=6", "adam.batch=6",
    "lbfgs.memory=3", "damping.initial=300",  # of so few cases; a first step that goes too far would be refused itself
)  # fmt: skip
VALUES = (np.nan, np.inf, -np.inf)


@pytest.fixture(scope="module")
def settings():
    return chosen_settings(CURVES, CURVES.presets()["smoke"], CHANGES)


@pytest.fixture(scope="module")
def problem(settings):
    return CURVES.prepare(settings, None)


@pytest.fixture(autouse=True)
def as_a_run_has_it():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


class Injected:
    """A method before its second step, with each of its batches in arrays of its own."""

    def __init__(self, method, problem, settings):
        own = method.own(settings)
        self.optimizer = method.build(problem, own)
        batches = method.batches(own)
        drawn = batches.draw(len(problem.train[0]), 0, 0, 1)
        rows = {part: indices[0] for part, indices in drawn.items()}
        self.batches = jax.tree.map(np.array, batches.arguments(*map(jnp.asarray, problem.train), rows))
        self.run = self._step if method.on_host else jax.jit(self._step)
        params = problem.init(0)
        self.params, self.state, info = self.run(params, self.optimizer.init(params), self.batches)
        assert info.accepted

    def _step(self, params, state, batches):
        batches = dict(batches)
        return self.optimizer.step(params, state, batches.pop("batch"), **batches)

    def places(self):
        """Return (batch, which of its arrays): inputs and targets of each, the metric's inputs alone."""
        for name, arrays in self.batches.items():
            yield from ((name, part) for part in (range(2) if isinstance(arrays, tuple) else (None,)))

    def refused(self, name, part, value, rng):
        """Take a step with one bad number; whether it was refused, to the bit, and said why."""
        batches = dict(self.batches)
        arrays = batches[name]
        bad = (arrays if part is None else arrays[part]).copy()
        bad[tuple(rng.integers(bad.shape))] = value
        batches[name] = bad if part is None else tuple(bad if k == part else a for k, a in enumerate(arrays))
        params, state, info = self.run(self.params, self.state, batches)
        # L-BFGS keeps an infinity in its own state before it has searched: not ours to judge.
        floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        ours = isinstance(self.optimizer, ng.Optimizer | ng.Averaged)
        finite = not ours or all(np.isfinite(leaf).all() for leaf in floats)
        inner, before, after = self.optimizer, self.state, state
        if isinstance(inner, ng.Averaged):
            inner, before, after = inner.optimizer, before.inner, after.inner
        damping = getattr(inner, "damping", None)
        # A larger λ may mend the metric's numbers, and has no part in what is not finite at θ itself.
        mendable = getattr(damping, "needs_ratio", False) and info.outcome == ng.Outcome.NONFINITE_METRIC
        answered = damping is None or (
            after.damping > before.damping if mendable else after.damping == before.damping
        )
        named = "nonfinite" in ng.Outcome.name_of(info.outcome)
        return not info.accepted and bits(params) == bits(self.params) and finite and bool(answered) and named


def inject(method, problem, settings, places):
    injected = Injected(METHODS[method], problem, settings)
    rng = np.random.default_rng(0)
    total = accepted = 0
    for name, part in injected.places():
        for value in VALUES:
            for _ in range(places):
                total += 1
                accepted += not injected.refused(name, part, value, rng)
    batches = ", ".join(injected.batches)
    print(f"{method}: {total} injections into {batches}: {accepted} accepted")
    assert accepted == 0


@pytest.mark.parametrize("method", ["ngd-search-fresh", "nesterov", "lbfgs"])
def test_a_sample_of_bad_numbers_is_refused(method, problem, settings):
    inject(method, problem, settings, 2)


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_a_bad_number_in_any_batch_is_refused(method, problem, settings):
    inject(method, problem, settings, 20)


@pytest.fixture
def run(monkeypatch, tmp_path, problem):
    """Return what runs SGD, four steps a call, on good or on spoiled targets, in the same directory each time."""
    monkeypatch.setattr(cache, "enable", lambda: None)

    def spoiled(settings, path):
        inputs, targets = problem.train
        return replace(problem, train=(inputs, np.full_like(targets, np.nan)))

    def invoke(good, *options):
        prepare = (lambda *_: problem) if good else spoiled
        command = ["run", "curves", "--methods", "sgd", "--out", str(tmp_path / "out")]
        with monkeypatch.context() as patch:
            patch.setattr(figures, "load", lambda name: replace(CURVES, prepare=prepare))
            return CliRunner().invoke(app, [*command, *options])

    return invoke


def fresh(iterations):
    changes = [*CHANGES, f"budget.iterations={iterations}"]
    return ["--preset", "smoke", *(word for change in changes for word in ("--set", change))]


def test_ten_in_a_row_end_the_run_with_a_checkpoint_and_a_sentence(run, tmp_path):
    """And when the data are good again, the run goes on from there."""
    out = tmp_path / "out"
    result = run(False, *fresh(40))
    assert result.exit_code == 1, result.output
    assert "natgrad: SGD, seed 0: 12 steps in a row refused: nonfinite gradient\n" in result.output
    assert [int(path.name[:9]) for path in (out / "checkpoints" / "sgd.0").iterdir()] == [12]
    found = log.read(out / "logs" / "sgd.0.jsonl")
    assert (found.status, found.reason) == ("gave-up", "12 steps in a row refused: nonfinite gradient")
    result = run(True, "--resume")
    assert result.exit_code == 0, result.output
    found = log.read(out / "logs" / "sgd.0.jsonl")
    assert found.status == "finished"
    assert found.evaluations[-1]["refused"] == 12
    assert found.evaluations[-1]["iteration"] == 40


def test_ten_in_a_row_are_no_good_end_where_the_budget_ends_too(run, tmp_path):
    """With nothing left to go on with, going on says it again and adds nothing."""
    results, seen = [], []
    for options in (fresh(12), ["--resume"]):
        results.append(run(False, *options))
        found = log.read(tmp_path / "out" / "logs" / "sgd.0.jsonl")
        assert found.reason == "12 steps in a row refused: nonfinite gradient"
        seen.append((found.evaluations, found.steps))
    for result in results:
        assert result.exit_code == 1, result.output
        assert "natgrad: SGD, seed 0: 12 steps in a row refused: nonfinite gradient\n" in result.output
    assert seen[0] == seen[1]
