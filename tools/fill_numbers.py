"""Numbers in README, docs and results come from the logs: this puts them in, `--check` says where they are stale.

A place for numbers is `<!-- numbers: FOLDER TABLE OPTION=VALUE … -->`, a table, `<!-- end -->`. FOLDER is one of
`results/`, TABLE one of `TABLES` below. What stands between the marks is written over:

    python tools/fill_numbers.py            # write
    python tools/fill_numbers.py --check    # exit with 1, and name the places, where it would write something else
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from natgrad_paper import figures
from natgrad_paper.report import claims, curves
from natgrad_paper.report.load import Runs, read
from natgrad_paper.report.parts import Cell, Picture, Table
from natgrad_paper.report.provenance import listed
from natgrad_paper.report.views import CLOCK, SQUARED_ERROR, TEST_SQUARED_ERROR, Measure, Panel
from natgrad_paper.training.log import RunLog, Status

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"(<!-- numbers: ([^\n]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NONE, UNMEASURED = "–", "not measured"
SECONDS = Panel(SQUARED_ERROR, CLOCK)
STEPS = Panel(SQUARED_ERROR, "iteration")
NAMES = {"natgrad.fast, averaged": "KNCG", "Hessian-Free": "Hessian-Free (void)"}
"""What these pages call a contestant of the race."""
EARLY = 20
"""Figure 1 compares what steps do from this iteration on."""
PAPER = {
    "unlabelled": (
        "[1](#figure-1-unlabelled-data-in-the-metric)",
        "Unlabelled inputs in the metric give the best test error; the gradient’s own the worst, in training, too.",
    ),
    "order": (
        "[2](#figure-2-the-order-of-the-examples)",
        "At equal error, outputs depend orders of magnitude less on a segment of the stream than with SGD.",
    ),
    "curves": (
        "[3](#figure-3-the-methods-on-curves)",
        "NGD is reliable on minibatches, NCG-L beats NGD-L and NCG-F, and all of them beat SGD.",
    ),
}
"""What the paper claims with each of its figures, and where `docs/results.md` says more."""


@cache
def runs(folder: str) -> Runs:
    """Return the runs of a result."""
    return read(ROOT / "results" / folder)


@cache
def judged(folder: str) -> tuple[claims.Judged, ...]:
    """Return the claims of a result's experiment, judged."""
    found = runs(folder)
    return tuple(claims.judge(figures.load(found.experiment).story.claims, found))


def by_the_clock(folder: str, at: str, to: str, methods: str = "") -> str:
    """Errors at times (means over seeds), times to errors and the last test error (seed by seed)."""
    found = runs(folder)
    chosen = methods.split(",") if methods else found.methods
    logs = {found.label(name): found.method(name) for name in chosen}
    times, errors = _numbers(at), _numbers(to)
    head = [*(f"at {time:g} s" for time in times), *_to(errors), f"test error at {times[-1]:g} s"]
    rows = _clock(logs, times, errors)
    return _table(
        ["method", *head],
        [[*row, _seed_by_seed(_last(logs[row[0]], TEST_SQUARED_ERROR))] for row in rows],
    )


def race(folder: str, course: str, at: str, to: str) -> str:
    """Errors at times and times to errors of contestants that took turns."""
    table = json.loads((ROOT / "results" / folder / f"{course}.json").read_text(encoding="utf-8"))
    logs = {}
    for name, seeds in table.items():
        label = NAMES.get(name, name)
        logs[label] = tuple(_as_log(name, seed, points) for seed, points in enumerate(seeds))
    times, errors = _numbers(at), _numbers(to)
    head = [*(f"at {time:g} s" for time in times), *_to(errors)]
    return _table(["contestant", *head], _clock(logs, times, errors))


