"""The figures and sections of the arena's page: scores, failures, problem by problem, sensitivity."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from natgrad_paper.figures.arena.claims import NO_TARGET, TUNED, classes, everywhere, middles, with_target
from natgrad_paper.figures.arena.contests import TOTAL, Contest, contests
from natgrad_paper.figures.arena.form import PLAIN, VARIANTS
from natgrad_paper.figures.arena.problems import PROBLEMS
from natgrad_paper.figures.arena.scores import MOST, median, profile, scores, slowdowns
from natgrad_paper.report import curves
from natgrad_paper.report.figure import SOFT, blank, draw_line, dress, small_print, styled, title
from natgrad_paper.report.load import Runs
from natgrad_paper.report.parts import Cell, Content, Part, Picture, Table, Words
from natgrad_paper.report.tables import number, ranged, spread
from natgrad_paper.report.views import CLOCK, Panel

COLUMNS = 5
MEASURES = "tools/measure_arena.py measures targets."
CAPTION = (
    "Training error against seconds of training, without compiling and evaluating. Lines: mean over seeds, on the axis "
    "as drawn; bands: least to largest; dashed: tuned methods. Gray: the target, where one was measured. Axes end a "
    "little above the start."
)


def draw(runs: Runs) -> Figure:
    """Return the figure: a small panel per problem, one line per method."""
    return small_panels(runs, draw_contest, "The arena", COLUMNS)


def small_panels(runs: Runs, draw_one: Callable[[Axes, Contest], None], name: str, columns: int) -> Figure:
    """Return a figure with a small panel per problem, and the methods named beside them."""
    found = contests(runs)
    rows = -(-len(found) // columns)
    with styled():
        figure = blank(13, 1.6 + 2.5 * rows)
        places = list(figure.subplots(rows, min(columns, len(found)), squeeze=False).flat)
        for contest, axes in zip(found, places, strict=False):
            draw_one(axes, contest)
            axes.set_title(contest.problem)
            axes.set_ylabel(contest.measure.title, fontsize=7.5)
            axes.tick_params(labelsize=7)
            axes.xaxis.label.set_size(8)
        for axes in places[len(found) :]:
            axes.remove()
        legend(figure, runs, beside=True)
        title(figure, runs, name)
        small_print(figure, runs, timed=True)
    return figure


def draw_contest(axes: Axes, contest: Contest, compiling: bool = False) -> None:
    """Draw the training error of every method on a problem along training time, or with compiling counted."""
    axes.set_xscale("log")
    axes.set_yscale(contest.measure.scale.name)
    panel = Panel(contest.measure, TOTAL if compiling else CLOCK)
    for name in contest.logs:
        logs = contest.with_compiling(name) if compiling else contest.logs[name]
        found = curves.line(logs, panel)
        if found is not None:
            dashes = "dashed" if name in TUNED else "solid"
            draw_line(axes, found, contest.runs.color(name), dashes, lw=1.3, gid=f"{panel.axis}-{name}")
    every = (map(contest.measure.of, log.evaluations) for own in contest.logs.values() for log in own)
    tracks = [[error for error in errors if error is not None] for errors in every]
    if tracks := list(filter(None, tracks)):
        cut_above_start(axes, min(map(min, tracks)), max(track[0] for track in tracks))
    if contest.target is not None:
        axes.axhline(contest.target, color=SOFT, lw=0.8)
    axes.set_xlabel("seconds, with compiling" if compiling else "seconds of training")
    dress(axes)


def cut_above_start(axes: Axes, least: float, start: float) -> None:
    """End an axis a little above the start: what leaves it upwards would take the room of all the others."""
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log":
        top = 3 * start
    else:
        low, top = least - 0.05 * (start - least), start + 0.1 * (start - least)
    if high > top > low:
        axes.set_ylim(low, top)


def legend(figure: Figure, runs: Runs, beside: bool = False) -> None:
    """Name the methods above the panels, or beside them."""
    dashes = {name: "dashed" if name in TUNED else "solid" for name in runs.methods}
    handles = [figure.axes[0].plot([], [], color=runs.color(name), ls=dashes[name])[0] for name in dashes]
    names = [runs.label(name) for name in runs.methods]
    if beside:
        figure.legend(handles, names, loc="outside right upper", fontsize=8.5)
    else:
        figure.legend(handles, names, loc="outside upper left", ncols=7, fontsize=8.5)


def sections(runs: Runs) -> Iterator[Part]:
    """Yield the sections of the report beside the figure and the claims."""
    found = contests(runs)
    yield Part("Scores and failures", "scores", standing(runs, found))
    if with_target(found):
        yield Part("Time to the target", "times", [times(runs, found)])
    yield Part("Sensitivity", "sensitivity", sensitivity(runs))
    for contest in found:
        yield Part(f"{contest.problem}: {about(contest)}", f"problem-{contest.problem}", one(contest))


def about(contest: Contest) -> str:
    """Return what a problem is, in words."""
    known = PROBLEMS.get(contest.problem)
    return str(known.about) if known else "a problem"


def standing(runs: Runs, found: Sequence[Contest]) -> list[Content]:
    """Return the scores of all methods, how many problems they failed on, and the profiles."""
    targets, (untuned, every) = with_target(found), classes(runs)
    both = (" without pilots", untuned), (" among all", every)
    groups = both if len(every) > len(untuned) else (("", untuned),)
    columns = [
        (f"score{group}{words}", scored(targets, names, compiling))
        for group, names in groups
        for words, compiling in (("", False), (", with compiling", True))
    ]
    rows: list[list[str | Cell]] = []
    ranked = places(found, everywhere(found, untuned))
    for name in every:
        mine = [each for each in found if name in each.ended]
        aimed = [failed(each, name) for each in with_target(mine)]
        known = [f"{values[name]:.3f}" if name in values else "–" for _, values in columns]
        counts = [f"{aimed.count('')} of {len(aimed)}", f"{aimed.count('missed')}"] if aimed else ["–", "–"]
        diverged = sum(failed(each, name) == "NaN" for each in mine)
        rows.append([runs.label(name), ranked.get(name, "–"), *known, *counts, f"{diverged} of {len(mine)}"])
    caption = (
        "Place: by training error at the end among the methods without a pilot, mean over problems and seeds; 1 is the "
        f"best. Score: the area below the profile, τ from 1 to {MOST:g}. Times are medians over seeds, on the "
        f"{len(targets)} of {len(found)} problems that have a target. Solved, missed, NaN: problems on which "
        "at least half of the seeds ended so. A dash: no target, or no run on some of them."
    )
    head = ["method", "place", *(words for words, _ in columns), "solved", "missed", "NaN"]
    contents: list[Content] = [Table(head, rows, caption, numbers=True)]
    if not targets:
        return [Words(f"There is {NO_TARGET}, hence no score and no time to one. {MEASURES}"), *contents]
    return [*contents, Picture(profiles(runs, targets, untuned), "Profiles of the methods without a pilot.")]


def scored(targets: Sequence[Contest], methods: Sequence[str], compiling: bool) -> dict[str, float]:
    """Return the scores of the methods that ran on all problems with a target."""
    present = everywhere(targets, methods)
    return scores(middles(targets, present, compiling), present) if targets and present else {}


def failed(contest: Contest, method: str) -> str:
    """Return how a method failed on a problem in at least half of its seeds; an empty text if it did not."""
    found, total = contest.failures(method), len(contest.ended[method])
    if 2 * len(found) < total or not found:
        return ""
    return max(dict.fromkeys(found), key=found.count)


def profiles(runs: Runs, targets: Sequence[Contest], methods: Sequence[str]) -> Figure:
    """Return the share of problems solved against τ, without and with compiling."""
    present, taus = everywhere(targets, methods), np.linspace(1, MOST, 301)
    with styled():
        figure = blank(12, 4.2)
        for axes, compiling in zip(figure.subplots(1, 2, sharey=True), (False, True), strict=True):
            found = slowdowns(middles(targets, present, compiling), present) if present else {}
            for name, each in found.items():
                shares = [profile(each, tau) for tau in taus]
                axes.step(taus, shares, where="post", color=runs.color(name), label=runs.label(name))
            words = "with compiling" if compiling else "without compiling"
            axes.set(xlabel=f"τ, times the fastest’s time, {words}", ylim=(-0.03, 1.03))
        figure.axes[0].set_ylabel("share of problems solved")
        if present:
            figure.axes[1].legend()
    return figure


def times(runs: Runs, found: Sequence[Contest]) -> Table:
    """Return the time to the target of every method on every problem."""
    rows = [[runs.label(name), *(time_cell(each, name) for each in found)] for name in runs.methods]
    caption = "Seconds of training to the target: median, least and largest, and how many seeds reached it."
    return Table(["method", *(each.problem for each in found)], rows, caption, numbers=True)


def time_cell(contest: Contest, method: str, compiling: bool = False) -> str | Cell:
    """Return a time to the target in words: the median, the range, or how the method failed."""
    if method not in contest.logs:
        return "not run"
    if method not in contest.ended:
        return "cut off"
    if contest.target is None:
        return NO_TARGET
    every = list(contest.times(method, compiling).values())
    if math.isinf(median(every)):
        return Cell(failed(contest, method) or "missed", f"{sum(map(math.isfinite, every))} of {len(every)}")
    return median_cell(every)


def median_cell(every: Sequence[float]) -> str | Cell:
    """Return times of several seeds, some perhaps infinite: the median, the range, and how many are finite."""
    reached, middle = [time for time in every if math.isfinite(time)], median(every)
    text = number(middle) if math.isfinite(middle) else "–"
    return ranged(text, reached, len(every)) if reached else "–"


def one(contest: Contest) -> list[Content]:
    """Return a problem's data and target, its figure and its table."""
    runs, data = contest.runs, contest.facts.get("data", {})
    target = NO_TARGET if contest.target is None else f"target {contest.target:.4g}"
    text = f"Data: {data.get('name', 'not said')}. Error: {contest.measure.title}, {target}."
    with styled():
        figure = blank(10, 3.3)
        for axes, compiling in zip(figure.subplots(1, 2, sharey=True), (False, True), strict=True):
            draw_contest(axes, contest, compiling)
        figure.axes[0].set_ylabel(contest.measure.title)
        legend(figure, runs)
    rows: list[list[str | Cell]] = []
    for name, logs in contest.logs.items():
        ends = [
            spread(list(contest.ends(name, each).values()), len(contest.ended.get(name, ())), each, "NaN")
            for each in (contest.measure, contest.test_measure)
        ]
        steps = [float(log.evaluations[-1]["iteration"]) for log in logs if log.evaluations]
        clock = [time_cell(contest, name, compiling) for compiling in (False, True)]
        shown = number(float(np.mean(steps)), 0) if steps else "–"
        rows.append([runs.label(name), *ends, *clock, f"{curves.compiling(logs):.1f}", shown])
    times = ["to the target, s", "with compiling, s", "compiling, s"]
    head = ["method", "training error", "test error", *times, "steps"]
    caption = "Errors at the end: mean over seeds, as drawn, with least and largest."
    picture = Picture(figure, alt=f"{contest.problem}: error against seconds, without and with compiling")
    return [Words(text), picture, Table(head, rows, caption, numbers=True)]


