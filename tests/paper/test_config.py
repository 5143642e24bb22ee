"""Presets are read strictly: what does not fit is one line with file, field, expected and found."""

import dataclasses
import tomllib

import pytest

import natgrad as ng
from natgrad_paper import config, experiments, plan, refusals
from natgrad_paper.errors import FieldError, UserError
from natgrad_paper.experiment import Problem

CURVES = experiments.load("curves")
SMOKE = CURVES.presets()["smoke"]


def table():
    return tomllib.loads(SMOKE.read_text())


def test_every_preset_of_every_experiment_is_valid():
    for name in experiments.names():
        experiment = experiments.load(name)
        if any(experiment.presets().values()):  # or its numbers have defaults
            assert {"smoke", "small", "paper"} <= experiment.presets().keys()
        for path in experiment.presets().values():
            settings = config.load(experiment.config, path)
            # A log's config is enough to run it again.
            again = _without_none(dataclasses.asdict(settings))
            assert config.build(experiment.config, again, "log") == settings


def test_small_and_paper_are_what_the_experiment_says():
    small = config.load(CURVES.config, CURVES.presets()["small"])
    assert small.data.train == 4000
    assert max(small.full.maxiter, small.ngd.maxiter) <= 30
    assert (small.sgd.batch, small.sgd.rate, small.ngd.rate) == (100, 0.01, 1.0)
    paper = config.load(CURVES.config, CURVES.presets()["paper"])
    assert (paper.data.train, paper.data.test) == (20_000, 10_000)
    assert paper.model.encoder == small.model.encoder == (784, 400, 200, 100, 50, 25, 6)
    assert (paper.ngd.batch, paper.full.maxiter, paper.solver.name) == (5000, 250, "minres-qlp")
    assert paper.damping.initial == 3.0


@pytest.mark.parametrize("name", ["curves", "autoencoder", "unlabelled"])
def test_a_method_that_searches_has_the_quadratic_ratio_in_every_preset(name):
    """With an exact search the linear one is ½ on a quadratic, whatever λ is."""
    experiment = experiments.load(name)
    nothing = {"init": int, "errors": dict, "train": (), "test": None, "data": {}}
    problem = Problem(lambda params, inputs: inputs, ng.Bernoulli(), **nothing)
    searched = 0
    for path in experiment.presets().values():
        settings = config.load(experiment.config, path)
        for method in experiment.methods:
            optimizer = method.optimizer(problem, settings)
            rule = refusals.rule_of(optimizer)
            if rule is not None and not isinstance(getattr(optimizer, "search", None), ng.FixedRate):
                assert rule.reduction == "quadratic", (path, method.name)
                searched += 1
    assert bool(searched) == (name != "unlabelled")


MISTAKES = [
    (("solver", "maxitr"), 3, "solver.maxitr: expected one of name, rtol, found an unknown field"),
    (("solver", "rtoll"), 3, "solver.rtoll: expected 'rtol', found an unknown field"),
    (("dampin",), {}, "dampin: expected 'damping', found an unknown field"),
    (("solver", "name"), "gmres", "solver.name: expected one of 'cg', 'minres-qlp', found gmres"),
    (("solver", "rtol"), "small", "solver.rtol: expected a finite number, at least 0, found small"),
    (("solver", "rtol"), float("nan"), "solver.rtol: expected a finite number, at least 0, found nan"),
    (("sgd", "batch"), 0, "sgd.batch: expected a whole number, at least 1, found 0"),
    (("sgd", "batch"), 2.5, "sgd.batch: expected a whole number, at least 1, found 2.5"),
    (("sgd", "batch"), True, "sgd.batch: expected a whole number, at least 1, found True"),
    (("sgd", "batch"), 10_000, "sgd.batch: expected at most data.train = 200, found 10000"),
    (("sgd", "rate"), -1, "sgd.rate: expected a finite number above 0, found -1"),
    (("sgd", "rate"), float("inf"), "sgd.rate: expected a finite number above 0, found inf"),
    (("ngd", "metric_batch"), 151, "ngd.metric_batch: expected at most the 150 cases the gradient leaves"),
    (("data", "train"), 20_001, "data.train: expected a whole number from 2 to 20000, found 20001"),
    (("data",), 5, "data: expected a table of fields, found 5"),
    (("model", "encoder"), [10, 5], "model.encoder: expected a list of at least two whole numbers"),
    (("model", "encoder"), [784, "x"], "model.encoder: expected a list of at least two whole numbers"),
    (("model", "encoder"), 784, "model.encoder: expected a list of at least two whole numbers"),
    (("budget", "seconds"), 5.0, "budget.seconds: expected a limit in seconds or in iterations, found both"),
    (("budget", "first"), 99, "budget.first: expected at most the limit, 12, found 99"),
    (("budget", "patience"), 0, "budget.patience: expected a whole number, at least 1, found 0"),
    (("evaluation_chunk",), [1], "evaluation_chunk: expected a whole number from 1 to 100000, found [1]"),
]


