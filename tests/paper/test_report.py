"""Figure and table from logs written by hand: what they show follows from the records."""

import gzip
import io
import math

import numpy as np
import pytest
import synthetic
from rich.console import Console
from synthetic import run_log

from natgrad_paper import log, progress, report, series, table
from natgrad_paper.errors import UserError
from natgrad_paper.measures import LINEAR, RECONSTRUCTION, SQUARED_ERROR, Measure, Panel
from natgrad_paper.train import Event, Position

ITERATIONS, SECONDS = RECONSTRUCTION.panels


def test_mean_is_geometric_and_band_is_the_range():
    (runs,) = series.by_method([run_log(seed=0), run_log(seed=1, scale=4.0)])
    line = runs.line(ITERATIONS)
    np.testing.assert_allclose(line.x, [10, 100])  # iteration 0 has no place on a logarithmic axis
    np.testing.assert_allclose(line.mean, [8, 4])
    np.testing.assert_allclose(line.low, [4, 2])
    np.testing.assert_allclose(line.high, [16, 8])


def test_error_at_a_time_is_interpolated_as_drawn():
    (runs,) = series.by_method([run_log()])
    assert runs.error_at(math.sqrt(2.0 * 4.0), SECONDS) == [pytest.approx(math.sqrt(4.0 * 2.0))]
    assert runs.error_at(0.0, SECONDS) == [pytest.approx(8.0)]
    assert runs.error_at(4.1, SECONDS) == []
    assert runs.error_at(10.0, ITERATIONS) == [pytest.approx(4.0)]
    assert equal_time([runs]) == 4.0


@pytest.mark.parametrize(
    ("place", "axis"), [(1.0, SECONDS), (1.99, SECONDS), (1, ITERATIONS), (9, ITERATIONS)]
)
def test_before_the_first_evaluation_nothing_was_measured(place, axis):
    """The start is known, and what came right after it is not."""
    (runs,) = series.by_method([run_log()])
    assert runs.error_at(place, axis) == []


def test_between_evaluations_far_apart_nothing_was_measured():
    (runs,) = series.by_method([run_log()])
    assert runs.error_at(30, ITERATIONS) == []  # between 10 and 100
    assert runs.error_at(3.0, SECONDS) != []  # between 2 and 4
    assert runs.error_at(100, ITERATIONS) == [pytest.approx(2.0)]
    assert not series.error_at(run_log(errors=()), ITERATIONS, 1.0)


def test_time_to_an_error_is_where_the_drawn_line_crosses_it():
    (runs,) = series.by_method(
        [run_log(), run_log(seed=1, scale=10.0), run_log(seed=2, errors=(8.0, 2.5, 3.5))]
    )
    assert runs.time_to(math.sqrt(8.0), SQUARED_ERROR) == [pytest.approx(math.sqrt(8.0)), 2.0]
    assert runs.time_to(1.0, SQUARED_ERROR) == []


def test_runs_that_gave_up_keep_their_error_and_cut_ones_do_not_shorten_the_rest():
    gave_up = run_log(errors=(8.0, 4.0), end="10 nonfinite steps in a row")
    cut = run_log(seed=1, errors=(8.0, 4.0), end=None)
    runs = series.by_method([gave_up, cut, run_log("sgd", order=0)])
    assert equal_time(runs) == 4.0
    assert runs[1].error_at(4.0, SECONDS) == [pytest.approx(4.0)]
    assert equal_time(series.by_method([gave_up])) == 2.0
    patient = run_log(errors=(8.0, 4.0), end="stopped early: no lower validation error in 3 evaluations")
    assert equal_time(series.by_method([patient, run_log("sgd", order=0)])) == equal_time(
        series.by_method([gave_up, run_log("sgd", order=0)])
    )
    assert "did not finish" not in report.small_print([patient])
    assert equal_time(series.by_method([cut])) == 2.0
    assert equal_time(series.by_method([run_log(errors=())])) is None


def equal_time(runs):
    return series.common([log for group in runs for log in group.logs], "training_seconds")


def percent(*errors, seed=0):
    """Return a run whose test error is counted, from a share of all cases."""
    found = run_log(seed=seed, errors=(8.0,) * len(errors))
    for record, error in zip(found.evaluations, errors, strict=True):
        record["test_misclassified"] = error
    return found


def test_an_error_in_percent_is_averaged_and_interpolated_as_it_is_drawn():
    panel = Panel(Measure("test_misclassified", "test error", "test error, %", LINEAR, "%", 100.0))
    (runs,) = series.by_method([percent(0.9, 0.5, 0.0), percent(0.9, 0.3, 0.2, seed=1)])
    line = runs.line(panel)
    np.testing.assert_allclose(line.x, [10, 100])
    np.testing.assert_allclose(line.mean, [40, 10])  # no mistake at all has its place
    np.testing.assert_allclose((line.low, line.high), [[30, 0], [50, 20]])
    timed = Panel(panel.measure, "training_seconds")
    assert runs.error_at(math.sqrt(8.0), timed) == [pytest.approx(25.0), pytest.approx(25.0)]


def test_names_of_lines_are_kept_apart():
    places = report.apart([0.1, 0.1, 0.12, 0.9, 0.99, 1.0], 0.05)
    assert min(np.diff(places)) >= 0.05 - 1e-12
    assert 0 <= places[0] <= places[-1] <= 1
    assert report.apart([0.2, 0.8], 0.05) == [0.2, 0.8]
    assert len(set(report.apart([0.5] * 50, 0.05))) == 50


