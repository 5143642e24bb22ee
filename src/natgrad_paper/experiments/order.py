"""Figure 2: how much a trained model depends on the examples of single stretches of its stream.

The protocol and its report are in `natgrad_paper.order`.
"""

from natgrad_paper.experiment import Experiment
from natgrad_paper.order.config import Config
from natgrad_paper.order.learner import COMPETITORS
from natgrad_paper.order.study import Study, prepare

EXPERIMENT = Experiment(
    "order", "Figure 2: the order of the training examples", Config, COMPETITORS, prepare, ("sgd", "ngd"),
    study=Study(), option="--source",
)  # fmt: skip
