"""Reads the command line, and reports what went wrong in one line."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from natgrad_paper.errors import UserError

Thing = TypeVar("Thing")
ExperimentName = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Which one: see `natgrad list`.")]
Change = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change a setting: see `natgrad show`. Repeatable."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier run left there.")]


class Forgiving:
    """A stream that may have no reader: text that cannot be written is dropped, and training continues.

    Letters that a terminal lacks are replaced.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            return self.write(text.encode("ascii", "replace").decode())
        except (OSError, ValueError):
            self._forget()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._forget()

    def _forget(self) -> None:
        """Discard the rest: Python would write what is left when it ends, and report an error."""
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def plain_errors(experiment: str = "", out: Path | None = None) -> Iterator[None]:
    """Turn errors that a person can fix into one line and an exit code.

    Code 2 means a mistake in the request, 1 an error of the machine (a full disk, a missing permission). Codes 130,
    143 and 129 mean a run stopped by Ctrl-C, SIGTERM or a closed terminal, which `--resume` continues.
    """
    from natgrad_paper.training.stopping import Stopped

    try:
        yield
    except UserError as problem:
        code, line = 2, str(problem)
    except Stopped as stopped:
        again = shlex.join(["natgrad", "run", experiment, "--out", str(out or stopped.directory), "--resume"])
        line = f"stopped by {stopped.by.name} after a checkpoint; `{again}` continues"
        code = stopped.exit_code
    except KeyboardInterrupt:
        code, line = 130, "interrupted"
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        code, line = 1, f"{where}{problem.strerror or problem}"
    else:
        return
    complain(line)
    raise typer.Exit(code)


def complain(line: str) -> None:
    """Print a line on the error stream, if it has a reader; letters that the terminal lacks are replaced."""
    print(f"natgrad: {line}", file=Forgiving(sys.stderr))


def pick(known: Mapping[str, Thing], wanted: str, option: str) -> Thing:
    """Return the thing of that name; for an unknown name, suggest the nearest."""
    from natgrad_paper.training.settings import nearest

    if wanted not in known:
        raise UserError(f"{option}: expected {nearest(wanted, list(known))}, found {wanted!r}")
    return known[wanted]


def preset(experiment: Any, wanted: str) -> Any:
    """Return a preset, one of the experiment's or a file of the user's."""
    from natgrad_paper.training.settings import preset_file

    if wanted.endswith(".toml"):
        return preset_file(Path(wanted), experiment.settings, experiment.presets())
    return pick(experiment.presets(), wanted, "--preset")


def settings(
    experiment: Any, chosen: Any, changes: Sequence[str] | None = None, grid: Sequence[str] = ()
) -> Any:
    """Return an experiment's settings: the defaults, changed by a preset, by `--set` and by `--grid`.

    Errors name the source of what does not fit.
    """
    from natgrad_paper.training.settings import build, changed, merged, overrides

    kind = experiment.settings
    table = changed(kind, chosen.changes)
    found = build(kind, table, chosen.where)
    for option, given in (("--set", changes), ("--grid", grid)):
        if given:
            table = merged(kind, table, overrides(given, option))
            found = build(kind, table, option)
    return found


def words(text: str | None) -> tuple[str, ...]:
    """Return the words between commas, each once."""
    return tuple(dict.fromkeys(word.strip() for word in (text or "").split(",") if word.strip()))


def seeds(text: str | None) -> tuple[int, ...]:
    """Return the seeds that a count or a list stands for."""
    if text is None:
        return ()
    given = words(text)
    if not given or not all(word.isascii() and word.isdigit() for word in given):
        raise UserError(f"--seeds: expected a count or whole numbers with commas, found {text!r:.80}")
    if max(map(len, given)) > 10 or max(map(int, given)) >= 1 << 32:
        raise UserError(f"--seeds: expected whole numbers below {1 << 32}, found {text!r:.80}")
    if "," in text:
        return tuple(int(word) for word in given)
    if not 1 <= int(given[0]) <= 1000:
        raise UserError(f"--seeds: expected a count from 1 to 1000, found {text!r}")
    return tuple(range(int(given[0])))


def fresh(parent: Path, name: str) -> Path:
    """Return a directory that does not exist yet: a run never touches an older one."""
    candidate, number = parent / name, 2
    while candidate.exists():
        candidate, number = parent / f"{name}-{number}", number + 1
    return candidate


def crowded() -> str | None:
    """Return a warning if other programs keep this machine busy and nothing limits the threads of LAPACK."""
    try:
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
    except (AttributeError, OSError):  # Some systems have no load average.
        return None
    if load <= cores / 2 or "OPENBLAS_NUM_THREADS" in os.environ:
        return None
    return (
        f"this machine is busy (load {load:.1f} on {cores} cores), so the threads of LAPACK may wait for one another: "
        "set OPENBLAS_NUM_THREADS=1"
    )


def announced_cost(experiment: Any, settings: Any, methods: int, seeds: int) -> str:
    """Say how long a run will train."""
    from natgrad_paper.cli.progress import duration

    if experiment.cost is not None:
        return str(experiment.cost(settings, methods, seeds))
    budget, besides = settings.budget, "besides compiling and evaluating"
    problems = experiment.problems(settings)
    parts = [(problems, "problem")] * (problems > 1) + [(methods, "method"), (seeds, "seed")]
    runs = " × ".join(f"{number} {name}{'s' * (number > 1)}" for number, name in parts)
    trainings = problems * methods * seeds
    if budget.seconds is not None:
        total = duration(budget.seconds * trainings)
        return f"{runs} × {duration(budget.seconds)} = {total} of training, {besides}"
    runs += f" × {budget.iterations} iterations"
    if budget.step_seconds is None:
        return runs
    about = duration(budget.limit * budget.step_seconds * trainings)
    return f"{runs} of {budget.step_seconds:g} s = about {about} of training, an estimate for two cores, {besides}"
