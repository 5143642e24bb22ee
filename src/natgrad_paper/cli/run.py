"""`natgrad run`: train, show the progress, and report."""

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from natgrad_paper.cli import arguments
from natgrad_paper.cli.arguments import Change, ExperimentName, Overwrite, complain, pick, plain_errors
from natgrad_paper.errors import UserError

EXAMPLES = """Examples, from seconds to days:

[bold]natgrad run curves --preset smoke[/bold]  (does everything work here?)

[bold]natgrad run curves[/bold]  (the methods of a first look, one seed, minutes)

[bold]natgrad run curves --methods all --seeds 3[/bold]  (every method there is, seeds 0 to 2)

[bold]natgrad run curves --set solver.name=minres-qlp --set budget.seconds=120[/bold]

[bold]natgrad run curves --set budget.patience=5[/bold]  (ends after 5 evaluations without a lower validation error)

[bold]natgrad run curves --preset paper --data digs3pts_1.mat[/bold]  (the original data)

[bold]natgrad run curves --out runs/curves-small --resume --seeds 5[/bold]  (resume, and extend to five seeds)

[bold]natgrad run unlabelled --data TFD_48x48.mat --set data.fold=4[/bold]  (photographs, in that file's format)

[bold]natgrad run autoencoder --data mnist/[/bold]  (MNIST, from its idx files)

[bold]natgrad run order --seeds 3[/bold]  (figure 2)

[bold]natgrad run arena --preset digits[/bold]  (one of ten problems, with nothing chosen by hand)
"""


def run(
    experiment: ExperimentName,
    preset_name: Annotated[
        str | None,
        typer.Option("--preset", help="smoke, small, medium or paper; or a TOML file. Default: small."),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Names separated by commas, or all. Default: the preset's.")
    ] = None,
    seed_words: Annotated[
        str | None,
        typer.Option(
            "--seeds", help="A count, or seeds with commas: 3 is 0,1,2; '7,' is 7 alone. Default: 1."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for logs and figure. Default: a new one below runs/.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The original data, which replace the generated: a file or directory.")
    ] = None,
    change: Change = None,
    overwrite: Overwrite = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume the run in --out, with its settings; new methods and seeds are added.",
        ),
    ] = False,
) -> None:
    """Train every method, show how it goes, and leave logs, a report, a figure and a table."""
    with plain_errors(experiment, out), ExitStack() as claim:
        from natgrad_paper import figures
        from natgrad_paper.cli import progress
        from natgrad_paper.cli.report import show_report
        from natgrad_paper.training import cache, log, request
        from natgrad_paper.training.directory import Claimed, clear, prepare_directory
        from natgrad_paper.training.runner import Run, with_validation
        from natgrad_paper.training.settings import build, stated
        from natgrad_paper.training.source import fits

        console = progress.console()
        chosen = figures.load(experiment)
        by_name = {method.name: method for method in chosen.methods}
        names = tuple(by_name) if methods == "all" else arguments.words(methods)
        numbers = arguments.seeds(seed_words)
        for word in names:
            pick(by_name, word, "--methods")
        if resume:
            if out is None or change or overwrite:
                raise UserError("--resume: expected --out DIR, without --set and --overwrite")
            request.read(out)  # Only the directory of a run gets a lock.
            claim.enter_context(Claimed(out))
            directory, asked = out, request.read(out).extended(names, numbers)
            if asked.experiment != experiment:
                raise UserError(f"{out}: expected a run of {experiment}, found one of {asked.experiment}")
            if preset_name not in (None, asked.preset):
                words = f"expected {asked.preset!r}, the preset of the run to resume, found {preset_name!r}"
                raise UserError(f"--preset: {words}")
            where = str(out / request.NAME)
            used = build(chosen.settings, asked.settings, where)
        else:
            base = arguments.preset(chosen, preset_name or "small")
            used, where = arguments.settings(chosen, base, change), base.where
            directory = out or arguments.fresh(Path("runs"), f"{chosen.name}-{base.name}")
            asked = request.Request(
                experiment=chosen.name,
                preset=base.name,
                methods=names or base.methods or chosen.first_look,
                seeds=numbers or (0,),
                data="" if data is None else str(data.absolute()),
                settings=stated(used),
            )
        for word in asked.methods:
            pick(by_name, word, f"{where}: methods")
        if chosen.whole and set(asked.methods) != set(by_name):
            known = ", ".join(by_name)
            raise UserError(f"--methods: expected all of {known} for {experiment}, found {methods}")
        file = data or (Path(asked.data) if asked.data else None)
        problem = chosen.prepare(used, file)
        if resume:
            log.same_data(directory, problem.data["sha256"])
            asked = asked.model_copy(update={"data": str(file.absolute()) if file else ""})
        if file is not None:
            problem = dataclasses.replace(problem, data={**problem.data, "file": file.name})
        competitors = tuple(by_name[name] for name in asked.methods)
        for method in competitors:
            fits(
                with_validation(problem, used), method, method.own(used), where + " and --set" * bool(change)
            )
        if not resume:
            prepare_directory(directory, overwrite, request.NAME)
            claim.enter_context(Claimed(directory))
            # Another command may have claimed the directory first.
            prepare_directory(directory, overwrite, request.NAME)
            clear(directory)
        request.write(directory, asked)
        cache.enable()
        what = f"{escape(problem.data['name'])}, preset {escape(asked.preset)}"
        console.print(f"[bold]{chosen.title}[/bold] on {what}", highlight=False)
        price = arguments.announced_cost(chosen, used, len(competitors), len(asked.seeds))
        console.print(price, highlight=False)
        if chosen.lapack and (warning := arguments.crowded()):
            complain(warning)
        problems = chosen.problems(used)
        trainings = problems and problems * len(competitors) * len(asked.seeds)
        with progress.display(console, trainings, chosen.story.view.main) as display:
            whole = Run(
                chosen.name, asked.preset, used, problem, chosen.methods, competitors, asked.seeds, directory,
                display, resume,
            )  # fmt: skip
            with whole.signals:
                failures = chosen.drive(whole)
        show_report(console, directory)
        for failure in failures:
            complain(failure)
        if failures:
            raise typer.Exit(1)
