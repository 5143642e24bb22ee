"""How figures look: the house style of matplotlib, files that depend on the drawing alone, and SVG for a page."""

import colorsys
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from natgrad_paper.series import Runs

INK, SOFT, GRID, FAINT, PAPER = "#222222", "#666666", "#dddddd", "#eeeeee", "#ffffff"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "svg.hashsalt": "natgrad",  # identifiers in the SVG then depend on the drawing alone
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
}
DASHES: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("solid", ()),
    ("dashed", (4.5, 1.6)),
    ("dotted", (1.2, 1.2)),
    ("dash-dotted", (6, 1.5, 1.2, 1.5)),
)
"""One for each group of methods, the last for all further ones."""
NO_METADATA = {"svg": dict.fromkeys(("Date", "Creator", "Format", "Type")), "png": {"Software": None}}


@dataclass(frozen=True)
class Group:
    """Methods that belong together in a legend, drawn with the same dashes."""

    title: str
    drawn: str
    """The dashes in a word."""
    dashes: tuple[float, ...]
    runs: tuple[Runs, ...]

    @property
    def style(self) -> Any:
        """The dashes as matplotlib takes them."""
        return (0, self.dashes) if self.dashes else "-"


def grouped(runs: Sequence[Runs], groups: Sequence[tuple[str, Sequence[str]]]) -> list[Group]:
    """Return the methods by group, those in none of them in a last one; groups without runs are left out."""
    named = {name for _, names in groups for name in names}
    rest = tuple(group.name for group in runs if group.name not in named)
    parts = [*groups, ("Further methods" if groups else "Methods", rest)]
    found = [
        Group(title, *DASHES[min(k, len(DASHES) - 1)], tuple(group for group in runs if group.name in names))
        for k, (title, names) in enumerate(parts)
    ]
    return [group for group in found if group.runs]


def blank(width: float, height: float) -> Figure:
    """Return an empty figure, in inches."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def color(runs: Runs) -> str:
    """Return a method's color; whatever is not six hexadecimal digits is drawn gray."""
    return runs.color.lower() if re.fullmatch(r"#[0-9a-fA-F]{6}", str(runs.color)) else "#808080"


def dress(panel: Axes) -> None:
    """Give a panel the house's grid, spines and tick labels; call it when its limits are set."""
    panel.grid(which="major", color=GRID, lw=0.7)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    for name, axis in (("x", panel.xaxis), ("y", panel.yaxis)):
        if axis.get_scale() != "log":
            continue
        low, high = axis.get_view_interval()
        decades = np.log10(high / low) if low > 0 else 0
        axis.set_major_formatter(FuncFormatter(plain))
        axis.set_minor_formatter(NullFormatter())
        # Over less than about two decades a tick a decade says too little.
        if decades < 2:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades > 0.9 else (1, 1.5, 2, 3, 4, 6)))
        elif name == "y":
            panel.grid(which="minor", axis="y", color=FAINT, lw=0.5)


def plain(value: float, _: Any = None) -> str:
    """Return a number as a tick label."""
    if 10 <= value < 1e5:
        return f"{value:,.0f}".replace(",", " ")
    return (
        f"{value:.0e}".replace("e-0", "e−").replace("e+0", "e")
        if value >= 1e5 or value < 1e-3
        else f"{value:g}"
    )


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as the ending of its name says, without dates or anything else that changes."""
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, dpi=160, metadata=NO_METADATA[path.suffix[1:]])
    return path


def inline(figure: Figure, name: str, description: str) -> str:
    """Return a figure as an SVG element for a page, with its colors as the page's variables.

    Identifiers get the name as a prefix, since a page may hold several figures.
    """
    stream = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(stream, format="svg", metadata=NO_METADATA["svg"], transparent=True)
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    for unwanted in (r"<metadata>.*?</metadata>", r"<defs>\s*<style.*?</style>\s*</defs>", r"<!--.*?-->"):
        text = re.sub(unwanted, "", text, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', text)
    head = f'<svg {box.group() if box else ""} role="img" aria-label="{escape(description)}">'
    text = re.sub(r"<svg.*?>", lambda _: head, text, count=1, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'xlink:href="#', f'href="#{name}-', text)
    text = re.sub(r"\b(fill|stroke): #([0-9a-f]{6})\b", r"\1: var(--c\2)", text)
    text = re.sub(r"(font: [^;\"]*?)'DejaVu Sans'[^;\"]*", r"\1var(--sans)", text)
    return re.sub(r"\n\s*", "\n", text).strip()


def palette(page: str, dark: bool) -> str:
    """Return CSS that gives the variables of a page's colors their values, on light or on dark ground."""
    used = sorted(set(re.findall(r"var\(--c([0-9a-f]{6})\)", page)))
    return "".join(f"--c{code}:{on_dark('#' + code) if dark else '#' + code};" for code in used)


def on_dark(code: str) -> str:
    """Return a color as it is on dark ground: grays turned over, others as light as reading them takes."""
    red, green, blue = (int(code[k : k + 2], 16) / 255 for k in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    turned = max(0.95 - 0.87 * light, 0.58 if light < 0.75 else 0.0)
    parts = colorsys.hls_to_rgb(hue, turned if saturation < 0.05 else max(light, 0.62), saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)