def sensitivity(runs: Runs) -> list[Content]:
    """Return the mean places of the methods without a pilot, as the problems are and with one thing changed."""
    usual = {each.problem: each for each in contests(runs)}
    present = {}
    for name in VARIANTS:
        if name != PLAIN and (found := contests(runs, name)):
            present[name] = [each for each in found if each.problem in usual]
    if not any(present.values()):
        words = "Nothing was changed in these runs: the preset sensitivity has the runs for this table."
        return [Words(words)]
    methods, head, columns = classes(runs)[0], ["method"], []
    for name, found in present.items():
        both = everywhere([*found, *(usual[each.problem] for each in found)], methods)
        before = [usual[each.problem] for each in found]
        head += [f"before ({len(found)} problems)", VARIANTS[name]]
        columns += [places(before, both), places(found, both)]
    rows = [[runs.label(name), *(each.get(name, "–") for each in columns)] for name in methods]
    caption = (
        "Mean place among the methods without a pilot, by training error at the end, over problems and seeds; 1 is the "
        "best. Each change beside the same problems as they are. What ended without a number is last."
    )
    return [Table(head, rows, caption, numbers=True)]


def places(found: Sequence[Contest], methods: Sequence[str]) -> dict[str, str]:
    """Return every method's mean place over problems and seeds."""
    ranks = [each.ranks(methods, seed) for each in found for seed in sorted(each.seeds(methods))]
    return {name: f"{np.mean([each[name] for each in ranks]):.2f}" for name in methods if ranks}
