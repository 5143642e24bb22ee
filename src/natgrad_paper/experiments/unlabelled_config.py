"""The numbers of figure 1: what the presets fill and the command line can change."""

from dataclasses import dataclass
from typing import Annotated

from natgrad_paper.config import Count, Rule, Unfit
from natgrad_paper.config import Whole as WholeNumber
from natgrad_paper.data.faces_file import FOLDS
from natgrad_paper.data.labelled import FACE_SIDE
from natgrad_paper.experiments.curves_config import Natural


@dataclass(frozen=True)
class Data:
    """How many faces are drawn, or at most taken from a file, and what they look like to the network."""

    train: Count
    valid: Count
    test: Count
    unlabelled: Count
    fold: Annotated[int, Rule(f"a whole number from 1 to {FOLDS}", lambda n: 1 <= n <= FOLDS)] = 4
    """Of a file's five; the paper's. Drawn faces have none."""
    shrink: Annotated[
        int,
        Rule(
            f"a whole number that divides {FACE_SIDE}", lambda n: 1 <= n <= FACE_SIDE and FACE_SIDE % n == 0
        ),
    ] = 1
    """After the normalisation, squares of so many pixels a side become one, their mean."""
    shown: WholeNumber = 4
    """Faces of each expression shown in the report: 0 for pictures that must not be passed on."""
    seed: WholeNumber = 0
    """The seed that draws the faces (not the seed of a run)."""


@dataclass(frozen=True)
class Model:
    """The network: convolution, pooling, a dense layer; the seven outputs are the data's."""

    filters: Count
    window: Count
    """Side of the filters, in pixels."""
    pool: Count
    """Side of the pooling windows, which do not overlap."""
    units: Count


@dataclass(frozen=True, kw_only=True)
class Config(Natural):
    """All of the experiment's numbers; those of the method are named as in Curves."""

    data: Data
    model: Model
    held_out: WholeNumber = FACE_SIDE * 8
    """Validation inputs on which the KL of logged steps is measured; 0 to save the time."""
    microbatch: Count | None = None
    """Cases of a step at a time, where memory is short."""
    evaluation_chunk: Count = 200
    """Cases evaluated at a time."""

    def __post_init__(self) -> None:
        side = FACE_SIDE // self.data.shrink
        if self.model.window + self.model.pool - 1 > side:
            raise Unfit("model.window", f"with the pooling at most the pictures' {side}", self.model.window)
        others = self.data.train - self.ngd.batch
        if max(self.ngd.metric_batch, self.ngd.batch) > others:
            raise Unfit("ngd.batch", "at most what leaves enough other cases for the metric", self.ngd.batch)
        if max(self.ngd.metric_batch, self.ngd.batch) > self.data.unlabelled:
            raise Unfit("data.unlabelled", "enough for the metric", self.data.unlabelled)
