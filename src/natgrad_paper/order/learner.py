"""The network of figure 2 and its two trainings, each compiled once for all seeds, rates and courses."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad.solve import CG, MinresQLP
from natgrad_paper.data.glyphs import CLASSES
from natgrad_paper.experiment import Tree
from natgrad_paper.models import Layers
from natgrad_paper.order.config import Config, Ngd

Trained = tuple[Tree, Tree]
"""Parameters and optimizer state."""
CHUNK = 1000
"""Examples evaluated at a time."""


@dataclass(frozen=True)
class Classifier:
    """A layer of tanh units, and logits of the 62 classes: the softmax belongs to the likelihood."""

    inputs: int
    hidden: int

    def __call__(self, params: Layers, inputs: Array) -> Array:
        """Return the logits, one row per input."""
        first, second = params
        return jnp.tanh(inputs @ first["weights"] + first["biases"]) @ second["weights"] + second["biases"]

    def init(self, seed: int) -> Layers:
        """Return uniform initial weights within ±√(6 / (fan in + fan out)), float32 (Glorot and Bengio 2010)."""
        generator = np.random.default_rng([seed, 0x0DE4])
        layers = []
        for fan_in, fan_out in pairwise((self.inputs, self.hidden, CLASSES)):
            reach = np.sqrt(6 / (fan_in + fan_out))
            weights = generator.uniform(-reach, reach, (fan_in, fan_out)).astype(np.float32)
            layers.append({"weights": jnp.asarray(weights), "biases": jnp.zeros(fan_out, jnp.float32)})
        return layers


@dataclass(frozen=True)
class Competitor:
    """One of the two methods: how it is named, drawn and built."""

    name: str
    label: str
    color: str
    optimizer: Callable[[Classifier, Config], ng.Optimizer]
    rate: Callable[[Config], float]
    """The rate it starts from."""
    about: str = ""


def sgd(model: Classifier, config: Config) -> ng.Optimizer:
    """Return stochastic gradient descent."""
    return ng.sgd(model, ng.Categorical(), learning_rate=config.sgd.rate)


def ngd(model: Classifier, config: Config) -> ng.Optimizer:
    """Return natural gradient descent with constant damping."""
    return ng.natural_gradient(
        model,
        ng.Categorical(),
        learning_rate=config.ngd.rate,
        solver=solver(config.ngd),
        damping=ng.Constant(config.ngd.damping),
    )


def solver(numbers: Ngd) -> CG | MinresQLP:
    """Return the solver the config names."""
    kind = {"cg": CG, "minres-qlp": MinresQLP}[numbers.solver]
    return kind(maxiter=numbers.maxiter, rtol=numbers.rtol)


COMPETITORS = (
    Competitor(
        "sgd", "SGD", "#D55E00", sgd, lambda c: c.sgd.rate, "minibatches, constant rate, no momentum"
    ),
    Competitor(
        "ngd", "NGD", "#0072B2", ngd, lambda c: c.ngd.rate,
        "the metric on the gradient's own batch, constant rate and damping",
    ),
)  # fmt: skip


class Learner:
    """A method on the network of a config: where it starts, how it goes on, and how it is judged."""

    def __init__(self, competitor: Competitor, config: Config) -> None:
        self.competitor = competitor
        self.model = Classifier(config.stream.side**2, config.model.hidden)
        self.optimizer = competitor.optimizer(self.model, config)

    def start(self, seed: int) -> Trained:
        """Return a seed's parameters, the same for every method, and the optimizer's state."""
        params = self.model.init(seed)
        return params, self.optimizer.init(params)

    def advance(self, trained: Trained, inputs: Array, labels: Array, rate: Array) -> tuple[Trained, Array]:
        """Return what is trained after the updates of a block, and of each `ACCEPTED` or why it was refused."""
        return _advance(self.optimizer, trained, inputs, labels, rate)

    def compile(self, config: Config) -> None:
        """Compile the training, so that no clock sees it happen."""
        stream = config.stream
        inputs = jnp.zeros((stream.block, stream.batch, stream.side**2), jnp.float32)
        labels = jnp.zeros((stream.block, stream.batch), jnp.int32)
        jax.block_until_ready(self.advance(self.start(0), inputs, labels, jnp.float32(0)))

    def logits(self, params: Layers, inputs: Array) -> Array:
        """Return the logits, in chunks, so that memory does not follow the number of examples."""
        return _logits(self.model, params, inputs)

    def error(self, params: Layers, examples: tuple[Array, Array]) -> float:
        """Return the share of examples put into a wrong class, to six digits: exact in a log."""
        inputs, labels = examples
        wrong = np.argmax(np.asarray(self.logits(params, inputs)), axis=-1) != np.asarray(labels)
        return round(float(wrong.mean()), 6)


# Compiled once for all learners that are equal: optimizer and model are static.
@partial(jax.jit, static_argnums=0)
def _advance(
    optimizer: ng.Optimizer, trained: Trained, inputs: Array, labels: Array, rate: Array
) -> tuple[Trained, Array]:
    def one(carry: Trained, batch: tuple[Array, Array]) -> tuple[Trained, Array]:
        params, state, info = optimizer.step(*carry, batch, learning_rate=rate)
        # A step that was taken is no idle one here, however small: figure 2 asks for rates that tend to 0.
        return (params, state), jnp.where(info.accepted, ng.Outcome.ACCEPTED, info.outcome)

    return jax.lax.scan(one, trained, (inputs, labels))


@partial(jax.jit, static_argnums=0)
def _logits(model: Classifier, params: Layers, inputs: Array) -> Array:
    return jax.lax.map(lambda row: model(params, row[None])[0], inputs, batch_size=CHUNK)
