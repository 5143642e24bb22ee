"""A race by the clock: KNCG against tuned first-order methods, Shampoo and its kin, kfac-jax and others.

All start from the same weights on the same data and train for the same time; compiling and evaluating do not count.
They take turns of a few seconds, so that a slow machine slows all of them. `tools/tune_race.py` picks constants, with
as many tries for each, on seeds that do not race; presets.toml says how its own came about. Only an otherwise idle
machine gives meaningful numbers.
"""

from natgrad_paper.figures.base import figure, settings_with
from natgrad_paper.figures.race.claims import CLAIMS, RULE, VIEW
from natgrad_paper.figures.race.methods import METHODS, OPTIONAL
from natgrad_paper.figures.race.problems import Settings, prepare
from natgrad_paper.report.story import Story
from natgrad_paper.training.runner import taking_turns

STORY = Story("A race by the clock", VIEW, CLAIMS, rule=RULE)
# Presets may set the constants of what is not installed, too.
EXPERIMENT = figure(
    "race",
    STORY,
    settings_with(Settings, list(OPTIONAL.values())),
    METHODS,
    prepare,
    ("kncg", "nesterov", "adam"),
    drive=lambda run: taking_turns(run, run.settings.turn),
)
