"""A race by the clock: this library's recipe and Hessian-Free against Adam, Nesterov, L-BFGS and kfac-jax.

All start from the same weights on the same data and train for the same time, evaluation and compilation not counted;
they take turns of a few seconds, each in a process of its own, so that the machine's moods hit all alike. Rates and
batches come from a small grid (`--tune`). Only a machine that does nothing else gives meaningful numbers.

    make race
    python benchmarks/race.py --courses curves --seconds 120 --seeds 3 --out race
    python benchmarks/race.py --tune --courses curves --contestants adam nesterov --seconds 60
    python benchmarks/race.py --kfac PYTHON        the interpreter of an environment that has kfac-jax
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from contestants import CONTESTANTS, COURSES

HERE = Path(__file__).parent
Runs = dict[str, list[np.ndarray]]
"""Of every contestant, a row (seconds, error) an evaluation, a table a seed."""
TUNING_SEED = 100
"""Settings are picked on other seeds than they race on."""


class Runner:
    """A contestant's process."""

    def __init__(self, python: str, **job: Any) -> None:
        source = str(HERE.parent / "src")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, str(HERE)])}
        self.rows: list[tuple[float, float]] = []
        self.iterations, self.compiling, self.over = 0, 0.0, False
        self._process = subprocess.Popen(
            [python, str(HERE / "contestants.py"), json.dumps(job)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self._listen()

    def slice(self) -> None:
        """Let it train for a slice."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self._listen()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args[-1]}: ended with {self._process.wait()} and no report")
        report = json.loads(line)
        self.rows.append((report["seconds"], report["error"]))
        self.iterations, self.compiling = report["iteration"], report["compile"]
        if report["ended"]:
            self.over = True
            self._process.wait()


def time_to(rows: np.ndarray, level: float) -> float:
    """Return the training seconds to a level of error, between evaluations in log error; infinite if never."""
    below = np.flatnonzero(rows[:, 1] <= level)
    if not len(below):
        return np.inf
    at = below[0]
    if at == 0:
        return float(rows[0, 0])
    (t0, e0), (t1, e1) = rows[at - 1], rows[at]
    return float(t0 + (t1 - t0) * (np.log(e0) - np.log(level)) / (np.log(e0) - np.log(e1)))


def run(
    course: str, jobs: dict[str, tuple[str, str, dict[str, Any]]], options: Any, first: int = 0
) -> tuple[Runs, dict[str, float]]:
    """Race the jobs (python, contestant, settings) on every seed; return their curves and seconds of compiling."""
    curves: Runs = {name: [] for name in jobs}
    compiling: dict[str, float] = {}
    for seed in range(first, first + options.seeds):
        runners = {
            name: Runner(
                python, course=course, contestant=who, settings=settings, seed=seed,
                seconds=options.seconds, slice_=options.slice,
            )
            for name, (python, who, settings) in jobs.items()
        }  # fmt: skip
        while any(not runner.over for runner in runners.values()):
            for runner in runners.values():
                if not runner.over:
                    runner.slice()
        for name, runner in runners.items():
            curves[name].append(np.array(runner.rows))
            compiling[name] = max(runner.compiling, compiling.get(name, 0.0))
            print(
                f"  seed {seed}  {name:40s} error {runner.rows[-1][1]:.4g}, {runner.iterations} steps, "
                f"{1000 * options.seconds / max(1, runner.iterations):.0f} ms each; compiling {runner.compiling:.0f} s",
                flush=True,
            )
    return curves, compiling


def arrival(times: np.ndarray, first: np.ndarray) -> str:
    """Return the times to a level, seed by seed, and how many times the first one's they are where both arrive."""
    if not np.isfinite(times).any():
        return "–"
    words = ", ".join(f"{each:.0f}" if np.isfinite(each) else "–" for each in times) + " s"
    both = np.isfinite(times) & np.isfinite(first)
    if not both.any():
        return words
    return f"{words} ({np.exp(np.mean(np.log(times[both] / first[both]))):.2f})"


def table(course: str, curves: Runs, seconds: float, compiling: dict[str, float]) -> str:
    """Return mean errors at times, and times to errors seed by seed, as Markdown; in brackets, ratios to the first."""
    levels = COURSES[course].levels
    arrivals = {
        name: [np.array([time_to(run, level) for run in runs]) for level in levels]
        for name, runs in curves.items()
    }
    first = next(iter(arrivals.values()))
    times = [seconds * part for part in (0.25, 0.5, 1.0)]
    head = [
        "contestant",
        *(f"at {t:.0f} s" for t in times),
        *(f"to {level:g}" for level in levels),
        "compiling",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, runs in curves.items():
        errors = [
            np.mean([np.exp(np.interp(t, run[:, 0], np.log(run[:, 1]))) for run in runs]) for t in times
        ]
        reached = [arrival(*each) for each in zip(arrivals[name], first, strict=True)]
        cells = [name, *(f"{e:.3g}" if np.isfinite(e) else "diverged" for e in errors), *reached]
        lines.append("| " + " | ".join([*cells, f"{compiling[name]:.0f} s"]) + " |")
    return "\n".join(lines)


def figure(out: Path, course: str, curves: Runs) -> None:
    """Draw error against training time, a line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    colors = {who.title: who.color for who in CONTESTANTS.values()}
    drawing, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for name, runs in curves.items():
        for number, rows in enumerate(runs):
            axes.plot(rows[:, 0], rows[:, 1], color=colors.get(name), lw=1.3, label=None if number else name)
    axes.set(xlabel="training time, s", ylabel=COURSES[course].error.replace("_", " "), yscale="log")
    axes.set_title(COURSES[course].title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    drawing.savefig(out / f"{course}.png", dpi=150)
    plt.close(drawing)


def tune(course: str, who: str, python: str, options: Any) -> None:
    """Try the contestant's grid, one setting after another, and print the errors, best first."""
    contestant = CONTESTANTS[who]
    grid = contestant.grids[course]
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    found = []
    for point in points:
        name = ", ".join(f"{field} {value:g}" for field, value in point.items())
        settings = contestant.settings[course] | point
        runs, _ = run(course, {name: (python, who, settings)}, options, TUNING_SEED)
        found.append((float(np.mean([rows[-1, 1] for rows in runs[name]])), name))
    print(f"{course}, {contestant.title}, {options.seconds:.0f} s:")
    for error, name in sorted(found, key=lambda each: (not np.isfinite(each[0]), each)):
        print(f"  {error:.4g}  {name}")


def main() -> None:
    """Race, or tune."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--courses", nargs="+", choices=COURSES, default=list(COURSES))
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=None)
    parser.add_argument("--seconds", type=float, default=120.0, help="training time of each (default 120)")
    parser.add_argument("--slice", type=float, default=5.0, help="seconds of a turn (default 5)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tune", action="store_true", help="try each contestant's grid instead")
    parser.add_argument("--kfac", metavar="PYTHON", help="the interpreter of an environment with kfac-jax")
    parser.add_argument("--out", type=Path, default=Path("runs/race"))
    options = parser.parse_args()
    names = options.contestants or [name for name in CONTESTANTS if name != "kfac" or options.kfac]
    if "kfac" in names and not options.kfac:
        parser.error("contestant kfac: expected --kfac PYTHON, found none")
    python = {name: options.kfac if name == "kfac" else sys.executable for name in names}
    options.out.mkdir(parents=True, exist_ok=True)
    for course in options.courses:
        print(f"{COURSES[course].title}, {options.seconds:.0f} s of training each", flush=True)
        able = [name for name in names if course in CONTESTANTS[name].settings]
        if options.tune:
            for name in able:
                tune(course, name, python[name], options)
            continue
        jobs = {
            CONTESTANTS[name].title: (python[name], name, CONTESTANTS[name].settings[course]) for name in able
        }
        curves, compiling = run(course, jobs, options)
        result = table(course, curves, options.seconds, compiling)
        print(result, flush=True)
        (options.out / f"{course}.md").write_text(result + "\n", encoding="utf-8")
        rows = {name: [rows.tolist() for rows in runs] for name, runs in curves.items()}
        (options.out / f"{course}.json").write_text(json.dumps(rows), encoding="utf-8")
        figure(options.out, course, curves)


if __name__ == "__main__":
    main()
