"""The report in short, on the screen: errors and times, the claims judged, and where the files are."""

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from natgrad_paper.report import parts, provenance, tables
from natgrad_paper.report.claims import Judged, Verdict
from natgrad_paper.report.figure import grouped
from natgrad_paper.report.load import Runs
from natgrad_paper.report.story import Story

COLORS = {Verdict.HOLDS: "green", Verdict.FAILS: "red"}
"""All others are yellow: they say nothing for a claim and nothing against it."""
SPELLED = str.maketrans({
    "–": "-", "−": "-", "’": "'", "“": '"', "”": '"', "…": "...", "×": "x", "±": "+/-", "·": "*", "½": "1/2", "²": "^2",
    "ᵀ": "^T", "λ": "lambda", "ρ": "rho", "θ": "theta", "β": "beta", "δ": "delta", "é": "e", "ü": "ue", "ö": "oe",
})  # fmt: skip
"""What stands for a letter on a terminal that lacks it."""


def show(console: Console, runs: Runs, story: Story, judged: Sequence[Judged], paths: Sequence[Path]) -> None:
    """Print the results in short, the verdicts, and the paths of what was written."""
    if (found := results(runs, story)) is not None:
        names = f"{runs.header['data']['name']}, preset {provenance.presets(runs)}"
        several = len(runs.seeds) > 1
        seeds = f"means over {len(runs.seeds)} seeds" if several else f"seed {runs.seeds[0]}"
        shown = Table(title=spelled(f"{names}, {seeds}", console), title_justify="left", box=box.SIMPLE_HEAD)
        for k, name in enumerate(found.head):
            shown.add_column(
                spelled(name, console), justify="right" if k else "left", overflow="fold", no_wrap=not k
            )
        for row in found.rows:
            texts = [each.text if isinstance(each, parts.Cell) else str(each) for each in row]
            shown.add_row(*(Text(spelled(text.replace("not measured", "–"), console)) for text in texts))
        console.print(shown)
    if judged:
        console.print(verdicts(judged, console))
    for path in paths:
        console.print(spelled(str(path), console), highlight=False, soft_wrap=True, markup=False)


def results(runs: Runs, story: Story) -> parts.Table | None:
    """Return the table of results without times to errors, with steps and seconds; or else the story's first table."""
    found, time = tables.results(runs, story.view, grouped(runs.methods, story.groups)), tables.time(runs)
    if found is None or time is None:
        contents = (content for part in story.sections(runs) for content in part.contents)
        return next((content for content in contents if isinstance(content, parts.Table)), None)
    kept = 1 + sum(not name.startswith(tables.SECONDS.name) for name in found.head[1:])
    clocks = {str(row[0]): [row[-2], row[1]] for row in time.rows}
    rows = [[*row[:kept], *clocks.get(str(row[0]), ["–", "–"])] for row in found.rows]
    return parts.Table([*found.head[:kept], "steps", "training, s"], rows)


def verdicts(judged: Sequence[Judged], console: Console) -> Table:
    """Return the claims and what the logs say about them; of what was measured, only why findings are void."""
    table = Table(title="Claims", title_justify="left", box=box.SIMPLE_HEAD, show_header=False)
    for column in ("", "claim", "verdict"):
        table.add_column(
            column, overflow="fold", min_width=len(Verdict.FAILS) if column == "verdict" else None
        )
    for each in judged:
        words = Text(spelled(each.claim.words, console))
        for finding in each.findings:
            if finding.verdict is Verdict.VOID:
                words.append(spelled(f"\n{finding.words}", console), "dim")
        table.add_row(f"({each.claim.key})", words, Text(each.words, COLORS.get(each.verdict, "yellow")))
    return table


def spelled(text: str, console: Console) -> str:
    """Return a text as the console can show it: on one without Unicode, letters that it lacks are spelled out."""
    if console.encoding.startswith("utf"):
        return text
    return text.translate(SPELLED).encode("ascii", "backslashreplace").decode()
