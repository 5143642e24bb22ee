"""Tables: the numbers of the logs, best ones marked, and nothing where there is nothing."""

import pytest
from synthetic import REFUSED, run_log, runs

from natgrad_paper.report import tables
from natgrad_paper.report.figure import grouped
from natgrad_paper.report.parts import Cell
from natgrad_paper.report.views import RECONSTRUCTION, SQUARED_ERROR


def results(*logs):
    found = runs(*logs)
    return tables.summary(found, RECONSTRUCTION, grouped(found.methods, ()))


def test_columns_are_errors_where_all_runs_are_and_times_to_round_errors():
    logs = [run_log("a", seed, scale, order=0) for seed, scale in ((0, 1.0), (1, 4.0))] + [
        run_log("b", errors=(8.0, 4.0, 3.0))
    ]
    for log in logs:
        log.evaluations[-1]["test_squared_error"] = 7.0
    found = results(*logs)
    assert found.head == [
        "method", "squared error at 100 iterations", "squared error at 4 s", "test error at the end", "seconds to 20",
        "seconds to 10", "seconds to 5", "seconds to 2",
    ]  # fmt: skip
    a, b = found.rows
    assert a[:3] == ["A", Cell("4.00", "(2.00–8.00)"), Cell("4.00", "(2.00–8.00)")]
    assert b[1] == Cell("3.00", strong=True)
    assert a[3] == Cell("7.00", "(7.00–7.00)", strong=True)
    assert a[-1] == Cell("4.00", "1 of 2")  # and not the best, though alone: one seed never came there
    assert b[-1] == Cell("–")


def test_what_was_not_measured_is_no_number():
    quick = run_log("a", errors=(8.0, 4.0, 2.0), order=0)
    for record, iteration in zip(quick.evaluations, (0, 3, 5), strict=True):
        record["iteration"] = iteration
    found = results(quick, run_log("b"))
    assert found.head[1] == "squared error at 5 iterations"
    assert found.rows[1][1] == Cell("not measured")
    assert results(run_log(errors=())) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.012345, "0.0123"), (3.0, "3.00"), (123.4, "123"), (12345.6, "12 346"), (-2.34e12, "-2.34e+12")],
)
def test_numbers_have_three_digits(value, words):
    assert tables.number(value) == words


def test_targets_are_the_lowest_round_errors_that_somebody_reached():
    logs = [run_log(errors=(300.0, 90.0, 0.9)), run_log("b", errors=(300.0, 40.0))]
    assert tables.round_errors(logs, SQUARED_ERROR) == [10.0, 5.0, 2.0, 1.0]


def test_time_is_that_of_all_trainings_of_a_seed():
    logs = [run_log(seed=0), run_log(seed=1, errors=(8.0, 4.0))]
    found = tables.time(runs(*logs))
    assert found.head == [
        "method", "training, s", "processor, s", "evaluating, s", "compiling, s", "steps", "ms per step"
    ]  # fmt: skip
    assert found.rows == [["NGD", "3.0", "5.2", "0.8", "3.0", "55", "54.5"]]
    named = [run_log(training=name) for name in ("segment-01-1", "segment-01-2")]
    assert tables.time(runs(*named)).rows == [["NGD", "8.0", "14.0", "2.0", "6.0", "–", "–"]]
    assert tables.time(runs(run_log(errors=()))) is None


def test_troubles_are_refused_steps_early_ends_and_sleep():
    refused = run_log(seed=0)
    refused.evaluations[-1]["refused"] = 7
    logs = [refused, run_log(seed=1, end=REFUSED), run_log(seed=2, end=None, errors=()), run_log(seed=3)]
    logs += [
        run_log(seed=4, gaps=({"iteration": 3, "seconds": 90.0},)),
        run_log(seed=5, end="early", training="x"),
    ]
    assert tables.troubles(runs(*logs)).rows == [
        ["NGD", "0", "used its budget", "7 of 100", "–"],
        ["NGD", "1", REFUSED, "0 of 100", "–"],
        ["NGD", "2", "cut off, no reason logged", "0 of 0", "–"],
        ["NGD", "4", "used its budget", "0 of 100", "90 s at iteration 3"],
        ["NGD x", "5", "early", "0 of 100", "–"],
    ]
    assert tables.troubles(runs(run_log())) is None


def test_csv_has_the_names_of_trainings_where_there_are_any():
    log = run_log()
    log.evaluations[-1]["step_size"] = [0.5]
    head = tables.as_csv(runs(log).evaluations).splitlines()[0].split(",")
    assert "training" not in head
    assert "step_size" not in head
    assert "training" in tables.as_csv(runs(log, run_log(training="x")).evaluations).splitlines()[0].split(
        ","
    )
