"""The `natgrad` command. Heavy imports wait until a command needs them, so that `--help` is quick."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from natgrad_paper import asking
from natgrad_paper.errors import UserError

if TYPE_CHECKING:
    from natgrad_paper.train import Event

app = typer.Typer(
    name="natgrad",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="""The experiments of "Revisiting natural gradient for deep networks", one command each.

    Start with [bold]natgrad run curves[/bold]: minutes on two cores, then logs and a figure.""",
    epilog="[bold]natgrad run --help[/bold] has examples, [bold]natgrad list[/bold] all there is to run.",
)

RUN_EXAMPLES = """Examples, from seconds to days:

[bold]natgrad run curves --preset smoke[/bold]  (does everything work here?)

[bold]natgrad run curves[/bold]  (the four methods of a first look, one seed, minutes)

[bold]natgrad run curves --methods all --seeds 3[/bold]  (every method there is, seeds 0 to 2)

[bold]natgrad run curves --methods ngd,ncg-l --seeds 5[/bold]

[bold]natgrad run curves --preset medium[/bold]  (all the data, the six most telling methods, 40 minutes a seed)

[bold]natgrad run curves --set solver.name=minres-qlp --set budget.seconds=120[/bold]

[bold]natgrad run curves --set budget.patience=5[/bold]  (ends where validation got no better in 5 evaluations)

[bold]natgrad run curves --preset paper --data digs3pts_1.mat[/bold]  (the original data)

[bold]natgrad run curves --out runs/curves-small --resume --seeds 5[/bold]  (go on, and to five seeds)

[bold]natgrad run unlabelled --seeds 5[/bold]  (figure 1, on drawn faces)

