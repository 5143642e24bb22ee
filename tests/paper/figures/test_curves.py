"""Figure 3: its methods, what they see, and its claims."""

import numpy as np
import pytest
from synthetic import run_log

import natgrad as ng
from figures.runs import conduct, invoke, method, run, settings
from natgrad_paper import figures
from natgrad_paper.figures.curves.claims import CLAIMS, GROUPS, NATURAL, memory
from natgrad_paper.figures.curves.problem import prepare
from natgrad_paper.report.claims import Verdict, judge
from natgrad_paper.report.load import Runs
from natgrad_paper.training import log
from natgrad_paper.training.batches import Batches, Growing

pytestmark = pytest.mark.usefixtures("fast_compile")

NAMES = [each.name for each in figures.load("curves").methods]


@pytest.fixture(scope="module")
def problem():
    return prepare(settings("curves"), None)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_built_with_its_own_constants(problem, name):
    chosen, each = settings("curves", preset="small"), method("curves", name)
    optimizer = each.build(problem, each.own(chosen))
    assert callable(optimizer.init)
    assert callable(optimizer.step)
    assert each.steps_per_call(each.own(chosen)) == (
        20 if name in ("sgd", "tonga", "nesterov", "adam") else 1
    )
    assert each.on_host == (name == "ncg-l-cobyla")


def test_constants_reach_the_optimizers(problem):
    chosen = settings(
        "curves", "ngd.rate=0.7", "ngd.maxiter=4", "solver.name=minres-qlp", "damping.initial=2.0", "ksd.size=3",
        "full.preconditioner=kronecker", "full.maxiter=9", "kncg.probe=70", "kncg.average=0.5",
    )  # fmt: skip

    def built(name):
        each = method("curves", name)
        return each.build(problem, each.own(chosen))

    ngd = built("ngd")
    assert (ngd.search, ngd.direction.solver) == (ng.FixedRate(0.7), ng.MinresQLP(4, 1e-4))
    assert ngd.damping == ng.LevenbergMarquardt(2.0)
    assert built("ngd-search-full").search == ng.LineSearch()
    assert isinstance(built("ngd-diag").metric, ng.DiagonalFisher)
    for name in ("ngd-l", "ncg-l", "ncg-f", "ncg-l-cobyla"):
        direction = built(name).direction
        natural = getattr(direction, "inner", direction)
        assert natural == ng.Natural(ng.MinresQLP(9, 1e-4), ng.Kronecker())
    kncg = built("kncg")
    assert (kncg.decay, kncg.optimizer.probe) == (0.5, 70)
    assert (built("ksd").direction.size, built("ksd").direction.last_step) == (3, True)
    assert not built("ksd-without").direction.last_step


def test_kncg_sees_batches_that_grow():
    each = method("curves", "kncg")
    batches = each.batches(each.own(settings("curves", preset="small")))
    assert batches == Batches(Growing(125, 250, 150))


@pytest.mark.parametrize("name", ["sgd", "kncg", "ncg-l-cobyla", "ncg-f-diag"])
def test_methods_learn(problem, tmp_path, name):
    assert conduct(run("curves", tmp_path, methods=[name], problem=problem)) == []
    found = log.read(tmp_path / "logs" / f"{name}.0.jsonl")
    first, *_, last = found.evaluations
    assert last["squared_error"] < 0.9 * first["squared_error"]
    assert (
        found.evaluations[1]["iteration"] == 1
    )  # first-order methods, too, are looked at from the first step on
    assert set(found.header["settings"]) - {"budget", "data", "evaluation_chunk", "model"} == set(
        vars(method("curves", name).own(settings("curves")))
    )


def test_squared_error_is_shown_and_cross_entropy_lowered(problem):
    params, (inputs, targets) = problem.init(0), (part[:5] for part in problem.train)
    logits = problem.model(params, inputs)
    found, lowered = problem.errors(params, inputs, targets), problem.likelihood.nll(logits, targets)
    r = np.asarray(logits, np.float64)
    np.testing.assert_allclose(
        found["squared_error"], ((1 / (1 + np.exp(-r)) - targets) ** 2).sum(axis=1), rtol=1e-4
    )
    np.testing.assert_allclose(lowered, (np.logaddexp(0, r) - targets * r).sum(axis=1), rtol=1e-4)
    np.testing.assert_allclose(found["cross_entropy"], lowered, rtol=1e-6)


