"""The figures' settings and presets: all of them can be read, and what is the paper's is what the paper says."""

import pytest

from figures.runs import settings
from natgrad_paper import figures
from natgrad_paper.figures.base import figure
from natgrad_paper.figures.order.problem import Settings
from natgrad_paper.report.load import flat
from natgrad_paper.training.problem import Problem
from natgrad_paper.training.settings import described, stated
from natgrad_paper.training.source import fits

PRESETS = [(name, preset) for name in figures.names() for preset in figures.load(name).presets()]
PAPER = {
    # Appendix, "Implementation details": the benchmark on Curves; section 10, for what is not there.
    "curves": {
        "data.train": 20_000, "model.encoder": [784, 400, 200, 100, 50, 25, 6], "solver.name": "minres-qlp",
        "damping.initial": 3.0, "damping.reduction": "linear", "sgd.batch": 100, "sgd.rate": 0.01, "ngd.batch": 5000,
        "ngd.metric_batch": 5000, "ngd.rate": 1.0, "ngd.maxiter": 250, "full.maxiter": 250,
        "full.preconditioner": "none",
    },
    # Appendix, the restricted-size convolutional net on the Toronto Face Database.
    "unlabelled": {
        "model.filters": 512, "model.window": 14, "model.units": 1024, "solver.name": "minres-qlp",
        "damping.initial": 5.0, "damping.reduction": "linear", "ngd.batch": 256, "ngd.metric_batch": 384,
        "ngd.rate": 0.2, "ngd.maxiter": 50, "data.unlabelled": 98_058,
    },
    # Section 8 and Algorithm 1; 32.7 million examples are 2 × 10 segments of 3200 batches of 512.
    "order": {
        "stream.side": 32, "stream.batch": 512, "stream.segment": 3200, "stream.segments": 10, "model.hidden": 500,
        "repeats": 5, "held_out": 10_000, "sgd.rate": 0.1, "ngd.rate": 0.2, "ngd.damping": 3.0,
    },
}  # fmt: skip


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_every_preset_is_read_and_leaves_room_for_every_method(name, preset):
    chosen = settings(name, preset=preset)
    experiment = figures.load(name)
    assert experiment.presets()[preset].about
    names = [method.name for method in experiment.methods]
    assert set(experiment.presets()[preset].methods) <= set(names)
    assert set(experiment.first_look) <= set(names)
    if hasattr(chosen, "data"):
        cases, pool = [0] * chosen.data.train, [0] * getattr(chosen.data, "unlabelled", 0)
        problem = Problem(None, None, None, None, {}, train=(cases, cases), pool=pool)
        for method in experiment.methods:
            fits(problem, method, method.own(chosen), preset)


@pytest.mark.parametrize("name", figures.names())
def test_every_experiment_has_the_usual_presets_and_every_field_a_default(name):
    experiment = figures.load(name)
    assert {"smoke", "small"} <= set(experiment.presets())
    assert len({method.name for method in experiment.methods}) == len(experiment.methods)
    assert len({method.color for method in experiment.methods}) == len(experiment.methods)
    assert all(method.about for method in experiment.methods)
    assert {name for name, *_ in described(experiment.settings())} >= set(flat(stated(settings(name))))


@pytest.mark.parametrize("name", figures.names())
def test_every_field_has_its_meaning(name):
    assert [field for field, about, *_ in described(figures.load(name).settings()) if not about] == []


def test_a_method_has_one_label_in_all_experiments():
    methods = [method for name in figures.names() for method in figures.load(name).methods]
    labels = {method.name: method.label for method in methods}
    assert [method.label for method in methods] == [labels[method.name] for method in methods]


@pytest.mark.parametrize("name", PAPER)
def test_the_story_knows_the_papers_settings(name):
    told = flat(figures.load(name).story.paper)
    assert {field: told.get(field) for field in PAPER[name]} == PAPER[name]
    experiment = figures.load(name)
    assert set(told) <= {field for field, *_ in described(experiment.settings())}


def test_the_papers_settings_are_those_of_its_preset_put_back_where_that_changes_them():
    order = figures.load("order")
    given = order.story, Settings, order.methods, order.prepare, order.first_look
    found = figure("order", *given, "stream.side ngd.damping", {"ngd": {"solver": "none"}})
    assert found.story.paper == {"stream": {"side": 32}, "ngd": {"damping": 3.0, "solver": "none"}}
    with pytest.raises(KeyError):
        figure("order", *given, "stream.absent")


def test_presets_are_short():
    files = [experiment.presets_file for experiment in map(figures.load, figures.names())]
    assert sum(len(path.read_text().splitlines()) for path in files if path) <= 300


def test_a_method_reads_its_own_sections_alone():
    chosen = settings("curves")
    own = {method.name: set(vars(method.own(chosen))) for method in figures.load("curves").methods}
    assert own["sgd"] == {"sgd"}
    assert own["ngd-search-fresh"] == {"ngd", "solver", "damping"}
    assert own["ncg-q"] == {"ngd", "damping"}
    assert own["kncg"] == {"kncg"}