def head_to_head(folder: str, steps: str) -> str:
    """Errors at the end of the budget and after a few steps: means over seeds, and the range."""
    found, places = runs(folder), _numbers(steps)
    end = curves.common(found.logs, CLOCK) or 0.0
    head = [f"after {end:.3g} s", "steps in that time", *(f"after {step:g} steps" for step in places)]
    rows = []
    for name in found.methods:
        logs = found.method(name)
        last = [log.evaluations[-1]["iteration"] for log in logs]
        cells = [_with_range(curves.errors_at(logs, SECONDS, end), SQUARED_ERROR), f"{np.mean(last):.0f}"]
        cells += [_after(logs, step, max(last)) for step in places]
        rows.append((SQUARED_ERROR.mean(_last(logs, SQUARED_ERROR)), [found.label(name), *cells]))
    return _table(["method", *head], [row for _, row in sorted(rows, key=lambda pair: pair[0])])


def expressions(folder: str) -> str:
    """Figure 1: costs and errors at the end, and what steps do to held-out inputs. Means over seeds, and the range."""
    found = runs(folder)
    cost = Measure("cross_entropy", "", "")
    steps = found.steps[(found.steps.iteration > EARLY) & found.steps.kl_held_out.notna()]
    ratios = (steps.kl_held_out / steps.kl_metric).map(math.log).groupby([steps.method, steps.seed]).mean()
    rows = []
    for name in found.methods:
        logs = found.method(name)
        cells = [_with_range(_last(logs, cost), cost, "{:.3f}")]
        for field in ("misclassified", "test_misclassified"):
            percent = [100 * log.evaluations[-1][field] for log in logs]
            cells.append(f"{np.mean(percent):.1f} ({min(percent):.1f} to {max(percent):.1f})")
        cells.append(_with_range(np.exp(ratios[name].to_numpy()), cost, "{:.2f}"))
        rows.append([f"`{name}`", *cells])
    head = ["training cost", "training error, %", "test error, %", "held-out KL / the metric's"]
    return _table(["the metric's samples", *head], rows)


def epochs(folder: str, to: str, steps: str) -> str:
    """Epochs, of so many steps, to training costs: those of the first evaluation there, seed by seed."""
    found, costs, per = runs(folder), _numbers(to), int(steps)
    rows = []
    for name in found.methods:
        for log in found.method(name):
            reached = [
                [each["iteration"] for each in log.evaluations if each["cross_entropy"] <= cost]
                for cost in costs
            ]
            cells = [f"{min(where) / per:.1f}" if where else NONE for where in reached]
            last = log.evaluations[-1]
            test = min(each["test_cross_entropy"] for each in log.evaluations)
            ends = last["cross_entropy"], last["test_cross_entropy"], test
            cells += [f"{last['iteration'] / per:.0f}", *(f"{each:.2f}" for each in ends)]
            rows.append([f"{found.label(name)}, seed {log.seed}", *cells])
    head = [
        *(f"to {cost:g}" for cost in costs),
        "epochs in all",
        "cost then",
        "test cost then",
        "lowest test cost",
    ]
    return _table(["method", *head], rows)


def decided(folder: str, others: str = "") -> str:
    """The claims that runs say something about, and a line that names the rest; of several results, the verdicts."""
    folders = [folder, *filter(None, others.split(","))]
    rows = []
    rest: dict[claims.Verdict, list[str]] = {claims.Verdict.VOID: [], claims.Verdict.ABSENT: []}
    for same in zip(*map(judged, folders), strict=True):
        found, claim = [each.verdict for each in same], same[0].claim
        if set(found) <= rest.keys() and not (len(folders) == 1 and partly(same[0])):
            rest[min(found, key=list(rest).index)].append(claim.key)
            continue
        cells = [NONE if each.verdict is claims.Verdict.ABSENT else f"**{each.words}**" for each in same]
        if len(folders) == 1:
            cells = ["**in part**"] if partly(same[0]) else cells
            cells.append("<br>".join(finding.words for finding in same[0].findings))
        rows.append([f"{claim.key}. {claim.words}", *cells])
    lines = [f"{verdict.capitalize()}: {listed(keys)}." for verdict, keys in rest.items() if keys]
    head = ["verdict", "found"] if len(folders) == 1 else folders
    return "\n\n".join([_table(["claim", *head], rows), *([" ".join(lines)] if lines else [])])


