"""The `natgrad` command: its parts, put together."""

import os
import sys
from typing import Annotated

import typer

from natgrad_paper.cli import data, report, run, show, tune

app = typer.Typer(
    name="natgrad",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="""The experiments of "Revisiting natural gradient for deep networks", one command each.

    Start with [bold]natgrad run curves[/bold]: it takes minutes on two cores, and leaves logs and a figure.""",
    epilog="[bold]natgrad run --help[/bold] has examples, [bold]natgrad list[/bold] shows what can be run.",
)
app.command(epilog=run.EXAMPLES)(run.run)
app.command()(report.report)
app.command(epilog=tune.EXAMPLE)(tune.tune)
app.command(name="list")(show.list_)
app.command()(show.show)
app.command()(data.data)


def _version(wanted: bool) -> None:
    if wanted:
        import natgrad

        typer.echo(f"natgrad {natgrad.__version__}")
        raise typer.Exit


def _open_streams() -> None:
    """Open standard streams that are closed (`>&-`); otherwise the next file would get their number and all output."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode))


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    _open_streams()
