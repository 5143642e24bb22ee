"""The race: three problems, contestants that take turns, and times to errors compared."""

import json
from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from synthetic import REFUSED, run_log
from training.tiny import Notes

import natgrad as ng
from figures.runs import conduct, invoke, method, run, settings
from natgrad_paper import figures
from natgrad_paper.figures.race import claims
from natgrad_paper.figures.race.claims import CLAIMS, Sooner
from natgrad_paper.figures.race.problems import prepare
from natgrad_paper.report.claims import Verdict, judge
from natgrad_paper.report.load import Runs
from natgrad_paper.training import log

pytestmark = pytest.mark.usefixtures("fast_compile")

SMALL = ("data.train=40", "data.test=20")


@pytest.fixture(autouse=True)
def _optax_promotes():
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize(
    ("name", "shape"), [("small", (40, 784)), ("characters", (40, 1024)), ("addition", (40, 20, 2))]
)
def test_problems_are_what_their_presets_say(name, shape):
    chosen = settings("race", *SMALL, preset=name)
    problem = prepare(chosen, None)
    inputs, targets = problem.train
    assert inputs.shape == shape
    assert inputs.dtype == np.float32
    assert not {row.tobytes() for row in inputs} & {row.tobytes() for row in problem.test[0]}
    assert (problem.data["train"], problem.data["test"]) == (list(shape), [20, *shape[1:]])
    assert len(problem.data["sha256"]) == 64
    assert prepare(chosen, None).data == problem.data
    errors = problem.errors(problem.init(0), jnp.asarray(inputs), jnp.asarray(targets))["error"]
    assert errors.shape == (40,)
    assert np.isfinite(errors).all()
    assert problem.plateau["error"] > 0
    assert {leaf.dtype for leaf in jax.tree.leaves(problem.init(0))} == {jnp.dtype(jnp.float32)}


def test_the_answer_of_an_addition_is_the_mean_of_the_marked_numbers():
    problem = prepare(settings("race", *SMALL, preset="addition"), None)
    for (values, marks), answer in zip(problem.train[0].swapaxes(1, 2), problem.train[1], strict=True):
        assert marks.sum() == 2
        assert answer == pytest.approx(values[marks == 1].mean(), rel=1e-6)
        assert np.flatnonzero(marks)[0] < 2 <= np.flatnonzero(marks)[1] < 10


def test_the_plateau_of_a_classifier_is_the_entropy_of_its_labels():
    problem = prepare(settings("race", *SMALL, preset="characters"), None)
    share = np.unique(problem.train[1], return_counts=True)[1] / 40
    assert problem.plateau["error"] == pytest.approx(-(share * np.log(share)).sum())


def test_the_control_is_the_same_method_without_an_average():
    chosen = settings("race", *SMALL)
    problem = prepare(chosen, None)
    kncg, last = (method("race", name) for name in ("kncg", "kncg-last"))
    assert isinstance(kncg.build(problem, kncg.own(chosen)), ng.Averaged)
    assert last.build(problem, last.own(chosen)) == kncg.build(problem, kncg.own(chosen)).optimizer
    assert last.batches(last.own(chosen)) == kncg.batches(kncg.own(chosen))


def test_contestants_take_turns(tmp_path):
    """With turns of a moment, no contestant is done before the others have begun."""
    display = Notes()
    given = {"methods": ["nesterov", "adam"], "display": display}
    assert conduct(run("race", tmp_path, "turn=1e-9", "budget.iterations=30", **given)) == []
    ends = [title for title, iteration in display.events if iteration == 30]
    assert set(ends) == {"Nesterov momentum, seed 0", "Adam, seed 0"}
    order = [title for title, _ in display.events]
    assert sum(a != b for a, b in pairwise(order)) > 6
    for name in given["methods"]:
        found = log.read(tmp_path / "logs" / f"{name}.0.jsonl")
        assert found.evaluations[-1]["error"] < found.evaluations[0]["error"]
        assert "test_error" in found.evaluations[-1]


def test_kfac_is_offered_only_where_it_is_installed(monkeypatch):
    names = [each.name for each in figures.load("race").methods]
    try:
        import kfac_jax  # noqa: F401
    except ImportError:
        assert "kfac" not in names
    else:
        assert "kfac" in names
    assert settings("race").kfac.batch == 50  # Its constants can be set all the same.


def test_the_command_races_and_tunes(tmp_path):
    result = invoke(
        "run",
        "race",
        "--preset",
        "smoke",
        "--methods",
        "nesterov,adam",
        "--seeds",
        "3",
        "--out",
        tmp_path / "run",
    )
    assert result.exit_code == 0, result.output
    text = (tmp_path / "run" / "report.html").read_text()
    for words in (
        "A race by the clock",
        "no runs of kncg",
        "KNCG reaches the errors sooner than tuned Adam",
    ):
        assert words in text, words
    result = invoke(
        "tune",
        "race",
        "adam",
        "--preset",
        "smoke",
        "--grid",
        "adam.rate=0.001,0.01",
        "--out",
        tmp_path / "grid.csv",
    )
    assert result.exit_code == 0, result.output
    assert len((tmp_path / "grid.csv").read_text().splitlines()) == 3


