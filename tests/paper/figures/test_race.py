"""The race: three problems, contestants that take turns, and times to errors compared."""

import json
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from synthetic import REFUSED, run_log
from training.tiny import Notes

import natgrad as ng
from figures.runs import conduct, invoke, method, run, settings
from natgrad_paper import figures
from natgrad_paper.errors import FieldError, UserError
from natgrad_paper.figures.race import claims
from natgrad_paper.figures.race.claims import CLAIMS, LowestTest, Sooner
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


@pytest.mark.parametrize(
    ("package", "name"), [("kfac_jax", "kfac"), ("soap_jax", "soap"), ("precondition", "shampoo")]
)
def test_packages_that_need_not_be_there_compete_only_where_they_are_installed(package, name):
    names = [each.name for each in figures.load("race").methods]
    assert (name in names) == (find_spec(package) is not None)
    assert getattr(settings("race"), name).batch in (20, 50)  # Its constants can be set all the same.


def test_first_order_methods_are_offered_what_kncg_has(tmp_path):
    """Batches that grow, a schedule of the rate, and an average that is judged."""
    muon, chosen = method("race", "muon"), settings("race", "muon.rate=0.5")
    own = chosen.muon
    assert [muon.batches(muon.own(chosen)).gradient.size(step) for step in (0, 3, 4, 11)] == [10, 10, 20, 20]
    assert [float(own.schedule(step)) for step in (0, 1, 12)] == [0.0, 0.5, pytest.approx(0.0, abs=1e-8)]
    assert settings("race").adam.schedule == 0.001
    assert conduct(run("race", tmp_path, methods=["muon"])) == []
    found = log.read(tmp_path / "logs" / "muon.0.jsonl")
    assert found.evaluations[-1]["error"] < found.evaluations[0]["error"]
    with pytest.raises(FieldError, match="first: expected at most batch = 20, found 30"):
        settings("race", "muon.first=30")


@pytest.fixture(scope="module")
def tool():
    spec = spec_from_file_location("tune_race", Path(__file__).parents[3] / "tools" / "tune_race.py")
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_every_contestant_has_ten_tries(tool):
    for name in ("kncg", "kfac", "nesterov", "adam", "muon", "soap", "shampoo"):
        assert 1 + sum(map(len, tool.QUESTIONS.get(name, tool.FIRST_ORDER))) == 10


def test_tries_keep_the_best_and_go_on_from_it(tool):
    """The error is least at a rate of 0.024, a batch of 25, and an average; a cosine and growing batches are worse."""
    tried = []

    def attempt(trial):
        own = trial.adam
        tried.append(own)
        error = abs(np.log(own.rate / 0.024)) + abs(np.log(own.batch / 25))
        return error + (own.steps is not None) + (own.first is not None) - own.average, 600

    given = settings("race", "adam.rate=0.008", "adam.batch=50")
    best = tool.tuned(method("race", "adam"), given, attempt)
    assert len(tried) == 10
    assert (best.rate, best.batch, best.steps, best.first, best.average) == (0.024, 25, None, None, 0.999)
    assert (tried[5].first, tried[5].double) == (6, 150)
    assert (tried[6].steps, tried[6].rate, tried[7].rate) == (600, 0.024, 0.072)
    assert tool.tuned(method("race", "adam"), given, lambda trial: (np.inf, 1)) is None


def test_a_schedule_ends_with_the_steps_of_the_batches_it_is_for(tool):
    """Growing batches win, and take more steps in the same time."""
    tried = []

    def attempt(trial):
        own = trial.adam
        tried.append(own)
        return (1.0, 600) if own.first is None else (0.5, 900)

    tool.tuned(method("race", "adam"), settings("race", "adam.batch=50"), attempt)
    assert [own.steps for own in tried[6:8]] == [900, 900]


def test_the_first_of_growing_batches_is_no_larger_than_a_smaller_batch(tool):
    own = settings("race", "kncg.batch=50", "kncg.first=50").kncg
    assert tool.batch(0.5)(own, 1) == {"batch": 25, "first": 25}
    assert tool.batch(2.0)(own, 1) == {"batch": 100, "first": 50}
    assert tool.batch(2.0)(settings("race", "adam.batch=50").adam, 1) == {"batch": 100}


def test_the_tool_writes_down_every_try(tool, tmp_path, capsys):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool.cache, "enable", lambda: None)
        patch.setattr(tool, "FIRST_ORDER", tool.FIRST_ORDER[2:3])
        tool.main(["--out", str(tmp_path), "--preset", "smoke", "--methods", "adam"])
    rows = (tmp_path / "smoke.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["method", "adam", "adam"]
    assert "first=5" in rows[2]
    assert capsys.readouterr().out.splitlines()[-1].startswith("adam = { batch = 20")
    with pytest.raises(UserError, match="expected 100 or more, found 3"):
        tool.main(["--out", str(tmp_path), "--seed", "3"])


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
    assert {found[key] for key in "acdefghij"} == {Verdict.ABSENT}


def test_the_lowest_test_errors_are_compared_wherever_they_were():
    """KNCG's is its second; at the end it is far above the rival's."""
    runs = race(SLOW, SLOW)
    for each in runs.logs:
        tests = [9.0, 0.5, 8.0, 8.0, 8.0] if each.method == "kncg" else [9.0, 3.0, 2.0, 1.0, 1.0]
        for record, error in zip(each.evaluations, tests, strict=True):
            record["test_error"] = error
    (finding,) = LowestTest("kncg", "adam")(runs)
    assert finding.verdict is Verdict.HOLDS
    assert finding.words.startswith("lowest test error, KNCG / ADAM: 0.5")
    assert verdicts(LowestTest("adam", "kncg"), runs) == [Verdict.FAILS]
    assert verdicts(LowestTest("kncg", "muon"), runs) == [Verdict.ABSENT]
    assert verdicts(LowestTest("kncg", "adam"), race(FAST, SLOW)) == [Verdict.OPEN]  # Without test errors.


def test_logs_state_the_levels(tmp_path):
    assert conduct(run("race", tmp_path, "levels=[7.0]", methods=["adam"])) == []
    header = json.loads((tmp_path / "logs" / "adam.0.jsonl").read_text().splitlines()[0])
    assert header["settings"]["levels"] == [7.0]