def partly(each: claims.Judged) -> bool:
    """Whether only some of the comparisons that a claim asks for were run."""
    found = {finding.verdict for finding in each.findings}
    return each.verdict is claims.Verdict.ABSENT and len(found) > 1


def gathered(folder: str, others: str) -> str:
    """What several results of an experiment say about its claims, a row per claim and result; links as in `docs/`."""
    folders = [folder, *others.split(",")]
    rows = []
    for same in zip(*map(judged, folders), strict=True):
        for name, each in zip(folders, same, strict=True):
            if each.verdict is not claims.Verdict.ABSENT:
                found = "<br>".join(finding.words for finding in each.findings)
                rows.append(
                    [f"{each.claim.key}. {each.claim.words}", f"**{each.words}**", found, _link(name)]
                )
    return _table(["claim", "verdict", "found", "run"], rows)


def cost(folder: str, others: str = "") -> str:
    """How many trainings results have, and the minutes of training, compiling and evaluating; links as in `docs/`."""
    rows = []
    for name in [folder, *filter(None, others.split(","))]:
        found = runs(name)
        counts = len(found.seeds), len(found.logs), minutes(found)
        rows.append([_link(name), *map(str, counts)])
    return _table(["run", "seeds", "trainings", "minutes in all"], rows)


def minutes(found: Runs) -> str:
    """Return the minutes of training, compiling and evaluating."""
    last = [log.evaluations[-1] for log in found.logs if log.evaluations]
    clocks = ("training", "compile", "evaluation")
    return f"{sum(each[f'{what}_seconds'] for each in last for what in clocks) / 60:.0f}"


def overview(folder: str, others: str = "") -> str:
    """The paper’s claim, our verdicts, command and minutes, a row per result of a figure; links as in `docs/`."""
    rows: list[list[str]] = []
    for name in [folder, *filter(None, others.split(","))]:
        figure, said = PAPER[runs(name).experiment]
        verdicts: dict[str, list[str]] = {}
        for each in judged(name):
            if each.verdict is not claims.Verdict.ABSENT:
                verdicts.setdefault(each.words, []).append(each.claim.key)
        words = "; ".join(f"{listed(keys)}: **{verdict}**" for verdict, keys in verdicts.items())
        again = any(row[0] == figure for row in rows)
        said = "as above" if again else said
        rows.append([figure, said, f"{_link(name)}: {words}", f"`{command(name)}`", minutes(runs(name))])
    return _table(["figure", "the paper’s claim", "our verdict", "command", "minutes"], rows)


def command(folder: str) -> str:
    """Return the command of a result, as its README has it."""
    readme = (ROOT / "results" / folder / "README.md").read_text(encoding="utf-8")
    block = readme.split("```console\n")[1].split("```")[0].replace("\\\n", " ")
    line = next(line for line in block.splitlines() if line.startswith("natgrad run"))
    return " ".join(line.split("  #")[0].split())


@cache
def part(folder: str, section: str) -> str:
    """The first table of a section of the experiment's page, which its address names."""
    found = runs(folder)
    sections = figures.load(found.experiment).story.sections(found)
    contents = next(each.contents for each in sections if each.id == section)
    table = next(each for each in contents if isinstance(each, Table))
    return _table(table.head, [[_cell(each) for each in row] for row in table.rows])


def summary(folder: str) -> str:
    """How the claims of the experiment came out, in one sentence."""
    return claims.lede([each.verdict for each in judged(folder)])


TABLES: dict[str, Callable[..., str]] = {
    "by-the-clock": by_the_clock, "race": race, "head-to-head": head_to_head,
    "expressions": expressions, "decided": decided, "gathered": gathered, "cost": cost, "summary": summary,
    "part": part, "epochs": epochs, "overview": overview,
}  # fmt: skip


def pages() -> list[Path]:
    """Return the pages that may have places for numbers."""
    return [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "results").rglob("README.md")]


def filled(text: str) -> str:
    """Return a page with its numbers as the logs have them."""
    if text.count("<!-- numbers:") != len(PLACE.findall(text)):
        raise ValueError("a place for numbers does not end")

    def fill(match: re.Match[str]) -> str:
        folder, table, *options = match[2].split()
        return (
            f"{match[1]}{TABLES[table](folder, **dict(each.split('=', 1) for each in options))}\n{match[4]}"
        )

    return PLACE.sub(fill, text)


