"""Figures from logs written by hand: what they show follows from the records."""

import numpy as np
import pytest
import synthetic
from synthetic import run_log, runs

from natgrad_paper.report import diagnostics, figure
from natgrad_paper.report.views import LINEAR, RECONSTRUCTION, Measure, Panel, Published, View

ITERATIONS, SECONDS = RECONSTRUCTION.panels


def lines(axes):
    return {line.get_gid(): line for line in axes.lines if line.get_gid()}


def test_a_line_is_the_mean_over_seeds_and_has_a_name_at_its_end():
    found = runs(run_log(seed=0), run_log(seed=1, scale=4.0), run_log("sgd", order=0, label="plain"))
    drawn = figure.draw(found, RECONSTRUCTION, (("Ours", ("ngd",)),))
    left, right = drawn.axes
    np.testing.assert_allclose(lines(left)["line-iteration-squared_error-ngd"].get_ydata(), [8, 4])
    np.testing.assert_allclose(lines(right)["line-training_seconds-squared_error-sgd"].get_xdata(), [2, 4])
    assert lines(left)["line-iteration-squared_error-sgd"].get_linestyle() == "--"
    assert [text.get_text() for text in right.texts if text.get_text()] == ["plain", "NGD"]
    assert left.get_yscale() == right.get_xscale() == "log"


def test_a_line_that_only_another_panel_has_is_named_too():
    """Two seeds that took so different times have no stretch of time in common."""
    slow = run_log("sgd", seed=1, order=0)
    for record in slow.evaluations:
        record["training_seconds"] *= 10
    found = runs(run_log("sgd", order=0), slow, run_log("ngd"))
    left, right = figure.draw(found, RECONSTRUCTION).axes
    assert len(lines(left)) == 2
    assert len(lines(right)) == 1
    assert {text.get_text() for text in right.texts if text.get_text()} == {"SGD", "NGD"}


@pytest.mark.parametrize(
    ("value", "words"),
    [(25, "25"), (12_000, "12 000"), (0.5, "0.5"), (2.5e-5, "2.5e−5"), (1e5, "1e5"), (1e-12, "1e−12")],
)
def test_ticks_are_plain_numbers(value, words):
    assert figure.tick_label(value) == words


def test_the_words_of_a_figure_are_those_of_its_data():
    """Without test cases, without images, without a damping rule: nothing is said of what is not there."""
    log = run_log(order=0)
    log.header["data"] = {"name": "Sine", "sha256": "a" * 64, "train": [100, 1]}
    drawn = figure.draw(runs(log), RECONSTRUCTION)
    assert drawn.get_suptitle() == "Sine: 100 training cases, preset small"
    assert "λ" not in drawn.get_supxlabel()
    log.header["data"] = {"name": "Sine", "sha256": "a" * 64}
    assert figure.draw(runs(log), RECONSTRUCTION).get_suptitle() == "Sine, preset small"
    view = View((ITERATIONS,), (), "")
    assert "Training time" not in figure.draw(runs(log), view).get_supxlabel()


def test_small_print_says_what_a_reader_needs():
    logs = [run_log(seed=0), run_log(seed=3, end="interrupted")]
    for each in logs:
        each.header["damping"] = {"reduction": "linear", "bounds": [1e-8, 1e8]}
    words = figure.draw(runs(*logs), RECONSTRUCTION).get_supxlabel()
    for needed in (
        "Curves (regenerated)", "aaaa", "Seeds: 0, 3", "λ follows the ratio with the linear model", "natgrad 0, jax 1",
        "2 cores, Linux", "1 of 2 runs did not finish", "Training time excludes compiling",
    ):  # fmt: skip
        assert needed in words


def test_files_depend_on_the_drawing_alone():
    found = runs(*(run_log(seed=seed, scale=1 + seed) for seed in range(2)))
    one, other = (figure.draw(found, RECONSTRUCTION) for _ in range(2))
    assert figure.png(one) == figure.png(other)
    assert figure.svg(one) == figure.svg(other) == figure.svg(other)  # whatever was saved before


def test_labels_are_drawn_as_they_are():
    logs = [run_log(label="$\\frac{1}$ <b>_x_</b>"), run_log("b", label="_b", order=2)]
    text = figure.svg(figure.draw(runs(*logs), RECONSTRUCTION)).decode()
    assert "$\\frac{1}$ &lt;b&gt;_x_&lt;/b&gt;" in text
    assert ">_b<" in text


@pytest.mark.parametrize("errors", [(8.0,), (8.0, None, None), (8.0, 4.0, None), (8.0, 4.0), ()])
def test_short_and_diverged_runs_are_drawn(errors):
    found = runs(run_log(errors=errors), run_log("sgd", order=0))
    assert figure.svg(figure.draw(found, RECONSTRUCTION))


def test_names_of_lines_are_kept_apart():
    places = figure.apart([0.1, 0.1, 0.12, 0.9, 0.99, 1.0], 0.05)
    assert min(np.diff(places)) >= 0.05 - 1e-12
    assert 0 <= places[0] <= places[-1] <= 1
    assert figure.apart([0.2, 0.8], 0.05) == [0.2, 0.8]
    assert len(set(figure.apart([0.5] * 50, 0.05))) == 50
    assert figure.apart([], 0.05) == []
    assert figure.apart([-0.5], 0.05) == [0.0]


