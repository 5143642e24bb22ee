"""Figure 1: unlabelled data in the metric. A convolutional net learns expressions from faces.

The gradient sees a minibatch of labelled faces. The conditions differ in where the metric is measured: on the same
faces, on other faces of the training set, or on faces without labels, which the metric does not need.
"""

from natgrad_paper.figures.base import figure
from natgrad_paper.figures.unlabelled.claims import CLAIMS, GROUPS, VIEW, dampings, differences
from natgrad_paper.figures.unlabelled.methods import METHODS
from natgrad_paper.figures.unlabelled.problem import Settings, prepare
from natgrad_paper.report.story import Story

STORY = Story(
    "Figure 1: unlabelled data in the metric",
    VIEW,
    CLAIMS,
    GROUPS,
    departures=(
        "Without --data the faces are drawn by a generator: the Toronto Face Database cannot be downloaded.",
        "Pooling follows the convolution, as in the paper’s published code; the paper does not mention it.",
        "The training error that is judged is the cost: a count of mistakes can be zero.",
    ),
    sections=lambda runs: differences(runs) + dampings(runs),
)
EXPERIMENT = figure(
    "unlabelled", STORY, Settings, METHODS, prepare, ("same", "other", "unlabelled"),
    "data.train data.unlabelled data.shrink model.filters model.window model.units solver.name damping ngd.batch "
    "ngd.metric_batch ngd.rate ngd.maxiter",
)  # fmt: skip