@pytest.mark.parametrize(("place", "value", "words"), MISTAKES)
def test_mistakes_are_one_line(place, value, words):
    changed = table()
    inner = changed
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises(FieldError) as caught:
        config.build(CURVES.config, changed, "mine.toml")
    assert str(caught.value).startswith("mine.toml: " + words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "place", [("solver",), ("solver", "name"), ("data", "train"), ("budget", "iterations")]
)
def test_missing_fields_are_named(place):
    changed = table()
    inner = changed
    for name in place[:-1]:
        inner = inner[name]
    del inner[place[-1]]
    with pytest.raises(FieldError, match=place[0]):
        config.build(CURVES.config, changed, "mine.toml")


@pytest.mark.parametrize("text", ["= 3", "[solver", "a = 1\na = 2", "x" * 10, "\x00"])
def test_what_is_not_toml_is_one_line(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        config.load(CURVES.config, path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file_and_no_text(tmp_path):
    with pytest.raises(UserError, match="expected a readable TOML file"):
        config.load(CURVES.config, tmp_path / "absent.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        config.load(CURVES.config, tmp_path / "bytes.toml")


def test_overrides_change_single_fields():
    settings = config.load(
        CURVES.config, SMOKE, ["solver.name=minres-qlp", "sgd.rate = 0.5", "data.train=150"]
    )
    assert (settings.solver.name, settings.sgd.rate, settings.data.train) == ("minres-qlp", 0.5, 150)
    assert settings.solver.rtol == 1e-4


def test_a_preset_can_name_its_methods(tmp_path):
    for name in experiments.names():
        experiment = experiments.load(name)
        for path in experiment.presets().values():
            plan.standard(experiment, path)  # Every name is known.
    medium, smoke = CURVES.presets()["medium"], CURVES.presets()["smoke"]
    six = ("sgd", "ngd", "adam", "nesterov", "ncg-kron", "ksd")
    asked = plan.asked(CURVES, "medium", medium, (), (), (0,), None)
    assert asked.methods == six
    assert "methods" not in asked.config  # Checkpoints are told apart by the config: it is what it was.
    assert plan.asked(CURVES, "medium", medium, (), ("hf",), (0,), None).methods == ("hf",)
    assert plan.asked(CURVES, "smoke", smoke, (), (), (0,), None).methods == CURVES.first_look
    changed = plan.asked(CURVES, "smoke", smoke, ['methods=["ksd", "sgd", "ksd"]'], (), (0,), None)
    assert changed.methods == ("ksd", "sgd")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('methods = ["sgd", "ngdl"]', "methods: expected 'ngd-l', found 'ngdl'"),
        ("methods = []", "methods: expected a list of at least one method's name, found []"),
        ('methods = "sgd"', "methods: expected a list of at least one method's name, found sgd"),
        ('method = ["sgd"]', "method: expected 'methods', found an unknown field"),
    ],
)
def test_wrong_methods_of_a_preset_are_one_line(tmp_path, line, words):
    path = tmp_path / "mine.toml"
    path.write_text(f"{line}\n{SMOKE.read_text()}")
    with pytest.raises(FieldError) as caught:
        plan.standard(CURVES, path)
    assert str(caught.value) == f"{path}: {words}"


def test_a_limit_on_the_command_line_takes_the_place_of_the_presets():
    for name in ("small", "medium", "paper"):
        budget = config.load(CURVES.config, CURVES.presets()[name], ["budget.iterations=50"]).budget
        assert (budget.seconds, budget.iterations, budget.limit) == (None, 50, 50)
    budget = config.load(CURVES.config, SMOKE, ["budget.seconds=2", "sgd.rate=0.1"]).budget
    assert (budget.seconds, budget.iterations, budget.evaluations) == (2.0, None, 6)
    both = ["budget.iterations=50", "budget.seconds=2"]
    with pytest.raises(UserError, match="expected a limit in seconds or in iterations, found both"):
        config.load(CURVES.config, SMOKE, both)


def test_batches_must_fit_into_what_validation_leaves():
    assert config.load(CURVES.config, SMOKE, ["sgd.batch=200"]).sgd.batch == 200
    with pytest.raises(UserError, match=r"at most data\.train without validation = 180, found 200"):
        config.load(CURVES.config, SMOKE, ["sgd.batch=200", "budget.patience=3"])


@pytest.mark.parametrize("override", ["solver.nme=cg", "sgd.rate", "sgd.rate=fast", "=3", "a b=1", 'x="\n'])
def test_bad_overrides_are_one_line(override):
    with pytest.raises(UserError) as caught:
        config.load(CURVES.config, SMOKE, [override])
    assert "\n" not in str(caught.value)


def _without_none(value):
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return list(value) if isinstance(value, tuple) else value