def test_methods_are_grouped_and_the_rest_comes_last():
    groups = figure.grouped(
        ("sgd", "ngd", "own"), (("Old", ("sgd", "adam")), ("New", ("hf",)), ("Ours", ("ngd",)))
    )
    assert [(group.title, group.dashes, group.methods) for group in groups] == [
        ("Old", "solid", ("sgd",)),
        ("Ours", "dotted", ("ngd",)),
        ("Further methods", "dashdot", ("own",)),
    ]
    assert figure.grouped(("a",), ())[0].title == "Methods"


def test_paired_differences_are_drawn_with_their_interval():
    logs = [run_log("a", seed, scale, order=0) for seed, scale in enumerate((0.5, 0.6, 0.55))]
    logs += [run_log("b", seed) for seed in range(3)]
    for log in logs:
        for record in log.evaluations:
            record["wrong"] = 0.25 if log.method == "b" else 0.2
    wrong = Panel(Measure("wrong", "test error", "", LINEAR, "%", 100.0))
    drawn = figure.draw_differences(runs(*logs), [("a", "b"), ("b", "a"), ("a", "absent")], ITERATIONS, wrong)
    ratio, difference = drawn.axes
    tracks = [
        np.asarray(line.get_xdata(), float) for line in ratio.lines[1:]
    ]  # the first is that of no difference
    np.testing.assert_allclose(sorted(tracks[0]), [0.5, 0.55, 0.6])
    low, high = tracks[1]
    assert low < 0.5 < tracks[2][0] < 0.6 < high
    np.testing.assert_allclose(tracks[2], [0.5485], rtol=1e-3)
    assert float(difference.lines[1].get_xdata()[0]) == pytest.approx(-5.0)
    assert [label.get_text() for label in ratio.get_yticklabels()] == [
        "A against B",
        "B against A",
        "A against absent",
    ]


def test_a_quantity_along_a_run_is_its_median():
    steps = (
        {"iteration": 1, "damping": 3.0},
        {"iteration": 50, "damping": 1.0},
        {"iteration": 60, "damping": None},
    )
    found = runs(run_log(seed=0, steps=steps), run_log(seed=1, steps=({"iteration": 1, "damping": 5.0},)))
    x, y = diagnostics.track(found, "ngd", diagnostics.QUANTITIES[0])
    np.testing.assert_allclose(x, [1, 50])
    np.testing.assert_allclose(y, [4, 1])
    ratio = next(each for each in diagnostics.QUANTITIES if each.over)
    assert ratio.of({"kl_held_out": 3.0, "kl_metric": 2.0}) == 1.5
    assert ratio.of({"kl_held_out": 3.0, "kl_metric": 0.0}) is None


def test_steps_are_drawn_for_those_who_have_some():
    found = runs(run_log(steps=synthetic.steps()), run_log("sgd", order=0))
    (group,) = figure.grouped(found.methods, ())
    drawn, used = diagnostics.draw(found, group)
    assert [quantity.field for quantity in used] == ["damping", "rho", "solver_iterations"]
    assert [axes.get_title(loc="left") for axes in drawn.axes] == [quantity.title for quantity in used]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["NGD"]
    assert diagnostics.draw(runs(run_log("sgd")), group) is None


def test_an_axis_ends_below_a_line_that_ends_far_above_the_others():
    logs = [run_log(name, errors=(8.0, 6.0, 2.0), scale=k + 1, order=k) for k, name in enumerate(("a", "b"))]
    stray = run_log("stray", errors=(900.0, 800.0, 700.0), order=2)
    drawn = figure.draw(runs(*logs, stray), RECONSTRUCTION)
    for axes in drawn.axes:
        assert 12.0 < axes.get_ylim()[1] < 700.0
    assert [text.get_text() for text in drawn.axes[-1].texts if text.get_text()] == ["A", "B", "STRAY ↑ 700"]
    assert "↑" in drawn.get_supxlabel()
    # Of two lines neither is the odd one, and a line that is a little above the others needs no cut.
    near = run_log("near", errors=(90.0, 80.0, 15.0), order=2)
    for found in (runs(logs[0], stray), runs(*logs, near)):
        whole = figure.draw(found, RECONSTRUCTION)
        assert (
            max(line.get_ydata().max() for line in lines(whole.axes[0]).values())
            < whole.axes[0].get_ylim()[1]
        )
        assert "↑" not in figure.svg(whole).decode()


def test_published_errors_are_thin_lines_with_a_name():
    found = runs(run_log(errors=(8.0, 4.0, 2.0)))
    drawn = figure.draw(found, RECONSTRUCTION, (), Published({"HF, others": 0.5}, "By others."))
    for axes in drawn.axes:
        np.testing.assert_allclose(lines(axes)["published-0.5"].get_ydata(), 0.5)
        assert axes.get_ylim()[0] < 0.5
    assert figure.svg(drawn).decode().count("HF, others: 0.5") == 1
