"""Numbers between evaluations: as the figure draws them where one is near, and none where none is."""

import math

import numpy as np
import pytest
from synthetic import REFUSED, run_log

from natgrad_paper.report.curves import common, error_at, errors_at, line, time_to
from natgrad_paper.report.views import LINEAR, RECONSTRUCTION, SQUARED_ERROR, Measure, Panel

ITERATIONS, SECONDS = RECONSTRUCTION.panels


def near(**rest):
    """Return a run with evaluations at 2, 4, 6, 8 seconds."""
    return run_log(errors=(16.0, 8.0, 4.0, 2.0, 1.0), **rest)


def test_mean_is_geometric_and_band_is_the_range():
    found = line([run_log(seed=0), run_log(seed=1, scale=4.0)], ITERATIONS)
    np.testing.assert_allclose(found.x, [10, 100])  # iteration 0 has no place on a logarithmic axis
    np.testing.assert_allclose(found.mean, [8, 4])
    np.testing.assert_allclose(found.low, [4, 2])
    np.testing.assert_allclose(found.high, [16, 8])


def test_error_at_a_time_is_interpolated_as_drawn():
    assert error_at(near(), SECONDS, math.sqrt(4.0 * 6.0)) == pytest.approx(math.sqrt(4.0 * 2.0))
    assert error_at(near(), SECONDS, 0.0) == pytest.approx(16.0)
    assert error_at(near(), SECONDS, 8.1) is None
    assert error_at(near(), ITERATIONS, 10.0) == pytest.approx(8.0)
    assert errors_at([near(), run_log(errors=())], SECONDS, 8.0) == [pytest.approx(1.0)]


@pytest.mark.parametrize(
    ("place", "panel"),
    [(1.0, SECONDS), (1.99, SECONDS), (1, ITERATIONS), (9, ITERATIONS), (30, ITERATIONS), (3.0, SECONDS)],
    ids=["start", "just before", "step 1", "step 9", "between 10 and 100", "between 2 and 4"],
)
def test_far_from_evaluations_nothing_was_measured(place, panel):
    """The start is known, and what came right after it is not; nor what lies between evaluations 1.5 times apart."""
    assert error_at(near(), panel, place) is None
    assert error_at(near(), panel, 100 if panel is ITERATIONS else 4.0) is not None


def test_time_to_an_error_is_where_the_drawn_line_crosses_it():
    assert time_to(near(), math.sqrt(8.0), SQUARED_ERROR) == pytest.approx(math.sqrt(4.0 * 6.0))
    assert time_to(near(), 8.0, SQUARED_ERROR) == 2.0
    assert time_to(near(), 5.0, SQUARED_ERROR) == 4.0  # seen first there, with the one before it far away
    assert time_to(near(), 0.5, SQUARED_ERROR) is None


def test_runs_that_gave_up_keep_their_error_and_cut_ones_do_not_shorten_the_rest():
    gave_up, early = (run_log(errors=(8.0, 4.0), end=end) for end in (REFUSED, "early"))
    cut = run_log(seed=1, errors=(8.0, 4.0), end=None)
    whole = run_log("sgd", order=0)
    assert common([gave_up, cut, whole], "training_seconds") == 4.0
    assert common([early, whole], "training_seconds") == 4.0
    assert error_at(gave_up, SECONDS, 4.0) == pytest.approx(4.0)
    assert error_at(cut, SECONDS, 4.0) is None
    assert common([gave_up], "training_seconds") == 2.0
    assert common([cut], "training_seconds") == 2.0
    assert common([run_log(errors=())], "training_seconds") is None


def test_an_axis_that_old_logs_lack_is_no_place():
    old = near()
    for record in old.evaluations:
        del record["cpu_seconds"]
    panel = Panel(SQUARED_ERROR, "cpu_seconds")
    assert common([old], "cpu_seconds") is None
    assert error_at(old, panel, 1.0) is None
    assert line([old], panel) is None
    assert line([near()], panel).x[-1] == 14.0


def test_an_error_in_percent_is_averaged_and_interpolated_as_it_is_drawn():
    """No mistake at all has its place."""
    panel = Panel(Measure("wrong", "test error", "test error, %", LINEAR, "%", 100.0), "training_seconds")
    logs = [near(seed=0), near(seed=1)]
    for log, shares in zip(logs, ((0.9, 0.8, 0.5, 0.0, 0.0), (0.9, 0.8, 0.3, 0.2, 0.1)), strict=True):
        for record, share in zip(log.evaluations, shares, strict=True):
            record["wrong"] = share
    found = line(logs, panel)
    np.testing.assert_allclose(found.mean, [80, 40, 10, 5])
    np.testing.assert_allclose((found.low, found.high), [[80, 30, 0, 0], [80, 50, 20, 10]])
    assert errors_at(logs, panel, math.sqrt(4.0 * 6.0)) == [pytest.approx(25.0), pytest.approx(25.0)]
