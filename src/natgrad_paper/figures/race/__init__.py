"""A race by the clock: KNCG and Hessian-Free against Adam, Nesterov momentum, L-BFGS and kfac-jax, on three problems.

All start from the same weights on the same data and train for the same time; compiling and evaluating do not count.
They take turns of a few seconds, so that whatever slows the machine down slows all of them. Constants come from
`natgrad tune race METHOD --preset PROBLEM`, on seeds that do not race. Only an otherwise idle machine gives meaningful
numbers.
"""

from pathlib import Path

from natgrad_paper.figures.base import Experiment, settings_with
from natgrad_paper.figures.race.claims import CLAIMS, RULE, VIEW
from natgrad_paper.figures.race.methods import KFAC, METHODS
from natgrad_paper.figures.race.problems import Settings, prepare
from natgrad_paper.report.story import Story
from natgrad_paper.training.runner import Run, taking_turns

TITLE = "A race by the clock"


def drive(run: Run) -> list[str]:
    """Let the methods of a seed take turns."""
    return taking_turns(run.settings.turn)(run)


EXPERIMENT = Experiment(
    "race",
    TITLE,
    settings_with(Settings, (*METHODS, KFAC)),
    METHODS,
    prepare,
    first_look=("kncg", "nesterov", "adam"),
    story=Story(TITLE, VIEW, CLAIMS, rule=RULE),
    presets_file=Path(__file__).with_name("presets.toml"),
    drive=drive,
)
