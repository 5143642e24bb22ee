"""A race by the clock: KNCG and Hessian-Free against Adam, Nesterov momentum, L-BFGS and kfac-jax, on three problems.

All start from the same weights on the same data and train for the same time; compiling and evaluating do not count.
They take turns of a few seconds, so that a slow machine slows all of them. Constants come from
`natgrad tune race METHOD --preset PROBLEM`, on seeds that do not race. Only an otherwise idle machine gives
meaningful numbers.
"""

from natgrad_paper.figures.base import figure, settings_with
from natgrad_paper.figures.race.claims import CLAIMS, RULE, VIEW
from natgrad_paper.figures.race.methods import KFAC, METHODS
from natgrad_paper.figures.race.problems import Settings, prepare
from natgrad_paper.report.story import Story
from natgrad_paper.training.runner import taking_turns

STORY = Story("A race by the clock", VIEW, CLAIMS, rule=RULE)
# Presets may set the constants of kfac-jax where it is not installed, too.
EXPERIMENT = figure(
    "race",
    STORY,
    settings_with(Settings, [KFAC]),
    METHODS,
    prepare,
    ("kncg", "nesterov", "adam"),
    drive=lambda run: taking_turns(run, run.settings.turn),
)
