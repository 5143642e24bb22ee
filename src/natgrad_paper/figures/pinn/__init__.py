"""Physics-informed nets: nine equations, errors against seconds, beside what others published.

Our method runs with untouched defaults. `published.toml` has the numbers of others, with sources and machines.
"""

from functools import partial

from natgrad_paper.figures.arena.protocol import one_after_another
from natgrad_paper.figures.base import figure
from natgrad_paper.figures.pinn.claims import CLAIMS, RULE, VIEW
from natgrad_paper.figures.pinn.methods import METHODS, refusal
from natgrad_paper.figures.pinn.panels import CAPTION, draw, sections
from natgrad_paper.figures.pinn.problems import Settings, prepare
from natgrad_paper.report.story import Story

STORY = Story(
    "Physics-informed nets", VIEW, CLAIMS, figure=draw, caption=CAPTION, sections=sections, rule=RULE, diagnostics=False
)  # fmt: skip
EXPERIMENT = figure(
    "pinn", STORY, Settings, METHODS, prepare, tuple(method.name for method in METHODS),
    drive=partial(one_after_another, refusal=refusal), problems=lambda settings: len(settings.problems),
    lapack=True,
)  # fmt: skip
