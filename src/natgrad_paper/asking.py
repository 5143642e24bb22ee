"""Between the command line and the experiments: what was asked for, understood; what went wrong, in a line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.console import Console

from natgrad_paper.errors import UserError, naming

if TYPE_CHECKING:
    from natgrad_paper.experiment import Budget, Experiment
    from natgrad_paper.log import RunLog

Thing = TypeVar("Thing")


def show(console: Console, logs: "list[RunLog]", directory: Path) -> None:
    """Write a run's report from its logs, and show what it says."""
    from natgrad_paper import experiments, page, table

    name = logs[0].header["experiment"]
    study = experiments.load(name).study if name in experiments.names() else None
    if study is not None:
        study.show(logs, directory, console)
        return
    found = page.gather(logs)
    with naming(directory):
        paths = page.write(found, directory)
    console.print(table.summary(logs, found.view))
    if found.judged:
        console.print(table.verdicts(found.judged))
    for name, path in zip(("Report:", "Figure:", "       ", "Table: "), paths, strict=True):
        console.print(f"{name} {path}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"Logs:   {directory / 'logs'}", highlight=False, soft_wrap=True, markup=False)


@contextmanager
def plain_errors(experiment: str = "", out: Path | None = None) -> Iterator[None]:
    """Turn what a person can mend into one line and an exit code.

    2 is a mistake in what was asked for, 1 a machine that refused (a full disk, a missing permission),
    130 and 143 a run stopped by Ctrl-C or SIGTERM, which `--resume` continues.
    """
    from natgrad_paper.stop import Stopped

    try:
        yield
    except UserError as problem:
        typer.echo(f"natgrad: {problem}", err=True)
        raise typer.Exit(2) from None
    except Stopped as stopped:
        directory = out or stopped.directory
        typer.echo(
            f"natgrad: stopped by {stopped.by.name} after a checkpoint; "
            f"`natgrad run {experiment} --out {directory} --resume` continues",
            err=True,
        )
        raise typer.Exit(stopped.exit_code) from None
    except KeyboardInterrupt:
        typer.echo("natgrad: interrupted", err=True)
        raise typer.Exit(130) from None
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        typer.echo(f"natgrad: {where}{problem.strerror or problem}", err=True)
        raise typer.Exit(1) from None


@contextmanager
def processes(together: bool, experiment: str, out: Path | None) -> Iterator[None]:
    """Around a run of several processes: where it fails, this one ends at once."""
    if not together:
        yield
        return
    from natgrad_paper import distributed

    with distributed.ending(f"natgrad run {experiment} --distributed --out {out} --resume"):
        yield


def cost(experiment: "Experiment", settings: Any, methods: int, seeds: int) -> str:
    """Say how long a run will train."""
    from natgrad_paper.progress import duration

    if experiment.study is not None:
        return experiment.study.cost(settings, seeds)
    budget: Budget = settings.budget
    trainings, besides = methods * seeds, "besides compiling and evaluating"
    runs = f"{methods} method{'s' * (methods > 1)} × {seeds} seed{'s' * (seeds > 1)}"
    if budget.seconds is not None:
        return f"{runs} × {duration(budget.seconds)} = {duration(budget.seconds * trainings)} of training, {besides}"
    runs += f" × {budget.iterations} iterations"
    if budget.step_seconds is None:
        return runs
    about = duration(budget.limit * budget.step_seconds * trainings)
    return f"{runs} of {budget.step_seconds:g} s = about {about} of training, an estimate for two cores, {besides}"


def preset(known: dict[str, Path | None], wanted: str) -> tuple[str, Path | None]:
    """Return the name and the file of a preset, one of those known or a file of the user's."""
    if wanted.endswith(".toml"):
        return Path(wanted).stem, Path(wanted)
    return wanted, pick(known, wanted, "--preset")


def pick(known: dict[str, Thing], wanted: str, option: str) -> Thing:
    """Return what goes by a name; for another one the nearest is suggested."""
    from natgrad_paper.config import nearest

    if wanted not in known:
        raise UserError(f"{option}: expected {nearest(wanted, list(known))}, found {wanted!r}")
    return known[wanted]


def data_file(option: str, given: dict[str, Path | None]) -> Path | None:
    """Return the user's data file, which has to come by the option that the experiment has for it."""
    for other, path in given.items():
        if path is not None and other != option:
            raise UserError(f"{other}: expected {option} for this experiment's data, found {path}")
    return given[option]


def words(text: str | None) -> list[str]:
    """Return the words between commas, each once."""
    return list(dict.fromkeys(word.strip() for word in (text or "").split(",") if word.strip()))


def seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that a count or a list stands for."""
    from natgrad_paper import plan

    given = words(text)
    if not given or not all(word.isascii() and word.isdigit() for word in given):
        raise UserError(f"--seeds: expected a count or whole numbers with commas, found {text!r}")
    if max(map(len, given)) > 10 or max(map(int, given)) not in plan.SEEDS:
        raise UserError(f"--seeds: expected whole numbers up to {plan.SEEDS[-1]}, found {text!r:.80}")
    numbers = tuple(int(word) for word in given)
    if "," in text:
        return numbers
    if not 1 <= numbers[0] <= 1000:
        raise UserError(f"--seeds: expected a count from 1 to 1000, found {text!r}")
    return tuple(range(numbers[0]))


def fresh(parent: Path, name: str) -> Path:
    """Return a directory that does not exist yet: a run never touches an older one."""
    candidate, number = parent / name, 2
    while candidate.exists():
        candidate, number = parent / f"{name}-{number}", number + 1
    return candidate
