"""The arena: ten small problems of ten kinds, and today's optimizers with nothing chosen by hand.

Each problem takes 20 s per method, and its data are generated or come with a package. The question is what one
default is worth: how many problems a method solves, and how soon compared with the fastest. Tuned methods run too,
for comparison: a target is what tuned AdamW reaches. `tools/measure_arena.py` measures it.
"""

from functools import partial

from natgrad_paper.figures.arena.claims import CLAIMS, RULE, VIEW
from natgrad_paper.figures.arena.measured import NAMES
from natgrad_paper.figures.arena.methods import METHODS, UNTUNED, refusal
from natgrad_paper.figures.arena.panels import CAPTION, draw, sections
from natgrad_paper.figures.arena.problems import Settings, prepare, problem_forms
from natgrad_paper.figures.arena.protocol import one_after_another
from natgrad_paper.figures.base import figure
from natgrad_paper.report.story import Story
from natgrad_paper.training.settings import Preset

STORY = Story(
    "The arena: ten problems, nothing chosen by hand", VIEW, CLAIMS, figure=draw, caption=CAPTION, sections=sections,
    rule=RULE, diagnostics=False,
)  # fmt: skip
ONE_EACH = tuple(
    Preset(name, f"one problem: {name}", (), {"problems": [name]}, f"the preset {name}") for name in NAMES
)
"""A preset per problem, for a look or for tuning."""
EXPERIMENT = figure(
    "arena", STORY, Settings, METHODS, prepare, tuple(method.name for method in UNTUNED),
    drive=partial(one_after_another, refusal=refusal), problems=lambda settings: len(list(problem_forms(settings))),
    also=ONE_EACH,
)  # fmt: skip
