"""The autoencoders on which the field reports Hessian-Free, K-FAC and momentum: the methods of Curves on other data.

MNIST, from a directory with its idx files: 784-1000-500-250-30 and back, Bernoulli outputs. Faces, from a file in the
format of `TFD_48x48.mat`, at half its resolution: 576-2000-1000-500-30 and back with the preset `faces`, Gaussian
outputs.
"""

from pathlib import Path

from natgrad_paper.figures.autoencoder.problem import Settings, prepare
from natgrad_paper.figures.base import Experiment, settings_with
from natgrad_paper.figures.curves.claims import GROUPS
from natgrad_paper.figures.curves.methods import METHODS
from natgrad_paper.report.story import Story

TITLE = "Autoencoders of MNIST and of faces"
SETTINGS = settings_with(Settings, METHODS)
PRESETS = Path(__file__).with_name("presets.toml")

EXPERIMENT = Experiment(
    "autoencoder",
    TITLE,
    SETTINGS,
    METHODS,
    prepare,
    first_look=("sgd", "ngd", "ngd-l", "kncg"),
    story=Story(
        TITLE,
        groups=GROUPS,
        departures=(
            "The paper has no such experiment; its methods have the constants of Curves, not tuned here.",
        ),
    ),
    presets_file=PRESETS,
)
