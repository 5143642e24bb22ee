"""A short report for the screen: errors, times and the judged claims. Any terminal can show it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from natgrad_paper.report import claims, parts, provenance
from natgrad_paper.report import tables as numbers
from natgrad_paper.report.claims import Judged, Verdict
from natgrad_paper.report.figure import grouped
from natgrad_paper.report.load import Runs
from natgrad_paper.report.story import Story
from natgrad_paper.training.settings import CHOOSING

SHOWN = 6
"""Columns of a story's own table that fit a screen."""
COLORS = {Verdict.HOLDS: "green", Verdict.FAILS: "red"}
"""All other verdicts are yellow: they speak neither for a claim nor against it."""
LONGER = {"…": "...", "±": "+/-", "½": "1/2", "²": "^2", "ᵀ": "^T", "λ": "lambda", "ρ": "rho", "θ": "theta"}
SPELLED = str.maketrans("–−’“”×éèäöü", '--\'""xeeaou') | str.maketrans(LONGER)
"""Replacements for letters that a terminal lacks."""


@dataclass(frozen=True)
class Shown:
    """A table of words, each with a style. On a terminal without Unicode, letters that it lacks are spelled out."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[tuple[str, str]]]
    numbers: bool
    note: str = ""
    """What stands below the table, or below the title alone if there are no rows."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plain = not options.encoding.startswith("utf")

        def words(text: str) -> str:
            return text.translate(SPELLED).encode("ascii", "replace").decode() if plain else text

        looks: dict[str, Any] = {"box": box.SIMPLE_HEAD, "show_header": self.numbers, "pad_edge": False}
        table = Table(title=words(self.title), title_justify="left", **looks)
        for k, name in enumerate(self.head):
            broken, right = (k > 0 if self.numbers else k == 1), self.numbers and k > 0
            whole = [*name.split(), *(row[k][0] for row in self.rows if self.numbers)]
            table.add_column(
                words(name), overflow="fold", no_wrap=not broken, justify="right" if right else "left",
                min_width=max(map(len, whole), default=0),
            )  # fmt: skip
        for row in self.rows:
            table.add_row(*(Text(words(text), style) for text, style in row))
        yield table if self.rows else Text(words(self.title))
        if self.note:
            yield Text(words(self.note))


def tables(runs: Runs, story: Story) -> list[Shown]:
    """Return a short table of results, and the verdicts on what the runs ask; of the findings, only the void ones."""
    found, shown = _results(runs, story), []
    if found is not None:
        seeds = f"means over {len(runs.seeds)} seeds" if len(runs.seeds) > 1 else f"seed {runs.seeds[0]}"
        title = f"{runs.header['data']['name']}, preset {provenance.presets_used(runs)}, {seeds}"
        texts = [
            [each.text if isinstance(each, parts.Cell) else str(each) for each in row] for row in found.rows
        ]
        rows = [[("–" if text == "not measured" else text, "") for text in row] for row in texts]
        shown.append(Shown(title, found.head, rows, True))
    verdicts, judged = [], claims.judge(story.claims, runs)
    for each in judged:
        if undecidable(each, runs):
            continue
        voids = (found.words for found in each.findings if found.verdict is Verdict.VOID)
        causes = dict.fromkeys("void: " + words.rpartition("void: ")[2] for words in voids)
        words = "\n".join([each.claim.words, *causes])
        color = COLORS.get(each.verdict, "yellow")
        verdicts.append([(f"({each.claim.key})", ""), (words, ""), (each.words, color)])
    last = Shown("Claims", ("", "claim", "verdict"), verdicts, False, rest(judged, runs))
    return [*shown, last] if judged else shown


def undecidable(judged: Judged, runs: Runs) -> bool:
    """Whether the runs cannot decide a claim: methods are missing, or seeds are too few."""
    few = len(runs.seeds) < claims.SEEDS and judged.verdict is Verdict.OPEN
    return few or judged.verdict is Verdict.ABSENT


def rest(judged: Sequence[Judged], runs: Runs) -> str:
    """Return in words which claims the runs cannot decide; an empty text if there are none."""
    if not runs.judged:
        return f"No claim is judged: seeds from {CHOOSING} on are for choosing settings."
    left = [each for each in judged if undecidable(each, runs)]
    few = [each.claim.key for each in left if each.verdict is Verdict.OPEN]
    absent = [each.claim.key for each in left if each.verdict is Verdict.ABSENT]
    lines = (f"Not decided with fewer than {claims.SEEDS} seeds", few), ("Not asked by this run", absent)
    return "\n".join(f"{words}: {provenance.listed(keys)}." for words, keys in lines if keys)


def _results(runs: Runs, story: Story) -> parts.Table | None:
    """Return the table of results without times to errors, with steps and seconds; or else the story's first table."""
    found, time = numbers.summary(runs, story.view, grouped(runs.methods, story.groups)), numbers.time(runs)
    if found is None or time is None:
        contents = (content for part in story.sections(runs) for content in part.contents)
        first = next((content for content in contents if isinstance(content, parts.Table)), None)
        return first and parts.Table(first.head[:SHOWN], [row[:SHOWN] for row in first.rows])
    kept = 1 + sum(not name.startswith(numbers.SECONDS.name) for name in found.head[1:])
    clocks = {str(row[0]): [row[-2], row[1]] for row in time.rows}
    rows = [[*row[:kept], *clocks.get(str(row[0]), ["–", "–"])] for row in found.rows]
    return parts.Table([*found.head[:kept], "steps", "training, s"], rows)