def test_methods_keep_the_order_of_the_experiment():
    logs = [run_log("ngd", order=1), run_log("sgd", order=0), run_log("ngd", seed=1, order=1)]
    assert [(runs.name, len(runs.logs)) for runs in series.by_method(logs)] == [("sgd", 1), ("ngd", 2)]


def test_versions_are_said_once_and_apart_where_they_differ():
    one, other = run_log(seed=0), run_log(seed=1)
    other.header["versions"] = {"natgrad": "0", "jax": "2", "optax": "3"}
    assert report.versions([one, other]) == report.versions([other, one]) == "natgrad 0, jax 1 and 2, optax 3"


def test_small_print_says_what_a_reader_needs():
    logs = [run_log(seed=0), run_log(seed=3, end="interrupted")]
    for each in logs:
        each.header["damping"] = {"reduction": "linear", "bounds": [1e-8, 1e8]}
    words = report.small_print(logs)
    for needed in (
        "Curves (regenerated)",
        "aaaa",
        "small",
        "0, 3",
        "linear",
        "natgrad 0, jax 1",
        "2 cores",
        "1 of 2",
    ):
        assert needed in words


def test_the_ratio_is_that_of_each_line():
    rules = {"sgd": None, "ngd": "linear", "hf": "quadratic", "ncg-kron": "quadratic"}
    logs = [run_log(name, order=order) for order, name in enumerate(rules)]
    for each, model in zip(logs, rules.values(), strict=True):
        each.header["damping"] = model and {"reduction": model}
    assert report.ratios(logs) == [
        "λ follows the ratio with the linear model (NGD)",
        "λ follows the ratio with the quadratic model (HF, NCG-KRON)",
    ]
    assert report.ratios(logs[:2]) == ["λ follows the ratio with the linear model"]
    assert (
        report.ratios([run_log()]) == []
    )  # an old log: its settings do not say what each method did with them


def test_different_data_do_not_share_a_figure():
    with pytest.raises(UserError, match="one data set"):
        report.draw([run_log(), run_log(seed=1, sha="b" * 64)])


def test_labels_are_drawn_as_they_are(tmp_path):
    report.write_figure(
        [run_log(label="$\\frac{1}$ <b>_x_</b>"), run_log("b", label="_b", order=2)], tmp_path
    )
    text = (tmp_path / "curves.svg").read_text()
    assert "$\\frac{1}$ &lt;b&gt;_x_&lt;/b&gt;" in text
    assert ">_b<" in text


@pytest.mark.parametrize("errors", [(8.0,), (8.0, None, None), (8.0, 4.0, None), ()])
def test_short_and_diverged_runs_are_drawn(errors, tmp_path):
    logs = [run_log(errors=errors), run_log("sgd", order=0)]
    assert [path.suffix for path in report.write_figure(logs, tmp_path)] == [".svg", ".png"]
    text = printed(table.summary(logs))
    assert ("not finite" in text) == (None in errors)


def test_table_has_the_numbers():
    text = printed(table.summary([run_log(), run_log(seed=1, scale=2.0)]))
    for words in ("3.00 ± 1.00", "at 4 s", "NGD", "100", "4.0", "1.0", "3.0"):
        assert words in text


def event(iteration, steps=(), errors=None, ended=None):
    position = Position(iteration, 1, 0, 5.0, 1.0, 2.0)
    return Event(position, iteration / 14, steps, errors, ended, ((), ()))


def test_live_display_shows_the_numbers():
    console = Console(file=io.StringIO(), force_terminal=True, width=140)
    step = {"damping": 3.0, "rho": 0.5, "solver_iterations": 20}
    with progress.display(console, 2, SQUARED_ERROR) as shown:
        shown.start("NGD", 0)
        shown.update(event(7, (step,), {"squared_error": 12.5}))
        shown.update(event(14, (step,), {"squared_error": 6.25}, "finished"))
    text = console.file.getvalue()
    for words in ("NGD · seed 0", "6.250", "λ 3", "ρ 0.50", "solver 20", "1 refused"):
        assert words in text


def test_quiet_display_is_a_line_a_training():
    console = Console(file=io.StringIO(), width=60)
    with progress.display(console, 1, SQUARED_ERROR) as shown:
        shown.start("NGD", 0)
        shown.update(event(7))
        shown.update(event(14, (), {"squared_error": 6.25}, "finished"))
    assert console.file.getvalue().count("\n") == 1
    assert "NGD, seed 0: finished after 14 iterations" in console.file.getvalue()
    assert "squared error 6.25" in console.file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "words"), [(50, "50 s"), (200, "3 min"), (7200, "2.0 h"), (6 * 86400, "6.0 days")]
)
def test_durations_in_words(seconds, words):
    assert progress.duration(seconds) == words


def printed(what):
    console = Console(file=io.StringIO(), width=100)
    console.print(what)
    return console.file.getvalue()


def test_packed_logs_are_read_and_bad_ones_named(tmp_path):
    for seed in (0, 1):
        synthetic.write([run_log(seed=seed, errors=[1 / (1 + k) for k in range(15)])], tmp_path)
    plain = log.read_all(tmp_path)
    for path in list((tmp_path / "logs").iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()
    assert log.read_all(tmp_path) == plain
    first = tmp_path / "logs" / "ngd.0.jsonl.gz"
    packed = first.read_bytes()
    for broken in (packed[:-20], b"not gzip", packed[:40] + b"xx" + packed[42:]):
        first.write_bytes(broken)
        with pytest.raises(UserError, match="expected a readable log"):
            log.read_all(tmp_path)