def stale(page: Path) -> Iterator[str]:
    """Yield the names of a page's places whose numbers are not what the logs have."""
    text = page.read_text(encoding="utf-8")
    for before, after in zip(PLACE.finditer(text), PLACE.finditer(filled(text)), strict=True):
        if before[0] != after[0]:
            yield before[2]


def _cell(found: str | Cell | Picture) -> str:
    assert not isinstance(found, Picture), "a table with pictures has no place here"
    return f"{found.text} {found.note}".strip() if isinstance(found, Cell) else found


def _link(folder: str) -> str:
    """Return a link to a result, from `docs/`."""
    return f"[{folder}](../results/{folder}/README.md)"


def _clock(logs: dict[str, tuple[RunLog, ...]], times: list[float], errors: list[float]) -> list[list[str]]:
    """Return rows of errors at times and times to errors, the lowest last error first."""
    order = sorted(logs, key=lambda label: SQUARED_ERROR.mean(_last(logs[label], SQUARED_ERROR)))
    rows = []
    for label in order:
        cells = [_mean_at(logs[label], SECONDS, time) for time in times]
        for error in errors:
            cells.append(
                _seed_by_seed([curves.time_to(log, error, SQUARED_ERROR) for log in logs[label]], "{:.0f}")
            )
        rows.append([label, *cells])
    return rows


def _as_log(name: str, seed: int, points: Sequence[Sequence[float]]) -> RunLog:
    """Return the evaluations of a contestant, pairs of seconds and error, as a log."""
    header = {"method": {"name": name, "label": name, "order": 0}, "seed": seed, "training": {"name": ""}}
    evaluations = [{"training_seconds": seconds, "squared_error": error} for seconds, error in points]
    return RunLog(header, tuple(evaluations), status=Status.FINISHED)


def _mean_at(logs: Sequence[RunLog], panel: Panel, where: float) -> str:
    # A run may end a little before its budget does: its last evaluation is meant.
    ends = [min(where, log.evaluations[-1][panel.axis]) if where else where for log in logs]
    close = all(end >= 0.98 * where for end in ends)
    found = [curves.error_at(log, panel, end) for log, end in zip(logs, ends, strict=True)]
    known = [error for error in found if error is not None]
    return _short(panel.measure.mean(known)) if close and len(known) == len(logs) else UNMEASURED


def _after(logs: Sequence[RunLog], step: float, most: int) -> str:
    if step > most:
        return NONE
    found = curves.errors_at(logs, STEPS, step)
    return _with_range(found, SQUARED_ERROR) if len(found) == len(logs) else UNMEASURED


def _last(logs: Iterable[RunLog], measure: Measure) -> list[float]:
    return [float(log.evaluations[-1][measure.field]) for log in logs]


def _with_range(values: Sequence[float] | np.ndarray, measure: Measure, form: str = "") -> str:
    if not len(values):
        return UNMEASURED
    mean, low, high = (
        form.format(v) if form else _short(v) for v in (measure.mean(values), min(values), max(values))
    )
    return f"{mean} ({low} to {high})"


def _seed_by_seed(values: Sequence[float | None], form: str = "") -> str:
    if all(value is None for value in values):
        return NONE
    return ", ".join(NONE if v is None else form.format(v) if form else _short(v) for v in values)


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.2g}"


def _to(errors: list[float]) -> list[str]:
    return [f"seconds to {error:g}" if error == errors[0] else f"to {error:g}" for error in errors]


def _numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def main(arguments: Sequence[str]) -> int:
    """Write, or check; return the exit code."""
    found = 0
    for page in pages():
        for place in stale(page):
            found += 1
            print(f"{page.relative_to(ROOT)}: {place}")
        if "--check" not in arguments:
            text = page.read_text(encoding="utf-8")
            if (new := filled(text)) != text:
                page.write_text(new, encoding="utf-8")
    return int(found > 0 and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