[bold]natgrad run unlabelled --data TFD_48x48.mat --set data.fold=4[/bold]  (on photographs, in that file's format)

[bold]natgrad run autoencoder --data mnist/[/bold]  (MNIST, from its idx files; a file of faces with --preset faces)

[bold]natgrad run order --seeds 3[/bold]  (figure 2: 5 to 15 minutes a seed)

[bold]srun natgrad run curves --distributed --out runs/many[/bold]  (one training at a time, on all of a job's devices)
"""

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier run left there.")]


def main() -> None:
    """Run the command."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        import natgrad

        typer.echo(f"natgrad {natgrad.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass


@app.command(epilog=RUN_EXAMPLES)
def run(
    experiment: Annotated[str, typer.Argument(help="Which one: see `natgrad list`.")],
    preset: Annotated[
        str | None, typer.Option(help="smoke, small, medium or paper; or a TOML file. Default: small.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Names with commas between them, or all. Default: the preset's.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="A count, or seeds with commas: 3 is 0,1,2; '7,' is 7 alone. Default: 1."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for logs and figure. Default: a new one below runs/.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The original data, instead of the generated: a file or directory.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Of order: other characters, .npz or .mat, instead of the embedded.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the preset. Repeatable."),
    ] = None,
    overwrite: Overwrite = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in --out, with its settings; new methods and seeds are added.",
        ),
    ] = False,
    together: Annotated[
        bool,
        typer.Option(
            "--distributed", help="One of several processes: Slurm, Kubernetes and Cloud TPU are detected."
        ),
    ] = False,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where process 0 is, if not detected.")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="How many there are, if not detected.")] = None,
    process: Annotated[int | None, typer.Option(min=0, help="Which this is, if not detected.")] = None,
) -> None:
    """Train every method, show how it goes, and leave logs, a report, a figure and a table."""
    console = Console()
    with (
        asking.processes(together, experiment, out),
        asking.plain_errors(experiment + " --distributed" * together, out),
    ):
        from natgrad_paper import cache, distributed, experiments, log, plan, progress
        from natgrad_paper import run as runner

        if not together and (coordinator, processes, process) != (None, None, None):
            raise UserError(
                "--coordinator, --processes, --process: expected --distributed beside them, found none"
            )
        if together and out is None:
            raise UserError("--distributed: expected --out DIR, a directory that all processes see")
        place = distributed.start(coordinator, processes, process) if together else distributed.ALONE
        console.quiet = not place.leads
        chosen = experiments.load(experiment)
        by_name = {method.name: method for method in chosen.methods}
        names = tuple(by_name) if methods == "all" else tuple(asking.words(methods))
        for word in names:
            asking.pick(by_name, word, "--methods")
        numbers = () if seeds is None else asking.seeds(seeds)
        file = asking.data_file(chosen.option, {"--data": data, "--source": source})
        if resume:
            if out is None or preset or change or overwrite:
                raise UserError("--resume: expected --out DIR, without --preset, --set and --overwrite")
            before = plan.read(out)
            if before.experiment != experiment:
                raise UserError(f"{out}: expected a run of {experiment}, found one of {before.experiment}")
            request = before.extended(names, numbers)
            where, directory = out / plan.NAME, out
            for word in request.methods:
                asking.pick(by_name, word, f"{where}: methods")
        else:
            name, path = asking.preset(chosen.presets(), preset or "small")
            where = path or Path(name)
            directory = out or asking.fresh(Path("runs"), f"{chosen.name}-{name}")
            request = plan.asked(chosen, name, path, change or (), names, numbers or (0,), file)
        if chosen.study is not None and set(request.methods) != set(by_name):
            raise UserError(
                f"--methods: expected all of {', '.join(by_name)} for {experiment}, found {methods}"
            )
        settings = plan.settings(chosen, request, where)
        file = file or (Path(request.data) if request.data else None)
        prepare = partial(distributed.prepare, chosen) if together else chosen.prepare
        problem = prepare(settings, file)
        if file is not None:
            problem = dataclasses.replace(problem, data={**problem.data, "file": file.name})
        if place.leads:
            if not resume:
                runner.prepare_directory(directory, overwrite)
            plan.write(directory, request)
        place.wait("directory")
        cache.enable()

        competitors = [by_name[name] for name in request.methods]
        place.check(competitors)
        trainings = len(competitors) * len(request.seeds)
        console.print(
            f"[bold]{chosen.title}[/bold] on {escape(problem.data['name'])}, preset {escape(request.preset)}",
            highlight=False,
        )
        console.print(asking.cost(chosen, settings, len(competitors), len(request.seeds)), highlight=False)
        whole = runner.Plan(chosen, request.preset, settings, competitors, request.seeds, place=place)
        if chosen.study is not None:
            failures = chosen.study.run(whole, problem, directory, console, resume)
        else:
            with progress.display(console, trainings, chosen.view.main) as display:
                failures = runner.run(whole, problem, directory, display, resume)
        if place.leads:
            asking.show(console, log.read_all(directory), directory)
        place.wait("report")
        for failure in failures:
            typer.echo(f"natgrad: {failure}", err=True)
        if failures:
            raise typer.Exit(1)


@app.command()
def report(directory: Annotated[Path, typer.Argument(help="The directory of a run.")]) -> None:
    """Write a run's report again, from its logs: the page, the figure, the table, and the claims judged."""
    with asking.plain_errors():
        from natgrad_paper import log

        asking.show(Console(), log.read_all(directory), directory)


@app.command(
    epilog="Example: [bold]natgrad tune curves adam --grid adam.rate=0.001,0.003,0.01 --grid adam.batch=100,200,500"
    " --set budget.seconds=20[/bold]"
)
def tune(
    experiment: Annotated[str, typer.Argument(help="Which one: see `natgrad list`.")],
    method: Annotated[str, typer.Argument(help="The method to tune.")],
    grid: Annotated[
        list[str], typer.Option(metavar="FIELD=A,B,…", help="The values to try for a field. Repeatable.")
    ],
    preset: Annotated[str, typer.Option(help="smoke, small, medium or paper; or a TOML file.")] = "small",
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the preset. Repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Where every trial starts.")] = 0,
    data: Annotated[Path | None, typer.Option(help="The original data, instead of the generated.")] = None,
    out: Annotated[Path | None, typer.Option(help="A CSV file for the trials.")] = None,
) -> None:
    """Try every combination of a small grid; the best is the one with the least error on held-out cases."""
    console = Console()
    with asking.plain_errors():
        from natgrad_paper import cache, experiments
        from natgrad_paper import tune as tuning

        chosen = experiments.load(experiment)
        if chosen.study is not None:
            raise UserError(f"tune: expected an experiment that compares errors, found {experiment}")
        competitor = asking.pick({known.name: known for known in chosen.methods}, method, "method")
        _, path = asking.preset(chosen.presets(), preset)
        cache.enable()
        trials = []
        with console.status("preparing…") as status:

            def watch(number: int, total: int, event: "Event") -> None:
                status.update(f"trial {number + 1} of {total}, {event.fraction:.0%}")

            for trial in tuning.tune(chosen, path, competitor, change or (), grid, seed, data, watch):
                trials.append(trial)
                console.print(
                    f"{' '.join(trial.changes)}: validation {trial.validation:.4g}, training {trial.training:.4g}, "
                    f"{trial.iterations} iterations",
                    highlight=False,
                    soft_wrap=True,
                )
        if out is not None:
            tuning.write(out, trials)
        best = min(trials, key=lambda trial: trial.rank)
        console.print(
            "Best: " + " ".join(f"--set {word}" for word in best.changes), highlight=False, soft_wrap=True
        )


@app.command(name="list")
def list_() -> None:
    """List the experiments, their methods and their presets."""
    with asking.plain_errors():
        from natgrad_paper import experiments, plan

        console = Console()
        for name in experiments.names():
            experiment = experiments.load(name)
            console.print(f"[bold]{name}[/bold]  {experiment.title}", highlight=False)
            table = Table(box=None, show_header=False, padding=(0, 2))
            for method in experiment.methods:
                table.add_row("method", method.name, method.label, method.about)
            for preset, path in experiment.presets().items():
                settings, methods = plan.standard(experiment, path)
                table.add_row("preset", preset, "", asking.cost(experiment, settings, len(methods), 1))
            console.print(table)


@app.command()
def data(
    name: Annotated[str, typer.Argument(help="Which data: curves.")],
    out: Annotated[Path, typer.Option(help="The file to write: .mat or .npz.")],
    seed: Annotated[int, typer.Option(min=0, help="The seed it is generated from.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Generate a data set and write it to a file that `natgrad run --data` reads."""
    with asking.plain_errors():
        from natgrad_paper.config import nearest
        from natgrad_paper.data import curves, curves_file

        if name != "curves":
            raise UserError(f"data: expected {nearest(name, ['curves'])}, found {name!r}")
        if out.exists() and not overwrite:
            raise UserError(
                f"{out}: expected no such file, found one; choose another name or add --overwrite"
            )
        images = curves.generate(seed)
        curves_file.write(out, images)
        typer.echo(
            f"{out}: {images.name}, {len(images.train)} + {len(images.test)} images, sha256 {images.sha256()}"
        )
