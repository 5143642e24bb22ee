"""`natgrad list` and `natgrad show`: what there is to run, and every setting with its meaning."""

from typing import Annotated, Any

import typer
from rich import box
from rich.table import Column, Table
from rich.text import Text

from natgrad_paper.cli.arguments import ExperimentName, announced_cost, pick, plain_errors, settings


def list_(
    experiment: Annotated[
        str | None, typer.Argument(help="List the methods and presets of this one.")
    ] = None,
) -> None:
    """List the experiments; with a name, its methods and its presets with what they cost."""
    with plain_errors():
        from natgrad_paper import figures
        from natgrad_paper.cli import progress

        console = progress.console()
        if experiment is not None:
            for table in _contents(figures.load(experiment)):
                console.print(table)
            return
        table = Table("experiment", "", "presets", box=box.SIMPLE_HEAD)
        for name in figures.names():
            found = figures.load(name)
            table.add_row(name, Text(found.title), Text(", ".join(found.presets())))
        console.print(table)
        more = "natgrad list EXPERIMENT shows its methods; natgrad show EXPERIMENT shows its settings."
        console.print(more, highlight=False)


def _contents(experiment: Any) -> list[Table]:
    methods = Table("method", "", "", title=experiment.title, title_justify="left", box=box.SIMPLE_HEAD)
    for method in experiment.methods:
        methods.add_row(method.name, Text(method.label), Text(method.about))
    presets = Table("preset", "", "cost of one seed", box=box.SIMPLE_HEAD)
    for name, preset in experiment.presets().items():
        count = len(preset.methods or experiment.first_look)
        price = announced_cost(experiment, settings(experiment, preset), count, 1)
        presets.add_row(name, Text(preset.about), Text(price))
    return [methods, presets]


def show(
    experiment: ExperimentName,
    preset_name: Annotated[str, typer.Argument(metavar="[PRESET]", help="One of its presets.")] = "small",
) -> None:
    """Show every setting of an experiment: its meaning, its default and its value in a preset."""
    with plain_errors():
        from natgrad_paper import figures
        from natgrad_paper.cli import progress
        from natgrad_paper.training.settings import described

        chosen = figures.load(experiment)
        used = settings(chosen, pick(chosen.presets(), preset_name, "preset"))
        title = f"{chosen.title}, preset {preset_name}"
        columns = (Column(name, overflow="fold") for name in ("setting", "value", "default", "meaning"))
        table = Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for name, about, default, value in described(used, chosen.settings.model_construct()):
            changed = "bold" if value != default else "dim"
            table.add_row(name, Text(_word(value), changed), Text(_word(default), "dim"), Text(about))
        progress.console().print(table)


def _word(value: Any) -> str:
    return "–" if value is None else ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
