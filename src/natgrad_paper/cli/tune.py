"""`natgrad tune`: choose settings on validation cases, from seeds that no result uses."""

from pathlib import Path
from typing import Annotated, Any

import typer

from natgrad_paper.cli.arguments import Change, ExperimentName, pick, plain_errors, preset, settings
from natgrad_paper.errors import UserError

EXAMPLE = (
    "Example: [bold]natgrad tune curves adam --grid adam.rate=0.001,0.003,0.01 --grid adam.batch=100,200,500"
    " --set budget.seconds=20[/bold]"
)


def tune(
    experiment: ExperimentName,
    method: Annotated[str, typer.Argument(help="The method to tune.")],
    grid: Annotated[
        list[str], typer.Option(metavar="FIELD=A,B,...", help="The values to try for a field. Repeatable.")
    ],
    preset_name: Annotated[
        str, typer.Option("--preset", help="smoke, small, medium or paper; or a TOML file.")
    ] = "small",
    change: Change = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of every trial: 100 or more.")] = 100,
    data: Annotated[Path | None, typer.Option(help="The original data, which replace the generated.")] = None,
    out: Annotated[Path | None, typer.Option(help="A CSV file for the trials.")] = None,
) -> None:
    """Try every combination of a small grid; the best is the one with the least error on held-out cases."""
    with plain_errors():
        from natgrad_paper import figures
        from natgrad_paper.cli import progress
        from natgrad_paper.training import cache
        from natgrad_paper.training import tune as tuning

        console = progress.console()
        chosen = figures.load(experiment)
        if chosen.whole:
            raise UserError(f"tune: expected an experiment that compares errors, found {experiment}")
        competitor = pick({known.name: known for known in chosen.methods}, method, "method")
        base, combinations = preset(chosen, preset_name), tuning.combinations(grid)
        trials = [(each, settings(chosen, base, change, each)) for each in combinations]
        problem = chosen.prepare(trials[0][1], data)
        cache.enable()
        done = []
        with console.status("preparing…") as status:

            def watch(number: int, total: int, event: Any) -> None:
                status.update(f"trial {number + 1} of {total}, {event.fraction:.0%}")

            for trial in tuning.tune(problem, competitor, trials, seed, chosen.story.view.main.field, watch):
                done.append(trial)
                console.print(
                    f"{' '.join(trial.changes)}: validation {trial.validation:.4g}, training {trial.training:.4g}, "
                    f"{trial.iterations} iterations",
                    highlight=False,
                    soft_wrap=True,
                )
        if out is not None:
            tuning.write(out, done)
        best = min(done, key=lambda trial: trial.rank)
        words = " ".join(f"--set {word}" for word in best.changes)
        console.print(f"Best: {words}", highlight=False, soft_wrap=True)