def test_the_plateau_is_the_error_of_the_mean_image(problem):
    images = problem.train[0].astype(np.float64)
    expected = ((images - images.mean(axis=0)) ** 2).sum(axis=1).mean()
    assert problem.plateau["squared_error"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "sgd.batch=201"), "sgd: expected batches of at most 200 training cases, found 201"),
        (("--set", "kncg.batch=300"), "kncg: expected batches of at most 200 training cases, found 300"),
        (("--set", "ngd.metric_batch=151"), "ngd: expected batches of at most 200 training cases, found 201"),
        (("--set", "kncg.first=60"), "kncg.first: expected at most batch = 50, found 60"),
        (("--set", "model.encoder=[100, 10]"), "model.encoder: expected a list that starts with 784"),
        (("--methods", "ncg-kron"), "--methods: expected"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path, arguments, words):
    out = tmp_path / "out"
    methods = () if "--methods" in arguments else ("--methods", "sgd,ngd,kncg")
    result = invoke("run", "curves", "--preset", "smoke", "--out", out, *methods, *arguments)
    assert (result.exit_code, result.output.count("\n")) == (2, 1), result.output
    assert words in result.output
    assert not out.exists()


def test_batches_that_another_methods_constants_do_not_fit_do_not_matter(tmp_path):
    out = tmp_path / "out"
    result = invoke(
        "run", "curves", "--preset", "smoke", "--out", out, "--methods", "sgd", "--set", "ngd.batch=500"
    )
    assert result.exit_code == 0, result.output


def test_every_method_is_in_a_group():
    assert sorted(name for _, members in GROUPS for name in members) == sorted(NAMES)
    assert set(NATURAL) <= set(NAMES)


def test_memory_is_read_from_the_logs():
    (found,) = memory(Runs.of([run_log("ksd", settings={"ksd": {"size": 7}})]))
    assert found.verdict is Verdict.HOLDS
    assert "KSD 8 (its basis of 7 and the last step)" in found.words
    assert memory(Runs.of([run_log("sgd", settings={})]))[0].verdict is Verdict.ABSENT


def as_claimed(level=lambda name: 1.0):
    """Three seeds of every method, each with an error of its own."""
    logs = []
    for order, name in enumerate(NAMES):
        for seed in range(3):
            error = level(name) * (1 + 0.01 * seed)
            found = run_log(
                name, seed, order=order, errors=(9.0, 2 * error, error), settings={"ksd": {"size": 2}}
            )
            logs.append(found)
    return Runs.of(logs)


LEVELS = {
    "kncg": 0.1, "ncg-l": 0.5, "ngd": 0.6, "ngd-l": 0.8, "ncg-f": 0.9, "ksd": 0.4, "hf": 0.7, "sgd": 2.0,
    "ngd-search-fresh": 0.8, "ngd-search-full": 0.9, "ngd-search-same": 1.2, "ncg-f-diag": 2.0,
}  # fmt: skip


def verdicts(levels):
    found = judge(CLAIMS, as_claimed(lambda name: levels.get(name, 1.0)))
    return {each.claim.key: each.verdict for each in found}


def test_every_claim_can_hold_and_fail():
    assert verdicts(LEVELS) == dict.fromkeys("abcdefghij", Verdict.HOLDS)
    wrong = {name: 1 / level for name, level in LEVELS.items()}
    assert verdicts({**wrong, "adam": 0.01}) == dict.fromkeys("abcdefghij", Verdict.FAILS)


def test_published_errors_are_shown_beside_as_many_images_only():
    published = figures.load("curves").story.published
    few, every, original = (run_log() for _ in range(3))
    for found in (every, original):
        found.header["data"]["train"] = [20_000, 784]
    original.header["data"]["name"] = "Curves"
    assert published(Runs.of([few])) is None
    shown = published(Runs.of([every]))
    assert list(shown.errors.values()) == [0.11, 0.074, 0.058]
    assert "These images are regenerated" in shown.about
    assert "regenerated" not in published(Runs.of([original])).about