def racer(name, seed, errors, compiled=3.0):
    """A log with errors at 0, 2, 4, … seconds, and two levels to reach."""
    found = run_log(name, seed, errors=errors, settings={"levels": [4.0, 1.0]}, order=len(name))
    for record in found.evaluations:
        record["error"] = record.pop("squared_error")
        record["compile_seconds"] = compiled if seed == 0 else 0.0
    return found


def race(first, second, seeds=3, **compiled):
    """Two methods whose errors fall as given, a little differently from seed to seed."""
    logs = []
    for seed in range(seeds):
        nudge = 1 + 0.01 * seed
        logs.append(racer("kncg", seed, [error * nudge for error in first], compiled.get("kncg", 3.0)))
        logs.append(racer("adam", seed, [error * nudge for error in second], compiled.get("adam", 3.0)))
    return Runs.of(logs)


FAST, SLOW, LAZY = (9.0, 3.0, 0.9, 0.5, 0.4), (9.0, 8.0, 6.0, 3.0, 0.9), (9.0, 8.0, 7.0, 6.0, 5.0)


def verdicts(test, runs):
    return [finding.verdict for finding in test(runs)]


def test_the_time_to_each_level_is_compared():
    assert verdicts(Sooner("kncg", "adam"), race(FAST, SLOW)) == [Verdict.HOLDS] * 2
    assert verdicts(Sooner("kncg", "adam"), race(SLOW, FAST)) == [Verdict.FAILS] * 2
    assert verdicts(Sooner("kncg", "adam"), race(FAST, FAST)) == [Verdict.EQUAL] * 2
    assert verdicts(Sooner("kncg", "adam"), race(FAST, SLOW, seeds=2)) == [Verdict.OPEN] * 2
    first, _ = Sooner("kncg", "adam")(race(FAST, SLOW))
    assert first.words.startswith("time to 4, KNCG / ADAM: 0.")


def test_who_never_arrives_counts_as_if_at_the_end():
    first, _ = Sooner("kncg", "adam")(race(FAST, LAZY))
    assert first.verdict is Verdict.HOLDS
    assert "3 of 3 runs of ADAM never reach it" in first.words
    assert verdicts(Sooner("kncg", "adam"), race(LAZY, FAST)) == [Verdict.FAILS] * 2
    assert verdicts(Sooner("kncg", "adam"), race(LAZY, LAZY)) == [Verdict.OPEN] * 2


def test_who_stops_early_is_not_sooner():
    """Five evaluations end at 8 s, three at 4: the rival arrives at 6."""
    runs = race(LAZY[:3], SLOW)
    first, _ = Sooner("kncg", "adam")(runs)
    assert first.verdict is Verdict.FAILS
    assert "3 of 3 runs of KNCG never reach it" in first.words
    for each in runs.logs:
        each.header["settings"]["budget"] = {"iterations": 5}
    assert verdicts(Sooner("kncg", "adam"), runs) == [Verdict.ABSENT]


def test_compiling_counts_where_it_is_asked_for():
    """Once per method, in whichever seed it was."""
    runs = race(FAST, SLOW, kncg=100.0, adam=1.0)
    assert claims.compiling(runs.method("kncg")) == 100.0
    assert verdicts(Sooner("kncg", "adam"), runs) == [Verdict.HOLDS] * 2
    assert verdicts(Sooner("kncg", "adam", compiling=True), runs) == [Verdict.FAILS] * 2
    again = replace(runs.method("kncg")[0], resumed=({"record": "resumed", "iteration": 0},))
    again.evaluations[-1]["compile_seconds"] = 200.0
    assert claims.compiling([again]) == 100.0


def test_ailing_and_absent_runs_decide_nothing():
    ailing = Runs.of([run_log(name, 0, end=REFUSED, settings={"levels": [1.0]}) for name in ("kncg", "adam")])
    assert verdicts(Sooner("kncg", "adam"), ailing) == [Verdict.VOID]
    found = {each.claim.key: each.verdict for each in judge(CLAIMS, race(FAST, SLOW))}
    assert found["b"] is Verdict.HOLDS
    assert {found[key] for key in "acdef"} == {Verdict.ABSENT}


def test_logs_state_the_levels(tmp_path):
    assert conduct(run("race", tmp_path, "levels=[7.0]", methods=["adam"])) == []
    header = json.loads((tmp_path / "logs" / "adam.0.jsonl").read_text().splitlines()[0])
    assert header["settings"]["levels"] == [7.0]
