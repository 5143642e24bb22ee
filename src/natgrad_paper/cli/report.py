"""`natgrad report`: write the page, the figure, the table and the claims again from the logs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from natgrad_paper.cli.arguments import plain_errors, settings


def report(directory: Annotated[Path, typer.Argument(help="The directory of a run.")]) -> None:
    """Write a run's report again, from its logs: the page, the figure, the table, and the claims judged."""
    with plain_errors():
        from natgrad_paper.cli import progress

        show_report(progress.console(), directory)


def show_report(console: Any, directory: Path) -> None:
    """Write a run's report from its logs, and show what it says."""
    from natgrad_paper import figures
    from natgrad_paper.errors import naming
    from natgrad_paper.report import load, page, screen
    from natgrad_paper.report.story import Story

    runs = load.read(directory)
    known = figures.load(runs.experiment) if runs.experiment in figures.names() else None
    presets = {
        name: settings(known, preset).model_dump(mode="json")
        for name, preset in (known.presets() if known else {}).items()
    }
    story = Story(runs.experiment) if known is None else known.story
    with naming(directory):
        written = page.write(runs, story, directory, presets)
    for table in screen.tables(runs, story):
        console.print(table)
    for path in (*written, directory / "logs"):
        console.print(str(path), highlight=False, soft_wrap=True, markup=False)
